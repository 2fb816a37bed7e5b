//! How one tunnel is set up. Both ends set everything explicitly: the libraries' defaults differ by role, and four of
//! them kill or freeze a whole tunnel (see the tests of this crate).

use http::{HeaderMap, HeaderName};
use proto::header;

use crate::{Keepalive, Stalls};

/// Half of HTTP/2's largest window.
///
/// The connection window is one pool for all streams: with a small one, a dozen readers that stopped reading freeze
/// every other response. So it is out of reach, and memory is bounded by the stream window times the streams.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// How many bytes of overhead buffered small DATA frames may cost in one tunnel before h2 gives it up.
///
/// h2 counts 256 bytes less the payload for each small frame that nobody has read yet. A reader who stopped reading a
/// log stream collects a stream window of them; h2's default would then end the tunnel and everybody on it. Measured,
/// the count is what they cost. Both ends send small chunks together, so that eight windows of lines of 50 bytes fit, and
/// a reader that stopped is cut off by kas in the end.
const DATA_FRAME_BUDGET: usize = 128 << 20;

/// Fields that are another in each message. Indexing them would push out of HPACK's table, which is small, what is the
/// same each time (RFC 7541 section 7.1.3 knows this for secrets only).
static UNIQUE: [HeaderName; 4] = [
    header::REQUEST_ID,
    header::UPSTREAM_TIME,
    HeaderName::from_static("audit-id"),
    HeaderName::from_static("traceparent"),
];

/// Keeps fields that are another in each message out of the tables at both ends.
pub(crate) fn unindexed(headers: &mut HeaderMap) {
    for name in &UNIQUE {
        if let Some(value) = headers.get_mut(name) {
            value.set_sensitive(true);
        }
    }
}

/// Streams that the peer reset before we looked at them. h2's default of 20 is a guard of public servers against
/// rapid reset (CVE-2023-44487) and ends the connection; here the peer is our own server whose callers come and go.
const MAX_PENDING_RESETS: usize = 100_000;

/// Streams that the peer broke the protocol in and we reset, over the life of a tunnel (RUSTSEC-2024-0003). Out of reach
/// of mistakes, since one more ends the tunnel and everybody on it.
const MAX_PROVOKED_RESETS: usize = 100_000;

/// Streams we reset whose late frames are still silently dropped, instead of being answered one by one.
const MAX_REMEMBERED_RESETS: usize = 1024;

/// The parameters of one tunnel, the same at both ends.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of one stream that may be on their way or unread. Throughput of one stream is this window per round
    /// trip: 4 MiB give 100 MB/s at 40 ms. It is also what one reader who stopped reading costs in memory.
    pub stream_window: u32,
    /// Largest DATA frame, in bytes. Larger frames mean fewer system calls in bulk, and longer waits for the others.
    pub max_frame: u32,
    /// Most requests in flight. Further ones wait at kas.
    pub max_concurrent_streams: u32,
    /// Most bytes of headers in one request or response, counted as RFC 9113 section 6.5.2 does (32 more a field).
    pub max_header_bytes: u32,
    /// Most bytes that one stream may have waiting to be written to the network.
    pub send_buffer: usize,
    /// When to ask whether the other end still lives.
    pub keepalive: Keepalive,
    /// Where stalls are counted.
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
    /// For kas's end, which is the HTTP/2 client.
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
            // Until agentk's SETTINGS arrive; h2 would hold back the 101st request.
            .initial_max_send_streams(self.max_concurrent_streams as usize)
            .max_concurrent_reset_streams(MAX_REMEMBERED_RESETS)
            .max_local_error_reset_streams(Some(MAX_PROVOKED_RESETS));
        builder
    }

    /// For agentk's end, which is the HTTP/2 server.
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
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(Some(MAX_PROVOKED_RESETS));
        builder
    }
}
