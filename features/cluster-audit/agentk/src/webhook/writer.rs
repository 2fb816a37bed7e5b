//! The thread that writes events to the ring, so that a slow disk delays nothing else.

use std::{sync::Arc, thread, time::Instant};

use cluster_audit::{Ring, RingView};
use process::LogLimiter;
use tokio::sync::{mpsc, oneshot};

use super::{LOG_PERIOD, metrics::AuditMetrics};
use crate::health::AuditHealth;

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
    pub(super) fn start(
        ring: Ring,
        metrics: AuditMetrics,
        health: Arc<AuditHealth>,
    ) -> (Self, mpsc::Sender<Batch>) {
        let view = ring.view();
        let (queue, batches) = mpsc::channel(QUEUE);
        let (ended, finished) = oneshot::channel();
        let writing = move || {
            write(ring, batches, &metrics, &health);
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

fn write(mut ring: Ring, mut batches: mpsc::Receiver<Batch>, metrics: &AuditMetrics, health: &AuditHealth) {
    let log_limit = LogLimiter::new(LOG_PERIOD);
    let view = ring.view();
    while let Some(Batch { lines, events }) = batches.blocking_recv() {
        match ring.append(&lines) {
            Ok(appended) => {
                metrics.count_events("kept", events);
                metrics.overwritten.inc_by(appended.overwritten);
                health.set_written(appended.full_at, view.bytes());
                if let Some(bytes) = appended.full_at
                    && let Some(suppressed) = log_limit.admit("full", Instant::now())
                {
                    tracing::error!(
                        bytes,
                        suppressed,
                        "the oldest audit events were removed: the disk of --audit-directory is full below --audit-max-bytes"
                    );
                }
            }
            Err(error) => {
                metrics.count_events("write-failed", events);
                health.set_failed(error.to_string());
                if let Some(suppressed) = log_limit.admit("failed", Instant::now()) {
                    tracing::error!(%error, suppressed, "audit events were dropped: --audit-directory cannot be written");
                }
            }
        }
    }
}
