//! The time for the head of a request on HTTP/1.1, from its first byte.
//!
//! The timer of hyper also runs while the connection waits for the first byte. It would close idle connections that a load
//! balancer reuses. It also allocates a timer for each request; this one starts only if a part of a head has arrived.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::ConnectionState;
use crate::io::StallTimer;

/// The first bytes of HTTP/2 (RFC 9113 section 3.4). Later bytes of an idle HTTP/2 connection, such as PINGs, are no heads.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Fails a read if a part of a head has arrived and its rest does not follow in time.
#[derive(Debug)]
pub(super) struct HeadTimeout<T> {
    io: T,
    state: Arc<ConnectionState>,
    timer: StallTimer,
    timeouts: Counter,
    protocol: Protocol,
    /// The number of requests before the one whose head has begun to arrive.
    begun: Option<u64>,
}

/// The protocol of a connection, as far as its first bytes show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// The bytes that have arrived, whose number this is, are the first ones of [`HTTP2`].
    Unknown(usize),
    Http1,
    Http2,
}

impl<T> HeadTimeout<T> {
    /// Wraps a connection. `timeouts` counts the heads that did not arrive within `limit`.
    pub(super) fn new(io: T, state: Arc<ConnectionState>, limit: Duration, timeouts: Counter) -> Self {
        let (timer, protocol) = (StallTimer::new(limit), Protocol::Unknown(0));
        Self { io, state, timer, timeouts, protocol, begun: None }
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

impl<T: AsyncRead + Unpin> AsyncRead for HeadTimeout<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let filled = buf.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.io).poll_read(cx, buf) {
            this.on_bytes(&buf.filled()[filled..]);
            return Poll::Ready(read);
        }
        if this.begun.is_none() || this.begun != this.state.requests_before_next() {
            this.timer.disarm();
            return Poll::Pending;
        }
        ready!(this.timer.poll_expired(cx));
        this.timeouts.inc();
        Poll::Ready(Err(io::Error::other("the head of a request did not arrive in time")))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for HeadTimeout<T> {
    tunnel::forward_write!(io);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
