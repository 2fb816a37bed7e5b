//! The limits of HTTP/1.1 and HTTP/2 for callers.
//!
//! Defaults of the libraries that prevent an attack, or that kas documents, are set here as well, so that an update of a library
//! does not change them.

use std::time::Duration;

use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto,
};

use crate::config::CallerLimits;

/// The smallest buffer that hyper accepts.
const MIN_HEAD_BYTES: usize = 8192;

/// The header fields that hyper parses without an allocation.
const HYPER_MAX_HEADERS: usize = 100;

/// Concurrent requests of one connection: the default of a Kubernetes API server (`--http2-max-streams-per-connection`).
/// Further ones are refused with REFUSED_STREAM, which clients retry.
const MAX_STREAMS: u32 = 250;

/// Requests that may be reset before kas accepts them: rapid reset (CVE-2023-44487). One more ends the connection.
const MAX_PENDING_RESETS: usize = 20;

/// Resets that the caller may provoke by protocol errors in one stream, over the life of the connection
/// (RUSTSEC-2024-0003). One more ends it.
const MAX_PROVOKED_RESETS: usize = 1024;

/// Bytes of one request body that are in flight or unread.
const STREAM_WINDOW: u32 = 1 << 20;

/// Bytes of all request bodies of one connection: one unread body must not stop the others.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// The payload of one frame: the minimum of RFC 9113, so that small requests do not wait behind a large frame.
const MAX_FRAME_SIZE: u32 = 16 << 10;

/// Bytes of one response that wait for the window of the caller.
const SEND_BUFFER: usize = 400 << 10;

/// The silence after which a PING is sent.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// The time for the response to a PING, after which the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a builder of connections that detects HTTP/1.1 or HTTP/2 from the first bytes.
pub(super) fn builder(limits: &CallerLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let mut http1 = builder.http1();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.max_head_bytes.max(MIN_HEAD_BYTES))
        .keep_alive(true)
        // A caller that half-closes the connection cancels its request.
        .half_close(false)
        // A response is written at once, even if the next request has arrived.
        .pipeline_flush(false);
    // A lower limit is checked by `validate`, whose response has a body that gives the reason.
    if limits.max_headers > HYPER_MAX_HEADERS {
        http1.max_headers(limits.max_headers);
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_PROVOKED_RESETS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .adaptive_window(false)
        .max_frame_size(MAX_FRAME_SIZE)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
