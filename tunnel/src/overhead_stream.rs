//! A byte stream of HTTP/2 with a limit on its overhead, for the connections that have no WebSocket of this crate, and the bodies that
//! arrive on it.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::overhead::{FrameScanner, OverheadCounter, OverheadLimit, PREFACE, Scanned};

/// The first bytes of an HTTP/2 client (RFC 9113 section 3.4). No request of HTTP/1.1 begins with them.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";

/// Bytes of data of a stream that this end has reset, per byte of overhead. Some of it was sent before the reset arrived, and it costs less
/// than frames without effect.
const IGNORED_PER_BYTE: usize = 64;

/// The last streams that this end has reset, whose data it ignores. h2 resets a stream again that sends data for longer.
const MAX_RESETS: usize = 256;

/// A byte stream of HTTP/2 that fails with an [`OverheadError`](crate::OverheadError) when the other end exceeds its limit.
///
/// The stream itself subtracts the payload of data, and the updates of windows. The end that handles requests or responses subtracts
/// their heads, with the [`OverheadCounter`], and the frames that it reads, with [`CountedBody`].
#[derive(Debug)]
pub struct OverheadStream<T> {
    io: T,
    /// The bytes of [`HTTP2`] that have not arrived yet.
    expected: &'static [u8],
    /// The other end sends another protocol, which has no such frames.
    is_other: bool,
    received: FrameScanner,
    sent: FrameScanner,
    /// At most [`MAX_RESETS`], the oldest first.
    resets: VecDeque<u32>,
    limit: OverheadLimit,
}

/// A received body whose frames are no overhead once they are read. The frames of a body that is not read stay overhead, and so do empty
/// ones.
#[derive(Debug)]
pub struct CountedBody<B> {
    body: B,
    overhead: OverheadCounter,
}

impl<T> OverheadStream<T> {
    /// Wraps the connection of a client. A client of HTTP/1.1 has no limit here.
    pub fn of_client(io: T) -> Self {
        Self::new(io, HTTP2, PREFACE, 0)
    }

    /// Wraps the connection of a server.
    pub fn of_server(io: T) -> Self {
        Self::new(io, b"", 0, PREFACE)
    }

    fn new(io: T, expected: &'static [u8], received: usize, sent: usize) -> Self {
        let limit = OverheadLimit::of_stream(Instant::now());
        let (received, sent) = (FrameScanner::new(received), FrameScanner::new(sent));
        Self { io, expected, is_other: false, received, sent, resets: VecDeque::new(), limit }
    }

    /// Returns the counter, from which useful bytes are subtracted.
    pub fn counter(&self) -> OverheadCounter {
        self.limit.counter().clone()
    }

    fn on_received(&mut self, bytes: &[u8]) -> io::Result<()> {
        let compared = self.expected.len().min(bytes.len());
        let (expected, rest) = self.expected.split_at(compared);
        self.is_other |= expected != &bytes[..compared];
        self.expected = rest;
        if self.is_other {
            return Ok(());
        }
        let is_reset = |stream| self.resets.contains(&stream);
        let Scanned { data, ignored, heads, .. } =
            self.received.scan_with(bytes, usize::MAX, is_reset, |_| {});
        self.limit.add_heads(heads);
        let overhead = bytes.len() - data - ignored + ignored / IGNORED_PER_BYTE;
        self.limit.add_received(overhead, Instant::now)?;
        Ok(())
    }

    /// Notes the streams that this end resets.
    fn on_sent(&mut self, bytes: &[u8]) {
        if self.is_other {
            return;
        }
        let resets = &mut self.resets;
        self.sent.scan_with(
            bytes,
            usize::MAX,
            |_| false,
            |frame| {
                if let Some(stream) = frame.reset_stream().filter(|stream| !resets.contains(stream)) {
                    if resets.len() == MAX_RESETS {
                        resets.pop_front();
                    }
                    resets.push_back(stream);
                }
            },
        );
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for OverheadStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        Poll::Ready(self.on_received(&buffer.filled()[before..]))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for OverheadStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, data))?;
        self.on_sent(&data[..written]);
        self.limit.counter().subtract_sent(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, slices))?;
        let mut left = written;
        for slice in slices {
            let part = left.min(slice.len());
            self.on_sent(&slice[..part]);
            left -= part;
        }
        self.limit.counter().subtract_sent(written);
        Poll::Ready(Ok(written))
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

impl<B> CountedBody<B> {
    /// Wraps a body that an [`OverheadStream`] with this counter receives.
    pub fn new(body: B, overhead: OverheadCounter) -> Self {
        Self { body, overhead }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            if frame.data_ref().is_some_and(|data| !data.is_empty()) {
                self.overhead.subtract_frame_header();
            } else if let Some(trailers) = frame.trailers_ref() {
                self.overhead.subtract_fields(trailers);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::overhead::SENT_PER_UPDATE;

    /// A ping (RFC 9113 section 6.7).
    const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0\0\0\0\0\0\0\0\0";

    /// A frame of 16 KiB of data.
    fn data() -> Vec<u8> {
        [&b"\0\x40\0\0\0\0\0\0\x01"[..], &[7; 1 << 14]].concat()
    }

    /// Returns the received bytes until the end or an error.
    async fn read(mut stream: OverheadStream<&[u8]>) -> (usize, io::Result<()>) {
        let (mut buffer, mut total) = ([0; 1000], 0);
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) => return (total, Ok(())),
                Ok(read) => total += read,
                Err(error) => return (total, Err(error)),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn frames_without_effect_end_the_connection_of_either_end() {
        let flood = PING.repeat(100_000);
        let (read_of_server, error) = read(OverheadStream::of_server(&*flood)).await;
        assert_eq!(error.unwrap_err().to_string(), "the other end sent too many frames without effect");
        assert!((1_000_000..1_100_000).contains(&read_of_server), "{read_of_server}");
        let flood = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*flood].concat();
        assert!(read(OverheadStream::of_client(&*flood)).await.1.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn data_has_no_limit() {
        let useful = data().repeat(1000);
        assert_eq!(read(OverheadStream::of_server(&*useful)).await.1.ok(), Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn small_frames_have_no_limit_once_they_are_read() {
        let mut stream = OverheadStream::of_server(tokio::io::empty());
        let counter = stream.counter();
        // One byte of data.
        let frames = b"\0\0\x01\0\0\0\0\0\x01x".repeat(1000);
        for _ in 0..1000 {
            stream.on_received(&frames).unwrap();
            (0..1000).for_each(|_| counter.subtract_frame_header());
        }
        assert!((0..1000).any(|_| stream.on_received(&frames).is_err()), "nothing reads them");
    }

    #[tokio::test(start_paused = true)]
    async fn data_of_a_stream_that_was_reset_is_overhead() {
        let reset = |stream: u8| [0, 0, 4, 3, 0, 0, 0, 0, stream, 0, 0, 0, 0];
        // The data of a window was in flight, at the end of a client and at that of a server.
        for mut stream in
            [OverheadStream::of_client(tokio::io::empty()), OverheadStream::of_server(tokio::io::empty())]
        {
            let client: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
            let (received, sent) =
                if stream.expected.is_empty() { (&b""[..], client) } else { (client, &b""[..]) };
            stream.on_received(received).unwrap();
            stream.on_sent(sent);
            stream.on_sent(&reset(3)[..5]);
            stream.on_sent(&reset(3)[5..]);
            stream.on_received(&data().repeat(4000)).unwrap();
            stream.on_sent(&reset(1));
            stream.on_received(&data().repeat(256)).unwrap();
            let error = stream.on_received(&data().repeat(4000)).unwrap_err();
            assert_eq!(error.to_string(), "the other end sent too many frames without effect");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn streams_that_were_reset_are_remembered_up_to_a_number() {
        let mut stream = OverheadStream::of_server(tokio::io::empty());
        stream.on_sent(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        for number in (1..2000_u32).step_by(2).chain([1, 1]) {
            let [a, b, c, d] = number.to_be_bytes();
            stream.on_sent(&[0, 0, 4, 3, 0, a, b, c, d, 0, 0, 0, 0]);
        }
        assert_eq!(stream.resets.len(), MAX_RESETS);
        assert_eq!(stream.resets.iter().filter(|id| **id == 1).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_and_updates_for_sent_bytes_have_no_limit() {
        let mut stream = OverheadStream::of_server(tokio::io::empty());
        let counter = stream.counter();
        for _ in 0..100 {
            stream.on_received(&PING.repeat(1000)).unwrap();
            counter.subtract_sent(17_000 * SENT_PER_UPDATE);
            // A head of 200 bytes.
            stream
                .on_received(&[&b"\0\0\xc8\x01\x04\0\0\0\x01"[..], &[7; 200]].concat().repeat(1000))
                .unwrap();
            (0..1000).for_each(|_| counter.subtract_request());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn http1_has_no_limit() {
        for method in ["GET", "POST", "PRIVATE"] {
            let sent = format!("{method} / HTTP/1.1\r\n\r\n").repeat(100_000);
            assert_eq!(read(OverheadStream::of_client(sent.as_bytes())).await.1.ok(), Some(()), "{method}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn trusted_end_has_no_limit() {
        let flood = PING.repeat(1_000_000);
        let stream = OverheadStream::of_server(&*flood);
        stream.counter().trust();
        assert_eq!(read(stream).await.1.ok(), Some(()));
    }
}
