//! The stream: frames are taken apart in the reader's own buffer, and what is large is written from where it is. An idle
//! WebSocket holds no buffer at all.

use std::{
    io::{self, IoSlice},
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    frame::{self, Header, MAX_CONTROL, MAX_HEADER, Opcode, violation},
    outgoing::Outgoing,
};
use crate::{
    http2::{Batch, Transport},
    keepalive::Liveness,
};

/// Most bytes that wait to be written before the writer has to: a few of HTTP/2's largest frames, so that one system
/// call carries them.
const WRITE_HIGH: usize = 256 << 10;

/// Which end this is. The client masks what it sends (RFC 6455 section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// agentk, who dialled.
    Client,
    /// kas.
    Server,
}

/// The bytes inside a WebSocket, over the byte stream that spoke its handshake.
#[derive(Debug)]
pub struct WebSocket<T> {
    io: T,
    role: Role,
    /// Bytes that came together with the handshake.
    early: Bytes,
    deframer: Deframer,
    out: Outgoing,
    /// The latest ping's payload, to be answered once `out` is written: one that pings and never reads gets no memory
    /// of ours (RFC 6455 section 5.5.3: the latest is enough).
    pong: Option<Vec<u8>>,
    close: Close,
    liveness: Arc<Liveness>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    Open,
    /// Our close frame is in `out`, or was written.
    Sent,
}

impl<T> WebSocket<T> {
    /// Goes on where the handshake ended; `early` is what was read beyond it.
    pub fn new(io: T, early: Bytes, role: Role) -> Self {
        Self {
            io,
            role,
            early,
            deframer: Deframer::new(role),
            out: Outgoing::default(),
            pong: None,
            close: Close::Open,
            liveness: Arc::default(),
        }
    }

    pub(crate) fn liveness(&self) -> Arc<Liveness> {
        Arc::clone(&self.liveness)
    }

    fn append(&mut self, opcode: Opcode, slices: &[IoSlice<'_>], length: usize) {
        let mask = self.mask();
        self.out.copy(opcode, mask, slices, length);
    }

    /// RFC 6455 section 5.3.
    fn mask(&self) -> Option<[u8; 4]> {
        (self.role == Role::Client).then(rand::random)
    }

    fn append_close(&mut self) {
        if self.close == Close::Open {
            self.close = Close::Sent;
            // 1000, normal closure (RFC 6455 section 7.4.1).
            self.append(Opcode::Close, &[IoSlice::new(&1000u16.to_be_bytes())], 2);
        }
    }
}

impl<T: AsyncWrite + Unpin> WebSocket<T> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.out.poll_drain(&mut self.io, cx))?;
            let Some(pong) = self.pong.take().filter(|_| self.close == Close::Open) else {
                return Poll::Ready(Ok(()));
            };
            self.append(Opcode::Pong, &[IoSlice::new(&pong)], pong.len());
        }
    }

    /// Waits until there is room for another frame.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.close == Close::Sent {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        match self.out.len() {
            ..WRITE_HIGH => Poll::Ready(Ok(())),
            _ => self.poll_drain(cx),
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Transport for WebSocket<T> {
    fn poll_take(&mut self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<io::Result<()>> {
        ready!(self.poll_room(cx))?;
        let (mask, length) = (self.mask(), batch.len());
        self.out.data(mask, batch.drain(), length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let start = buf.filled().len();
        while buf.remaining() > 0 && !this.deframer.closed {
            if this.early.is_empty() {
                ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
            } else {
                let early = this.early.split_to(this.early.len().min(buf.remaining()));
                buf.put_slice(&early);
            }
            if buf.filled().len() == start {
                // The transport ended without a close frame; HTTP/2 above knows whether that is an error.
                return Poll::Ready(Ok(()));
            }

            this.liveness.heard();
            let payload = this.deframer.deframe(&mut buf.filled_mut()[start..])?;
            buf.set_filled(start + payload);
            if let Some(ping) = this.deframer.ping.take() {
                this.pong = Some(ping);
            }
            if this.deframer.closed {
                this.append_close();
            }
            if !this.out.is_empty() || this.pong.is_some() {
                // What is left goes out with the next flush, and a write that fails is the writer's to report: the
                // other end may have closed right behind the bytes just read.
                let _ = this.poll_drain(cx);
            }
            if payload > 0 {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_room(cx))?;
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>().min(WRITE_HIGH);
        if length > 0 {
            self.append(Opcode::Data, slices, length);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.liveness.take_ping() && self.close == Close::Open {
            self.append(Opcode::Ping, &[], 0);
        }
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.append_close();
        ready!(self.poll_drain(cx))?;
        ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
        // Closing a socket with unread bytes resets it, and the reset may overtake the last response on its way to the
        // other end. So what still comes is read away until the other end has closed too (RFC 6455 section 7.1.1).
        let this = &mut *self;
        let mut scratch = [0; 512];
        while !this.deframer.closed {
            let mut scratch = ReadBuf::new(&mut scratch);
            let read = ready!(Pin::new(&mut this.io).poll_read(cx, &mut scratch));
            if read.is_err()
                || scratch.filled().is_empty()
                || this.deframer.deframe(scratch.filled_mut()).is_err()
            {
                break;
            }
            this.liveness.heard();
        }
        Poll::Ready(Ok(()))
    }
}

/// Takes frames apart. Pure: bytes in, payload out.
#[derive(Debug)]
struct Deframer {
    role: Role,
    /// The part of a header that came so far.
    header: [u8; MAX_HEADER],
    header_length: usize,
    /// The frame whose payload is being read.
    current: Option<Frame>,
    /// The payload of a control frame, as far as it came.
    control: Vec<u8>,
    /// The payload of the latest ping, to be answered (RFC 6455 section 5.5.3: the latest is enough).
    ping: Option<Vec<u8>>,
    /// A close frame came: there is no more data.
    closed: bool,
}

#[derive(Debug)]
struct Frame {
    opcode: Opcode,
    mask: Option<[u8; 4]>,
    /// Payload read so far, modulo four: where in the mask the next byte falls.
    offset: usize,
    left: u64,
}

impl Deframer {
    fn new(role: Role) -> Self {
        Self {
            role,
            header: [0; MAX_HEADER],
            header_length: 0,
            current: None,
            control: Vec::new(),
            ping: None,
            closed: false,
        }
    }

    /// Turns raw bytes into payload in place; returns how many bytes at the front are payload.
    fn deframe(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (mut read, mut kept) = (0, 0);
        while read < bytes.len() && !self.closed {
            let Some(frame) = &mut self.current else {
                read += self.take_header(&bytes[read..])?;
                continue;
            };

            let taken = usize::try_from(frame.left).unwrap_or(usize::MAX).min(bytes.len() - read);
            match frame.opcode {
                Opcode::Data => {
                    close_up(bytes, read..read + taken, kept, frame.mask, frame.offset);
                    kept += taken;
                }
                Opcode::Ping | Opcode::Pong | Opcode::Close => {
                    let from = self.control.len();
                    self.control.extend_from_slice(&bytes[read..read + taken]);
                    if let Some(mask) = frame.mask {
                        frame::mask(&mut self.control[from..], mask, frame.offset);
                    }
                }
            }
            read += taken;
            frame.offset = (frame.offset + taken) % 4;
            frame.left -= taken as u64;
            self.finish_frame();
        }
        Ok(kept)
    }

    /// Returns how many of the bytes belong to the header.
    fn take_header(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let before = self.header_length;
        let taken = bytes.len().min(MAX_HEADER - before);
        self.header[before..before + taken].copy_from_slice(&bytes[..taken]);
        let Some((header, length)) = Header::parse(&self.header[..before + taken])? else {
            self.header_length += taken;
            return Ok(taken);
        };
        if header.mask.is_some() != (self.role == Role::Server) {
            return Err(violation(
                "a frame is masked by kas, or not masked by agentk (RFC 6455 section 5.1)",
            ));
        }

        self.header_length = 0;
        self.current =
            Some(Frame { opcode: header.opcode, mask: header.mask, offset: 0, left: header.length });
        self.finish_frame();
        Ok(length - before)
    }

    fn finish_frame(&mut self) {
        let Some(frame) = self.current.take_if(|frame| frame.left == 0) else {
            return;
        };

        debug_assert!(self.control.len() <= MAX_CONTROL);
        match frame.opcode {
            Opcode::Data => {}
            Opcode::Ping => self.ping = Some(std::mem::take(&mut self.control)),
            Opcode::Pong => self.control = Vec::new(),
            Opcode::Close => self.closed = true,
        }
    }
}

/// Moves payload down to where the payload before it ends, and takes its mask off.
fn close_up(bytes: &mut [u8], payload: Range<usize>, to: usize, mask: Option<[u8; 4]>, offset: usize) {
    match mask {
        None if payload.start == to => {}
        None => bytes.copy_within(payload, to),
        Some(mask) if payload.start == to => frame::mask(&mut bytes[payload], mask, offset),
        Some(mask) => frame::mask_down(bytes, payload, to, mask, offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(opcode: Opcode, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
        let (header, end) = Header { opcode, length: payload.len() as u64, mask }.encode();
        let mut bytes = header[..end].to_vec();
        bytes.extend_from_slice(payload);
        if let Some(mask) = mask {
            frame::mask(&mut bytes[end..], mask, 0);
        }
        bytes
    }

    /// However the bytes are cut, the same payload comes out.
    #[test]
    fn frames_are_taken_apart_wherever_they_are_cut() {
        let mask = Some([9, 8, 7, 6]);
        let long: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        let mut wire = frame(Opcode::Data, b"hello", mask);
        wire.extend(frame(Opcode::Ping, b"are you there", mask));
        wire.extend(frame(Opcode::Data, b"", mask));
        wire.extend(frame(Opcode::Data, &long, mask));
        wire.extend(frame(Opcode::Pong, b"", mask));
        wire.extend(frame(Opcode::Data, b"!", mask));
        let expected = [b"hello", &long[..], b"!"].concat();

        for step in [1, 2, 3, 5, 13, 14, 15, 4096, wire.len()] {
            let mut deframer = Deframer::new(Role::Server);
            let mut payload = Vec::new();
            for chunk in wire.chunks(step) {
                let mut chunk = chunk.to_vec();
                let kept = deframer.deframe(&mut chunk).unwrap();
                payload.extend_from_slice(&chunk[..kept]);
            }
            assert!(payload == expected, "in steps of {step}");
            assert_eq!(deframer.ping.as_deref(), Some(&b"are you there"[..]));
        }
    }

    #[test]
    fn nothing_is_read_after_a_close() {
        let mut wire = frame(Opcode::Data, b"last", None);
        wire.extend(frame(Opcode::Close, &[3, 232], None));
        wire.extend(frame(Opcode::Data, b"ghost", None));
        let mut deframer = Deframer::new(Role::Client);
        assert_eq!(deframer.deframe(&mut wire).unwrap(), 4);
        assert!(deframer.closed);
    }

    #[test]
    fn masks_go_one_way_only() {
        let mut masked = frame(Opcode::Data, b"x", Some([1; 4]));
        assert!(Deframer::new(Role::Client).deframe(&mut masked).is_err());
        let mut plain = frame(Opcode::Data, b"x", None);
        assert!(Deframer::new(Role::Server).deframe(&mut plain).is_err());
    }
}
