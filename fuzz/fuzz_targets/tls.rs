//! TLS from the other end, whatever it is and however it is cut.
//!
//! Input: a byte whose lowest bit is our role and whose second bit says whether the bytes come after a handshake, a byte
//! that is the length of each piece, the wire.
//!
//! * A handshake or a reading ends, and never in a panic; what nobody encrypted for us is never read.
//! * It ends as bad data or as a cut, and so does shutting down after it.
//! * Where the bytes are cut makes no difference to that.
#![no_main]

use std::{
    io::ErrorKind,
    pin::pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll, Waker},
};

use libfuzzer_sys::fuzz_target;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, ServerName},
};
use tls::{Acceptor, Connector, Stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

fuzz_target!(|data: &[u8]| {
    let [how, piece, wire @ ..] = data else { return };
    let (client, after) = (how & 1 == 0, how & 2 != 0);
    let whole = run(end(client, after, wire, usize::MAX));
    let cut = run(end(client, after, wire, usize::from(*piece).max(1)));
    assert_eq!(whole, cut);
});

static PAIR: LazyLock<(Acceptor, Connector)> = LazyLock::new(|| {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).expect("a name");
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
    let server = ServerConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .expect("it speaks the default versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("they fit");
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).expect("a certificate");
    let client = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .expect("it speaks the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Acceptor::from(Arc::new(server)), Connector::from(Arc::new(client)))
});

/// How it ends for us.
async fn end(client: bool, after: bool, wire: &[u8], piece: usize) -> ErrorKind {
    let (acceptor, connector) = &*PAIR;
    let (ours, mut theirs) = duplex(1 << 20);
    let name = ServerName::try_from("localhost").expect("a name");
    let ours = if after {
        // The other end does its handshake on a wire that we keep hold of.
        let (ours, theirs) = if client {
            let (ours, theirs) = tokio::join!(connector.connect(name, ours), acceptor.accept(&mut theirs));
            (ours, theirs.map(drop))
        } else {
            let (ours, theirs) = tokio::join!(acceptor.accept(ours), connector.connect(name, &mut theirs));
            (ours, theirs.map(drop))
        };
        theirs.expect("both are ours");
        Ok(ours.expect("both are ours"))
    } else {
        Err(ours)
    };
    let feed = async {
        for piece in wire.chunks(piece) {
            // It may have closed.
            let _ = theirs.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        let _ = theirs.shutdown().await;
        // What we say to it is taken.
        let _ = theirs.read_to_end(&mut Vec::new()).await;
    };
    let read = async {
        let handshake = match ours {
            Ok(stream) => Ok(stream),
            Err(io) if client => {
                connector.connect(ServerName::try_from("localhost").expect("a name"), io).await
            }
            Err(io) => acceptor.accept(io).await,
        };
        match handshake {
            Ok(stream) => read(stream).await,
            Err(error) => error.kind(),
        }
    };
    let (kind, ()) = tokio::join!(read, feed);
    assert!(matches!(kind, ErrorKind::InvalidData | ErrorKind::UnexpectedEof), "{kind:?}");
    kind
}

async fn read(mut stream: Stream<DuplexStream>) -> ErrorKind {
    let mut plaintext = Vec::new();
    let error = stream.read_to_end(&mut plaintext).await.expect_err("nobody said goodbye with our keys");
    assert!(plaintext.is_empty(), "{plaintext:?}");
    let _ = stream.shutdown().await;
    error.kind()
}

/// Nothing waits for anything but the other end, which is polled as well.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(done) = future.as_mut().poll(&mut cx) {
            return done;
        }
    }
    panic!("it never ends");
}
