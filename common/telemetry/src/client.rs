//! HTTP client of the OTLP exporter: hyper over tokio-rustls, with the files of the [`Collector`].

use std::{
    fmt::Debug,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, Uri,
    header::{CONTENT_TYPE, USER_AGENT},
};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use opentelemetry_http::{HttpClient, HttpError, hyper::HyperClient};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use process::LogLimiter;
use prost::Message as _;
use proto::ErrorChain;
use tokio::{runtime::Handle, task::spawn_blocking};
use tower::{ServiceExt as _, service_fn};

use crate::Collector;

/// Limit of one attempt, from the name lookup to the end of the response. It is the default of OTLP exporters.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Period in which at most one failed attempt is logged.
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// Longest error message of the collector in the log, in characters.
const MESSAGE_MAX: usize = 200;

/// Sends the requests of the OTLP exporter. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct CollectorClient {
    collector: Collector,
    http: Arc<dyn HttpClient>,
    /// Runtime that drives the connections. The batch processor's own thread has none.
    runtime: Arc<OnceLock<Handle>>,
    rejected: Arc<AtomicU64>,
    failures: Arc<LogLimiter<()>>,
}

impl CollectorClient {
    pub(crate) fn new(collector: Collector) -> Self {
        let http = Arc::new(HyperClient::new(connector(collector.clone()), TIMEOUT, None));
        let (runtime, rejected) = Default::default();
        Self { collector, http, runtime, rejected, failures: Arc::new(LogLimiter::new(LOG_PERIOD)) }
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Runs the connections on the current tokio runtime. Requests wait until this is called.
    pub(crate) fn start(&self) {
        let _ = self.runtime.set(Handle::current());
    }

    /// Returns the number of spans that the collector has rejected since the last call.
    pub(crate) fn take_rejected(&self) -> u64 {
        self.rejected.swap(0, Relaxed)
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let result = self.try_send(request).await;
        match &result {
            Ok(response) if response.status().is_success() => self.handle_partial_success(response.body()),
            Ok(response) => self.log_failure(&format!("it answered {}", response.status())),
            Err(error) => self.log_failure(&ErrorChain(&**error).to_string()),
        }
        result
    }

    async fn try_send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let collector = self.collector.clone();
        let mut headers = spawn_blocking(move || collector.headers()).await??;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("kas-telemetry/", env!("CARGO_PKG_VERSION"))),
        );
        // The exporter merges OTEL_EXPORTER_OTLP_HEADERS into its headers, even over configured ones.
        *request.headers_mut() = headers;
        self.http.send_bytes(request).await
    }

    /// Counts rejected spans: the exporter reports a partial success as a success.
    fn handle_partial_success(&self, body: &Bytes) {
        let response = ExportTraceServiceResponse::decode(body.clone()).unwrap_or_default();
        let partial = response.partial_success.unwrap_or_default();
        let Ok(rejected @ 1..) = u64::try_from(partial.rejected_spans) else { return };
        self.rejected.fetch_add(rejected, Relaxed);
        let message: String =
            partial.error_message.chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect();
        self.log_failure(&format!("it rejected {rejected} spans: {message}"));
    }

    fn log_failure(&self, reason: &str) {
        if let Some(suppressed) = self.failures.admit((), Instant::now()) {
            let collector = self.collector.endpoint();
            tracing::warn!(%collector, reason, suppressed, "the collector did not accept spans");
        }
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.clone();
        // This blocks the thread of the batch processor, which has no other work.
        self.runtime.wait().spawn(async move { client.send(request).await }).await?
    }
}

/// Connects with the certificate authorities that the collector's file holds at that time.
fn connector(collector: Collector) -> impl Connect + Clone + Debug + Send + Sync + 'static {
    service_fn(move |uri: Uri| {
        let collector = collector.clone();
        Box::pin(async move {
            let mut http = HttpConnector::new();
            http.enforce_http(false);
            match spawn_blocking(move || collector.tls()).await?? {
                Some(tls) => HttpsConnector::from((http, tls)).oneshot(uri).await,
                None => Ok(MaybeHttpsStream::Http(http.oneshot(uri).await?)),
            }
        })
    })
}
