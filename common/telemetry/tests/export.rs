//! Export of spans to a collector that accepts them, refuses them, or does not answer.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{convert::Infallible, env, fs, net::SocketAddr, path::Path, process::Command, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use prost::Message as _;
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
};
use telemetry::{Collector, Exporter, Program, RequestSpan, SampleRatio, SpanMetrics, Tracer, TracerConfig};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Responses of a collector to single messages.
type Answers = Arc<Mutex<Vec<(StatusCode, ExportTraceServiceResponse)>>>;

/// A collector on loopback.
struct Receiver {
    address: SocketAddr,
    /// They are taken from the end. An empty list means success.
    answers: Answers,
    messages: mpsc::UnboundedReceiver<(HeaderMap, ExportTraceServiceRequest)>,
}

impl Receiver {
    async fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, answers) = (listener.local_addr().unwrap(), Answers::default());
        let (sender, messages) = mpsc::unbounded_channel();
        let given = Arc::clone(&answers);
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (sender, given, tls) = (sender.clone(), Arc::clone(&given), tls.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (sender, given) = (sender.clone(), Arc::clone(&given));
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        let message = ExportTraceServiceRequest::decode(body).unwrap();
                        let (status, answer) =
                            given.lock().pop().unwrap_or_else(|| (StatusCode::OK, Default::default()));
                        let _ = sender.send((head.headers, message));
                        let answer = Full::new(Bytes::from(answer.encode_to_vec()));
                        Ok::<_, Infallible>(Response::builder().status(status).body(answer).unwrap())
                    }
                });
                tokio::spawn(async move {
                    match tls {
                        None => {
                            http1::Builder::new().serve_connection(TokioIo::new(tcp), service).await.unwrap()
                        }
                        Some(tls) => {
                            let Ok(stream) = tls.accept(tcp).await else { return };
                            let _ =
                                http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                        }
                    }
                });
            }
        });
        Self { address, answers, messages }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Program whose spans are exported.
struct Traced {
    tracer: Tracer,
    metrics: SpanMetrics,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Traced {
    fn start(collector: Collector) -> Self {
        let (tracer, exporter) = build(collector);
        Self::run(tracer, exporter)
    }

    fn run(tracer: Tracer, exporter: Exporter) -> Self {
        let (metrics, stop) = (exporter.metrics().clone(), CancellationToken::new());
        let running = tokio::spawn(exporter.run(stop.clone()));
        Self { tracer, metrics, stop, running }
    }

    /// Sends the queued spans and returns the counters.
    async fn stop(self) -> (f64, f64, f64) {
        self.stop.cancel();
        self.running.await.unwrap();
        counters(&self.metrics)
    }
}

fn build(collector: Collector) -> (Tracer, Exporter) {
    let program = Program { name: "test", version: "1", instance: "1".into() };
    TracerConfig { collector, ratio: SampleRatio::ALL }.build(&program)
}

fn collector(url: &str, authority: Option<&Path>) -> Collector {
    Collector::new(url.parse().unwrap(), authority.map(Path::to_owned)).unwrap()
}

fn one_span(tracer: &Tracer) {
    let request = Request::get("/path?query").body(()).unwrap();
    RequestSpan::start(Some(tracer), "http", &request, false).set_response(StatusCode::OK, None);
}

/// Returns the numbers of exported, dropped and failed spans.
fn counters(metrics: &SpanMetrics) -> (f64, f64, f64) {
    let mut registry = Registry::default();
    metrics.register(&mut registry, "test");
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let value = |result| {
        let name = format!("test_spans_total{{result=\"{result}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    };
    (value("exported"), value("dropped"), value("failed"))
}

fn spans(message: &ExportTraceServiceRequest) -> usize {
    message.resource_spans.iter().flat_map(|all| &all.scope_spans).map(|scope| scope.spans.len()).sum()
}

#[tokio::test]
async fn tls_collector_receives_spans_and_token() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, token) = (directory.path().join("ca.crt"), directory.path().join("token"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&authority, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap();
    let server = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let mut receiver = Receiver::start(Some(TlsAcceptor::from(Arc::new(server)))).await;
    let url = format!("https://localhost:{}/here", receiver.address.port());

    for (secret, header, value) in
        [("secret\n", "authorization", "Bearer secret"), ("glpat-secret", "private-token", "glpat-secret")]
    {
        fs::write(&token, secret).unwrap();
        let traced = Traced::start(collector(&url, Some(&authority)).with_token(token.clone()).unwrap());
        one_span(&traced.tracer);
        assert_eq!(traced.stop().await, (1.0, 0.0, 0.0));
        let (headers, message) = receiver.messages.recv().await.unwrap();
        assert_eq!((headers[header].to_str().unwrap(), spans(&message)), (value, 1));
        assert_eq!(headers["content-type"], "application/x-protobuf");
        assert!(!headers.contains_key("x-environment"));
    }
}

/// The exporter's builder reads these variables, and merges the headers even over configured ones.
#[test]
fn exporter_variables_in_environment_have_no_effect() {
    let tests = [
        "tls_collector_receives_spans_and_token",
        "busy_collector_receives_batch_again",
        "full_queue_drops_and_counts_spans",
    ];
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=other,private-token=other,x-environment=1"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "content-type=other,authorization=other,x-environment=1"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
    ];
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.arg("--exact").args(tests).envs(variables).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("3 passed"), "{printed}");
}

#[tokio::test]
async fn busy_collector_receives_batch_again() {
    let mut receiver = Receiver::start(None).await;
    let busy = (StatusCode::SERVICE_UNAVAILABLE, ExportTraceServiceResponse::default());
    *receiver.answers.lock() = vec![busy];
    let traced = Traced::start(collector(&receiver.url(), None));
    one_span(&traced.tracer);
    assert_eq!(traced.stop().await, (1.0, 0.0, 0.0));
    for _ in 0..2 {
        assert_eq!(spans(&receiver.messages.try_recv().unwrap().1), 1);
    }
    assert!(receiver.messages.try_recv().is_err());
}

#[tokio::test]
async fn refused_spans_are_counted_and_not_sent_again() {
    let mut receiver = Receiver::start(None).await;
    let rejected = ExportTracePartialSuccess { rejected_spans: 1, error_message: "no".into() };
    let partial = ExportTraceServiceResponse { partial_success: Some(rejected) };
    for (answer, expected) in [
        ((StatusCode::OK, partial), (2.0, 0.0, 1.0)),
        ((StatusCode::BAD_REQUEST, ExportTraceServiceResponse::default()), (0.0, 0.0, 3.0)),
    ] {
        *receiver.answers.lock() = vec![answer];
        let traced = Traced::start(collector(&receiver.url(), None));
        for _ in 0..3 {
            one_span(&traced.tracer);
        }
        assert_eq!(traced.stop().await, expected);
        assert_eq!(spans(&receiver.messages.try_recv().unwrap().1), 3);
        assert!(receiver.messages.try_recv().is_err());
    }
}

#[tokio::test]
async fn full_queue_drops_and_counts_spans() {
    let receiver = Receiver::start(None).await;
    let (tracer, exporter) = build(collector(&receiver.url(), None));
    for _ in 0..3000 {
        one_span(&tracer);
    }
    assert_eq!(counters(exporter.metrics()), (0.0, 952.0, 0.0), "2048 are queued");
    assert_eq!(Traced::run(tracer, exporter).stop().await, (2048.0, 952.0, 0.0));
}

#[tokio::test]
async fn silent_collector_does_not_delay_the_stop_for_long() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let traced = Traced::start(collector(&format!("http://{}", silent.local_addr().unwrap()), None));
    one_span(&traced.tracer);
    let stopped = tokio::spawn(traced.stop());
    let _connection = silent.accept().await.unwrap();
    assert_eq!(stopped.await.unwrap(), (0.0, 0.0, 0.0), "the attempt has not ended");
}

#[tokio::test]
async fn queued_spans_are_sent_in_batches_before_the_end() {
    let mut receiver = Receiver::start(None).await;
    let traced = Traced::start(collector(&receiver.url(), None));
    for _ in 0..1000 {
        one_span(&traced.tracer);
    }
    assert_eq!(traced.stop().await, (1000.0, 0.0, 0.0));
    let mut sent = Vec::new();
    while let Ok((_, message)) = receiver.messages.try_recv() {
        sent.push(spans(&message));
    }
    assert_eq!(sent.iter().sum::<usize>(), 1000);
    assert!(sent.iter().all(|batch| *batch <= 512), "{sent:?}");
}
