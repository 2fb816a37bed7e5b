//! The limits of HTTP/1.1 and HTTP/2, for callers and for the clients of the internal listeners, and the count of requests by which both
//! find idle connections.
//!
//! Defaults of the libraries that prevent an attack, or that kas documents, are set here as well, so that an update of a library
//! does not change them.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto,
};
use tokio::time::sleep;

/// The smallest buffer that hyper accepts.
const MIN_HEAD_BYTES: usize = 8192;

/// The header fields that hyper parses without an allocation.
const HYPER_MAX_HEADERS: usize = 100;

/// Requests that may be reset before kas accepts them: rapid reset (CVE-2023-44487). One more ends the connection.
const MAX_PENDING_RESETS: usize = 20;

/// Resets that the client may provoke by protocol errors in one stream, over the life of the connection
/// (RUSTSEC-2024-0003). One more ends it.
const MAX_PROVOKED_RESETS: usize = 1024;

/// The payload of one frame: the minimum of RFC 9113, so that small requests do not wait behind a large frame.
const MAX_FRAME_SIZE: u32 = 16 << 10;

/// The silence after which a PING is sent.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// The time for the response to a PING, after which the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The limits of one connection that differ between listeners.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// The time that a client of HTTP/1.1 may take for the head of a request, including the wait for its first byte. `None` if
    /// the caller of [`Self::builder`] has its own timer.
    header_read_timeout: Option<Duration>,
    /// Bytes of the head of one request.
    max_head_bytes: usize,
    /// Header fields of one request.
    max_headers: usize,
    /// Concurrent requests of one HTTP/2 connection. Further ones are refused with REFUSED_STREAM, which clients retry.
    max_streams: u32,
    /// Bytes of one request body that are in flight or unread.
    stream_window: u32,
    /// Bytes of all request bodies of one connection: one unread body must not stop the others.
    connection_window: u32,
    /// Bytes of one response that wait for the window of the client.
    send_buffer: usize,
}

/// The requests of one connection that have started and ended.
#[derive(Debug, Default)]
pub struct RequestCount {
    started: AtomicU64,
    ended: AtomicU64,
}

impl HttpLimits {
    /// Returns the limits of callers, without the timeout of a head. The number of concurrent requests is the default of a
    /// Kubernetes API server (`--http2-max-streams-per-connection`).
    pub fn of_callers(max_head_bytes: usize, max_headers: usize) -> Self {
        Self {
            header_read_timeout: None,
            max_head_bytes,
            max_headers,
            max_streams: 250,
            stream_window: 1 << 20,
            connection_window: 4 << 20,
            send_buffer: 400 << 10,
        }
    }

    /// Returns the limits of internal listeners. A token in a head has a few hundred bytes.
    pub fn internal(header_read_timeout: Duration) -> Self {
        Self {
            header_read_timeout: Some(header_read_timeout),
            max_head_bytes: 16 << 10,
            max_headers: HYPER_MAX_HEADERS,
            max_streams: 100,
            stream_window: 64 << 10,
            connection_window: 1 << 20,
            send_buffer: 64 << 10,
        }
    }

    /// Returns a builder of connections that detects HTTP/1.1 or HTTP/2 from the first bytes.
    pub fn builder(&self) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        let mut http1 = builder.http1();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_read_timeout)
            .max_buf_size(self.max_head_bytes.max(MIN_HEAD_BYTES))
            .keep_alive(true)
            // A client that half-closes the connection cancels its request.
            .half_close(false)
            // A response is written at once, even if the next request has arrived.
            .pipeline_flush(false);
        // A lower limit is checked by `validate`, whose response has a body that gives the reason.
        if self.max_headers > HYPER_MAX_HEADERS {
            http1.max_headers(self.max_headers);
        }
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.max_streams)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_PROVOKED_RESETS)
            .initial_stream_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .adaptive_window(false)
            .max_frame_size(MAX_FRAME_SIZE)
            .max_send_buf_size(self.send_buffer)
            .max_header_list_size(u32::try_from(self.max_head_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        builder
    }
}

impl RequestCount {
    /// Counts a request as in flight.
    pub fn start(&self) {
        self.started.fetch_add(1, Relaxed);
    }

    /// Counts a request as ended.
    pub fn end(&self) {
        self.ended.fetch_add(1, Relaxed);
    }

    /// Returns the number of requests so far, or `None` if one is in flight.
    pub fn before_next(&self) -> Option<u64> {
        let started = self.started.load(Relaxed);
        (started == self.ended.load(Relaxed)).then_some(started)
    }

    /// Completes when no request was in flight for `limit`, and at the latest after half of `limit` more.
    ///
    /// It samples the counters, so that a request neither wakes a task nor sets a timer.
    pub async fn idle(&self, limit: Duration) {
        let mut samples = 0;
        while samples < 2 {
            let started = self.started.load(Relaxed);
            let idle = started == self.ended.load(Relaxed);
            sleep(limit / 2).await;
            samples = if idle && started == self.started.load(Relaxed) { samples + 1 } else { 0 };
        }
    }
}
