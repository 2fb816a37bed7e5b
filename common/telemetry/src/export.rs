//! The exporter of spans: `opentelemetry-otlp` behind the batch processor of the SDK, both with counters.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_otlp::{Protocol, RetryPolicy, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter,
        SpanProcessor,
    },
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::client::CollectorClient;

/// Most spans that are queued or being sent. A span takes one to four KiB.
const QUEUE_MAX: usize = 2048;
/// Most spans in one message.
const BATCH_MAX: usize = 512;
/// Time that a span waits for others in the same message.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Time after which a batch is not sent again. All four attempts with their delays fit into it; the client limits each.
const RETRY_BUDGET: Duration = Duration::from_secs(60);
/// Time to send the queued spans when the program stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Counters of ended spans.
#[derive(Clone, Debug)]
pub struct SpanMetrics {
    spans: Family<ExportResultLabel, Counter>,
    exported: Counter,
    dropped: Counter,
    failed: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExportResultLabel {
    result: &'static str,
}

/// Sends spans to a collector while it runs.
#[derive(Debug)]
pub struct Exporter {
    pub(crate) provider: SdkTracerProvider,
    pub(crate) client: CollectorClient,
    pub(crate) metrics: SpanMetrics,
}

/// The SDK's batch processor behind a limit that counts the spans above it.
///
/// [`BatchSpanProcessor`] drops spans when its queue is full, but only logs it.
#[derive(Debug)]
pub(crate) struct BoundedProcessor {
    batches: BatchSpanProcessor,
    pending: Arc<AtomicUsize>,
    metrics: SpanMetrics,
}

/// The OTLP exporter, with its results counted.
#[derive(Debug)]
struct CountedExporter {
    otlp: opentelemetry_otlp::SpanExporter,
    client: CollectorClient,
    pending: Arc<AtomicUsize>,
    metrics: SpanMetrics,
}

impl Default for SpanMetrics {
    fn default() -> Self {
        let spans = Family::<ExportResultLabel, Counter>::default();
        let [exported, dropped, failed] = ["exported", "dropped", "failed"]
            .map(|result| spans.get_or_create_owned(&ExportResultLabel { result }));
        Self { spans, exported, dropped, failed }
    }
}

impl SpanMetrics {
    /// Registers `<program>_spans_total{result="exported|dropped|failed"}`.
    pub fn register(&self, registry: &mut Registry, program: &str) {
        let help = "Ended spans: exported to the collector, dropped because the queue was full, or failed to be exported";
        registry.register(format!("{program}_spans"), help, self.spans.clone());
    }
}

impl Exporter {
    /// Returns the counters.
    pub fn metrics(&self) -> &SpanMetrics {
        &self.metrics
    }

    /// Runs until `stop`, and then until the queued spans are sent, for at most 5 s.
    ///
    /// The connections run on the current tokio runtime. Before the first poll, spans are only queued.
    pub async fn run(self, stop: CancellationToken) {
        self.client.start();
        stop.cancelled().await;
        // The shutdown blocks, and its last batch needs this runtime.
        let flushed = spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH_TIMEOUT)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the last spans were not sent: the collector did not answer in time");
        }
    }
}

impl BoundedProcessor {
    pub(crate) fn new(client: CollectorClient, metrics: SpanMetrics) -> Self {
        let pending = Arc::default();
        // Every option is set, because the builders take the others from the environment.
        let otlp = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(client.collector().endpoint().to_string())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(RETRY_BUDGET)
            .with_retry_policy(
                RetryPolicy::recommended()
                    .with_initial_delay(Duration::from_secs(1))
                    .with_max_delay(Duration::from_secs(4)),
            )
            .with_http_client(client.clone())
            .build()
            .expect("the endpoint is a URL and the client is set");
        let exporter =
            CountedExporter { otlp, client, pending: Arc::clone(&pending), metrics: metrics.clone() };
        let batches = BatchSpanProcessor::builder(exporter)
            .with_batch_config(
                BatchConfigBuilder::default()
                    .with_max_queue_size(QUEUE_MAX)
                    .with_max_export_batch_size(BATCH_MAX)
                    .with_scheduled_delay(BATCH_DELAY)
                    .build(),
            )
            .build();
        Self { batches, pending, metrics }
    }
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let reserve = |pending| (pending < QUEUE_MAX).then_some(pending + 1);
        match self.pending.fetch_update(Relaxed, Relaxed, reserve) {
            Ok(_) => self.batches.on_end(span),
            Err(_) => _ = self.metrics.dropped.inc(),
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

impl SpanExporter for CountedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let size = batch.len();
        let result = self.otlp.export(batch).await;
        let spans = size as u64;
        let failed = match result {
            Ok(()) => self.client.take_rejected().min(spans),
            Err(_) => spans,
        };
        self.metrics.failed.inc_by(failed);
        self.metrics.exported.inc_by(spans - failed);
        self.pending.fetch_sub(size, Relaxed);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}
