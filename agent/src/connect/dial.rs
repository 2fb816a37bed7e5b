//! The byte stream below a tunnel.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Duration, Instant, timeout},
};

use super::{DialError, Proxy};
use crate::{
    Address,
    upstream::{Connector, Endpoint, Tls, TlsError, TlsOptions, UpstreamError},
};

/// For name, TCP and TLS.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What a tunnel may run over.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Some byte stream.
pub type BoxIo = Box<dyn Io>;

/// Makes byte streams to kas. The handshake of the tunnel is not its business.
///
/// A closure that returns a stream dials, too: tests give one end of a `tokio::io::duplex`.
pub trait Dial: Send + Sync + 'static {
    /// The stream.
    type Io: Io;

    /// One more stream. Called for every attempt.
    fn dial(&self) -> impl Future<Output = Result<Self::Io, DialError>> + Send;
}

impl<F, A, T> Dial for F
where
    F: Fn() -> A + Send + Sync + 'static,
    A: Future<Output = Result<T, DialError>> + Send,
    T: Io,
{
    type Io = T;

    fn dial(&self) -> impl Future<Output = Result<T, DialError>> + Send {
        self()
    }
}

/// TCP, and TLS for `wss://`.
pub struct TcpDial {
    kas: Address,
    connector: Connector,
    proxy: Option<(Proxy, Connector)>,
}

impl TcpDial {
    /// Reads the certificates once, to find out what is wrong with them; it blocks.
    pub fn new(kas: Address, tls: TlsOptions) -> Result<Self, TlsError> {
        // Without TLS, missing system roots are no reason to fail.
        let tls = Arc::new(if kas.is_secure() { Tls::new(tls)? } else { Tls::system() });
        Ok(Self { connector: Connector::new(kas.endpoint().clone(), TIMEOUT, tls), kas, proxy: None })
    }

    /// Connects through this proxy, if there is one. It resolves kas's name, too.
    #[must_use]
    pub fn through(mut self, proxy: Option<Proxy>) -> Self {
        self.proxy = proxy.map(|proxy| {
            let connector = proxy.connector(TIMEOUT);
            (proxy, connector)
        });
        self
    }

    /// What is connected to first: the proxy, or kas.
    pub(crate) fn first(&self) -> &Endpoint {
        self.proxy.as_ref().map_or_else(|| self.kas.endpoint(), |(proxy, _)| proxy.endpoint())
    }

    pub(crate) fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref().map(|(proxy, _)| proxy)
    }

    /// The addresses that the name of the [first](Self::first) has.
    pub(crate) async fn resolve(&self) -> Result<Vec<SocketAddr>, DialError> {
        let connector = self.proxy.as_ref().map_or(&self.connector, |(_, connector)| connector);
        self.in_time(async { Ok(connector.resolve().await?.collect()) }).await
    }

    /// A connection, without TLS yet.
    pub(crate) async fn tcp(&self) -> Result<TcpStream, DialError> {
        let deadline = Instant::now() + TIMEOUT;
        self.in_time(async {
            match &self.proxy {
                Some((proxy, connector)) => proxy.connect(connector, &self.kas, deadline).await,
                None => Ok(self.connector.tcp(deadline).await?),
            }
        })
        .await
    }

    /// TLS on it, for `wss://`.
    pub(crate) async fn secure(&self, tcp: TcpStream) -> Result<BoxIo, DialError> {
        if !self.kas.is_secure() {
            return Ok(Box::new(tcp));
        }
        let connecting = async {
            let (tls, name) = self.connector.tls().await?;
            match tls.connect(name, tcp).await {
                Ok(stream) => Ok(Box::new(stream) as BoxIo),
                Err(error) if speaks_no_tls(&error) => {
                    Err(DialError::PlainText { address: self.kas.to_string() })
                }
                Err(error) => Err(UpstreamError::handshake(self.kas.endpoint().host(), &error).into()),
            }
        };
        self.in_time(connecting).await
    }

    async fn in_time<T>(&self, dialling: impl Future<Output = Result<T, DialError>>) -> Result<T, DialError> {
        timeout(TIMEOUT, dialling).await.unwrap_or_else(|_| Err(DialError::timed_out(&self.kas, TIMEOUT)))
    }
}

impl Dial for TcpDial {
    type Io = BoxIo;

    async fn dial(&self) -> Result<BoxIo, DialError> {
        self.in_time(async { self.secure(self.tcp().await?).await }).await
    }
}

fn speaks_no_tls(error: &std::io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidMessage(_)))
}
