//! The byte stream to a server, with a write timeout and support for early responses.
//!
//! A server that refuses a large body responds, closes, and then resets the connection, since it has unread bytes. hyper ends
//! the exchange with the failed write, although the response has arrived; RFC 9112 section 9.3 requires a client to read it.

use std::{
    error::Error as StdError,
    fmt,
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tunnel::{ReadBudget, StallTimer};

/// A byte stream: TCP, TLS, or a pipe in tests.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// A stream to a server. Once the server has closed its read half, writes are discarded, and reads return the received bytes
/// and then the end.
pub(super) struct ServerStream {
    io: Box<dyn Io>,
    write_closed: bool,
    write_timeout: Option<StallTimer>,
    written: Arc<AtomicU64>,
    read: Arc<AtomicU64>,
    /// hyper reads until the socket has no more bytes, and skips interim responses without end.
    budget: ReadBudget,
}

/// The server read no bytes for this time.
#[derive(Debug)]
pub(super) struct WriteTimeoutError(pub(super) Duration);

impl ServerStream {
    pub(super) fn new(io: impl Io, write_timeout: Duration) -> Self {
        Self {
            io: Box::new(io),
            write_closed: false,
            write_timeout: Some(StallTimer::new(write_timeout)),
            written: Arc::default(),
            read: Arc::default(),
            budget: ReadBudget::default(),
        }
    }

    /// Returns the counter of written bytes.
    pub(super) fn written(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.written)
    }

    /// Returns the counter of read bytes.
    pub(super) fn read(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read)
    }

    /// Removes the write timeout: after an upgrade, the application decides how long a peer may stop reading.
    pub(super) fn without_write_timeout(mut self) -> Self {
        self.write_timeout = None;
        self
    }

    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.written.fetch_add(*bytes as u64, Relaxed);
        }
        written
    }

    /// Runs one write; `discarded` is its result once the server has closed its read half.
    fn poll_write_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        discarded: T,
        write: impl FnOnce(Pin<&mut dyn Io>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.write_closed {
            return Poll::Ready(Ok(discarded));
        }

        match write(Pin::new(&mut *self.io), cx) {
            Poll::Ready(result) => {
                if let Some(timeout) = &mut self.write_timeout {
                    timeout.disarm();
                }
                Poll::Ready(result.or_else(|error| match error.kind() {
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                        self.write_closed = true;
                        Ok(discarded)
                    }
                    _ => Err(error),
                }))
            }
            Poll::Pending => match &mut self.write_timeout {
                Some(timeout) => {
                    ready!(timeout.poll_expired(cx));
                    Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, WriteTimeoutError(timeout.limit()))))
                }
                None => Poll::Pending,
            },
        }
    }
}

impl fmt::Display for WriteTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server took no bytes for {:?}", self.0)
    }
}

impl StdError for WriteTimeoutError {}

impl AsyncRead for ServerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.budget.poll(cx));
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if polled.is_pending() {
            self.budget.reset();
        }
        let read = buf.filled().len() - before;
        self.budget.spend(read);
        self.read.fetch_add(read as u64, Relaxed);
        polled
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.poll_write_with(cx, bytes.len(), |io, cx| io.poll_write(cx, bytes));
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = bytes.iter().map(|bytes| bytes.len()).sum();
        let written = self.poll_write_with(cx, all, |io, cx| io.poll_write_vectored(cx, bytes));
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_with(cx, (), |io, cx| io.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS writes its close_notify here.
        self.poll_write_with(cx, (), |io, cx| io.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, BufWriter, duplex},
        net::{TcpListener, TcpStream},
        time::{Instant, timeout},
    };

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn received_bytes_are_read_after_a_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut client = ServerStream::new(client, TIMEOUT);
        let (mut server, _) = listener.accept().await.unwrap();

        client.write_all(b"request").await.unwrap();
        server.write_all(b"response").await.unwrap();
        // Closing with an unread byte sends a reset instead of a FIN.
        server.readable().await.unwrap();
        drop(server);
        let upload = async {
            while !client.write_closed {
                client.write_all(b"more").await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), upload).await.expect("the reset is detected");
        client.write_all(b"discarded").await.unwrap();

        let mut response = [0; 8];
        client.read_exact(&mut response).await.unwrap();
        assert_eq!(&response, b"response");
    }

    #[tokio::test]
    async fn received_bytes_are_read_after_a_failed_shutdown() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        // Its shutdown writes, as that of TLS does.
        let mut client = ServerStream::new(BufWriter::new(client), TIMEOUT);
        let (mut server, _) = listener.accept().await.unwrap();

        client.write_all(b"input").await.unwrap();
        client.flush().await.unwrap();
        server.write_all(b"output").await.unwrap();
        server.readable().await.unwrap();
        drop(server);
        client.write_all(b"last words").await.unwrap();
        client.shutdown().await.unwrap();

        let mut output = [0; 6];
        client.read_exact(&mut output).await.unwrap();
        assert_eq!(&output, b"output");
    }

    #[tokio::test(start_paused = true)]
    async fn write_without_progress_times_out() {
        let (client, mut server) = duplex(4);
        let mut client = ServerStream::new(client, TIMEOUT);
        let started = Instant::now();
        let slow_reader = tokio::spawn(async move {
            let mut byte = [0];
            for _ in 0..2 {
                tokio::time::sleep(TIMEOUT / 2).await;
                server.read_exact(&mut byte).await.unwrap();
            }
            server
        });

        let error = client.write_all(b"123456789").await.unwrap_err();
        assert_eq!(error.to_string(), "the server took no bytes for 60s");
        let _server = slow_reader.await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 120, "each byte restarts the timer");
    }

    #[tokio::test(start_paused = true)]
    async fn upgraded_stream_has_no_write_timeout() {
        let (client, _server) = duplex(4);
        let mut client = ServerStream::new(client, TIMEOUT).without_write_timeout();
        assert!(timeout(TIMEOUT * 10, client.write_all(b"12345")).await.is_err());
    }
}
