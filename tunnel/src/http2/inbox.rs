//! Takes what arrives apart into frames.

use bytes::{Buf as _, Bytes, BytesMut};

use super::{
    error::{Fault, Reason},
    frame::{self, HEAD, Head, PREFACE, Setting, flag, kind},
};

/// Payload up to this size is copied out of the buffer, so that what waits for a slow reader holds its own bytes and not
/// the whole buffer. More is a slice: a buffer is never more than sixteen times as large.
const COPIED: usize = 16 << 10;

/// One frame, or a part of a DATA frame as long as the rest is on its way.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// `counted` is what flow control counts: the bytes and their padding.
    Data {
        stream: u32,
        bytes: Bytes,
        counted: usize,
        end: bool,
    },
    /// A whole block, whatever number of frames it came in.
    Headers {
        stream: u32,
        block: Bytes,
        end: bool,
    },
    Reset {
        stream: u32,
        reason: Reason,
    },
    Settings(Vec<Setting>),
    SettingsAck,
    Ping([u8; 8]),
    Pong([u8; 8]),
    GoAway {
        last: u32,
        reason: Reason,
    },
    /// `stream` 0 is the connection.
    Window {
        stream: u32,
        increment: u32,
    },
}

/// Bytes in, frames out. Pure.
#[derive(Debug)]
pub(super) struct Inbox {
    /// What has arrived and is not a frame yet. Whoever reads adds to it.
    pub(super) buffer: BytesMut,
    /// How much of the preface is still to come.
    preface: &'static [u8],
    /// Nothing has come before (RFC 9113 section 3.4).
    first: bool,
    max_frame: usize,
    /// The largest block. Unpacked it cannot be smaller.
    max_block: usize,
    data: Option<Data>,
    block: Option<Block>,
}

/// A DATA frame whose end is on its way.
#[derive(Debug)]
struct Data {
    stream: u32,
    left: usize,
    /// What flow control counts besides, until it was said.
    uncounted: usize,
    /// What comes last and means nothing.
    padding: usize,
    end: bool,
    /// Only padding is left.
    said: bool,
}

/// A block whose end is on its way (RFC 9113 section 4.3).
#[derive(Debug)]
struct Block {
    stream: u32,
    bytes: BytesMut,
    end: bool,
}

impl Inbox {
    /// For the end that hears the preface, or for the one that has said it.
    pub(super) fn new(server: bool, max_frame: usize, max_block: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            preface: if server { PREFACE } else { &[] },
            first: true,
            max_frame,
            max_block,
            data: None,
            block: None,
        }
    }

    /// The next frame, once it is there.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Fault> {
        if !self.preface.is_empty() {
            let common = self.preface.len().min(self.buffer.len());
            if self.buffer[..common] != self.preface[..common] {
                return Err(Fault::protocol("it does not speak HTTP/2"));
            }
            self.buffer.advance(common);
            self.preface = &self.preface[common..];
        }
        loop {
            if let Some(data) = self.take_data() {
                return Ok(Some(data));
            }
            if self.data.is_some() {
                return Ok(None);
            }
            let Some(head) = self.buffer.first_chunk::<HEAD>().map(Head::parse) else {
                return Ok(None);
            };
            self.check(head)?;
            if head.kind == kind::DATA {
                if !self.begin_data(head)? {
                    return Ok(None);
                }
                continue;
            }
            if self.buffer.len() < HEAD + head.length {
                return Ok(None);
            }
            self.buffer.advance(HEAD);
            if let Some(frame) = self.take(head)? {
                return Ok(Some(frame));
            }
        }
    }

    /// What a head says by itself.
    fn check(&mut self, head: Head) -> Result<(), Fault> {
        if head.length > self.max_frame {
            return Err(Fault::size("a frame is larger than was agreed on"));
        }
        if std::mem::take(&mut self.first) && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(Fault::protocol("the first frame is not SETTINGS"));
        }
        match &self.block {
            Some(block) if head.kind != kind::CONTINUATION || head.stream != block.stream => {
                return Err(Fault::protocol("a head is interrupted"));
            }
            None if head.kind == kind::CONTINUATION => {
                return Err(Fault::protocol("CONTINUATION without a head"));
            }
            _ => {}
        }
        let of_stream = match head.kind {
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION => true,
            kind::SETTINGS | kind::PING | kind::GOAWAY => false,
            kind::PUSH_PROMISE => return Err(Fault::protocol("nobody asked for PUSH_PROMISE")),
            _ => return Ok(()),
        };
        if of_stream == (head.stream == 0) {
            return Err(Fault::protocol("a frame of a stream on the connection, or the other way round"));
        }
        Ok(())
    }

    /// False if its first byte is not there yet.
    fn begin_data(&mut self, head: Head) -> Result<bool, Fault> {
        let (mut left, mut uncounted, mut padding) = (head.length, 0, 0);
        if head.has(flag::PADDED) {
            let Some(&length) = self.buffer.get(HEAD) else { return Ok(false) };
            padding = usize::from(length);
            uncounted = padding + 1;
            left = left.checked_sub(uncounted).ok_or(PADDING)?;
            self.buffer.advance(1);
        }
        self.buffer.advance(HEAD);
        let end = head.has(flag::END_STREAM);
        self.data = Some(Data { stream: head.stream, left, uncounted, padding, end, said: false });
        Ok(true)
    }

    /// What is there of a DATA frame.
    fn take_data(&mut self) -> Option<Frame> {
        let data = self.data.as_mut()?;
        if data.said {
            let skipped = data.padding.min(self.buffer.len());
            self.buffer.advance(skipped);
            data.padding -= skipped;
            if data.padding == 0 {
                self.data = None;
            }
            return None;
        }

        let length = data.left.min(self.buffer.len());
        if length == 0 && data.left > 0 {
            return None;
        }
        let bytes = match length {
            0..=COPIED => {
                let bytes = Bytes::copy_from_slice(&self.buffer[..length]);
                self.buffer.advance(length);
                bytes
            }
            _ => self.buffer.split_to(length).freeze(),
        };
        data.left -= length;
        data.said = data.left == 0;
        let counted = length + std::mem::take(&mut data.uncounted);
        let (stream, end) = (data.stream, data.end && data.said);
        if data.said && data.padding == 0 {
            self.data = None;
        }
        Some(Frame::Data { stream, bytes, counted, end })
    }

    /// A whole frame that is not DATA; `None` if it says nothing by itself.
    fn take(&mut self, head: Head) -> Result<Option<Frame>, Fault> {
        let payload = &self.buffer[..head.length];
        let stream = head.stream;
        let frame = match head.kind {
            kind::HEADERS | kind::CONTINUATION => return self.take_block(head),
            kind::RST_STREAM => Some(Frame::Reset { stream, reason: Reason(word(payload)?) }),
            kind::SETTINGS if head.has(flag::ACK) => match payload {
                [] => Some(Frame::SettingsAck),
                _ => return Err(Fault::size("an acknowledgement of SETTINGS with a payload")),
            },
            kind::SETTINGS => Some(Frame::Settings(frame::settings(payload)?)),
            kind::PING => {
                let payload = *payload.as_array().ok_or(Fault::size("PING is not eight bytes long"))?;
                Some(if head.has(flag::ACK) { Frame::Pong(payload) } else { Frame::Ping(payload) })
            }
            kind::GOAWAY => {
                let (last, reason) = payload.split_first_chunk().ok_or(TOO_SHORT)?;
                let reason = *reason.first_chunk().ok_or(TOO_SHORT)?;
                let last = u32::from_be_bytes(*last) & (u32::MAX >> 1);
                Some(Frame::GoAway { last, reason: Reason(u32::from_be_bytes(reason)) })
            }
            kind::WINDOW_UPDATE => {
                Some(Frame::Window { stream, increment: word(payload)? & (u32::MAX >> 1) })
            }
            kind::PRIORITY if payload.len() != 5 => {
                return Err(Fault::size("PRIORITY is not five bytes long"));
            }
            // RFC 9113 sections 5.3.2 and 5.5.
            _ => None,
        };
        self.buffer.advance(head.length);
        Ok(frame)
    }

    fn take_block(&mut self, head: Head) -> Result<Option<Frame>, Fault> {
        let mut part = &self.buffer[..head.length];
        if head.kind == kind::HEADERS {
            if head.has(flag::PADDED) {
                let (padding, rest) = part.split_first().ok_or(PADDING)?;
                part = &rest[..rest.len().checked_sub(usize::from(*padding)).ok_or(PADDING)?];
            }
            if head.has(flag::PRIORITY) {
                part = part.get(5..).ok_or(TOO_SHORT)?;
            }
        }
        let so_far = self.block.as_ref().map_or(0, |block| block.bytes.len());
        if so_far + part.len() > self.max_block || head.kind == kind::CONTINUATION && part.is_empty() {
            return Err(Fault::flood("a head is far too large, or never ends (CVE-2024-27316)"));
        }

        let complete = head.has(flag::END_HEADERS);
        let frame = match (&mut self.block, complete) {
            (None, true) => {
                let end = head.has(flag::END_STREAM);
                Some(Frame::Headers { stream: head.stream, block: Bytes::copy_from_slice(part), end })
            }
            (None, false) => {
                let end = head.has(flag::END_STREAM);
                self.block = Some(Block { stream: head.stream, bytes: part.into(), end });
                None
            }
            (Some(block), _) => {
                block.bytes.extend_from_slice(part);
                self.block.take_if(|_| complete).map(|block| Frame::Headers {
                    stream: block.stream,
                    block: block.bytes.freeze(),
                    end: block.end,
                })
            }
        };
        self.buffer.advance(head.length);
        Ok(frame)
    }
}

const PADDING: Fault = Fault::protocol("a frame has more padding than bytes");
const TOO_SHORT: Fault = Fault::size("a frame is too short for what it is");

fn word(payload: &[u8]) -> Result<u32, Fault> {
    let bytes = payload.try_into().map_err(|_| Fault::size("a frame is not four bytes long"))?;
    Ok(u32::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(inbox: &mut Inbox, bytes: &[u8]) -> Result<Vec<Frame>, Fault> {
        inbox.buffer.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = inbox.next()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    fn put(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        frame::put(&mut out, kind, flags, stream, payload);
        out.to_vec()
    }

    fn inbox() -> Inbox {
        let mut inbox = Inbox::new(false, 1 << 16, 1 << 10);
        assert_eq!(frames(&mut inbox, &put(kind::SETTINGS, 0, 0, &[])).unwrap(), [Frame::Settings(vec![])]);
        inbox
    }

    /// Whatever is cut where, the same comes out: DATA in parts, the rest whole.
    #[test]
    fn frames_are_taken_apart_wherever_they_are_cut() {
        let long = [7; 10_000];
        let mut wire = PREFACE.to_vec();
        wire.extend(put(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9]));
        wire.extend(put(kind::HEADERS, flag::PADDED | flag::PRIORITY, 1, &[2, 0, 0, 0, 0, 0, b'a', 0, 0]));
        wire.extend(put(kind::CONTINUATION, flag::END_HEADERS, 1, b"bc"));
        wire.extend(put(kind::DATA, 0, 1, &long));
        wire.extend(put(kind::DATA, flag::PADDED | flag::END_STREAM, 1, &[3, b'x', b'y', 0, 0, 0]));
        wire.extend(put(kind::DATA, flag::END_STREAM, 3, b""));
        wire.extend(put(kind::PING, 0, 0, b"12345678"));
        wire.extend(put(0x77, 0xff, 9, b"unheard of"));
        wire.extend(put(kind::WINDOW_UPDATE, 0, 1, &[0x80, 0, 0, 5]));
        wire.extend(put(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0, b'b', b'y', b'e']));
        for step in [1, 2, 3, 8, 9, 10, 4095, wire.len()] {
            let mut inbox = Inbox::new(true, 1 << 16, 1 << 10);
            let mut seen = Vec::new();
            let (mut data, mut counted, mut ends) = (Vec::new(), 0, 0);
            for part in wire.chunks(step) {
                for frame in frames(&mut inbox, part).unwrap() {
                    match frame {
                        Frame::Data { stream: 1, bytes, counted: more, end } => {
                            assert_eq!(ends, 0);
                            data.extend_from_slice(&bytes);
                            counted += more;
                            ends += u32::from(end);
                        }
                        other => seen.push(other),
                    }
                }
            }
            assert_eq!(data, [&long[..], b"xy"].concat(), "in steps of {step}");
            assert_eq!((counted, ends), (10_000 + 6, 1));
            assert_eq!(
                seen,
                [
                    Frame::Settings(vec![Setting::MaxConcurrentStreams(9)]),
                    Frame::Headers { stream: 1, block: Bytes::from_static(b"abc"), end: false },
                    Frame::Data { stream: 3, bytes: Bytes::new(), counted: 0, end: true },
                    Frame::Ping(*b"12345678"),
                    Frame::Window { stream: 1, increment: 5 },
                    Frame::GoAway { last: 1, reason: Reason::NO_ERROR },
                ]
            );
            assert!(inbox.buffer.is_empty());
        }
    }

    #[test]
    fn what_the_rfc_forbids_is_a_fault() {
        let all = flag::END_HEADERS;
        for (name, bytes) in [
            ("a stream's frame on the connection", put(kind::DATA, 0, 0, b"x")),
            ("the connection's frame on a stream", put(kind::PING, 0, 1, b"12345678")),
            ("a short PING", put(kind::PING, 0, 0, b"1234567")),
            ("a long RST_STREAM", put(kind::RST_STREAM, 0, 1, b"12345")),
            ("a short GOAWAY", put(kind::GOAWAY, 0, 0, b"1234567")),
            ("a short PRIORITY", put(kind::PRIORITY, 0, 1, b"1234")),
            ("an acknowledgement that says something", put(kind::SETTINGS, flag::ACK, 0, &[0; 6])),
            ("PUSH_PROMISE", put(kind::PUSH_PROMISE, all, 1, &[0, 0, 0, 2])),
            ("CONTINUATION of nothing", put(kind::CONTINUATION, all, 1, b"x")),
            ("too much padding", put(kind::DATA, flag::PADDED, 1, &[1])),
            ("too much padding of a head", put(kind::HEADERS, flag::PADDED | all, 1, &[1])),
            ("a head without its priority", put(kind::HEADERS, flag::PRIORITY | all, 1, &[0; 4])),
            ("a frame that is too large", put(kind::DATA, 0, 1, &[0; (1 << 16) + 1])),
            ("a head that is too large", put(kind::HEADERS, all, 1, &[0; 1025])),
            (
                "a head that is interrupted",
                [put(kind::HEADERS, 0, 1, b"x"), put(kind::DATA, 0, 1, b"x")].concat(),
            ),
            (
                "a head that goes on elsewhere",
                [put(kind::HEADERS, 0, 1, b"x"), put(kind::CONTINUATION, all, 3, b"x")].concat(),
            ),
            (
                "a head of nothing without end",
                [put(kind::HEADERS, 0, 1, b""), put(kind::CONTINUATION, 0, 1, b"")].concat(),
            ),
        ] {
            assert!(frames(&mut inbox(), &bytes).is_err(), "{name}");
        }
    }

    #[test]
    fn who_does_not_speak_http2_is_told_from_who_does() {
        assert!(frames(&mut Inbox::new(true, 1 << 14, 1), b"GET / HTTP/1.1\r\n").is_err());
        assert!(frames(&mut Inbox::new(false, 1 << 14, 1), &put(kind::PING, 0, 0, &[0; 8])).is_err());
        assert!(frames(&mut Inbox::new(false, 1 << 14, 1), &put(kind::SETTINGS, flag::ACK, 0, &[])).is_err());
    }

    #[test]
    fn what_is_small_does_not_hold_the_whole_buffer() {
        for (length, alone) in [(COPIED, true), (COPIED + 1, false)] {
            let mut inbox = inbox();
            inbox.buffer.extend_from_slice(&put(kind::DATA, 0, 1, &vec![0; length]));
            inbox.buffer.extend_from_slice(b"the next frame");
            let Some(Frame::Data { bytes, .. }) = inbox.next().unwrap() else { panic!("{length}") };
            assert_eq!((bytes.len(), bytes.is_unique()), (length, alone));
        }
    }
}
