//! What waits to be written.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, Bytes, BytesMut};

/// Most bytes that are taken out at once: enough for a system call to be worth it.
pub(super) const BATCH: usize = 256 << 10;

/// Small frames that may wait before their streams have to stand in line like all others.
const HASTE: usize = 64 << 10;

/// Room for the frames of a few requests.
const ROOM: usize = 4 << 10;

/// Frames that the other end made us send and that it has not read (CVE-2019-9512, CVE-2019-9515).
const MAX_OWED: usize = 10_000;

/// What waits to be written, and who stands in line to write more.
///
/// Heads, and bodies small enough to go with them, go first: they are what somebody waits for. Bulk takes turns.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Whole frames.
    frames: BytesMut,
    /// Streams whose data waits.
    pub(super) line: VecDeque<u32>,
    /// How many of the frames the other end provoked.
    owed: usize,
    /// Streams that have ended, and whose last words may be among the frames: the other end cannot know yet.
    ending: usize,
}

impl Outbox {
    /// A small frame need not stand in line.
    pub(super) fn is_quick(&self) -> bool {
        self.frames.len() < HASTE
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.line.is_empty()
    }

    /// Where frames are added.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        if self.frames.capacity() == 0 {
            self.frames.reserve(ROOM);
        }
        &mut self.frames
    }

    /// One more frame that the other end provoked. False if it should have read some by now.
    #[must_use]
    pub(super) fn owe(&mut self) -> bool {
        self.owed += 1;
        self.owed <= MAX_OWED
    }

    /// One more stream has ended. True if the other end knows it, as far as depends on this end.
    pub(super) fn end(&mut self) -> bool {
        self.ending += usize::from(!self.frames.is_empty());
        self.frames.is_empty()
    }

    /// Streams that the other end still counts, though they have ended.
    pub(super) fn ending(&self) -> usize {
        self.ending
    }

    /// All frames, for the transport. Nothing is kept: an idle connection has no memory for them.
    pub(super) fn take(&mut self) -> Bytes {
        self.owed = 0;
        self.ending = 0;
        std::mem::take(&mut self.frames).freeze()
    }
}

/// What the transport is given: whole frames, in pieces.
#[derive(Debug, Default)]
pub struct Batch {
    pieces: VecDeque<Bytes>,
    length: usize,
}

impl Batch {
    pub(crate) fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.length += bytes.len();
            self.pieces.push_back(bytes);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.length >= BATCH
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Fills the slices; returns how many.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let both = slices.iter_mut().zip(&self.pieces);
        both.map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    /// So much was written.
    pub(crate) fn advance(&mut self, mut written: usize) {
        self.length -= written;
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                return piece.advance(written);
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
    }

    /// All of it.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Bytes> {
        self.length = 0;
        self.pieces.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_goes_out_in_whatever_parts() {
        for step in 1..12 {
            let mut batch = Batch::default();
            for piece in ["one", "", "two", "three"] {
                batch.push(piece.into());
            }
            let mut out = Vec::new();
            while !batch.is_empty() {
                let mut slices = [IoSlice::new(&[]); 2];
                let count = batch.slices(&mut slices);
                let there: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let written = there.len().min(step);
                out.extend_from_slice(&there[..written]);
                batch.advance(written);
            }
            assert_eq!(out, b"onetwothree");
        }
    }

    #[test]
    fn what_is_owed_is_bounded_until_it_is_read() {
        let mut outbox = Outbox::default();
        assert!((0..MAX_OWED).all(|_| outbox.owe()));
        assert!(!outbox.owe());
        outbox.take();
        assert!(outbox.owe());
    }
}
