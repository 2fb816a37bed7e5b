//! A connection: bytes out, and bytes in that nobody has looked at yet.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use http1::Received;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read at once from a server that fills that again and again.
const READ_MAX: usize = 256 << 10;

pub(in crate::upstream) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// To a server, between two requests or in the middle of one.
pub(in crate::upstream) struct Connection {
    io: Box<dyn Io>,
    /// Not yet taken by an answer.
    pub(super) received: Received,
    /// The server takes nothing any more.
    deaf: bool,
}

impl Connection {
    pub(in crate::upstream) fn new(io: impl Io + 'static) -> Self {
        Self { io: Box::new(io), received: Received::new(READ_MAX), deaf: false }
    }

    /// Whether a request may be sent: the server has neither closed nor said anything that nobody asked for.
    pub(in crate::upstream) fn is_ready(&mut self) -> bool {
        let mut byte = [0];
        let mut unread = ReadBuf::new(&mut byte);
        let mut cx = Context::from_waker(Waker::noop());
        self.received.bytes.is_empty()
            && !self.deaf
            && Pin::new(&mut self.io).poll_read(&mut cx, &mut unread).is_pending()
    }

    /// Gives back the room that a long answer took.
    pub(in crate::upstream) fn rest(&mut self) {
        self.received.rest();
    }

    /// Reads more of what the server says. False at its end.
    pub(super) fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        self.received.read(cx, &mut self.io)
    }

    /// Writes all of `bytes`, or some.
    ///
    /// A server that refuses a large body answers, closes, and then resets the connection, since bytes are on their way that
    /// nobody will read. The answer has arrived by then: RFC 9112 section 9.3 asks a client to look for it. So what is written to
    /// a server that has closed goes nowhere, and that it has is for the reader to find out.
    pub(super) fn write(&mut self, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let all = bytes.iter().map(|bytes| bytes.len()).sum();
        if self.deaf {
            return Poll::Ready(Ok(all));
        }
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bytes));
        Poll::Ready(self.judge(written, all))
    }

    pub(super) fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.deaf {
            return Poll::Ready(Ok(()));
        }
        let flushed = ready!(Pin::new(&mut self.io).poll_flush(cx));
        Poll::Ready(self.judge(flushed, ()))
    }

    /// `swallowed` stands for the result if the server has closed.
    fn judge<T>(&mut self, result: io::Result<T>, swallowed: T) -> io::Result<T> {
        match result {
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                self.deaf = true;
                Ok(swallowed)
            }
            other => other,
        }
    }
}

/// After a switch of protocols: what was received first, and then whatever comes.
impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.received.bytes.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let early = self.received.bytes.len().min(buf.remaining());
        buf.put_slice(&self.received.bytes.split_to(early));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::{
        io::AsyncWriteExt as _,
        net::{TcpListener, TcpStream},
        time::timeout,
    };

    use super::*;

    async fn say(near: &mut Connection, bytes: &[u8]) {
        let written = poll_fn(|cx| near.write(cx, &[IoSlice::new(bytes)])).await.unwrap();
        assert_eq!(written, bytes.len());
    }

    #[tokio::test]
    async fn what_was_received_is_read_after_the_connection_was_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut near = Connection::new(near);
        let (mut far, _) = listener.accept().await.unwrap();

        say(&mut near, b"request").await;
        far.write_all(b"answer").await.unwrap();
        // Closed with something unread, which is when a reset is sent instead of a FIN.
        far.readable().await.unwrap();
        drop(far);
        let upload = async {
            while !near.deaf {
                say(&mut near, b"more").await;
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), upload).await.expect("the reset is noticed");
        say(&mut near, b"nobody reads this").await;

        assert!(poll_fn(|cx| near.read(cx)).await.unwrap());
        assert_eq!(&near.received.bytes[..], b"answer");
    }

    #[tokio::test]
    async fn a_connection_is_ready_while_the_server_is_silent_and_there() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = Connection::new(near);
        assert!(near.is_ready() && near.is_ready());
        far.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        assert!(!near.is_ready());

        let (near, far) = tokio::io::duplex(64);
        let mut near = Connection::new(near);
        drop(far);
        assert!(!near.is_ready());
    }
}
