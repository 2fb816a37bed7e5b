//! Hand-made HTTP/2, which may be malformed (RFC 9113, RFC 7541).
#![expect(clippy::disallowed_types, reason = "whole frames are written by the test and by what acknowledges")]

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, WriteHalf},
    sync::{Mutex, mpsc},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const CANCEL: u32 = 8;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// The time after which a blocked write counts as held back.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// The code of a RST_STREAM or GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// One end of a connection.
pub(crate) struct Peer<T> {
    writer: Arc<Mutex<WriteHalf<T>>>,
    frames: mpsc::UnboundedReceiver<Frame>,
    reading: Option<AbortOnDropHandle<()>>,
}

/// The result of a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    All,
    /// The peer does not read now.
    HeldBack,
    /// The peer has closed the connection.
    Closed,
}

impl<T: AsyncRead + AsyncWrite + Send + 'static> Peer<T> {
    /// Creates a client that sends its preface and these settings.
    pub(crate) async fn client(io: T, settings: &[(u16, u32)]) -> Self {
        let mut peer = Self::over(io, 0);
        assert_eq!(peer.send(&[PREFACE, &settings_frame(settings)].concat()).await, Sent::All);
        peer
    }

    /// Creates a server that sends these settings.
    pub(crate) async fn server(io: T, settings: &[(u16, u32)]) -> Self {
        let mut peer = Self::over(io, PREFACE.len());
        assert_eq!(peer.send(&settings_frame(settings)).await, Sent::All);
        peer
    }

    /// Reads all frames, acknowledges SETTINGS and PING, and stores the rest.
    fn over(io: T, preface: usize) -> Self {
        let (mut reader, writer) = tokio::io::split(io);
        let writer = Arc::new(Mutex::new(writer));
        let (sender, frames) = mpsc::unbounded_channel();
        let answering = Arc::clone(&writer);
        let reading = tokio::spawn(async move {
            let mut preface = vec![0; preface];
            if reader.read_exact(&mut preface).await.is_err() {
                return;
            }
            while let Some(read) = read(&mut reader).await {
                if matches!(read.kind, SETTINGS | PING) {
                    if read.flags & ACK == 0 {
                        let payload: &[u8] = if read.kind == PING { &read.payload } else { &[] };
                        let answer = frame(read.kind, ACK, 0, payload);
                        let mut writer = answering.lock().await;
                        // The other end may have hung up.
                        let _ = writer.write_all(&answer).await;
                        let _ = writer.flush().await;
                    }
                } else if sender.send(read).is_err() {
                    return;
                }
            }
        });
        Self { writer, frames, reading: Some(AbortOnDropHandle::new(reading)) }
    }

    /// Stops reading.
    pub(crate) fn go_deaf(&mut self) {
        self.reading = None;
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Sent {
        let mut writer = self.writer.lock().await;
        let writing = async {
            writer.write_all(bytes).await?;
            writer.flush().await
        };
        match timeout(PATIENCE, writing).await {
            Ok(Ok(())) => Sent::All,
            Ok(Err(_)) => Sent::Closed,
            Err(_) => Sent::HeldBack,
        }
    }

    /// Sends the frames until the peer stops reading.
    pub(crate) async fn flood(&mut self, bytes: &[u8], times: usize) -> Sent {
        for _ in 0..times {
            match self.send(bytes).await {
                Sent::All => {}
                other => return other,
            }
        }
        Sent::All
    }

    /// Returns the next frame other than SETTINGS and PING, or `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        self.frames.recv().await
    }

    /// Returns the next frame of this kind.
    pub(crate) async fn next_of(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let next = self.next().await?;
            if next.kind == kind {
                return Some(next);
            }
        }
    }

    /// Waits for the end of the connection. Returns the code of the last GOAWAY.
    pub(crate) async fn goaway(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(next) = self.next().await {
            if next.kind == GOAWAY {
                code = Some(next.code());
            }
        }
        code
    }

    /// Waits for the end of a stream. Returns its body, or the code of its reset.
    pub(crate) async fn body(&mut self, stream: u32) -> Result<Vec<u8>, u32> {
        let mut body = Vec::new();
        while let Some(next) = self.next().await {
            match next.kind {
                RST_STREAM if next.stream == stream => return Err(next.code()),
                DATA if next.stream == stream => body.extend_from_slice(&next.payload),
                GOAWAY if next.code() != 0 => return Err(next.code()),
                _ => {}
            }
            if next.stream == stream && next.ends_stream() {
                return Ok(body);
            }
        }
        Err(u32::MAX)
    }
}

async fn read(reader: &mut (impl AsyncRead + Unpin)) -> Option<Frame> {
    let mut head = [0; 9];
    reader.read_exact(&mut head).await.ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    reader.read_exact(&mut payload).await.ok()?;
    let stream = u32::from_be_bytes(head[5..].try_into().unwrap()) & 0x7fff_ffff;
    Some(Frame { kind: head[3], flags: head[4], stream, payload })
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

pub(crate) fn settings_frame(settings: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = settings
        .iter()
        .flat_map(|(id, value)| id.to_be_bytes().into_iter().chain(value.to_be_bytes()))
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub(crate) fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub(crate) fn goaway(last: u32, code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

/// Returns a header block of literals without indexing (RFC 7541 section 6.2.2).
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            string(&mut block, text.as_bytes());
        }
    }
    block
}

/// Appends a string literal without Huffman coding (RFC 7541 section 5.2).
pub(crate) fn string(block: &mut Vec<u8>, text: &[u8]) {
    if text.len() < 127 {
        block.push(u8::try_from(text.len()).unwrap());
    } else {
        block.push(127);
        let mut rest = text.len() - 127;
        while rest >= 128 {
            block.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        block.push(u8::try_from(rest).unwrap());
    }
    block.extend_from_slice(text);
}

/// Adds updates of the size of the HPACK table, of 4 bytes for two, to the begin of a head that is a single frame
/// (RFC 7541 section 6.3).
pub(crate) fn with_size_updates(head: &[u8]) -> Vec<u8> {
    let (header, fields) = head.split_at(9);
    let block = [&[0x20, 0x3f, 0xe1, 0x1f].repeat(3500), fields].concat();
    frame(header[3], header[4], u32::from_be_bytes(header[5..].try_into().unwrap()), &block)
}

pub(crate) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, stream, &block(fields))
}
