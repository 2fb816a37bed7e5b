//! The configuration of a tunnel: every limit of HTTP/2 and WebSocket.
//!
//! Both ends set each value explicitly. The defaults of h2 differ by role, and four of them freeze or end a whole tunnel;
//! `tests/pitfalls.rs` has a test for each.

use http::{HeaderMap, HeaderName};
use proto::header;
use tungstenite::protocol::WebSocketConfig;

use crate::{KeepaliveConfig, StallCounter};

/// Flow-control window of the connection, in bytes: half of the largest one in HTTP/2.
///
/// All streams share this window. With a small one, a dozen readers that stopped reading block every other response. This
/// one is never exhausted, so only the stream windows bound the memory.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// The same for strangers, of whom each stream of a connection may fill its window.
const PUBLIC_CONNECTION_WINDOW: u32 = 64 << 20;

/// Most bytes of overhead of unread small DATA frames in one tunnel. h2 ends the connection above it.
///
/// h2 counts 256 bytes less the payload for each small frame that the application has not read yet. A log stream whose
/// reader stopped collects a stream window of such frames, and with the default of h2 the tunnel would end with all its
/// streams. [`SendBody`](crate::send_body::SendBody) joins small chunks, so that eight full windows of lines of 50 bytes
/// fit. Frames that arrive one by one are joined later, at the end that receives them
/// ([`StreamMonitor::compact`](crate::StreamMonitor::compact)). kas resets the stream of a reader that stopped.
const DATA_FRAME_BUDGET: usize = 128 << 20;

/// Most streams that the other end may reset before this end accepts them: rapid reset (CVE-2023-44487). One more ends
/// the connection with ENHANCE_YOUR_CALM.
///
/// The default of h2, 20, protects public servers. The other end here is kas, whose callers may all leave at once: one read
/// of the socket may reset all requests that a tunnel may carry by default.
const MAX_PENDING_ACCEPT_RESETS: usize = 4096;

/// Most streams that this end may reset for protocol errors of the other end, over the life of a tunnel
/// (RUSTSEC-2024-0003). One more ends the tunnel, so the number is too large to be reached by accident.
const MAX_LOCAL_ERROR_RESETS: usize = 100_000;

/// Most streams that this end has reset and whose late frames it ignores. Late frames of further streams are answered.
const MAX_REMEMBERED_RESETS: usize = 1024;

/// Read buffer of a WebSocket, in bytes, which is held as long as the WebSocket lives. tungstenite clears it before each
/// read. [`ReadAhead`](crate::ReadAhead) reads more at once from the socket.
const WEBSOCKET_READ_BUFFER: usize = 1 << 10;

/// Bytes of frames that a WebSocket collects before it writes them to the socket without a flush.
pub(crate) const WEBSOCKET_WRITE_BUFFER: usize = 64 << 10;

/// Most bytes that wait in a WebSocket while the socket accepts none. Data waits in HTTP/2 long before; this bounds the
/// pongs to an end that sends pings and never reads.
pub(crate) const WEBSOCKET_MAX_WRITE_BUFFER: usize = 256 << 10;

/// Largest message that this end accepts, in bytes, which bounds its memory.
const WEBSOCKET_MAX_MESSAGE: usize = 1 << 20;

/// Largest payload of a message that this end sends, in bytes. The end that receives such a message keeps a buffer of this
/// size.
pub(crate) const WEBSOCKET_MESSAGE: usize = 16 << 10;

/// Header fields with a new value in each request. The HPACK table is small, and indexing them would evict the fields that
/// repeat (RFC 7541 section 7.1.3).
pub(crate) static UNIQUE_IN_REQUESTS: [HeaderName; 2] =
    [header::REQUEST_ID, HeaderName::from_static("traceparent")];

/// Header fields with a new value in each response.
pub(crate) static UNIQUE_IN_RESPONSES: [HeaderName; 2] =
    [header::UPSTREAM_TIME, HeaderName::from_static("audit-id")];

/// Keeps these fields out of the HPACK tables of both ends.
pub(crate) fn mark_unindexed(headers: &mut HeaderMap, names: &[HeaderName]) {
    for (_, value) in headers.iter_mut().filter(|(name, _)| names.contains(name)) {
        value.set_sensitive(true);
    }
}

/// The parameters of one tunnel, the same at both ends.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// Flow-control window of a stream, in bytes: the most data in flight or unread.
    ///
    /// The throughput of one stream is at most one window per round trip: 4 MiB allow 100 MB/s at 40 ms. One reader that
    /// stopped reading costs as much memory.
    pub stream_window: u32,
    /// Largest frame that this end accepts, in bytes. Larger frames need fewer system calls for bulk data, and make other
    /// streams wait longer.
    pub max_frame: u32,
    /// Most requests in flight. Further requests wait in kas.
    pub max_concurrent_streams: u32,
    /// Most bytes of header fields in one request or response, plus 32 for each field (RFC 9113 section 6.5.2).
    pub max_header_bytes: u32,
    /// Most bytes of one stream that are queued for the network.
    pub send_buffer: usize,
    /// The interval and the timeout of pings.
    pub keepalive: KeepaliveConfig,
    /// Counts writes that wait for flow control.
    pub stalls: StallCounter,
}

impl Default for TunnelConfig {
    fn default() -> Self {
        Self {
            stream_window: 4 << 20,
            max_frame: 256 << 10,
            max_concurrent_streams: 4096,
            max_header_bytes: 128 << 10,
            send_buffer: 400 << 10,
            keepalive: KeepaliveConfig::default(),
            stalls: StallCounter::default(),
        }
    }
}

impl TunnelConfig {
    /// Returns the limits of the end of kas, which is the HTTP/2 client.
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
            // Applies until the SETTINGS of agentk arrive. With the default of h2, the 101st request would wait for them.
            .initial_max_send_streams(self.max_concurrent_streams as usize)
            .max_concurrent_reset_streams(MAX_REMEMBERED_RESETS)
            .max_local_error_reset_streams(Some(MAX_LOCAL_ERROR_RESETS));
        builder
    }

    /// Returns the limits of the end of agentk, which is the HTTP/2 server.
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

    /// Returns the limits of a server that strangers reach: those of resets and of small frames are the defaults of h2.
    pub(crate) fn public_server(&self) -> h2::server::Builder {
        let mut builder = h2::server::Builder::new();
        builder
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(PUBLIC_CONNECTION_WINDOW)
            .max_frame_size(self.max_frame)
            .max_header_list_size(self.max_header_bytes)
            .max_send_buffer_size(self.send_buffer)
            .max_concurrent_streams(self.max_concurrent_streams);
        builder
    }
}

/// Returns the limits of a WebSocket, the same at both ends.
pub(crate) fn websocket() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(WEBSOCKET_READ_BUFFER)
        // tungstenite writes to the queue of this crate, which accepts its frames at once.
        .write_buffer_size(0)
        .max_write_buffer_size(WEBSOCKET_WRITE_BUFFER)
        .max_message_size(Some(WEBSOCKET_MAX_MESSAGE))
        .max_frame_size(Some(WEBSOCKET_MAX_MESSAGE))
}
