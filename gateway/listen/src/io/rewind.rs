//! A stream whose first bytes were read before its protocol was known.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The first bytes of an HTTP/2 connection (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that begins with bytes that were read before.
#[derive(Debug)]
pub struct Rewind<T> {
    first: Bytes,
    io: T,
}

impl<T: AsyncRead + Unpin> Rewind<T> {
    /// Reads until it is clear whether the connection begins with the preface of HTTP/2. Returns the stream from its beginning, and
    /// whether it does.
    ///
    /// # Errors
    ///
    /// If the stream fails.
    pub async fn detect_http2(mut io: T) -> io::Result<(Self, bool)> {
        let mut read = [0; PREFACE.len()];
        let mut length = 0;
        while length < PREFACE.len() && read[..length] == PREFACE[..length] {
            match io.read(&mut read[length..]).await? {
                0 => break,
                more => length += more,
            }
        }
        let is_http2 = read == PREFACE;
        Ok((Self { first: Bytes::copy_from_slice(&read[..length]), io }, is_http2))
    }

    /// Returns the first bytes that were not read again, and the stream.
    pub fn into_parts(self) -> (Bytes, T) {
        (self.first, self.io)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Rewind<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let length = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..length]);
        self.first.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Rewind<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
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
    use super::*;

    #[tokio::test]
    async fn stream_is_read_from_its_beginning() {
        for (sent, expected) in [
            (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore"[..], true),
            (b"GET / HTTP/1.1\r\n\r\n", false),
            (b"PRI * HTTP/1.1\r\n\r\n", false),
            (b"PRI", false),
            (b"", false),
        ] {
            let (mut stream, is_http2) = Rewind::detect_http2(io::Cursor::new(sent)).await.unwrap();
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.unwrap();
            assert_eq!((&*read, is_http2), (sent, expected));
        }
    }
}
