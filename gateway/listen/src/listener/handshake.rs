//! The steps between `accept` and the first byte for a server: the PROXY header, the address of the client, TLS.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use strangers::{ConnectionPermit, Stranger};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsStream;
use tunnel::ReadAhead;

use super::proxy_header::{self, ProxyHeader, ProxyHeaderError};
use crate::{addresses::AddressRules, io::Io, metrics::RefusedConnection, tls::Acceptor};

/// The time in which a client may read the response to a refused connection.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The first byte of a TLS handshake (RFC 8446 section 5.1), which is no letter of an HTTP method.
const TLS_HANDSHAKE: u8 = 22;

/// The TLS alert `access_denied` (RFC 8446 section 6.2). Clients show it.
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// The steps of one listener.
#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) tls: Option<Acceptor>,
    pub(super) addresses: AddressRules,
    /// The time for all steps together.
    pub(super) timeout: Duration,
}

/// The reason for which a connection is closed before a server gets it.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the client at {0} is in none of the allowed_networks of this listener")]
    AddressNotAllowed(IpAddr),
    #[error("the peer is in none of the trusted_proxies, whose connections alone have a PROXY header")]
    UntrustedProxy,
    #[error(transparent)]
    ProxyHeader(#[from] ProxyHeaderError),
    #[error("the PROXY header was incomplete after the handshake_timeout")]
    ProxyHeaderTimeout,
    #[error(transparent)]
    Tls(#[from] io::Error),
    #[error("the handshake took longer than the handshake_timeout")]
    Timeout,
    #[error("the peer closed the connection before its first byte")]
    Closed,
}

impl HandshakeError {
    /// Returns the value of the label of the metric, if the connection counts as refused.
    pub(super) fn refusal(&self) -> Option<RefusedConnection> {
        match self {
            Self::AddressNotAllowed(_) => Some(RefusedConnection::AddressNotAllowed),
            Self::UntrustedProxy => Some(RefusedConnection::UntrustedProxy),
            Self::ProxyHeader(_) => Some(RefusedConnection::ProxyHeader),
            Self::ProxyHeaderTimeout => Some(RefusedConnection::ProxyHeaderTimeout),
            Self::Tls(_) | Self::Timeout | Self::Closed => None,
        }
    }
}

impl Handshake {
    /// Runs the steps. Returns the connection with the address of its client.
    pub(super) async fn run(
        &self,
        connection: std::net::TcpStream,
        peer: SocketAddr,
        permit: ConnectionPermit,
        stranger: Stranger,
    ) -> Result<(Io, SocketAddr), HandshakeError> {
        let mut connection = TcpStream::from_std(connection)?;
        connection.set_nodelay(true)?;
        let deadline = Instant::now() + self.timeout;
        let mut address = peer;
        if self.addresses.expects_proxy_header() {
            if !self.addresses.trusts(address.ip()) {
                return Err(HandshakeError::UntrustedProxy);
            }
            let header = timeout_at(deadline, proxy_header::read(&mut connection)).await;
            let header = header.map_err(|_| HandshakeError::ProxyHeaderTimeout)??;
            match header.ok_or(HandshakeError::Closed)? {
                ProxyHeader::Local => {}
                ProxyHeader::Forwarded { client } => {
                    address = client;
                    stranger.set_address(client.ip());
                }
            }
        }
        if !self.addresses.admits(address.ip()) {
            // Fails if the client does not read the response in time.
            let _ = timeout(REFUSAL_TIMEOUT, refuse(connection, address.ip())).await;
            return Err(HandshakeError::AddressNotAllowed(address.ip()));
        }
        let io = timeout_at(deadline, establish(connection, self.tls.clone(), permit, stranger)).await;
        Ok((io.map_err(|_| HandshakeError::Timeout)??, address))
    }
}

async fn establish(
    connection: TcpStream,
    tls: Option<Acceptor>,
    permit: ConnectionPermit,
    stranger: Stranger,
) -> io::Result<Io> {
    let first = peek(&connection).await?;
    let is_tls = first == Some(TLS_HANDSHAKE);
    match tls {
        None if is_tls => Err(io::Error::other("the peer uses TLS, but this listener does not")),
        None => Ok(Io::plain(connection, permit, stranger)),
        Some(_) if first.is_some() && !is_tls => {
            // It is the protocol that is wrong, whether or not the client reads that.
            let response = response("400 Bad Request", "", "this port speaks TLS: use https:// or wss://\n");
            let _ = timeout(REFUSAL_TIMEOUT, send_last(connection, response.as_bytes())).await;
            Err(io::Error::other("the peer does not use TLS, but this listener does"))
        }
        Some(tls) => {
            let connection = tls.accept(ReadAhead::new(connection)).await?;
            Ok(Io::tls(TlsStream::Server(connection), permit, stranger))
        }
    }
}

/// Returns the first byte of a connection without reading it, or `None` at its end.
async fn peek(connection: &TcpStream) -> io::Result<Option<u8>> {
    let mut first = [0];
    let read = connection.peek(&mut first).await?;
    Ok((read == 1).then_some(first[0]))
}

/// Responds to a client whose address is not allowed, before TLS, because the handshake would not change its address.
async fn refuse(connection: TcpStream, client: IpAddr) -> io::Result<()> {
    match peek(&connection).await? {
        Some(TLS_HANDSHAKE) => send_last(connection, &ACCESS_DENIED).await,
        Some(_) => {
            let body = format!("connections from {client} are not allowed here (allowed_networks of kas)\n");
            let response = response("403 Forbidden", "Kas-Error: address-not-allowed\r\n", &body);
            send_last(connection, response.as_bytes()).await
        }
        None => Ok(()),
    }
}

/// Returns a response that browsers, curl and kubectl show.
fn response(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends the last bytes of a connection, and reads until the peer closes it: unread bytes would reset the connection, and the
/// peer might lose the response.
async fn send_last(mut connection: TcpStream, bytes: &[u8]) -> io::Result<()> {
    connection.write_all(bytes).await?;
    connection.shutdown().await?;
    let mut discarded = [0; 1024];
    while connection.read(&mut discarded).await? > 0 {}
    Ok(())
}
