//! The connection of a caller: its requests in flight, how long the head of one may take, and how the connection is closed.
//!
//! The timer of hyper for heads also runs while the connection waits for the first byte. It would close idle connections that a
//! load balancer reuses. It also allocates a timer for each request; this one starts only if a part of a head has arrived.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use kas_listen::http_limits::RequestCount;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use strangers::Stranger;
use telemetry::GaugeGuard;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::{Sleep, sleep},
};
use tunnel::StallTimer;

/// The first bytes of HTTP/2 (RFC 9113 section 3.4). Later bytes of an idle HTTP/2 connection, such as PINGs, are no heads.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The time for which the peer may send after the shutdown.
const LINGER: Duration = Duration::from_secs(2);

/// The size of one read that is discarded.
const DISCARD: usize = 4096;

/// Counts the requests of one connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    requests: RequestCount,
    /// Set once the connection was upgraded.
    upgraded: AtomicBool,
    close: Notify,
    stranger: Arc<Stranger>,
    /// Counts the connection until it and its last request have ended.
    _guard: GaugeGuard,
}

/// Counts a request as in flight on its connection until the response has ended.
#[derive(Debug)]
pub struct RequestGuard(Arc<ConnectionState>);

/// Fails a read if a part of a head has arrived on HTTP/1.1 and its rest does not follow in time.
///
/// After a shutdown, a connection on HTTP/1.1 discards the bytes that arrive, until the peer closes or two seconds have passed. A
/// TCP connection that is closed with unread bytes is reset, and the reset can discard a response that was already written
/// (RFC 9112 section 9.6). A caller whose upload was refused would then not receive the reason. HTTP/2 connections do not
/// linger: no caller waits for the GOAWAY, and an attack that was cut must not continue.
#[derive(Debug)]
pub(super) struct CallerIo<T> {
    io: T,
    /// Once the connection was upgraded, a shutdown is a half-close, and the bytes after it belong to the new protocol.
    state: Arc<ConnectionState>,
    protocol: Protocol,
    head_timer: StallTimer,
    head_timeouts: Counter,
    /// The number of requests before the one whose head has begun to arrive.
    begun: Option<u64>,
    /// The peer has closed.
    ended: bool,
    lingering: Option<Pin<Box<Sleep>>>,
}

/// The protocol of a connection, as far as its first bytes show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// All bytes so far are the beginning of [`HTTP2`]. The value is their number.
    Unknown(usize),
    Http1,
    Http2,
}

impl ConnectionState {
    pub(super) fn new(connections: &Gauge, stranger: Arc<Stranger>) -> Self {
        Self {
            requests: RequestCount::default(),
            upgraded: AtomicBool::default(),
            close: Notify::new(),
            stranger,
            _guard: GaugeGuard::new(connections),
        }
    }

    /// Returns whether the connection was upgraded.
    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Relaxed)
    }

    /// Returns the number of requests so far, or `None` if one is in flight.
    pub(super) fn requests_before_next(&self) -> Option<u64> {
        self.requests.before_next()
    }

    /// Asks the task of the connection to close it.
    pub(super) fn close(&self) {
        self.close.notify_one();
    }

    /// Completes when the connection was asked to close.
    pub(super) async fn closing(&self) {
        self.close.notified().await;
    }

    /// Completes when no request was in flight for `limit`, and at the latest after half of `limit` more.
    pub(super) async fn idle(&self, limit: Duration) {
        self.requests.idle(limit).await;
    }
}

impl RequestGuard {
    pub(super) fn new(state: &Arc<ConnectionState>) -> Self {
        state.requests.start();
        Self(Arc::clone(state))
    }

    /// Admits the client of the connection.
    pub fn admit(&self) {
        self.0.stranger.admit();
    }

    /// Marks the connection as upgraded.
    pub(super) fn set_upgraded(&self) {
        self.0.upgraded.store(true, Relaxed);
    }
}

/// Counts another request of the same connection, which may end later.
impl Clone for RequestGuard {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.requests.end();
    }
}

impl<T> CallerIo<T> {
    /// Wraps a connection. `head_timeouts` counts the heads that did not arrive within `head_timeout`.
    pub(super) fn new(
        io: T,
        state: Arc<ConnectionState>,
        head_timeout: Duration,
        head_timeouts: Counter,
    ) -> Self {
        Self {
            io,
            state,
            protocol: Protocol::Unknown(0),
            head_timer: StallTimer::new(head_timeout),
            head_timeouts,
            begun: None,
            ended: false,
            lingering: None,
        }
    }

    fn on_bytes(&mut self, bytes: &[u8]) {
        self.protocol = self.protocol.after(bytes);
        self.begun = match self.protocol {
            Protocol::Http2 => None,
            // Bytes during a request belong to its body.
            _ => self.state.requests_before_next(),
        };
    }
}

impl Protocol {
    fn after(self, bytes: &[u8]) -> Self {
        let Self::Unknown(matched) = self else { return self };
        let rest = &HTTP2[matched..];
        let compared = rest.len().min(bytes.len());
        match bytes[..compared] == rest[..compared] {
            true if compared == rest.len() => Self::Http2,
            true => Self::Unknown(matched + compared),
            false => Self::Http1,
        }
    }
}

impl<T: AsyncRead + Unpin> CallerIo<T> {
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [0; DISCARD];
        while !self.ended {
            let mut buf = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf));
            self.ended = read.is_err() || buf.filled().is_empty();
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CallerIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let filled = buf.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.io).poll_read(cx, buf) {
            let bytes = &buf.filled()[filled..];
            this.ended |= read.is_err() || (bytes.is_empty() && buf.remaining() > 0);
            this.on_bytes(bytes);
            return Poll::Ready(read);
        }
        if this.begun.is_none() || this.begun != this.state.requests_before_next() {
            this.head_timer.disarm();
            return Poll::Pending;
        }
        ready!(this.head_timer.poll_expired(cx));
        this.head_timeouts.inc();
        Poll::Ready(Err(io::Error::other("the head of a request did not arrive in time")))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CallerIo<T> {
    tunnel::forward_write!(io);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
            if this.protocol != Protocol::Http1 || this.state.is_upgraded() {
                return Poll::Ready(Ok(()));
            }
        }
        if this.poll_discard(cx).is_pending() {
            let lingering = this.lingering.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            ready!(lingering.as_mut().poll(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        time::Instant,
    };

    use super::*;

    /// A connection that has received its first bytes.
    async fn pair(first: &[u8], upgraded: bool) -> (CallerIo<DuplexStream>, DuplexStream) {
        let (near, mut far) = duplex(16);
        let state = Arc::new(ConnectionState::new(&Gauge::default(), Arc::new(Stranger::default())));
        if upgraded {
            RequestGuard::new(&state).set_upgraded();
        }
        let mut near = CallerIo::new(near, state, LINGER, Counter::default());
        far.write_all(first).await.unwrap();
        near.read_exact(&mut vec![0; first.len()]).await.unwrap();
        (near, far)
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_discards_until_the_peer_closes() {
        let (mut near, mut far) = pair(b"POST / ", false).await;
        let sending = tokio::spawn(async move {
            far.write_all(&[0; 4096]).await.unwrap();
        });
        let started = Instant::now();
        near.shutdown().await.unwrap();
        sending.await.unwrap();
        assert!(started.elapsed() < LINGER);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_although_the_peer_stays() {
        let (mut near, _far) = pair(b"PROPFIND", false).await;
        let started = Instant::now();
        near.shutdown().await.unwrap();
        assert_eq!(started.elapsed().as_secs(), LINGER.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_of_http2_or_before_the_first_byte_does_not_wait() {
        for first in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
            let (mut near, _far) = pair(first, false).await;
            let started = Instant::now();
            near.shutdown().await.unwrap();
            assert_eq!(started.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_after_an_upgrade_discards_nothing() {
        let (mut near, mut far) = pair(b"POST / ", true).await;
        far.write_all(b"raw").await.unwrap();
        near.shutdown().await.unwrap();
        let mut rest = [0; 3];
        near.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"raw");
    }

    #[test]
    fn http2_is_detected_from_bytes_in_any_pieces() {
        let protocol = |pieces: &[&str]| {
            pieces.iter().fold(Protocol::Unknown(0), |protocol, piece| protocol.after(piece.as_bytes()))
        };
        let preface = str::from_utf8(HTTP2).unwrap();
        for pieces in
            [&[preface][..], &["P", &preface[1..]], &["P", "", &preface[1..7], &preface[7..], "GET"]]
        {
            assert_eq!(protocol(pieces), Protocol::Http2, "{pieces:?}");
        }
        for pieces in [&["GET / HTTP/1.1\r\n"][..], &["PO", "ST"], &["P", "UT", preface]] {
            assert_eq!(protocol(pieces), Protocol::Http1, "{pieces:?}");
        }
        assert_eq!(protocol(&["PRI *"]), Protocol::Unknown(5));
    }
}
