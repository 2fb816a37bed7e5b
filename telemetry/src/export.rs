//! Sends spans on, in the background. It must never hurt: requests do not wait, and memory is bounded.

use std::time::Duration;

use bytes::Bytes;
use opentelemetry::Context;
use opentelemetry_proto::{
    tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    transform::{
        common::tonic::ResourceAttributesWithSchema, trace::tonic::group_spans_by_resource_and_scope,
    },
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanProcessor},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use prost::Message as _;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{Collector, client::Client, log_limit::LogLimit};

/// Spans that may wait. A span takes one to four KiB.
const QUEUE: usize = 2048;
/// Spans in one message.
const BATCH: usize = 512;
/// How long a span may wait for others to be sent with it.
const GATHER: Duration = Duration::from_secs(1);
/// Before what failed is tried again; meanwhile the queue fills.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// For what is left when the program stops.
const FLUSH: Duration = Duration::from_secs(5);
/// How often a collector that is away is worth a line.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// What became of spans that ended.
#[derive(Clone, Debug)]
pub struct Counts {
    spans: Family<ResultLabel, Counter>,
    exported: Counter,
    dropped: Counter,
    failed: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Sends spans to a collector while it runs.
#[derive(Debug)]
pub struct Exporter {
    client: Client,
    resource: ResourceAttributesWithSchema,
    ended: mpsc::Receiver<SpanData>,
    counts: Counts,
    failures: LogLimit<()>,
}

/// Where spans end.
#[derive(Debug)]
pub(crate) struct Queue {
    sender: mpsc::Sender<SpanData>,
    counts: Counts,
}

impl Default for Counts {
    fn default() -> Self {
        let spans = Family::<ResultLabel, Counter>::default();
        let [exported, dropped, failed] = ["exported", "dropped", "failed"]
            .map(|result| spans.get_or_create_owned(&ResultLabel { result }));
        Self { spans, exported, dropped, failed }
    }
}

impl Counts {
    /// As `<program>_spans_total{result="exported|dropped|failed"}`.
    pub fn register(&self, registry: &mut Registry, program: &str) {
        let help =
            "Ended spans: sent to the collector, dropped for want of room in the queue, or not taken by it";
        registry.register(format!("{program}_spans"), help, self.spans.clone());
    }
}

impl Exporter {
    pub(crate) fn new(collector: Collector, resource: &Resource) -> (Self, Queue) {
        let (sender, ended) = mpsc::channel(QUEUE);
        let counts = Counts::default();
        let queue = Queue { sender, counts: counts.clone() };
        let (client, failures) = (Client::new(collector), LogLimit::new(LOG_PERIOD));
        (Self { client, resource: resource.into(), ended, counts, failures }, queue)
    }

    /// What is counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Runs until `stop`, and then until what has ended before is sent, or 5 s have passed.
    pub async fn run(mut self, stop: CancellationToken) {
        let patience = async {
            stop.cancelled().await;
            sleep(FLUSH).await;
        };
        tokio::select! {
            () = self.work(&stop) => {}
            () = patience => tracing::warn!("the last spans were not sent: the collector does not answer in time"),
        }
    }

    async fn work(&mut self, stop: &CancellationToken) {
        loop {
            let batch = self.gather(stop).await;
            if batch.is_empty() {
                return;
            }
            self.export(batch).await;
        }
    }

    /// Some spans, and those that end soon after. None once all is done.
    async fn gather(&mut self, stop: &CancellationToken) -> Vec<SpanData> {
        let mut batch = Vec::new();
        if stop.run_until_cancelled(self.ended.recv_many(&mut batch, BATCH)).await.is_none() {
            self.ended.close();
            self.ended.recv_many(&mut batch, BATCH).await;
            return batch;
        }

        let deadline = Instant::now() + GATHER;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            let more = stop.run_until_cancelled(self.ended.recv_many(&mut batch, room));
            if !matches!(timeout_at(deadline, more).await, Ok(Some(1..))) {
                break;
            }
        }
        batch
    }

    async fn export(&mut self, batch: Vec<SpanData>) {
        let spans = batch.len() as u64;
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let message = Bytes::from(ExportTraceServiceRequest { resource_spans }.encode_to_vec());
        let mut pauses = PAUSES.into_iter();
        loop {
            let error = match self.client.send(message.clone()).await {
                Ok(answer) => return self.sent(spans, &answer),
                Err(error) => error,
            };
            let pause = pauses.next().filter(|_| error.may_pass());
            self.report(&error.to_string());
            let Some(pause) = pause else { break };
            sleep(pause).await;
        }
        self.counts.failed.inc_by(spans);
    }

    /// The collector answered: it may still have refused some.
    fn sent(&self, spans: u64, answer: &[u8]) {
        let partial =
            ExportTraceServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
        let partial = partial.unwrap_or_default();
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0).min(spans);
        self.counts.exported.inc_by(spans - rejected);
        self.counts.failed.inc_by(rejected);
        if rejected > 0 {
            let why: String = partial.error_message.chars().filter(|c| !c.is_control()).take(200).collect();
            self.report(&format!("it rejected {rejected} of {spans}: {why}"));
        }
    }

    fn report(&self, what: &str) {
        if let Some(suppressed) = self.failures.admit((), std::time::Instant::now()) {
            let collector = self.client.collector().endpoint();
            tracing::warn!(%collector, what, suppressed, "spans were not taken by the collector");
        }
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.sender.try_send(span).is_err() {
            self.counts.dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
