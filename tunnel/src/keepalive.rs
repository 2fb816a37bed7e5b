//! Pings that detect a dead connection. They are sent only after a time without received bytes.

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

use crate::overhead::FrameHeader;

/// The interval and the timeout of pings.
#[derive(Clone, Copy, Debug)]
pub struct KeepaliveConfig {
    /// Time without received bytes after which a ping is sent. Load balancers with a longer idle timeout do not close the
    /// tunnel.
    pub interval: Duration,
    /// Time that the answer to a ping may take before the tunnel is closed.
    pub timeout: Duration,
}

impl Default for KeepaliveConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(20), timeout: Duration::from_secs(10) }
    }
}

/// State that the byte stream, which counts received bytes, shares with [`KeepaliveConfig::watch`], which reads the counts.
#[derive(Debug)]
pub(crate) struct KeepaliveState {
    /// Bytes of HTTP/2 received, with their framing.
    received: AtomicU64,
    /// Milliseconds from `started` to the last read of bytes of HTTP/2.
    last_received: AtomicU64,
    started: Instant,
    /// Milliseconds from `started` to the last read of bytes of any kind.
    last_read: AtomicU64,
    /// The next flush of the WebSocket sends a ping.
    ping_due: AtomicBool,
    /// Microseconds of the last round trip that was measured; 0 before the first.
    round_trip: AtomicU64,
    /// Set by the first pong.
    first_pong: SetOnce<()>,
    /// Set by the first GOAWAY of the other end.
    goaway: SetOnce<()>,
    /// Heads that the WebSocket has received, trailers among them.
    heads: AtomicU64,
}

impl Default for KeepaliveState {
    fn default() -> Self {
        Self {
            received: AtomicU64::new(0),
            last_received: AtomicU64::new(0),
            started: Instant::now(),
            last_read: AtomicU64::new(0),
            ping_due: AtomicBool::new(false),
            round_trip: AtomicU64::new(0),
            first_pong: SetOnce::new(),
            goaway: SetOnce::new(),
            heads: AtomicU64::new(0),
        }
    }
}

impl KeepaliveState {
    /// Counts bytes that were read. 0 bytes are the end of the stream.
    pub(crate) fn add_received(&self, bytes: usize) {
        if bytes > 0 {
            self.received.fetch_add(bytes as u64, Relaxed);
            let now = self.now();
            self.last_received.store(now, Relaxed);
            self.last_read.store(now, Relaxed);
        }
    }

    /// Subtracts received bytes that do not belong to HTTP/2.
    pub(crate) fn subtract_received(&self, bytes: usize) {
        self.received.fetch_sub(bytes as u64, Relaxed);
    }

    /// Returns the time of the last read of HTTP/2.
    pub(crate) fn last_received(&self) -> u64 {
        self.last_received.load(Relaxed)
    }

    /// Sets the time of the last read of HTTP/2 back to an earlier one: the read after it had no bytes of HTTP/2.
    pub(crate) fn restore_last_received(&self, last_received: u64) {
        self.last_received.store(last_received, Relaxed);
    }

    /// Returns the time since the last read of HTTP/2.
    fn idle(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.last_received()))
    }

    /// Returns the time since the last read of bytes of any kind.
    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.last_read.load(Relaxed)))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns whether a WebSocket ping is due, and resets that.
    pub(crate) fn take_ping(&self) -> bool {
        self.ping_due.load(Relaxed) && self.ping_due.swap(false, Relaxed)
    }

    /// Waits for the first pong. Never completes if the connection ends before.
    pub(crate) async fn first_pong(&self) {
        self.first_pong.wait().await;
    }

    /// Notes whether a received frame begins a head, or says that the other end accepts no more streams.
    pub(crate) fn on_frame(&self, frame: FrameHeader) {
        if frame.is_head() {
            self.heads.fetch_add(1, Relaxed);
        }
        if frame.is_goaway() {
            // Fails if it was set before.
            let _ = self.goaway.set(());
        }
    }

    /// Returns the number of heads that have arrived in a WebSocket: those of requests, and trailers.
    pub(crate) fn heads(&self) -> u64 {
        self.heads.load(Relaxed)
    }

    /// Waits until the other end accepts no more streams. Never completes if the connection ends without notice.
    pub(crate) async fn goaway_received(&self) {
        self.goaway.wait().await;
    }

    pub(crate) fn round_trip(&self) -> Option<Duration> {
        match self.round_trip.load(Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }
}

impl KeepaliveConfig {
    /// Completes when the other end has not answered a ping in time. The connection, which carries the pings, must be
    /// polled in the same task.
    ///
    /// A ping is an HTTP/2 PING, which only the other end answers and no intermediary, together with a WebSocket ping,
    /// for load balancers that count no other frame as traffic.
    pub(crate) async fn watch(self, mut pings: PingPong, keepalive_state: Arc<KeepaliveState>) {
        if !self.ping(&mut pings, &keepalive_state).await {
            return;
        }
        loop {
            // Counted from the last byte, and not from the last ping: a connection that is lost right after a byte would
            // otherwise be found an interval later.
            let idle = keepalive_state.idle();
            if idle < self.interval {
                sleep(self.interval - idle).await;
            } else if !self.ping(&mut pings, &keepalive_state).await {
                return;
            }
        }
    }

    /// Sends a ping. Returns false if no byte of HTTP/2 was received within the timeout.
    async fn ping(self, pings: &mut PingPong, keepalive_state: &KeepaliveState) -> bool {
        let before = keepalive_state.received.load(Relaxed);
        let sent = Instant::now();
        keepalive_state.ping_due.store(true, Relaxed);
        // Takes a late pong of the ping before, which is not the answer to the next one.
        poll_fn(|cx| Poll::Ready(pings.poll_pong(cx).is_ready())).await;
        // Fails while an earlier ping is unanswered, whose pong has the same effect, and after the end of the connection.
        let _ = pings.send_ping(Ping::opaque());
        match timeout(self.timeout, poll_fn(|cx| pings.poll_pong(cx))).await {
            Ok(Ok(_)) => {
                let micros = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
                keepalive_state.round_trip.store(micros.max(1), Relaxed);
                // Fails if it was set before.
                let _ = keepalive_state.first_pong.set(());
                true
            }
            // The connection has ended, and its own result has the reason.
            Ok(Err(_)) => pending().await,
            // A pong may wait behind bulk data. Any byte of HTTP/2 proves that the other end is alive.
            Err(_) => keepalive_state.received.load(Relaxed) != before,
        }
    }
}
