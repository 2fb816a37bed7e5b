//! The frames of the stream of a tab.
//!
//! ```text
//!   bytes    1      1       4 (big-endian)   length
//!          kind   watch        length        payload
//! ```
//!
//! The payload is not interpreted here: an agent can break its own watch, but not send anything in the name of another one.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Serialize;

/// The length of the beginning of each frame.
const HEAD: usize = 6;

/// The kind of a frame.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// The connection works.
    Alive = 0,
    /// The list of agents, as that of `GET /web/v1/agents`.
    Agents = 1,
    /// A watch begins: its encoding.
    Begin = 2,
    /// Bytes of a watch.
    Data = 3,
    /// A watch has ended: the failure.
    End = 4,
    /// The replica stops, or a rule of the kill switch matches: the next request is served by another one, or gets the rule.
    Reconnect = 5,
}

/// Returns a frame.
pub(super) fn frame(kind: FrameKind, watch: u8, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD + payload.len());
    frame.put_u8(kind as u8);
    frame.put_u8(watch);
    frame.put_u32(u32::try_from(payload.len()).expect("a frame of an agent or a short text"));
    frame.put_slice(payload);
    frame.freeze()
}

/// Returns a frame with JSON.
pub(super) fn json(kind: FrameKind, watch: u8, value: &impl Serialize) -> Bytes {
    frame(kind, watch, &serde_json::to_vec(value).expect("it has keys that are text"))
}
