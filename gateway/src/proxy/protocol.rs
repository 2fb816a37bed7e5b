//! What a caller may do to an HTTP/2 connection. The libraries' defaults are said here too where an attack is named
//! after them: an update of theirs shall not change what kas promises.

use std::time::Duration;

use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto,
};

use crate::config::Limits;

/// Requests in flight on one connection: as many as the API server allows by itself (`--http2-max-streams-per-connection`
/// of a Go server). Further ones are refused, which clients take as "later".
const MAX_STREAMS: u32 = 250;

/// Requests that were reset before they were looked at: rapid reset (CVE-2023-44487). One more, and the connection ends.
const MAX_PENDING_RESETS: usize = 20;

/// Resets that the caller provokes by breaking the protocol in one stream, counted over the connection's life
/// (RUSTSEC-2024-0003). One more, and the connection ends.
const MAX_PROVOKED_RESETS: usize = 1024;

/// Bytes of one request's body under way or unread.
const STREAM_WINDOW: u32 = 1 << 20;

/// The same of one connection, so that one body that nobody takes does not hold up the others.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Bytes of one answer that wait for the caller to open its window.
const SEND_BUFFER: usize = 400 << 10;

/// Silence on the whole connection after which a ping is sent, and how long its answer may take.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Sets the limits of HTTP/2.
pub(super) fn configure(builder: &mut auto::Builder<TokioExecutor>, limits: &Limits) {
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_PROVOKED_RESETS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT);
}
