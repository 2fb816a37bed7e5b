//! Opens connections: DNS, TCP, TLS, HTTP/1.1.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpStream, lookup_host},
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsConnector;

use super::{
    Scheme, ServerUrl, TlsConfigSource, UpstreamError,
    connection::{Pool, PooledConnection, UpstreamConnection},
};

/// The TCP keepalive time and interval. A watch may be silent for hours, so that only TCP can detect a lost server. client-go
/// has the same 30 s; with the 9 probes of Linux, a lost server is detected after 5 minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Connects to one server.
pub struct UpstreamConnector {
    url: ServerUrl,
    timeout: Duration,
    tls: Arc<dyn TlsConfigSource>,
    address_filter: fn(&IpAddr) -> bool,
    write_timeout: Duration,
}

impl UpstreamConnector {
    /// Returns a connector that needs no network yet. `timeout` bounds the DNS lookup, TCP and TLS together.
    pub fn new(url: ServerUrl, timeout: Duration, tls: Arc<dyn TlsConfigSource>) -> Self {
        Self { url, timeout, tls, address_filter: |_| true, write_timeout: timeout }
    }

    /// Connects only to addresses for which the filter returns true.
    pub(super) fn with_address_filter(self, address_filter: fn(&IpAddr) -> bool) -> Self {
        Self { address_filter, ..self }
    }

    /// Sets the time that a write on an HTTP connection may make no progress. The default is the timeout for connecting.
    pub(super) fn with_write_timeout(self, write_timeout: Duration) -> Self {
        Self { write_timeout, ..self }
    }

    /// Returns the server that it connects to.
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Opens an HTTP connection for `pool`.
    pub(super) async fn connect(&self, pool: &Arc<Pool>) -> Result<PooledConnection, UpstreamError> {
        let generation = pool.generation();
        // Before the TCP connection and before the time starts: a credential plugin may take longer to print a certificate
        // than the server or this timeout allow for a handshake.
        let tls = match self.url.scheme() {
            Scheme::Http => None,
            Scheme::Https => Some(self.tls().await?),
        };
        let deadline = Instant::now() + self.timeout;
        let connecting = async {
            let tcp = self.tcp(deadline).await?;
            let opened = match tls {
                None => UpstreamConnection::new(tcp, self.write_timeout).await,
                Some((tls, name)) => {
                    let tls = tls.connect(name, tcp).await;
                    let tls = tls.map_err(|error| UpstreamError::handshake(self.url.host(), &error))?;
                    UpstreamConnection::new(tls, self.write_timeout).await
                }
            };
            opened.map_err(|error| UpstreamError::exchange(&self.url, error))
        };

        let connection = timeout_at(deadline, connecting).await.unwrap_or_else(|_| Err(self.timed_out()))?;
        Ok(pool.add(generation, connection))
    }

    /// Returns the TLS connector for the next connection, and the name in the server's certificate.
    pub async fn tls(&self) -> Result<(TlsConnector, ServerName<'static>), UpstreamError> {
        let host = self.url.host();
        let failed = |cause| UpstreamError::TlsSetup { host: host.to_owned(), cause };
        let name = match self.tls.server_name() {
            Some(name) => name,
            None => ServerName::try_from(host.to_owned()).map_err(|error| failed(error.into()))?,
        };

        Ok((TlsConnector::from(self.tls.config().await.map_err(failed)?), name))
    }

    /// Opens a TCP connection to any address of the host. Each address has an equal share of the time that is left, so that
    /// one which drops packets does not prevent the attempt at the next.
    pub async fn tcp(&self, deadline: Instant) -> Result<TcpStream, UpstreamError> {
        let mut addresses = self.resolve().await?;
        let mut failure = None;
        while let Some(address) = addresses.next() {
            let others = u32::try_from(addresses.len()).unwrap_or(u32::MAX - 1);
            let share = deadline.saturating_duration_since(Instant::now()) / (others + 1);
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(with_options(stream)),
                Ok(Err(cause)) => {
                    failure = Some(UpstreamError::Connect { address: self.describe(address), cause });
                }
                Err(_) => {}
            }
        }

        Err(failure.unwrap_or_else(|| self.timed_out()))
    }

    /// Returns the addresses of the host; there is at least one.
    pub(crate) async fn resolve(&self) -> Result<std::vec::IntoIter<SocketAddr>, UpstreamError> {
        let host = self.url.host();
        let failed = |cause| UpstreamError::Resolve { host: host.to_owned(), cause };
        let found: Vec<_> = lookup_host((host, self.url.port())).await.map_err(failed)?.collect();
        if found.is_empty() {
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
        }

        let count = found.len();
        let allowed: Vec<_> =
            found.into_iter().filter(|address| (self.address_filter)(&address.ip())).collect();
        if allowed.is_empty() {
            let what = format!("none of its {count} addresses may belong to a Service");
            return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, what)));
        }

        Ok(allowed.into_iter())
    }

    fn describe(&self, address: SocketAddr) -> String {
        if self.url.host().parse() == Ok(address.ip()) {
            return address.to_string();
        }

        format!("{} ({address})", self.url.host())
    }

    fn timed_out(&self) -> UpstreamError {
        UpstreamError::ConnectTimeout { address: self.url.to_string(), after: self.timeout }
    }
}

/// Sets TCP options. Errors are logged only, since the socket is usable without them.
fn with_options(stream: TcpStream) -> TcpStream {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let options = [stream.set_nodelay(true), SockRef::from(&stream).set_tcp_keepalive(&keepalive)];
    for error in options.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "cannot set a TCP option");
    }

    stream
}
