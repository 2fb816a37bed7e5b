//! A new connection: name, TCP, TLS, HTTP/1.1.

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
    Endpoint, Scheme, TlsSource, UpstreamError,
    connection::Connection,
    pool::{Lease, Pool},
};

/// A watch may be silent for hours, so only TCP can tell that the server is gone. Probes after 30 s of silence and
/// every 30 s, as client-go does; with Linux's 9 probes a dead server is noticed after 5 minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);

pub(crate) struct Connector {
    endpoint: Endpoint,
    timeout: Duration,
    tls: Arc<dyn TlsSource>,
    may_be_at: fn(&IpAddr) -> bool,
    write_timeout: Duration,
}

impl Connector {
    pub(crate) fn new(endpoint: Endpoint, timeout: Duration, tls: Arc<dyn TlsSource>) -> Self {
        Self { endpoint, timeout, tls, may_be_at: |_| true, write_timeout: timeout }
    }

    /// Connects to these addresses only.
    pub(super) fn only_at(self, may_be_at: fn(&IpAddr) -> bool) -> Self {
        Self { may_be_at, ..self }
    }

    /// Sets how long a write on an HTTP connection may make no progress. By default the timeout for connecting.
    pub(super) fn with_write_timeout(self, write_timeout: Duration) -> Self {
        Self { write_timeout, ..self }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) async fn connect(&self, pool: &Arc<Pool>) -> Result<Lease, UpstreamError> {
        let generation = pool.generation();
        // Before the clock starts: a credential plugin may take longer to hand out a certificate than a server, or
        // our own patience, waits for a handshake.
        let tls = match self.endpoint.scheme() {
            Scheme::Http => None,
            Scheme::Https => Some(self.tls().await?),
        };
        let deadline = Instant::now() + self.timeout;
        let connecting = async {
            let tcp = self.tcp(deadline).await?;
            let opened = match tls {
                None => Connection::new(tcp, self.write_timeout).await,
                Some((tls, name)) => {
                    let tls = tls.connect(name, tcp).await;
                    let tls = tls.map_err(|error| UpstreamError::handshake(self.endpoint.host(), &error))?;
                    Connection::new(tls, self.write_timeout).await
                }
            };
            opened.map_err(|error| UpstreamError::exchange(&self.endpoint, error))
        };

        let connection = timeout_at(deadline, connecting).await.unwrap_or_else(|_| Err(self.timed_out()))?;
        Ok(pool.lend(generation, connection))
    }

    pub(crate) async fn tls(&self) -> Result<(TlsConnector, ServerName<'static>), UpstreamError> {
        let host = self.endpoint.host();
        let failed = |cause| UpstreamError::TlsSetup { host: host.to_owned(), cause };
        let name = match self.tls.server_name() {
            Some(name) => name,
            None => ServerName::try_from(host.to_owned()).map_err(|error| failed(error.into()))?,
        };

        Ok((TlsConnector::from(self.tls.config().await.map_err(failed)?), name))
    }

    /// Tries every address of the host; each gets an equal share of the time that is left, so that one that
    /// swallows packets does not hide the next.
    pub(crate) async fn tcp(&self, deadline: Instant) -> Result<TcpStream, UpstreamError> {
        let mut addresses = self.resolve().await?;
        let mut failure = None;
        while let Some(address) = addresses.next() {
            let others = u32::try_from(addresses.len()).unwrap_or(u32::MAX - 1);
            let share = deadline.saturating_duration_since(Instant::now()) / (others + 1);
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(tuned(stream)),
                Ok(Err(cause)) => {
                    failure = Some(UpstreamError::Connect { address: self.describe(address), cause });
                }
                Err(_) => {}
            }
        }

        Err(failure.unwrap_or_else(|| self.timed_out()))
    }

    pub(crate) async fn resolve(&self) -> Result<std::vec::IntoIter<SocketAddr>, UpstreamError> {
        let host = self.endpoint.host();
        let failed = |cause| UpstreamError::Resolve { host: host.to_owned(), cause };
        let found: Vec<_> = lookup_host((host, self.endpoint.port())).await.map_err(failed)?.collect();
        if found.is_empty() {
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
        }

        let count = found.len();
        let allowed: Vec<_> = found.into_iter().filter(|address| (self.may_be_at)(&address.ip())).collect();
        if allowed.is_empty() {
            let what = format!("none of its {count} addresses is one that a Service has");
            return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, what)));
        }

        Ok(allowed.into_iter())
    }

    fn describe(&self, address: SocketAddr) -> String {
        if self.endpoint.host().parse() == Ok(address.ip()) {
            return address.to_string();
        }

        format!("{} ({address})", self.endpoint.host())
    }

    fn timed_out(&self) -> UpstreamError {
        UpstreamError::ConnectTimeout { address: self.endpoint.to_string(), after: self.timeout }
    }
}

/// A socket that refuses an option still carries requests.
fn tuned(stream: TcpStream) -> TcpStream {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let options = [stream.set_nodelay(true), SockRef::from(&stream).set_tcp_keepalive(&keepalive)];
    for error in options.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "a TCP option could not be set");
    }

    stream
}
