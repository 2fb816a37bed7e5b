//! A WebSocket as a byte stream (RFC 6455).
//!
//! [`handshake`] holds the HTTP part, `frame` the bytes of a frame header, [`WebSocket`] the stream. Message
//! boundaries mean nothing here; text messages and extensions are refused.

mod frame;
pub mod handshake;
mod outgoing;
mod stream;

pub use self::stream::{Role, WebSocket};

/// For the fuzz target: reads one frame header, as [`WebSocket`] does.
#[doc(hidden)]
pub fn parse_frame_header(bytes: &[u8]) -> Result<Option<usize>, std::io::Error> {
    Ok(frame::Header::parse(bytes)?.map(|(_, length)| length))
}
