//! Dials the byte stream below a tunnel.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    net::TcpStream,
    time::{Duration, Instant, timeout},
};

use super::{DialError, HttpProxy, KasAddress};
use crate::upstream::{
    ClientTls, ClientTlsConfig, Io, ServerUrl, TlsError, UpstreamConnector, UpstreamError,
};

/// The time limit of DNS, TCP and TLS.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit of DNS, TCP and CONNECT of a proxy. Less than [`TIMEOUT`], so that the error names a proxy that does not
/// answer.
const PROXY_TIMEOUT: Duration = Duration::from_secs(10);

/// A byte stream of any type.
pub type BoxIo = Box<dyn Io>;

/// Connects byte streams to kas, without the WebSocket handshake.
///
/// Closures that return a stream implement it, too: tests return one end of a `tokio::io::duplex`.
pub trait Dial: Send + Sync + 'static {
    /// The type of the streams.
    type Io: Io;

    /// Connects a stream. Called for every attempt; dropping the future cancels it.
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

/// Dials TCP, and TLS for `wss://` and `grpcs://`.
pub struct TcpDialer {
    kas: KasAddress,
    connector: UpstreamConnector,
    proxy: Option<(HttpProxy, UpstreamConnector)>,
}

impl TcpDialer {
    /// Returns a dialer of `kas`. It reads the certificates once, so that they are checked, which blocks.
    pub fn new(kas: KasAddress, tls: ClientTlsConfig) -> Result<Self, TlsError> {
        let tls = ClientTlsConfig { http2: kas.is_grpc(), ..tls };
        // Root certificates are needed for TLS only.
        let tls = Arc::new(if kas.is_secure() { ClientTls::new(tls)? } else { ClientTls::system() });
        Ok(Self { connector: UpstreamConnector::new(kas.url().clone(), TIMEOUT, tls), kas, proxy: None })
    }

    /// Connects through this proxy, if there is one. The proxy resolves the name of kas.
    #[must_use]
    pub fn through(mut self, proxy: Option<HttpProxy>) -> Self {
        self.proxy = proxy.map(|proxy| {
            let connector = proxy.connector(PROXY_TIMEOUT);
            (proxy, connector)
        });
        self
    }

    /// Returns the server that is connected to directly: the proxy, or kas.
    pub fn first_hop(&self) -> &ServerUrl {
        self.proxy.as_ref().map_or_else(|| self.kas.url(), |(proxy, _)| proxy.url())
    }

    /// Returns the proxy through which it connects, if there is one.
    pub fn proxy(&self) -> Option<&HttpProxy> {
        self.proxy.as_ref().map(|(proxy, _)| proxy)
    }

    /// Resolves the name of the [first hop](Self::first_hop).
    pub async fn resolve(&self) -> Result<Vec<SocketAddr>, DialError> {
        let connector = self.proxy.as_ref().map_or(&self.connector, |(_, connector)| connector);
        self.with_timeout(async { Ok(connector.resolve().await?.collect()) }).await
    }

    /// Connects to kas, without TLS.
    pub async fn tcp(&self) -> Result<TcpStream, DialError> {
        self.with_timeout(async {
            match &self.proxy {
                Some((proxy, connector)) => {
                    proxy.connect(connector, &self.kas, Instant::now() + PROXY_TIMEOUT).await
                }
                None => Ok(self.connector.tcp(Instant::now() + TIMEOUT).await?),
            }
        })
        .await
    }

    /// Performs the TLS handshake, for `wss://` and `grpcs://`.
    pub async fn handshake(&self, tcp: TcpStream) -> Result<BoxIo, DialError> {
        if !self.kas.is_secure() {
            return Ok(Box::new(tcp));
        }
        let connecting = async {
            let (tls, name) = self.connector.tls().await?;
            match tls.connect(name, tcp).await {
                Ok(stream) => Ok(Box::new(stream) as BoxIo),
                Err(error) if is_plain_text(&error) => {
                    Err(DialError::PlainText { address: self.kas.to_string() })
                }
                Err(error) => Err(UpstreamError::handshake(self.kas.url().host(), &error).into()),
            }
        };
        self.with_timeout(connecting).await
    }

    async fn with_timeout<T>(
        &self,
        dialling: impl Future<Output = Result<T, DialError>>,
    ) -> Result<T, DialError> {
        timeout(TIMEOUT, dialling).await.unwrap_or_else(|_| {
            let address = match &self.proxy {
                Some((proxy, _)) => format!("{} through the proxy {proxy}", self.kas),
                None => self.kas.to_string(),
            };
            Err(DialError::Timeout { address, after: TIMEOUT })
        })
    }
}

impl Dial for TcpDialer {
    type Io = BoxIo;

    async fn dial(&self) -> Result<BoxIo, DialError> {
        self.with_timeout(async { self.handshake(self.tcp().await?).await }).await
    }
}

/// Returns true if the server sent something else than TLS.
fn is_plain_text(error: &std::io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidMessage(_)))
}
