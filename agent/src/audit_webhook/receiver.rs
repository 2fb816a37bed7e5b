//! Reads the events of a request while it arrives, and queues them for the ring.

use std::{
    fmt::Display,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cluster_audit::{EventScanner, ScanError, Scanned, Skipped, append_line, parse};
use http_body_util::BodyExt as _;
use tokio::sync::{Semaphore, mpsc};

use super::{metrics::AuditMetrics, writer::Batch};

/// The bytes of lines that are queued together.
const BATCH: usize = 64 << 10;
/// The most requests that are read at the same time. Others wait.
const MAX_READING: usize = 8;
/// The longest wait for the ring, whose disk may be slow. Later events are dropped.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads requests.
#[derive(Debug)]
pub(super) struct Receiver {
    queue: mpsc::Sender<Batch>,
    reading: Semaphore,
    metrics: AuditMetrics,
}

/// The error of a request that is none of an API server. The events before the error are kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error("the request ended too early: {0}")]
    Body(String),
}

impl Receiver {
    pub(super) fn new(queue: mpsc::Sender<Batch>, metrics: AuditMetrics) -> Self {
        Self { queue, reading: Semaphore::new(MAX_READING), metrics }
    }

    pub(super) fn metrics(&self) -> &AuditMetrics {
        &self.metrics
    }

    /// Reads the events of a request. Dropping the future loses the events that are not queued yet.
    pub(super) async fn receive<B>(&self, mut body: B) -> Result<(), ReceiveError>
    where
        B: http_body::Body<Data = Bytes, Error: Display> + Unpin,
    {
        let _permit = self.reading.acquire().await.expect("it is never closed");
        let (mut scanner, mut batch) = (EventScanner::default(), Batch::default());
        let now = SystemTime::now();
        let read = async {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| ReceiveError::Body(error.to_string()))?;
                let Some(data) = frame.data_ref() else { continue };
                for part in data.chunks(BATCH) {
                    scanner.feed(part, |scanned| self.add(scanned, &mut batch, now))?;
                    if batch.lines.len() >= BATCH {
                        self.send(std::mem::take(&mut batch)).await;
                    }
                }
            }
            Ok(scanner.finish()?)
        };
        let result = read.await;
        self.send(batch).await;
        result
    }

    fn add(&self, scanned: Scanned<'_>, batch: &mut Batch, now: SystemTime) {
        let Scanned::Event(json) = scanned else { return self.metrics.count_events("too-large", 1) };
        match parse(json, now) {
            Ok(event) if append_line(&event, &mut batch.lines) => batch.events += 1,
            Ok(_) => self.metrics.count_events("too-large", 1),
            Err(Skipped::Received) => self.metrics.count_events("unanswered", 1),
            Err(Skipped::Malformed) => self.metrics.count_events("malformed", 1),
        }
    }

    async fn send(&self, batch: Batch) {
        let events = batch.events;
        if events > 0 && self.queue.send_timeout(batch, QUEUE_TIMEOUT).await.is_err() {
            self.metrics.count_events("queue-full", events);
        }
    }
}
