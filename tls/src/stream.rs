//! The byte stream. Records are decrypted where they were read, and read as many at once as the reader has room for;
//! what is written is encrypted into one buffer for one system call. An idle stream holds no buffer at all.

use std::{
    fmt,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{BufMut as _, BytesMut};
use rustls::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

use crate::session::{Heard, MAX_PAYLOAD, Outgoing, Send, Session, Sink, WRITE_HIGH};

/// Least room for one read of the socket: a whole record of TLS 1.3 (RFC 8446 section 5.2).
const READ_LOW: usize = 5 + MAX_PAYLOAD + 256;

/// Most room for one read of the socket.
const READ_HIGH: usize = 256 << 10;

/// The bytes inside TLS, over the byte stream that spoke its handshake. Made by [`Acceptor`](crate::Acceptor) and
/// [`Connector`](crate::Connector).
pub struct Stream<T> {
    io: T,
    session: Session,
    /// Part of a record, or records that the last reader had no room for.
    incoming: BytesMut,
    /// There may be whole ones.
    more: bool,
    /// A read filled its room, and none has had to wait since then: there is probably more.
    busy: bool,
    /// What did not fit into the reader's buffer.
    plaintext: BytesMut,
    outgoing: Outgoing,
    /// The other end said that no more data comes.
    ended: bool,
    /// We said so.
    closed: bool,
    /// What the other end did wrong. It is not listened to any more.
    failed: Option<Error>,
}

impl<T> Stream<T> {
    fn new(io: T, session: Session) -> Self {
        Self {
            io,
            session,
            incoming: BytesMut::new(),
            more: false,
            busy: false,
            plaintext: BytesMut::new(),
            outgoing: Outgoing::default(),
            ended: false,
            closed: false,
            failed: None,
        }
    }

    /// Works through what was read, and encrypts what is to be sent.
    fn process(&mut self, reader: Option<&mut ReadBuf<'_>>, send: Send<'_>) -> io::Result<()> {
        if self.failed.is_none() {
            let mut sink = Sink { reader, rest: &mut self.plaintext };
            match self.session.process(&mut self.incoming, &mut sink, send, &mut self.outgoing) {
                Ok(heard) => {
                    self.more = heard == Heard::More;
                    self.ended |= heard == Heard::Goodbye;
                }
                Err(error) => self.failed = Some(error),
            }
        }
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(invalid(error.clone())),
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream<T> {
    pub(crate) async fn handshake(io: T, session: Session) -> io::Result<Self> {
        let mut stream = Self::new(io, session);
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        Ok(stream)
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let processed = self.process(None, Send::Nothing);
            let drained = self.poll_drain(cx);
            // What the other end did wrong is the news, whether or not there is time to tell it.
            processed?;
            ready!(drained)?;
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            if !self.session.is_handshaking() {
                self.outgoing.release();
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_fill(cx, READ_LOW))? == 0 {
                let what = "the other end closed the connection in the middle of the TLS handshake";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, what)));
            }
        }
    }

    /// Reads more of the records, enough for `wanted` bytes of plaintext or so; 0 is the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        let room = if self.busy { (wanted + READ_LOW).min(READ_HIGH) } else { READ_LOW };
        self.incoming.reserve(room);
        let read = poll_read_buf(Pin::new(&mut self.io), cx, &mut (&mut self.incoming).limit(room));
        match &read {
            Poll::Ready(Ok(read)) => self.busy |= *read >= room,
            _ => self.busy = false,
        }
        if self.incoming.is_empty() {
            self.incoming = BytesMut::new();
        }
        read
    }

    /// Writes what waits, if there is room for it. A write that fails is the writer's to report: the other end may have
    /// closed right behind what we have not read yet.
    fn nudge(&mut self, cx: &mut Context<'_>) {
        if !self.outgoing.is_empty() {
            let _ = self.poll_drain(cx);
            self.outgoing.release();
        }
    }

    /// Encrypts what one system call can take; returns how much of the slices that is.
    fn encrypt(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        // Small pieces share a record: each has a price of its own, to both ends.
        let mut record = Vec::new();
        for (index, slice) in slices.iter().enumerate() {
            let last = index + 1 == slices.len();
            let mut slice = &slice[..];
            while !slice.is_empty() && !self.outgoing.is_full() {
                let alone = record.is_empty() && (last || slice.len() >= MAX_PAYLOAD);
                let most = if alone { WRITE_HIGH } else { MAX_PAYLOAD - record.len() };
                let (piece, rest) = slice.split_at(slice.len().min(most));
                (slice, taken) = (rest, taken + piece.len());
                if alone {
                    self.process(None, Send::Data(piece))?;
                    continue;
                }
                record.extend_from_slice(piece);
                if record.len() == MAX_PAYLOAD {
                    self.process(None, Send::Data(&record))?;
                    record.clear();
                }
            }
        }
        if !record.is_empty() {
            self.process(None, Send::Data(&record))?;
        }
        Ok(taken)
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, self.outgoing.bytes()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let start = buf.filled().len();
        while buf.remaining() > 0 && buf.filled().len() == start {
            if !this.plaintext.is_empty() {
                let fits = this.plaintext.len().min(buf.remaining());
                buf.put_slice(&this.plaintext.split_to(fits));
                if this.plaintext.is_empty() {
                    this.plaintext = BytesMut::new();
                }
                break;
            }
            if this.ended {
                break;
            }
            this.nudge(cx);
            if this.failed.is_none() && !this.more && ready!(this.poll_fill(cx, buf.remaining()))? == 0 {
                let what = "the other end closed the connection without TLS's close_notify";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, what)));
            }
            let processed = this.process(Some(buf), Send::Nothing);
            this.nudge(cx);
            if this.incoming.is_empty() && !this.busy {
                this.incoming = BytesMut::new();
            }
            // What came before an error is read before it.
            if buf.filled().len() == start {
                processed?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }

        ready!(this.poll_drain(cx))?;
        let taken = this.encrypt(slices)?;
        // What is encrypted has been taken, though the socket may have no room for it yet.
        _ = this.poll_drain(cx)?;
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        self.outgoing.release();
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closed {
            self.closed = true;
            // An end that made an error was told so, and nothing comes after that.
            let _ = self.process(None, Send::Goodbye);
        }
        ready!(self.poll_drain(cx))?;
        self.outgoing.release();
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl<T: fmt::Debug> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("io", &self.io).finish_non_exhaustive()
    }
}

/// As an error of the stream. Whoever asks finds rustls' own inside.
pub(crate) fn invalid(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::{ClientConfig, RootCertStore, ServerConfig, pki_types::PrivateKeyDer};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::{Acceptor, Connector, provider};

    impl<T> Stream<T> {
        fn held(&self) -> usize {
            self.incoming.capacity() + self.plaintext.capacity() + self.outgoing.held()
        }
    }

    #[tokio::test]
    async fn an_idle_stream_holds_no_buffer() {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key);
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (acceptor, connector) =
            (Acceptor::from(Arc::new(server.unwrap())), Connector::from(Arc::new(client)));
        let (server, client) = duplex(1 << 20);
        let name = "localhost".try_into().unwrap();
        let (server, client) = tokio::join!(acceptor.accept(server), connector.connect(name, client));
        let (mut server, mut client) = (server.unwrap(), client.unwrap());
        for length in [1, 300, 100_000] {
            client.write_all(&vec![7; length]).await.unwrap();
            client.flush().await.unwrap();
            server.read_exact(&mut vec![0; length]).await.unwrap();
            server.write_all(b"back").await.unwrap();
            server.flush().await.unwrap();
            client.read_exact(&mut [0; 4]).await.unwrap();
            // Whoever reads finds that there is nothing more, and waits.
            for stream in [&mut server, &mut client] {
                let waiting = poll_fn(|cx| {
                    Poll::Ready(Pin::new(&mut *stream).poll_read(cx, &mut ReadBuf::new(&mut [0; 8])))
                });
                assert!(waiting.await.is_pending());
                assert_eq!(stream.held(), 0, "after {length}");
            }
        }
    }
}
