//! What a WebSocket has still to write.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::AsyncWrite;

use super::frame::{self, Header, Opcode};

/// Payload below this size is put together with its header, above it is sent from where it is.
const GATHERED: usize = 16 << 10;

/// Bytes are masked in steps that stay in the nearest cache.
pub(super) const STEP: usize = 16 << 10;

/// Slices that are written at once.
const SLICES: usize = 32;

/// Frames, whole or in part. Holds nothing when all of it is written.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pieces: VecDeque<Bytes>,
    /// Behind the pieces: what is small, together.
    gathered: BytesMut,
    length: usize,
}

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds a frame whose payload is in these slices; no more than `length` bytes of it.
    pub(super) fn copy(
        &mut self,
        opcode: Opcode,
        mask: Option<[u8; 4]>,
        slices: &[IoSlice<'_>],
        length: usize,
    ) {
        self.header(opcode, mask, length);
        let mut offset = 0;
        for slice in slices {
            let part = &slice[..slice.len().min(length - offset)];
            self.extend(part, mask, offset);
            offset += part.len();
        }
        self.length += length;
    }

    /// Adds a frame of data made of these pieces, which are `length` bytes.
    ///
    /// What is large is not copied, not even to be masked, unless somebody else holds it too.
    pub(super) fn data(&mut self, mask: Option<[u8; 4]>, pieces: impl Iterator<Item = Bytes>, length: usize) {
        self.header(Opcode::Data, mask, length);
        let mut offset = 0;
        for piece in pieces {
            let size = piece.len();
            match piece.try_into_mut() {
                Ok(mut own) if size >= GATHERED => {
                    if let Some(mask) = mask {
                        frame::mask(&mut own, mask, offset);
                    }
                    self.push(own.freeze());
                }
                Err(shared) if mask.is_none() && size >= GATHERED => self.push(shared),
                Ok(piece) => self.extend(&piece, mask, offset),
                Err(piece) => self.extend(&piece, mask, offset),
            }
            offset += size;
        }
        self.length += length;
    }

    fn header(&mut self, opcode: Opcode, mask: Option<[u8; 4]>, length: usize) {
        let (header, end) = Header { opcode, length: length as u64, mask }.encode();
        self.gathered.extend_from_slice(&header[..end]);
        self.length += end;
    }

    fn extend(&mut self, bytes: &[u8], mask: Option<[u8; 4]>, offset: usize) {
        let mut offset = offset;
        self.gathered.reserve(bytes.len());
        for step in bytes.chunks(STEP) {
            let start = self.gathered.len();
            self.gathered.extend_from_slice(step);
            if let Some(mask) = mask {
                frame::mask(&mut self.gathered[start..], mask, offset);
            }
            offset += step.len();
        }
    }

    fn push(&mut self, piece: Bytes) {
        if !self.gathered.is_empty() {
            self.pieces.push_back(self.gathered.split().freeze());
        }
        self.pieces.push_back(piece);
    }

    /// Writes all of it.
    pub(super) fn poll_drain<T>(&mut self, io: &mut T, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        T: AsyncWrite + Unpin,
    {
        while !self.is_empty() {
            let written = if self.pieces.is_empty() {
                ready!(Pin::new(&mut *io).poll_write(cx, &self.gathered))?
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let all = self.pieces.iter().map(|piece| &piece[..]).chain([&self.gathered[..]]);
                let count =
                    slices.iter_mut().zip(all).map(|(slice, piece)| *slice = IoSlice::new(piece)).count();
                ready!(Pin::new(&mut *io).poll_write_vectored(cx, &slices[..count]))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        self.gathered = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut written: usize) {
        self.length -= written;
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                return piece.advance(written);
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
        self.gathered.advance(written);
    }
}
