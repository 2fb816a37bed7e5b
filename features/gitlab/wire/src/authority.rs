//! Replaces the authority of GitLab's requests, which is not valid.
//!
//! Inside of a WebSocket, agentk's requests have the authority `ws:%2F%2F<host>:<port>`, the whole URL in percent-encoding. The crate
//! `http` refuses it, and with it each request of the connection. Nobody needs the authority, so that this filter replaces its literal
//! before h2 decodes the header block.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The length of the preface of HTTP/2 (RFC 9113 section 3.4).
const PREFACE: usize = 24;
/// The length of the head of a frame (RFC 9113 section 4.1).
const FRAME_HEAD: usize = 9;
/// The type of a frame with the begin of a header block (RFC 9113 section 6.2).
const HEADERS: u8 = 1;
const FLAG_END_HEADERS: u8 = 0x4;
const FLAG_PADDED: u8 = 0x8;
const FLAG_PRIORITY: u8 = 0x20;
/// The longest frame that is rewritten, in bytes: the longest that a peer may send without another setting.
const MAX_FRAME: usize = 16 << 10;
/// The index of `:authority` in the static table of HPACK (RFC 7541 appendix A).
const AUTHORITY_INDEX: u64 = 1;
/// The new authority. It is not longer than any that it replaces, so that entries of the dynamic table are not evicted earlier here
/// than in the table of the sender.
const REPLACEMENT: &[u8] = b"kas";

/// A byte stream of HTTP/2 from a client, whose requests have a valid authority.
///
/// It begins with bytes that were read before. A header block in several frames passes unchanged.
#[derive(Debug)]
pub struct AuthorityFilter<T> {
    io: T,
    /// Bytes that were read and have not passed the filter.
    pending: BytesMut,
    /// Bytes for the reader.
    ready: BytesMut,
    /// The bytes that pass before the next frame begins.
    passing: usize,
}

impl<T> AuthorityFilter<T> {
    /// Returns a filter of a stream whose first bytes were read already.
    pub fn new(io: T, first: &[u8]) -> Self {
        Self { io, pending: BytesMut::from(first), ready: BytesMut::new(), passing: PREFACE }
    }

    /// Moves complete frames from `pending` to `ready`.
    fn advance(&mut self) {
        loop {
            let passed = self.passing.min(self.pending.len());
            if passed > 0 {
                self.ready.extend_from_slice(&self.pending[..passed]);
                self.pending.advance(passed);
                self.passing -= passed;
            }
            let Some(head) = self.pending.first_chunk::<FRAME_HEAD>().filter(|_| self.passing == 0) else {
                return;
            };
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let (kind, flags) = (head[3], head[4]);
            if kind != HEADERS || flags & FLAG_END_HEADERS == 0 || length > MAX_FRAME {
                self.passing = FRAME_HEAD + length;
                continue;
            }
            if self.pending.len() < FRAME_HEAD + length {
                return;
            }
            let frame = self.pending.split_to(FRAME_HEAD + length);
            self.ready.extend_from_slice(&rewrite(&frame).unwrap_or_else(|| frame.to_vec()));
        }
    }
}

/// Returns a frame of type HEADERS with another authority. Returns `None` if it has no literal of it, or is malformed: h2 then reports
/// the error.
fn rewrite(frame: &[u8]) -> Option<Vec<u8>> {
    let (head, payload) = frame.split_at_checked(FRAME_HEAD)?;
    let flags = head[4];
    let (padding, payload) = match flags & FLAG_PADDED {
        0 => (0, payload),
        _ => payload.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
    };
    let priority = if flags & FLAG_PRIORITY == 0 { 0 } else { 5 };
    let block = payload.get(priority..payload.len().checked_sub(padding)?)?;
    let literal = find_authority(block)?;

    let mut rewritten = Vec::with_capacity(frame.len());
    rewritten.extend_from_slice(&[0, 0, 0, HEADERS, flags & !FLAG_PADDED]);
    rewritten.extend_from_slice(&head[5..]);
    rewritten.extend_from_slice(&payload[..priority]);
    rewritten.extend_from_slice(&block[..literal.start]);
    // A literal without Huffman code (RFC 7541 section 5.2).
    rewritten.push(u8::try_from(REPLACEMENT.len()).ok()?);
    rewritten.extend_from_slice(REPLACEMENT);
    rewritten.extend_from_slice(&block[literal.end..]);
    let length = u32::try_from(rewritten.len() - FRAME_HEAD).ok()?.to_be_bytes();
    rewritten[..3].copy_from_slice(&length[1..]);
    Some(rewritten)
}

/// Returns the place of the literal value of `:authority` in a header block (RFC 7541 section 6).
fn find_authority(block: &[u8]) -> Option<std::ops::Range<usize>> {
    let mut reader = BlockReader { block, position: 0 };
    while reader.position < block.len() {
        let prefix = match block[reader.position] {
            // An indexed field, which has no literal.
            byte if byte & 0x80 != 0 => {
                reader.integer(7)?;
                continue;
            }
            byte if byte & 0x40 != 0 => 6,
            // An update of the size of the table.
            byte if byte & 0x20 != 0 => {
                reader.integer(5)?;
                continue;
            }
            _ => 4,
        };
        let name = reader.integer(prefix)?;
        if name == 0 {
            reader.string()?;
        }
        let start = reader.position;
        reader.string()?;
        if name == AUTHORITY_INDEX {
            return Some(start..reader.position);
        }
    }
    None
}

struct BlockReader<'a> {
    block: &'a [u8],
    position: usize,
}

impl BlockReader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.block.get(self.position)?;
        self.position += 1;
        Some(byte)
    }

    /// Reads an integer (RFC 7541 section 5.1). One that does not fit into 32 bits is an error.
    fn integer(&mut self, prefix: u32) -> Option<u64> {
        let max = (1_u64 << prefix) - 1;
        let mut value = u64::from(self.byte()?) & max;
        if value < max {
            return Some(value);
        }
        for shift in (0..28).step_by(7) {
            let byte = self.byte()?;
            value += u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Passes a string (RFC 7541 section 5.2).
    fn string(&mut self) -> Option<()> {
        let length = usize::try_from(self.integer(7)?).ok()?;
        self.position = self.position.checked_add(length).filter(|end| *end <= self.block.len())?;
        Some(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for AuthorityFilter<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            this.advance();
            if !this.ready.is_empty() {
                let length = this.ready.len().min(buffer.remaining());
                buffer.put_slice(&this.ready[..length]);
                this.ready.advance(length);
                if this.ready.is_empty() {
                    // An idle connection holds no buffer.
                    this.ready = BytesMut::new();
                }
                return Poll::Ready(Ok(()));
            }
            if this.pending.is_empty() && this.passing > 0 {
                // The usual case: the rest of a body passes without a copy.
                let room = this.passing.min(buffer.remaining());
                let mut limited = ReadBuf::new(buffer.initialize_unfilled_to(room));
                ready!(Pin::new(&mut this.io).poll_read(cx, &mut limited))?;
                let read = limited.filled().len();
                this.passing -= read;
                buffer.advance(read);
                return Poll::Ready(Ok(()));
            }
            let mut chunk = [0; 2 << 10];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                if this.pending.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                // The end of the stream in the middle of a frame, which is an error that h2 reports.
                this.ready.extend_from_slice(&this.pending.split());
                continue;
            }
            this.pending.extend_from_slice(chunk.filled());
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for AuthorityFilter<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Returns the bytes after the filter, for a stream that arrives in pieces of `size` bytes.
    async fn filter(frames: &[Vec<u8>], size: usize) -> Vec<u8> {
        let sent = [&[b'P'; PREFACE][..], &frames.concat()].concat();
        let (first, rest) = sent.split_at(size.min(sent.len()));
        let rest = Chunks(rest.chunks(size).map(<[u8]>::to_vec).collect());
        let mut received = Vec::new();
        AuthorityFilter::new(rest, first).read_to_end(&mut received).await.unwrap();
        received.split_off(PREFACE)
    }

    /// A source of chunks.
    struct Chunks(std::collections::VecDeque<Vec<u8>>);

    impl AsyncRead for Chunks {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(mut chunk) = self.0.pop_front() {
                let rest = chunk.split_off(chunk.len().min(buffer.remaining()));
                buffer.put_slice(&chunk);
                if !rest.is_empty() {
                    self.0.push_front(rest);
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn literal_of_the_authority_is_replaced() {
        // `:method: POST`, a new size of the table, `x: y` as a literal, then `:authority` with a name from the static table.
        let before = [0x83, 0x3f, 0xe1, 0x1f, 0x00, 0x01, b'x', 0x01, b'y'];
        let literal = [&[0x41, 0x0a][..], b"ws:%2F%2Fh"].concat();
        let block = [&before[..], &literal, &[0x86]].concat();
        let expected = [&before[..], &[0x41, 0x03], b"kas", &[0x86]].concat();
        let padded = [&[2, 1, 2, 3, 4, 5][..], &block, &[0, 0]].concat();
        for size in [1, 2, 7, 1000] {
            let sent = [frame(4, 0, &[0; 6]), frame(HEADERS, 0x5, &block), frame(0, 1, b"data")];
            let received = [frame(4, 0, &[0; 6]), frame(HEADERS, 0x5, &expected), frame(0, 1, b"data")];
            assert_eq!(filter(&sent, size).await, received.concat(), "{size}");
            let priority = [&[1, 2, 3, 4, 5][..], &expected].concat();
            assert_eq!(filter(&[frame(HEADERS, 0x2c, &padded)], size).await, frame(HEADERS, 0x24, &priority));
        }
    }

    #[tokio::test]
    async fn other_frames_pass_unchanged() {
        let unfinished = frame(HEADERS, 0x1, &[0x41, 0x01, b'a']);
        let indexed = frame(HEADERS, 0x4, &[0x83, 0xbe, 0x10, 0x01, b'a', 0x01, b'b']);
        let malformed = [&[0x41, 0x7f][..], &[0x41], &[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff], &[0x7f]];
        let cut = frame(HEADERS, 0x4, &[0x83, 0x86])[..10].to_vec();
        let mut frames = vec![unfinished, indexed, frame(HEADERS, 0xc, &[200])];
        frames.extend(malformed.map(|block| frame(HEADERS, 0x4, block)));
        frames.push(cut);
        for size in [1, 5, 1000] {
            assert_eq!(filter(&frames, size).await, frames.concat(), "{size}");
        }
    }
}
