//! Reads the events of a request while it arrives, and queues them for the ring.

use std::{
    collections::HashMap,
    fmt::Display,
    net::IpAddr,
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cluster_audit::{EventScanner, ScanError, Scanned, Skipped, append_line, parse};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc},
    time::timeout,
};

use super::{metrics::AuditMetrics, repeated::RecentEvents, writer::Batch};

/// The bytes of lines that are queued together.
const BATCH: usize = 64 << 10;
/// The most requests that are read at the same time, and those of one API server. Others wait.
const MAX_READING: usize = 8;
const MAX_READING_OF_ADDRESS: usize = 4;
/// The time for the body of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for the ring, whose disk may be slow. Later events are dropped.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads requests.
#[derive(Debug)]
pub(super) struct Receiver {
    queue: mpsc::Sender<Batch>,
    reading: Semaphore,
    /// The permits of each API server with a request.
    addresses: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    metrics: AuditMetrics,
    recent: RecentEvents,
}

/// The events of a request that are not queued yet. Those of a request that is dropped are lost, unless the API server repeats it.
struct UnqueuedBatch<'a> {
    receiver: &'a Receiver,
    batch: Batch,
    hashes: Vec<u64>,
}

/// The error of a request that is none of an API server. The events before the error are kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error("the request ended too early: {0}")]
    Body(String),
    #[error("the events did not arrive in time")]
    Timeout,
}

impl Receiver {
    pub(super) fn new(queue: mpsc::Sender<Batch>, metrics: AuditMetrics) -> Self {
        let (reading, recent) = (Semaphore::new(MAX_READING), RecentEvents::default());
        Self { queue, reading, addresses: Mutex::default(), metrics, recent }
    }

    pub(super) fn metrics(&self) -> &AuditMetrics {
        &self.metrics
    }

    /// Reads the events of a request. Those before an error are kept. Dropping the future loses the events that are not queued yet.
    pub(super) async fn receive<B>(&self, address: IpAddr, mut body: B) -> Result<(), ReceiveError>
    where
        B: http_body::Body<Data = Bytes, Error: Display> + Unpin,
    {
        let _permits = self.acquire(address).await;
        let mut scanner = EventScanner::default();
        let mut batch = UnqueuedBatch { receiver: self, batch: Batch::default(), hashes: Vec::new() };
        let now = SystemTime::now();
        let read = async {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| ReceiveError::Body(error.to_string()))?;
                let Some(data) = frame.data_ref() else { continue };
                for part in data.chunks(BATCH) {
                    scanner.feed(part, |scanned| batch.add(scanned, now))?;
                    if batch.batch.lines.len() >= BATCH {
                        batch.send().await;
                    }
                }
            }
            Ok(scanner.finish()?)
        };
        let result = timeout(READ_TIMEOUT, read).await.unwrap_or(Err(ReceiveError::Timeout));
        batch.send().await;
        result
    }
}

impl Receiver {
    /// Waits for a permit of the API server, and then for one that all share. In this order, the requests of one leave permits to others.
    async fn acquire(&self, address: IpAddr) -> (OwnedSemaphorePermit, SemaphorePermit<'_>) {
        let of_address = {
            let mut all = self.addresses.lock();
            all.retain(|_, permits| permits.strong_count() > 0);
            let permits = all.get(&address).and_then(Weak::upgrade);
            let permits = permits.unwrap_or_else(|| Arc::new(Semaphore::new(MAX_READING_OF_ADDRESS)));
            all.insert(address, Arc::downgrade(&permits));
            permits
        };
        let of_address = of_address.acquire_owned().await.expect("it is never closed");
        (of_address, self.reading.acquire().await.expect("it is never closed"))
    }
}

impl UnqueuedBatch<'_> {
    fn add(&mut self, scanned: Scanned<'_>, now: SystemTime) {
        let metrics = &self.receiver.metrics;
        let Scanned::Event { json, is_cut } = scanned else { return metrics.count_events("too-large", 1) };
        let mut event = match parse(json, now) {
            Ok(event) => event,
            Err(Skipped::Received) => return metrics.count_events("unanswered", 1),
            Err(Skipped::Malformed) => return metrics.count_events("malformed", 1),
        };
        event.cut |= is_cut;
        let Some(hash) = self.receiver.recent.insert(&event) else {
            return metrics.count_events("repeated", 1);
        };
        if append_line(&event, &mut self.batch.lines) {
            self.batch.events += 1;
            self.hashes.push(hash);
        } else {
            metrics.count_events("too-large", 1);
        }
    }

    /// Queues the events. If the queue stays full, they are dropped.
    async fn send(&mut self) {
        if self.batch.events == 0 {
            return;
        }
        match timeout(QUEUE_TIMEOUT, self.receiver.queue.reserve()).await {
            Ok(Ok(permit)) => {
                self.hashes.clear();
                permit.send(std::mem::take(&mut self.batch));
            }
            Ok(Err(_)) | Err(_) => self.discard("queue-full"),
        }
    }

    fn discard(&mut self, result: &'static str) {
        let Batch { events, .. } = std::mem::take(&mut self.batch);
        if events > 0 {
            self.receiver.metrics.count_events(result, events);
        }
        self.receiver.recent.remove(&self.hashes);
        self.hashes.clear();
    }
}

impl Drop for UnqueuedBatch<'_> {
    fn drop(&mut self) {
        if self.batch.events > 0 {
            self.discard("aborted");
        }
    }
}
