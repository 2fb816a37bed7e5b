//! Whether the other end is still there: a ping is sent only when nothing was received from it.

use std::{
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::{
    sync::SetOnce,
    time::{Instant, sleep, timeout},
};

/// When a ping is sent, and how long its answer may take.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// Silence after which a ping is sent. A tunnel is never silent for more than twice this time, so load balancers that
    /// cut idle connections after 55 s or later see traffic.
    pub interval: Duration,
    /// How long the answer may take before the tunnel is closed.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(20), timeout: Duration::from_secs(10) }
    }
}

/// Shared by the byte stream, which counts what it receives, and the keepalive, which waits for silence.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    /// Reads that brought bytes.
    reads: AtomicU64,
    /// The next flush of the WebSocket sends a ping.
    ping_due: AtomicBool,
    /// Microseconds of the last round trip that was measured; 0 before the first.
    round_trip: AtomicU64,
    /// Set by the first pong.
    answered: SetOnce<()>,
}

impl Liveness {
    pub(crate) fn received(&self) {
        self.reads.fetch_add(1, Relaxed);
    }

    pub(crate) fn take_ping(&self) -> bool {
        self.ping_due.load(Relaxed) && self.ping_due.swap(false, Relaxed)
    }

    /// Waits for the first pong. Never completes if the connection ends before.
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
    /// Completes when the other end has not answered in time. The connection, which carries the pings, must be polled
    /// beside it.
    ///
    /// A ping is an HTTP/2 PING, which only the other end's HTTP/2 answers and no intermediary, together with a WebSocket
    /// ping for load balancers that count nothing else as traffic.
    pub(crate) async fn watch(self, mut pings: PingPong, liveness: Arc<Liveness>) {
        if !self.ping(&mut pings, &liveness).await {
            return;
        }
        loop {
            let before = liveness.reads.load(Relaxed);
            sleep(self.interval).await;
            if liveness.reads.load(Relaxed) == before && !self.ping(&mut pings, &liveness).await {
                return;
            }
        }
    }

    /// Sends a ping. Returns false if nothing at all was received within the timeout.
    async fn ping(self, pings: &mut PingPong, liveness: &Liveness) -> bool {
        let before = liveness.reads.load(Relaxed);
        let sent = Instant::now();
        liveness.ping_due.store(true, Relaxed);
        // A pong that came after its timeout is not the answer to the next ping.
        poll_fn(|cx| Poll::Ready(pings.poll_pong(cx).is_ready())).await;
        // Fails while an earlier ping is unanswered, whose pong does as well, and after the end of the connection.
        let _ = pings.send_ping(Ping::opaque());
        match timeout(self.timeout, poll_fn(|cx| pings.poll_pong(cx))).await {
            Ok(Ok(_)) => {
                let micros = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
                liveness.round_trip.store(micros.max(1), Relaxed);
                // Fails if it was set before.
                let _ = liveness.answered.set(());
                true
            }
            // The connection has ended, and its result says why.
            Ok(Err(_)) => pending().await,
            // A pong may wait behind bulk data; any byte shows that the other end is there.
            Err(_) => liveness.reads.load(Relaxed) != before,
        }
    }
}
