//! Our streams against tokio-rustls, which keeps to rustls' usual API, in both roles and both versions.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{
    AlertDescription, ClientConfig, Error, RootCertStore, ServerConfig, SupportedProtocolVersion,
    pki_types::{PrivateKeyDer, ServerName},
    version::{TLS12, TLS13},
};
use tls::{Acceptor, Connector, Stream};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// Who has a certificate, and who trusts it.
struct Authority {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Authority {
    fn new(version: &'static SupportedProtocolVersion) -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let server = ServerConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { server: Arc::new(server), client: Arc::new(client) }
    }

    /// We are the server.
    async fn serving(&self, (ours, theirs): (Cut, Cut)) -> (Ours, Theirs) {
        let (acceptor, connector) = (Acceptor::from(Arc::clone(&self.server)), self.connector());
        let (ours, theirs) = tokio::join!(acceptor.accept(ours), connector.connect(name(), theirs));
        (ours.unwrap(), theirs.unwrap().into())
    }

    /// We are the client.
    async fn asking(&self, (ours, theirs): (Cut, Cut)) -> (Ours, Theirs) {
        let (acceptor, connector) =
            (TlsAcceptor::from(Arc::clone(&self.server)), Connector::from(Arc::clone(&self.client)));
        let (theirs, ours) = tokio::join!(acceptor.accept(theirs), connector.connect(name(), ours));
        (ours.unwrap(), theirs.unwrap().into())
    }

    fn connector(&self) -> TlsConnector {
        TlsConnector::from(Arc::clone(&self.client))
    }
}

type Ours = Stream<Cut>;
type Theirs = TlsStream<Cut>;

/// Reads and writes so many bytes at a time.
struct Cut(DuplexStream, usize);

impl AsyncRead for Cut {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buf.remaining().min(self.1);
        let mut piece = ReadBuf::new(buf.initialize_unfilled_to(length));
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut piece))?;
        let length = piece.filled().len();
        buf.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Cut {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let length = buf.len().min(self.1);
        Pin::new(&mut self.0).poll_write(cx, &buf[..length])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Both ends of a connection that never carries more than so many bytes at a time.
fn wire(piece: usize) -> (Cut, Cut) {
    let (one, other) = duplex(1 << 16);
    (Cut(one, piece), Cut(other, piece))
}

fn name() -> ServerName<'static> {
    "localhost".try_into().unwrap()
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Sends it all, says that this is all, and reads what the other end sends until it says the same.
async fn converse(mut io: impl AsyncRead + AsyncWrite + Unpin, say: &[u8]) -> Vec<u8> {
    let (mut reading, mut writing) = tokio::io::split(&mut io);
    let mut heard = Vec::new();
    let say = async {
        writing.write_all(say).await.unwrap();
        writing.shutdown().await.unwrap();
    };
    let hear = async { reading.read_to_end(&mut heard).await.unwrap() };
    tokio::join!(say, hear);
    heard
}

/// Pieces of one byte cut every record at every byte.
#[tokio::test]
async fn what_one_end_writes_the_other_reads_however_it_is_cut() {
    for version in [&TLS13, &TLS12] {
        let authority = Authority::new(version);
        for (piece, length) in [
            (1, 0),
            (1, 1),
            (1, 700),
            (3, 17_000),
            (1000, 16_384),
            (1000, 16_385),
            (4096, 300_000),
            (1 << 20, 1_000_000),
        ] {
            let (there, back) = (noise(length), noise(length / 2));
            let (ours, theirs) = authority.serving(wire(piece)).await;
            let (heard, answered) = tokio::join!(converse(ours, &there), converse(theirs, &back));
            assert!(heard == back && answered == there, "as the server, {length} by {piece}, {version:?}");

            let (ours, theirs) = authority.asking(wire(piece)).await;
            let (heard, answered) = tokio::join!(converse(ours, &there), converse(theirs, &back));
            assert!(heard == back && answered == there, "as the client, {length} by {piece}, {version:?}");
        }
    }
}

#[tokio::test]
async fn both_ends_may_be_ours() {
    let authority = Authority::new(&TLS13);
    let (server, client) = wire(100);
    let (acceptor, connector) = (Acceptor::from(authority.server), Connector::from(authority.client));
    let (server, client) = tokio::join!(acceptor.accept(server), connector.connect(name(), client));
    let (there, back) = (noise(70_000), noise(50_000));
    let (heard, answered) = tokio::join!(converse(server.unwrap(), &there), converse(client.unwrap(), &back));
    assert!(heard == back && answered == there);
}

/// Records are larger than the buffers that their content is read into.
#[tokio::test]
async fn a_reader_has_as_little_room_as_it_likes() {
    let authority = Authority::new(&TLS13);
    let (mut ours, mut theirs) = authority.serving(wire(usize::MAX)).await;
    let content = noise(100_000);
    let writing = async {
        theirs.write_all(&content).await.unwrap();
        theirs.shutdown().await.unwrap();
    };
    let reading = async {
        let mut heard = Vec::new();
        for room in [1, 2, 300, 16_384, 16_383, 7].into_iter().cycle() {
            let mut buffer = vec![0; room];
            let length = ours.read(&mut buffer).await.unwrap();
            heard.extend_from_slice(&buffer[..length]);
            if length == 0 {
                break;
            }
        }
        // The end stays the end.
        assert_eq!(ours.read(&mut [0; 10]).await.unwrap(), 0);
        heard
    };
    assert!(tokio::join!(writing, reading).1 == content);
}

/// A batch of the tunnel: the head of a message and much data.
#[tokio::test]
async fn a_head_and_what_follows_it_are_taken_at_once() {
    let authority = Authority::new(&TLS13);
    let (mut ours, _theirs) = authority.asking(wire(usize::MAX)).await;
    let (head, data) = (noise(23), noise(200_000));
    let written = ours.write_vectored(&[IoSlice::new(&head), IoSlice::new(&data)]).await.unwrap();
    assert_eq!(written, head.len() + data.len());
}

#[tokio::test]
async fn pieces_that_are_written_together_arrive_in_order() {
    let authority = Authority::new(&TLS13);
    let (mut ours, theirs) = authority.asking(wire(usize::MAX)).await;
    assert!(ours.is_write_vectored());
    let (small, large) = (noise(100), noise(50_000));
    let writing = async {
        for pieces in [&[&small[..], b"", &small, &large][..], &[&large[..], &small], &[b"", b""], &[]] {
            let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut slices = &mut slices[..];
            while slices.iter().any(|slice| !slice.is_empty()) {
                let written = ours.write_vectored(slices).await.unwrap();
                assert!(written > 0);
                IoSlice::advance_slices(&mut slices, written);
            }
            assert_eq!(ours.write_vectored(&[]).await.unwrap(), 0);
        }
        ours.shutdown().await.unwrap();
    };
    let expected = [&small[..], &small, &large, &large, &small].concat();
    let ((), heard) = tokio::join!(writing, converse(theirs, b""));
    assert!(heard == expected);
}

#[tokio::test]
async fn keys_may_change_while_both_ends_talk() {
    let authority = Authority::new(&TLS13);
    let (mut ours, mut theirs) = authority.serving(wire(usize::MAX)).await;
    let mut buffer = [0; 5];
    for round in 0..5 {
        let TlsStream::Client(client) = &mut theirs else { unreachable!() };
        // It asks for new keys of ours, too, which we announce before what we write next.
        client.get_mut().1.refresh_traffic_keys().unwrap();
        theirs.write_all(b"there").await.unwrap();
        theirs.flush().await.unwrap();
        ours.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"there", "round {round}");
        ours.write_all(b"back!").await.unwrap();
        ours.flush().await.unwrap();
        theirs.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"back!", "round {round}");
    }
}

/// However much comes before the connection is cut: what arrived is read, and a cut is not taken for an end.
#[tokio::test]
async fn a_cut_is_no_end() {
    for version in [&TLS13, &TLS12] {
        let authority = Authority::new(version);
        let content = noise(300);
        let whole = authority.until_cut(usize::MAX, &content).await;
        let length = whole.passed;
        assert!(whole.handshake.is_ok() && whole.heard == content && whole.end.is_ok());

        // Each byte of the content's and the farewell's records, some of the handshake.
        for cut in (0..length).filter(|cut| cut % 37 == 0 || length - cut < 400) {
            let outcome = authority.until_cut(cut, &content).await;
            match outcome.handshake {
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}: {error}"),
                Ok(()) => {
                    assert!(content.starts_with(&outcome.heard), "{cut}");
                    // Signatures and session tickets differ in length by some bytes.
                    if cut + 20 < length {
                        let error = outcome.end.expect_err("nobody said that this is all");
                        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}: {error}");
                    }
                }
            }
        }
    }
}

struct Outcome {
    handshake: io::Result<()>,
    heard: Vec<u8>,
    end: io::Result<()>,
    passed: usize,
}

impl Authority {
    /// We are the server of a client whose connection breaks after so many bytes.
    async fn until_cut(&self, cut: usize, content: &[u8]) -> Outcome {
        let (ours, mut middle) = duplex(1 << 16);
        let (mut other_middle, theirs) = duplex(1 << 16);
        let client = async {
            // Where it is cut short, it fails in one way or another.
            let Ok(mut client) = self.connector().connect(name(), theirs).await else { return };
            let _ = client.write_all(content).await;
            let _ = client.shutdown().await;
            let _ = client.read(&mut [0; 16]).await;
        };
        let pass = async {
            let (mut near_read, mut near_write) = tokio::io::split(&mut middle);
            let (far_read, mut far_write) = tokio::io::split(&mut other_middle);
            let mut far_read = far_read.take(cut as u64);
            let there = async {
                let passed = tokio::io::copy(&mut far_read, &mut near_write).await.unwrap_or_default();
                let _ = near_write.shutdown().await;
                passed as usize
            };
            let back = async {
                let _ = tokio::io::copy(&mut near_read, &mut far_write).await;
                let _ = far_write.shutdown().await;
            };
            tokio::join!(there, back).0
        };
        let serve = async {
            let mut heard = Vec::new();
            let accepted = Acceptor::from(Arc::clone(&self.server)).accept(ours).await;
            let (handshake, end) = match accepted {
                Err(error) => (Err(error), Ok(())),
                Ok(mut stream) => (Ok(()), stream.read_to_end(&mut heard).await.map(drop)),
            };
            (handshake, heard, end)
        };
        let ((), passed, (handshake, heard, end)) = tokio::join!(client, pass, serve);
        Outcome { handshake, heard, end, passed }
    }
}

#[tokio::test]
async fn what_was_tampered_with_is_refused_and_what_came_before_is_not_lost() {
    let authority = Authority::new(&TLS13);
    let (ours, middle) = duplex(1 << 20);
    let (other_middle, theirs) = duplex(1 << 20);
    let connector = authority.connector();
    let client = tokio::spawn(async move {
        let mut client = connector.connect(name(), theirs).await.unwrap();
        client.write_all(b"good").await.unwrap();
        client.flush().await.unwrap();
        // The server says that it was spoken to, so that the next record comes alone.
        client.read_exact(&mut [0; 1]).await.unwrap();
        client.write_all(b"evil").await.unwrap();
        client.flush().await.unwrap();
        client.read(&mut [0; 16]).await.unwrap_err()
    });
    let (good, mut tampering) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let (mut near_read, mut near_write) = tokio::io::split(middle);
        let (mut far_read, mut far_write) = tokio::io::split(other_middle);
        let back = async { tokio::io::copy(&mut near_read, &mut far_write).await };
        let there = async {
            let mut buffer = vec![0; 4096];
            loop {
                let length = far_read.read(&mut buffer).await.unwrap();
                if length == 0 {
                    break;
                }
                if tampering.try_recv().is_ok() {
                    buffer[length - 1] ^= 1;
                }
                near_write.write_all(&buffer[..length]).await.unwrap();
            }
        };
        let _ = tokio::join!(there, back);
    });

    let mut server = Acceptor::from(authority.server).accept(ours).await.unwrap();
    let mut buffer = [0; 4];
    server.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"good");
    good.send(()).unwrap();
    server.write_all(b"!").await.unwrap();
    server.flush().await.unwrap();
    for _ in 0..2 {
        let error = server.read(&mut buffer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(inner(&error), &Error::DecryptError);
    }
    assert!(server.write_all(b"more").await.is_err());
    server.shutdown().await.unwrap();
    // The other end is told why.
    assert_eq!(inner(&client.await.unwrap()), &Error::AlertReceived(AlertDescription::BadRecordMac));
}

fn inner(error: &io::Error) -> &Error {
    error.get_ref().unwrap().downcast_ref().unwrap()
}

#[tokio::test]
async fn who_speaks_no_tls_is_told_so_in_tls() {
    let authority = Authority::new(&TLS13);
    let (ours, mut theirs) = duplex(1 << 16);
    theirs.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n").await.unwrap();
    let error = Acceptor::from(authority.server).accept(ours).await.unwrap_err();
    assert!(matches!(inner(&error), Error::InvalidMessage(_)), "{error}");
    let mut said = Vec::new();
    theirs.read_to_end(&mut said).await.unwrap();
    // An alert (RFC 8446 section 5.1).
    assert_eq!(said.first(), Some(&21));

    let (ours, mut theirs) = duplex(1 << 16);
    theirs.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    let error = Connector::from(authority.client).connect(name(), ours).await.unwrap_err();
    assert!(matches!(inner(&error), Error::InvalidMessage(_)), "{error}");
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_ends_the_handshake_at_both_ends() {
    for version in [&TLS13, &TLS12] {
        let (one, other) = (Authority::new(version), Authority::new(version));
        let (ours, theirs) = duplex(1 << 16);
        let connector = Connector::from(other.client);
        let acceptor = TlsAcceptor::from(one.server);
        let (ours, theirs) = tokio::join!(connector.connect(name(), ours), acceptor.accept(theirs));
        assert!(matches!(inner(&ours.unwrap_err()), Error::InvalidCertificate(_)));
        assert!(matches!(inner(&theirs.unwrap_err()), Error::AlertReceived(_)));
    }
}

/// One that reads nothing holds up who writes to it, after a bounded number of bytes.
#[tokio::test]
async fn what_is_not_read_is_not_kept_without_end() {
    let authority = Authority::new(&TLS13);
    let (ours, theirs) = authority.serving(wire(usize::MAX)).await;
    let mut ours = pin!(ours);
    let mut cx = Context::from_waker(Waker::noop());
    let piece = noise(1 << 20);
    let mut taken = 0;
    while let Poll::Ready(written) = ours.as_mut().poll_write(&mut cx, &piece[taken..]) {
        taken += written.unwrap();
    }
    assert!((1..400_000).contains(&taken), "{taken}");
    assert!(ours.as_mut().poll_flush(&mut cx).is_pending());

    let (heard, flushed) = tokio::join!(
        async {
            let mut heard = vec![0; taken];
            let mut theirs = theirs;
            theirs.read_exact(&mut heard).await.unwrap();
            heard
        },
        std::future::poll_fn(|cx| Pin::new(&mut ours).poll_flush(cx))
    );
    flushed.unwrap();
    assert!(heard == piece[..taken]);
}

#[tokio::test]
async fn one_end_may_be_done_while_the_other_is_not() {
    let authority = Authority::new(&TLS13);
    let (mut ours, mut theirs) = authority.asking(wire(usize::MAX)).await;
    theirs.shutdown().await.unwrap();
    assert_eq!(ours.read(&mut [0; 8]).await.unwrap(), 0);
    ours.write_all(b"still here").await.unwrap();
    ours.shutdown().await.unwrap();
    assert_eq!(ours.write(b"late").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    let mut heard = Vec::new();
    theirs.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"still here");
}
