//! The frames of a WebSocket that wait for its socket.
//!
//! tungstenite would copy each payload twice: into a message, and into a queue of its own, where it masks it.

use std::{
    array,
    cell::Cell,
    io::{self, ErrorKind, IoSlice},
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::AsyncWrite;
use tungstenite::protocol::{
    Role,
    frame::{
        FrameHeader,
        coding::{Control, Data, OpCode},
    },
};

use crate::config;

/// Longest header of a message, in bytes (RFC 6455 section 5.2).
pub(crate) const MESSAGE_HEADER: usize = 14;

thread_local! {
    /// A buffer that no queue of this thread uses at the moment.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Whole frames, of which the socket has accepted the first bytes. An empty queue holds no buffer.
#[derive(Debug)]
pub(crate) struct FrameQueue {
    role: Role,
    bytes: Vec<u8>,
    /// The number of bytes that the socket has accepted.
    written: usize,
    /// The last message had several slices: h2 flushes it before it encodes the next frame.
    is_chain: bool,
}

impl FrameQueue {
    pub(crate) const fn new(role: Role) -> Self {
        Self { role, bytes: Vec::new(), written: 0, is_chain: false }
    }

    /// Returns the bytes that the queue holds.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether a flush may wait for the frames of other streams.
    pub(crate) fn may_grow(&self) -> bool {
        self.is_chain && (1..=config::WEBSOCKET_MESSAGE).contains(&self.bytes.len())
    }

    /// Appends a message with the first bytes of the slices, up to the largest message. Returns the length of its payload.
    pub(crate) fn push_message(&mut self, slices: &[IoSlice<'_>]) -> usize {
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>().min(config::WEBSOCKET_MESSAGE);
        if length > 0 {
            self.push(OpCode::Data(Data::Binary), slices, length);
        }
        self.is_chain = slices.len() > 1;
        length
    }

    /// Appends an empty ping.
    pub(crate) fn push_ping(&mut self) {
        self.push(OpCode::Control(Control::Ping), &[], 0);
    }

    /// Appends a frame that is encoded already.
    pub(crate) fn push_frame(&mut self, frame: &[u8]) {
        self.ensure_buffer();
        self.bytes.extend_from_slice(frame);
    }

    fn ensure_buffer(&mut self) {
        if self.bytes.capacity() == 0 {
            self.bytes = SPARE.take();
        }
    }

    /// Appends a frame with the first `length` bytes of the slices. A client masks them (RFC 6455 section 5.3).
    fn push(&mut self, opcode: OpCode, slices: &[IoSlice<'_>], length: usize) {
        let mask = (self.role == Role::Client).then(|| rand::random::<u32>().to_ne_bytes());
        let header = FrameHeader { opcode, mask, ..FrameHeader::default() };
        self.ensure_buffer();
        self.bytes.reserve(MESSAGE_HEADER + length);
        header.format(length as u64, &mut self.bytes).expect("a vector accepts all bytes");
        let start = self.bytes.len();
        for slice in slices {
            let missing = start + length - self.bytes.len();
            self.bytes.extend_from_slice(&slice[..slice.len().min(missing)]);
        }
        if let Some(mask) = mask {
            apply_mask(&mut self.bytes[start..], mask);
        }
    }

    /// Writes all frames.
    pub(crate) fn poll_write_to(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.written < self.bytes.len() {
            match ready!(Pin::new(&mut *io).poll_write(cx, &self.bytes[self.written..]))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        self.bytes.clear();
        SPARE.set(mem::take(&mut self.bytes));
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

/// Masks a payload, eight bytes at once.
fn apply_mask(payload: &mut [u8], mask: [u8; 4]) {
    let word_mask = u64::from_ne_bytes(array::from_fn(|index| mask[index % 4]));
    let (words, rest) = payload.as_chunks_mut();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ word_mask).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn payload_of_any_length_is_masked() {
        let mask = [1, 2, 3, 4];
        for length in 0..40 {
            let mut payload = vec![7; length];
            apply_mask(&mut payload, mask);
            let expected = mask.iter().cycle().map(|key| 7 ^ key).take(length);
            assert!(payload.iter().copied().eq(expected), "{length}");
        }
    }

    #[test]
    fn empty_queues_of_a_thread_share_one_buffer() {
        let mut queues = [Role::Server, Role::Client].map(FrameQueue::new);
        let mut buffers = Vec::new();
        for _ in 0..2 {
            for queue in &mut queues {
                queue.push_message(&[IoSlice::new(&[7; 1000])]);
                queue.push_ping();
                buffers.push(queue.bytes.as_ptr());
                let written =
                    queue.poll_write_to(&mut tokio::io::sink(), &mut Context::from_waker(Waker::noop()));
                assert!(written.is_ready());
                assert_eq!((queue.len(), queue.bytes.capacity()), (0, 0));
            }
        }
        assert!(buffers.iter().all(|buffer| *buffer == buffers[0]), "{buffers:?}");
    }

    #[test]
    fn flush_waits_only_after_a_short_message_of_several_slices() {
        let (head, data, long) = ([0; 9], [7; 300], [7; config::WEBSOCKET_MESSAGE]);
        for (slices, waits) in [
            (&[IoSlice::new(&head)][..], false),
            (&[IoSlice::new(&head), IoSlice::new(&data)], true),
            (&[IoSlice::new(&head), IoSlice::new(&long)], false),
        ] {
            let mut queue = FrameQueue::new(Role::Server);
            queue.push_message(slices);
            assert_eq!(queue.may_grow(), waits, "{} slices", slices.len());
            let written =
                queue.poll_write_to(&mut tokio::io::sink(), &mut Context::from_waker(Waker::noop()));
            assert!(written.is_ready());
            assert!(!queue.may_grow(), "an empty queue has nothing to wait for");
        }
    }
}
