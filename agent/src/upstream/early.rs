//! Answers that come before the end of their request.
//!
//! A server that refuses a large body answers, closes, and then resets the connection, since bytes are on their way
//! that nobody will read. hyper takes the failed write for the end of the exchange, although the answer has arrived
//! and waits to be read; RFC 9112 section 9.3 asks a client to look for it.

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection whose writes go nowhere once the server has closed it. That it has is for the reader to find out,
/// after the last of what was received.
pub(super) struct EarlyAnswers<T> {
    io: T,
    closed: bool,
}

impl<T> EarlyAnswers<T> {
    pub(super) fn new(io: T) -> Self {
        Self { io, closed: false }
    }

    /// `swallowed` stands for the result if the server has closed.
    fn judge<R>(&mut self, result: io::Result<R>, swallowed: R) -> io::Result<R> {
        use ErrorKind::{BrokenPipe, ConnectionReset};

        match result {
            Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset) => {
                self.closed = true;
                Ok(swallowed)
            }
            other => other,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for EarlyAnswers<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for EarlyAnswers<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.closed {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf));
        Poll::Ready(self.judge(written, buf.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = bufs.iter().map(|buf| buf.len()).sum();
        if self.closed {
            return Poll::Ready(Ok(all));
        }
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs));
        Poll::Ready(self.judge(written, all))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.io).poll_flush(cx));
        Poll::Ready(self.judge(flushed, ()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        time::timeout,
    };

    use super::*;

    #[tokio::test]
    async fn what_was_received_is_read_after_the_connection_was_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut near = EarlyAnswers::new(near);
        let (mut far, _) = listener.accept().await.unwrap();

        near.write_all(b"request").await.unwrap();
        far.write_all(b"answer").await.unwrap();
        // Closed with something unread, which is when a reset is sent instead of a FIN.
        far.readable().await.unwrap();
        drop(far);
        let upload = async {
            while !near.closed {
                near.write_all(b"more").await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), upload).await.expect("the reset is noticed");
        near.write_all(b"nobody reads this").await.unwrap();

        let mut answer = [0; 6];
        near.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
    }
}
