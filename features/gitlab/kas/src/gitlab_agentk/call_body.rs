//! The messages of agentk in one call, with the bytes of those that have not arrived whole.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::Reason;
use http_body::Frame;
use kas_core::agent_memory::{AgentMemory, MemoryGuard, OutOfMemory};
use tonic::Status;
use tower::BoxError;
use tunnel::{Body, BodyError};

/// The bytes that a call needs besides its messages.
pub(super) const CALL_BYTES: usize = 4 << 10;
/// The bytes before each message: a flag and its length (the protocol of gRPC over HTTP/2).
const PREFIX: usize = 5;

/// The messages of agentk in one call.
pub(super) struct CallBody {
    body: Body,
    message: PartialMessage,
    /// The bytes of the call, with those of the message that has not arrived whole.
    memory: MemoryGuard,
}

/// The message that has not arrived whole.
#[derive(Debug, Default)]
struct PartialMessage {
    /// The bytes of it that have arrived.
    arrived: usize,
    /// Its length, of which the first bytes may be missing.
    length: u32,
}

impl CallBody {
    /// Returns the messages of a call.
    ///
    /// # Errors
    ///
    /// kas keeps too much for the agent.
    pub(super) fn new(body: Body, memory: &AgentMemory) -> Result<Self, OutOfMemory> {
        let mut memory = memory.guard();
        memory.set(CALL_BYTES)?;
        Ok(Self { body, message: PartialMessage::default(), memory })
    }
}

impl http_body::Body for CallBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        Poll::Ready(match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            // agentk has cancelled the call.
            Some(Err(BodyError::Tunnel(error)))
                if matches!(error.reason(), Some(Reason::CANCEL | Reason::NO_ERROR)) =>
            {
                None
            }
            Some(Ok(frame)) => {
                let held = frame.data_ref().map_or(0, |data| this.message.push(data));
                Some(match this.memory.set(CALL_BYTES + held) {
                    Ok(()) => Ok(frame),
                    Err(error) => Err(Status::resource_exhausted(error.to_string()).into()),
                })
            }
            Some(Err(error)) => Some(Err(error.into())),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

impl PartialMessage {
    /// Reads the lengths of messages in further bytes. Returns the bytes of the message that has not arrived whole.
    fn push(&mut self, mut data: &[u8]) -> usize {
        while let Some((first, rest)) = data.split_first() {
            if self.arrived < PREFIX {
                if self.arrived > 0 {
                    self.length = self.length << 8 | u32::from(*first);
                }
                self.arrived += 1;
                data = rest;
            } else {
                let missing = PREFIX + self.length as usize - self.arrived;
                let arrived = missing.min(data.len());
                self.arrived += arrived;
                data = &data[arrived..];
            }
            if self.arrived >= PREFIX && self.arrived == PREFIX + self.length as usize {
                *self = Self::default();
            }
        }
        self.arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_whole_messages_do_not_count() {
        let stream =
            [&[0, 0, 0, 0, 3, b'a', b'b', b'c'][..], &[1, 0, 0, 0, 0], &[0, 0, 0, 1, 0, b'd']].concat();
        let whole = stream.len() - 6;
        for split in 0..=stream.len() {
            let mut message = PartialMessage::default();
            let before = message.push(&stream[..split]);
            assert_eq!(message.push(&stream[split..]), 6, "{split}");
            match split {
                0..8 => assert_eq!(before, split),
                8..13 => assert_eq!(before, split - 8),
                _ => assert_eq!(before, split - whole),
            }
        }
    }
}
