//! What a WebSocket has still to write.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::AsyncWrite;

use super::frame::{self, Header, Opcode};
use crate::http2::Batch;

/// Payload below this size is put together with its header, above it is sent from where it is.
const GATHERED: usize = 16 << 10;

/// Bytes are masked in steps that stay in the nearest cache.
const STEP: usize = 16 << 10;

/// Slices that are written at once.
const SLICES: usize = 32;

/// Frames, whole or in part. Holds nothing when all of it is written.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pieces: Batch,
    /// Behind the pieces: what is small, together.
    gathered: BytesMut,
}

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len() + self.gathered.len()
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
    }

    fn header(&mut self, opcode: Opcode, mask: Option<[u8; 4]>, length: usize) {
        let (header, end) = Header { opcode, length: length as u64, mask }.encode();
        self.gathered.extend_from_slice(&header[..end]);
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
            self.pieces.push(self.gathered.split().freeze());
        }
        self.pieces.push(piece);
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
                let mut count = self.pieces.slices(&mut slices);
                if let Some(last) = slices.get_mut(count) {
                    *last = IoSlice::new(&self.gathered);
                    count += 1;
                }
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

    fn advance(&mut self, written: usize) {
        let of_pieces = written.min(self.pieces.len());
        self.pieces.advance(of_pieces);
        self.gathered.advance(written - of_pieces);
    }
}
