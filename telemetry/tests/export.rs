//! How spans reach a collector, and what happens where they cannot.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{convert::Infallible, fs, net::SocketAddr, path::Path, sync::Arc, time::Duration};

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
use telemetry::{Collector, Counts, Exporter, Program, SampleRatio, Settings, Trace, Tracer};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle, time::Instant};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// What a collector answers to one message.
type Answers = Arc<Mutex<Vec<(StatusCode, ExportTraceServiceResponse)>>>;

/// A collector on loopback.
struct Receiver {
    address: SocketAddr,
    /// Taken from the end; good ones when there are none left.
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

/// A program that makes spans.
struct Traced {
    tracer: Tracer,
    counts: Counts,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Traced {
    fn start(collector: Collector) -> Self {
        let (tracer, exporter) = build(collector);
        let (counts, stop) = (exporter.counts().clone(), CancellationToken::new());
        let running = tokio::spawn(exporter.run(stop.clone()));
        Self { tracer, counts, stop, running }
    }

    async fn stop(self) -> (f64, f64, f64) {
        self.stop.cancel();
        self.running.await.unwrap();
        counted(&self.counts)
    }
}

fn build(collector: Collector) -> (Tracer, Exporter) {
    let program = Program { name: "test", version: "1", instance: "1".into() };
    Settings { collector, ratio: SampleRatio::ALL }.build(&program)
}

fn collector(url: &str, authority: Option<&Path>) -> Collector {
    Collector::new(url.parse().unwrap(), authority.map(Path::to_owned)).unwrap()
}

fn one_span(tracer: &Tracer) {
    let request = Request::get("/path?query").body(()).unwrap();
    Trace::begin(Some(tracer), &request, false).answered(StatusCode::OK, None);
}

/// Exported, dropped, failed.
fn counted(counts: &Counts) -> (f64, f64, f64) {
    let mut registry = Registry::default();
    counts.register(&mut registry, "test");
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
async fn spans_go_to_a_collector_over_tls_with_a_token() {
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

    for (secret, header, said) in
        [("secret\n", "authorization", "Bearer secret"), ("glpat-secret", "private-token", "glpat-secret")]
    {
        fs::write(&token, secret).unwrap();
        let traced = Traced::start(collector(&url, Some(&authority)).with_token(token.clone()).unwrap());
        one_span(&traced.tracer);
        let (headers, message) = receiver.messages.recv().await.unwrap();
        assert_eq!((headers[header].to_str().unwrap(), spans(&message)), (said, 1));
        assert_eq!(traced.stop().await, (1.0, 0.0, 0.0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_is_busy_is_asked_again() {
    let mut receiver = Receiver::start(None).await;
    let busy = (StatusCode::SERVICE_UNAVAILABLE, ExportTraceServiceResponse::default());
    *receiver.answers.lock() = vec![busy.clone(), busy];
    let traced = Traced::start(collector(&receiver.url(), None));
    one_span(&traced.tracer);
    for _ in 0..3 {
        assert_eq!(spans(&receiver.messages.recv().await.unwrap().1), 1);
    }
    assert_eq!(traced.stop().await, (1.0, 0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn what_a_collector_does_not_want_is_not_sent_twice() {
    let mut receiver = Receiver::start(None).await;
    let rejected = ExportTracePartialSuccess { rejected_spans: 1, error_message: "no".into() };
    let partial = ExportTraceServiceResponse { partial_success: Some(rejected) };
    *receiver.answers.lock() =
        vec![(StatusCode::OK, partial), (StatusCode::BAD_REQUEST, ExportTraceServiceResponse::default())];
    let traced = Traced::start(collector(&receiver.url(), None));
    one_span(&traced.tracer);
    receiver.messages.recv().await.unwrap();
    one_span(&traced.tracer);
    one_span(&traced.tracer);
    assert_eq!(spans(&receiver.messages.recv().await.unwrap().1), 2);
    assert_eq!(traced.stop().await, (1.0, 0.0, 2.0));
}

#[tokio::test(start_paused = true)]
async fn spans_that_nobody_takes_are_dropped_and_counted() {
    let (tracer, exporter) = build(collector("http://127.0.0.1:1", None));
    for _ in 0..3000 {
        one_span(&tracer);
    }
    assert_eq!(counted(exporter.counts()), (0.0, 952.0, 0.0), "2048 wait");
}

#[tokio::test(start_paused = true)]
async fn stopping_takes_no_longer_than_five_seconds() {
    // Takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let traced = Traced::start(collector(&format!("http://{}", silent.local_addr().unwrap()), None));
    one_span(&traced.tracer);
    let _connection = silent.accept().await.unwrap();
    let asked = Instant::now();
    traced.stop().await;
    assert_eq!(asked.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_last_spans_are_sent_before_the_end() {
    let mut receiver = Receiver::start(None).await;
    let traced = Traced::start(collector(&receiver.url(), None));
    for _ in 0..1000 {
        one_span(&traced.tracer);
    }
    assert_eq!(traced.stop().await, (1000.0, 0.0, 0.0));
    assert_eq!(spans(&receiver.messages.recv().await.unwrap().1), 512);
    assert_eq!(spans(&receiver.messages.recv().await.unwrap().1), 488);
    assert!(tokio::time::timeout(Duration::from_secs(1), receiver.messages.recv()).await.is_err());
}
