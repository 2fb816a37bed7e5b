//! The thread that writes events to the ring, so that a slow disk delays nothing else.

use std::{thread, time::Instant};

use cluster_audit::{Ring, RingView};
use process::LogLimiter;
use tokio::sync::{mpsc, oneshot};

use super::{LOG_PERIOD, metrics::AuditMetrics};

/// The most batches that wait for the disk.
const QUEUE: usize = 16;

/// Lines with their number.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) lines: Vec<u8>,
    pub(super) events: u64,
}

/// The thread. It ends when all senders of its queue are dropped.
#[derive(Debug)]
pub(super) struct RingWriter {
    view: RingView,
    finished: oneshot::Receiver<()>,
}

impl RingWriter {
    /// Starts the thread. Returns its queue as well.
    ///
    /// # Panics
    ///
    /// If the system cannot start a thread.
    pub(super) fn start(ring: Ring, metrics: AuditMetrics) -> (Self, mpsc::Sender<Batch>) {
        let view = ring.view();
        let (queue, batches) = mpsc::channel(QUEUE);
        let (ended, finished) = oneshot::channel();
        let writing = move || {
            write(ring, batches, &metrics);
            // Nobody waits for the end of a process that was cut.
            let _ = ended.send(());
        };
        thread::Builder::new()
            .name("audit".to_owned())
            .spawn(writing)
            .expect("the system can start a thread");
        (Self { view, finished }, queue)
    }

    pub(super) fn view(&self) -> RingView {
        self.view.clone()
    }

    /// Waits until all batches are written and all senders are dropped.
    pub(super) async fn finished(self) {
        let _ = self.finished.await;
    }
}

fn write(mut ring: Ring, mut batches: mpsc::Receiver<Batch>, metrics: &AuditMetrics) {
    let failures = LogLimiter::new(LOG_PERIOD);
    while let Some(Batch { lines, events }) = batches.blocking_recv() {
        match ring.append(&lines) {
            Ok(appended) => {
                metrics.count_events("kept", events);
                metrics.overwritten.inc_by(appended.overwritten);
            }
            Err(error) => {
                metrics.count_events("write-failed", events);
                if let Some(suppressed) = failures.admit((), Instant::now()) {
                    tracing::error!(%error, suppressed, "audit events were dropped: --audit-directory cannot be written");
                }
            }
        }
    }
}
