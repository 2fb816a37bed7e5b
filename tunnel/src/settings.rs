//! How one tunnel is set up. Both ends say everything explicitly: what HTTP/2 assumes by itself is made for browsers.

use crate::{Keepalive, Stalls};

/// The parameters of one tunnel, the same at both ends.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of one stream that may be on their way or unread. Throughput of one stream is this window per round
    /// trip: 4 MiB give 100 MB/s at 40 ms. It is also what one reader who stopped reading costs in memory.
    pub stream_window: u32,
    /// Largest frame that this end takes, in bytes.
    pub max_frame: u32,
    /// Most requests in flight. Further ones wait at kas.
    pub max_concurrent_streams: u32,
    /// Most bytes of headers in one request or response, counted as RFC 9113 section 6.5.2 does (32 more a field).
    pub max_header_bytes: u32,
    /// Bytes that one stream may have waiting to be written to the network, and one more chunk.
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
