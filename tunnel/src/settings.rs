//! Every limit of a tunnel: HTTP/2 and WebSocket.
//!
//! Both ends set each value explicitly. The defaults of h2 differ by role, and four of them freeze or end a whole tunnel;
//! `tests/pitfalls.rs` has a scenario for each.

use http::{HeaderMap, HeaderName};
use proto::header;
use tungstenite::protocol::WebSocketConfig;

use crate::{Keepalive, Stalls};

/// Flow-control window of the connection, in bytes: half of HTTP/2's largest one.
///
/// All streams share this window. With a small one, a dozen readers that stopped reading freeze every other response. Out
/// of reach, it leaves the bound on memory to the stream windows.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Bytes of overhead that unread small DATA frames may cost in one tunnel before h2 ends it.
///
/// h2 counts 256 bytes less the payload for each small frame that the application has not read yet. A log stream whose
/// reader stopped collects a stream window of such frames, and h2's default would then end the tunnel with all its
/// streams. [`SendBody`](crate::send_body::SendBody) joins small chunks, so that eight full windows of lines of 50 bytes
/// fit; kas cuts a reader that stopped.
const DATA_FRAME_BUDGET: usize = 128 << 20;

/// Streams that the other end reset before this end accepted them: rapid reset (CVE-2023-44487). One more ends the
/// connection with ENHANCE_YOUR_CALM.
///
/// h2's default of 20 protects public servers. The other end here is kas, whose callers may leave in crowds: all requests
/// that a tunnel may carry by default may end within one read of the socket.
const MAX_PENDING_ACCEPT_RESETS: usize = 4096;

/// Streams that this end reset because the other end broke the protocol in them, over the life of a tunnel
/// (RUSTSEC-2024-0003). One more ends the tunnel, so the number is out of reach of mistakes.
const MAX_LOCAL_ERROR_RESETS: usize = 100_000;

/// Streams that this end reset and whose late frames it ignores. Beyond this number each late frame is answered.
const MAX_REMEMBERED_RESETS: usize = 1024;

/// Bytes that a WebSocket takes at once from what was read of the socket, and holds for as long as it lives. tungstenite
/// clears them each time. [`ReadAhead`](crate::ReadAhead) reads more at once.
const WEBSOCKET_READ_BUFFER: usize = 2 << 10;

/// Bytes of frames that a WebSocket collects before it writes them to the socket without being flushed.
const WEBSOCKET_WRITE_BUFFER: usize = 64 << 10;

/// Bytes that may wait in a WebSocket for a socket that takes none. Data waits in HTTP/2 long before; this bounds the
/// pongs to an end that sends pings and never reads.
const WEBSOCKET_MAX_WRITE_BUFFER: usize = 256 << 10;

/// Largest message that this end accepts, in bytes. Boundaries of messages have no meaning, so this is only a bound on
/// memory.
const WEBSOCKET_MAX_MESSAGE: usize = 1 << 20;

/// Largest payload of a message that this end sends, in bytes. Both ends keep a buffer of this size once they have sent
/// or received such a message.
pub(crate) const WEBSOCKET_MESSAGE: usize = 16 << 10;

/// Header fields with a new value in each message. The HPACK table is small, and indexing them would evict the fields
/// that repeat (RFC 7541 section 7.1.3).
static UNIQUE: [HeaderName; 4] = [
    header::REQUEST_ID,
    header::UPSTREAM_TIME,
    HeaderName::from_static("audit-id"),
    HeaderName::from_static("traceparent"),
];

/// Keeps fields with a new value in each message out of the HPACK tables of both ends.
pub(crate) fn mark_unindexed(headers: &mut HeaderMap) {
    for name in &UNIQUE {
        if let Some(value) = headers.get_mut(name) {
            value.set_sensitive(true);
        }
    }
}

/// The parameters of one tunnel, the same at both ends.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Flow-control window of a stream, in bytes: what may be under way or unread.
    ///
    /// The throughput of one stream is at most one window per round trip: 4 MiB allow 100 MB/s at 40 ms. One reader that
    /// stopped reading costs as much memory.
    pub stream_window: u32,
    /// Largest frame that this end accepts, in bytes. Larger frames need fewer system calls for bulk data, and make other
    /// streams wait longer.
    pub max_frame: u32,
    /// Most requests in flight. Further ones wait in kas.
    pub max_concurrent_streams: u32,
    /// Most bytes of header fields in one request or response, counted as RFC 9113 section 6.5.2 does (32 more a field).
    pub max_header_bytes: u32,
    /// Most bytes that one stream may have queued for the network.
    pub send_buffer: usize,
    /// When pings are sent and how long their answers may take.
    pub keepalive: Keepalive,
    /// Counts writes that wait for flow control.
    pub stalls: Stalls,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream_window: 4 << 20,
            max_frame: 256 << 10,
            max_concurrent_streams: 4096,
            max_header_bytes: 128 << 10,
            send_buffer: 400 << 10,
            keepalive: Keepalive::default(),
            stalls: Stalls::default(),
        }
    }
}

impl Settings {
    /// Returns the limits of kas's end, which is the HTTP/2 client.
    pub(crate) fn client(&self) -> h2::client::Builder {
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(self.max_frame)
            .max_header_list_size(self.max_header_bytes)
            .max_send_buffer_size(self.send_buffer)
            .data_frame_budget(DATA_FRAME_BUDGET)
            // Applies until agentk's SETTINGS arrive; with h2's default the 101st request would wait for them.
            .initial_max_send_streams(self.max_concurrent_streams as usize)
            .max_concurrent_reset_streams(MAX_REMEMBERED_RESETS)
            .max_local_error_reset_streams(Some(MAX_LOCAL_ERROR_RESETS));
        builder
    }

    /// Returns the limits of agentk's end, which is the HTTP/2 server.
    pub(crate) fn server(&self) -> h2::server::Builder {
        let mut builder = h2::server::Builder::new();
        builder
            .enable_connect_protocol()
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(self.max_frame)
            .max_header_list_size(self.max_header_bytes)
            .max_send_buffer_size(self.send_buffer)
            .data_frame_budget(DATA_FRAME_BUDGET)
            .max_concurrent_streams(self.max_concurrent_streams)
            .max_concurrent_reset_streams(MAX_REMEMBERED_RESETS)
            .max_pending_accept_reset_streams(MAX_PENDING_ACCEPT_RESETS)
            .max_local_error_reset_streams(Some(MAX_LOCAL_ERROR_RESETS));
        builder
    }
}

/// Returns the limits of a WebSocket, the same at both ends.
pub(crate) fn websocket() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(WEBSOCKET_READ_BUFFER)
        .write_buffer_size(WEBSOCKET_WRITE_BUFFER)
        .max_write_buffer_size(WEBSOCKET_MAX_WRITE_BUFFER)
        .max_message_size(Some(WEBSOCKET_MAX_MESSAGE))
        .max_frame_size(Some(WEBSOCKET_MAX_MESSAGE))
}
