//! The byte stream below a tunnel.

use std::sync::Arc;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Duration, Instant, timeout_at},
};

use super::DialError;
use crate::{
    Address,
    upstream::{Connector, Tls, TlsError, TlsOptions, UpstreamError},
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
}

impl TcpDial {
    /// Reads the certificates once, to find out what is wrong with them; it blocks.
    pub fn new(kas: Address, tls: TlsOptions) -> Result<Self, TlsError> {
        // Without TLS, missing system roots are no reason to fail.
        let tls = Arc::new(if kas.is_secure() { Tls::new(tls)? } else { Tls::system() });
        Ok(Self { connector: Connector::new(kas.endpoint().clone(), TIMEOUT, tls), kas })
    }
}

impl Dial for TcpDial {
    type Io = BoxIo;

    async fn dial(&self) -> Result<BoxIo, DialError> {
        let deadline = Instant::now() + TIMEOUT;
        let dialling = async {
            let tcp = self.connector.tcp(deadline).await?;
            if !self.kas.is_secure() {
                return Ok(Box::new(tcp) as BoxIo);
            }
            let (tls, name) = self.connector.tls().await?;
            match tls.connect(name, tcp).await {
                Ok(stream) => Ok(Box::new(stream) as BoxIo),
                Err(error) if speaks_no_tls(&error) => {
                    Err(DialError::PlainText { address: self.kas.to_string() })
                }
                Err(error) => Err(UpstreamError::handshake(self.kas.endpoint().host(), &error).into()),
            }
        };

        timeout_at(deadline, dialling).await.unwrap_or_else(|_| Err(DialError::timed_out(&self.kas, TIMEOUT)))
    }
}

fn speaks_no_tls(error: &std::io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidMessage(_)))
}
