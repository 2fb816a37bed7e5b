//! Bytes on their way out.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::AsyncWrite;

/// Data up to this length is copied behind the text before it: cheaper than to write two pieces.
const COPIED: usize = 2 << 10;
/// How many pieces of data wait at once, and how many are written at once: no more than text and data in turns.
const PIECES: usize = 16;
/// What is enough for one write.
const ENOUGH: usize = 64 << 10;
/// Room for text that is kept for the next message.
const KEPT: usize = 16 << 10;

/// What is to be written: text of ours, such as heads and the sizes of chunks, and pieces of data, as they are.
#[derive(Debug, Default)]
pub struct Queue {
    text: BytesMut,
    data: VecDeque<Piece>,
    /// Bytes of text behind the last piece of data.
    behind: usize,
    /// Of all data.
    length: usize,
}

#[derive(Debug)]
struct Piece {
    /// Bytes of text that stand before it, and behind the piece before.
    before: usize,
    data: Bytes,
}

impl Queue {
    /// Adds text of which `write` is the author.
    pub fn text<T>(&mut self, write: impl FnOnce(&mut BytesMut) -> T) -> T {
        let before = self.text.len();
        let result = write(&mut self.text);
        self.behind += self.text.len() - before;
        result
    }

    /// Adds data.
    pub(crate) fn data(&mut self, data: Bytes) {
        if data.len() <= COPIED {
            return self.text(|text| text.extend_from_slice(&data));
        }
        self.length += data.len();
        self.data.push_back(Piece { before: self.behind, data });
        self.behind = 0;
    }

    /// Whether it is time to write.
    pub(crate) fn is_full(&self) -> bool {
        self.data.len() >= PIECES || self.length + self.text.len() >= ENOUGH
    }

    /// Whether all was written.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.data.is_empty()
    }

    /// Writes all of it.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let written = if self.data.is_empty() {
                ready!(Pin::new(&mut *io).poll_write(cx, &self.text))?
            } else {
                let mut pieces = [IoSlice::new(&[]); 2 * PIECES + 1];
                let count = self.slices(&mut pieces);
                ready!(Pin::new(&mut *io).poll_write_vectored(cx, &pieces[..count]))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Gives back the room that many pieces took.
    pub fn rest(&mut self) {
        if self.is_empty() && self.text.capacity() > KEPT {
            self.text = BytesMut::new();
        }
    }

    /// All that is there, in order. How many there are.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; 2 * PIECES + 1]) -> usize {
        let mut text = &self.text[..];
        let mut count = 0;
        let mut add = |piece: &'a [u8]| {
            // Without empty ones: some write no more than the first.
            if !piece.is_empty() {
                slices[count] = IoSlice::new(piece);
                count += 1;
            }
        };
        for piece in &self.data {
            let (before, rest) = text.split_at(piece.before);
            text = rest;
            add(before);
            add(&piece.data);
        }
        add(text);
        count
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(piece) = self.data.front_mut() {
            let of_text = written.min(piece.before);
            self.text.advance(of_text);
            piece.before -= of_text;
            written -= of_text;
            let of_data = written.min(piece.data.len());
            piece.data.advance(of_data);
            self.length -= of_data;
            written -= of_data;
            if !piece.data.is_empty() {
                return;
            }
            self.data.pop_front();
        }
        self.behind -= written;
        if self.behind == 0 {
            // And its room is used again, from the start.
            self.text.clear();
        } else {
            self.text.advance(written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at once, like a socket whose other end reads slowly.
    struct Narrow {
        step: usize,
        vectored: bool,
        taken: Vec<u8>,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let taken = bytes.len().min(self.step);
            self.taken.extend_from_slice(&bytes[..taken]);
            Poll::Ready(Ok(taken))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let written = if self.vectored { slices } else { &slices[..1] };
            let all: Vec<u8> = written.iter().flat_map(|slice| slice.iter().copied()).collect();
            self.poll_write(cx, &all)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn everything_is_written_in_order_however_little_is_taken_at_once() {
        let large = vec![b'x'; COPIED + 1];
        for (step, vectored) in
            [(1, true), (3, false), (COPIED, true), (usize::MAX, true), (usize::MAX, false)]
        {
            let mut queue = Queue::default();
            let mut expected = Vec::new();
            for data in [&b"head"[..], &large, &large, b"small", b"", &large] {
                queue.data(Bytes::copy_from_slice(data));
                queue.text(|text| text.extend_from_slice(b"\r\n"));
                expected.extend_from_slice(data);
                expected.extend_from_slice(b"\r\n");
            }
            let mut io = Narrow { step, vectored, taken: Vec::new() };
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(matches!(queue.poll_write(&mut cx, &mut io), Poll::Ready(Ok(()))));
            assert!(queue.is_empty() && io.taken == expected, "{step} {vectored}");
            assert_eq!((queue.behind, queue.length), (0, 0));
        }
    }

    #[test]
    fn as_much_waits_as_is_written_at_once() {
        let mut queue = Queue::default();
        for _ in 0..PIECES {
            assert!(!queue.is_full());
            queue.data(vec![0; COPIED + 1].into());
        }
        assert!(queue.is_full());
        let mut queue = Queue::default();
        queue.data(vec![0; ENOUGH].into());
        assert!(queue.is_full());
    }
}
