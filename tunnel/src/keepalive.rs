//! Whether the other end still lives: asked only when nothing was heard from it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::SetOnce,
    time::{Instant, sleep, timeout},
};

use crate::http2::Pings;

/// When to ask, and how long to wait for the answer.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// Silence after which the other end is asked. A tunnel is never silent for more than twice this: load balancers
    /// that cut idle connections after 55 s or later see life.
    pub interval: Duration,
    /// How long the answer may take before the tunnel is given up.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(20), timeout: Duration::from_secs(10) }
    }
}

/// Shared by the WebSocket, which hears the other end, and the keepalive, which listens for silence.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    /// Counts reads that brought bytes.
    heard: AtomicU64,
    /// The WebSocket owes a ping with its next flush.
    ping: AtomicBool,
    /// Microseconds of the last round trip that was measured; 0 before the first.
    round_trip: AtomicU64,
    /// Set by the first answer.
    answered: SetOnce<()>,
}

impl Liveness {
    pub(crate) fn heard(&self) {
        self.heard.fetch_add(1, Relaxed);
    }

    pub(crate) fn take_ping(&self) -> bool {
        self.ping.load(Relaxed) && self.ping.swap(false, Relaxed)
    }

    /// Waits until the other end has answered for the first time.
    pub(crate) async fn answered(&self) {
        self.answered.wait().await;
    }

    pub(crate) fn round_trip(&self) -> Option<Duration> {
        match self.round_trip.load(Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }
}

impl Keepalive {
    /// Completes when the other end is given up. Must run beside the connection, which carries the pings.
    ///
    /// A ping is an HTTP/2 PING, answered by the other end's HTTP/2 and not by something on the way, together with a
    /// WebSocket ping for intermediaries that count only those as life.
    pub(crate) async fn watch(self, pings: Pings, liveness: Arc<Liveness>) {
        if !self.ask(&pings, &liveness).await {
            return;
        }
        loop {
            let before = liveness.heard.load(Relaxed);
            sleep(self.interval).await;
            if liveness.heard.load(Relaxed) != before {
                continue;
            }
            if !self.ask(&pings, &liveness).await {
                return;
            }
        }
    }

    /// False if nothing at all was heard within the timeout.
    async fn ask(self, pings: &Pings, liveness: &Liveness) -> bool {
        let before = liveness.heard.load(Relaxed);
        let asked = Instant::now();
        liveness.ping.store(true, Relaxed);
        pings.send();
        match timeout(self.timeout, pings.answered()).await {
            Ok(()) => {
                let micros = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
                liveness.round_trip.store(micros.max(1), Relaxed);
                // Fails if it was set before, which is as good.
                let _ = liveness.answered.set(());
                true
            }
            // A pong may be stuck behind bulk data; any byte is life too.
            Err(_) => liveness.heard.load(Relaxed) != before,
        }
    }
}
