//! TLS under connections that live long and carry much.
//!
//! rustls does the cryptography and the protocol. What is here is the byte stream, over rustls' unbuffered API: its usual
//! one reads the socket 4 KiB at a time, which is four system calls for each record of a download, and keeps buffers for
//! as long as the connection lives, which is all its life for most tunnels.
//!
//! * [`Acceptor`] and [`Connector`] do handshakes; what they return is a [`Stream`].
//! * [`provider`] is the cryptography, one for all of both programs.
#![warn(missing_docs)]

mod session;
mod stream;

use std::{fmt, io, sync::Arc};

use rustls::{
    CipherSuite, ClientConfig, ServerConfig,
    client::UnbufferedClientConnection,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::ServerName,
    server::UnbufferedServerConnection,
};
use tokio::io::{AsyncRead, AsyncWrite};

use self::session::Session;
pub use self::stream::Stream;

/// The cryptography: AWS-LC. It has what processors do with several blocks of AES at once (VAES), and ring has not: a
/// record of 16 KiB takes a third less time, a handshake a fifth less.
///
/// A client that uses it asks for AES-128 first, which is a tenth cheaper than AES-256 and not less safe in practice;
/// servers go by what the client asks for.
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    // Stable: the rest stays in the library's order.
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// The server's end of handshakes.
#[derive(Clone)]
pub struct Acceptor(Arc<ServerConfig>);

impl Acceptor {
    /// Waits for the other end's first words, and goes on until both may send. It does not give up by itself.
    pub async fn accept<T: AsyncRead + AsyncWrite + Unpin>(&self, io: T) -> io::Result<Stream<T>> {
        let server = UnbufferedServerConnection::new(Arc::clone(&self.0)).map_err(stream::invalid)?;
        Stream::handshake(io, Session::Server(Box::new(server))).await
    }
}

impl From<Arc<ServerConfig>> for Acceptor {
    fn from(config: Arc<ServerConfig>) -> Self {
        Self(config)
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

/// The client's end of handshakes.
#[derive(Clone)]
pub struct Connector(Arc<ClientConfig>);

impl Connector {
    /// Goes on until both may send, and the certificate is one of `name`. It does not give up by itself.
    pub async fn connect<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        name: ServerName<'static>,
        io: T,
    ) -> io::Result<Stream<T>> {
        let client = UnbufferedClientConnection::new(Arc::clone(&self.0), name).map_err(stream::invalid)?;
        Stream::handshake(io, Session::Client(Box::new(client))).await
    }
}

impl From<Arc<ClientConfig>> for Connector {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self(config)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}
