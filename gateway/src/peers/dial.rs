//! The network between replicas.

use std::{fmt, io};

use router::{BoxFuture, Replica};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tunnel::{Settings, Tunnel, direct};

use super::{
    address::PeerUrl,
    link::{Dial, Driving},
    trouble::Trouble,
};

/// TCP, and TLS where the fleet has certificates.
#[derive(Debug)]
pub struct Network {
    /// How connections are set up.
    pub settings: Settings,
    /// Proves each end to the other.
    pub tls: Option<Tls>,
}

/// The client's half of mutual TLS.
#[derive(Clone)]
pub struct Tls {
    /// Shows our certificate, and trusts who the fleet's authority signed.
    pub connector: TlsConnector,
    /// The name in the certificates of all replicas, if not the host of each one's address.
    pub server_name: Option<ServerName<'static>>,
}

impl Dial for Network {
    fn dial(&self, replica: &Replica) -> BoxFuture<'static, Result<(Tunnel, Driving), Trouble>> {
        let (url, settings, tls) = (replica.url.clone(), self.settings.clone(), self.tls.clone());
        Box::pin(async move {
            let url: PeerUrl = url.parse().map_err(|error| Trouble::Unreachable(format!("{error}")))?;
            match (url.tls, tls) {
                (false, None) => open(connect(&url).await?, &settings).await,
                (true, Some(tls)) => open(tls.handshake(&url).await?, &settings).await,
                // Not to be talked out of TLS by whoever can write an address into the directory.
                (false, Some(_)) => Err(Trouble::Unreachable(format!("{url} is not TLS, as ours is"))),
                (true, None) => Err(Trouble::Unreachable(format!("{url} is TLS, and ours is not"))),
            }
        })
    }
}

impl Tls {
    async fn handshake(self, url: &PeerUrl) -> Result<TlsStream<TcpStream>, Trouble> {
        let name = match self.server_name {
            Some(name) => name,
            None => ServerName::try_from(url.host.clone()).map_err(|_| {
                Trouble::Unreachable(format!("{url} has no name that a certificate may bear"))
            })?,
        };
        let connection = connect(url).await?;
        self.connector.connect(name, connection).await.map_err(|error| unreachable(url, &error))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

async fn connect(url: &PeerUrl) -> Result<TcpStream, Trouble> {
    let connection = TcpStream::connect((url.host.as_str(), url.port)).await;
    let connection = connection.map_err(|error| unreachable(url, &error))?;
    connection.set_nodelay(true).map_err(|error| unreachable(url, &error))?;
    Ok(connection)
}

fn unreachable(url: &PeerUrl, error: &io::Error) -> Trouble {
    Trouble::Unreachable(format!("{url}: {error}"))
}

/// Starts HTTP/2, and waits until the other end has shown that it speaks it too.
pub async fn open<T>(io: T, settings: &Settings) -> Result<(Tunnel, Driving), Trouble>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (tunnel, driver) =
        direct::open(io, settings).await.map_err(|error| Trouble::Garbage(error.to_string()))?;
    let mut driving: Driving = Box::pin(driver.run());
    tokio::select! {
        () = tunnel.ready() => {}
        ended = &mut driving => return Err(Trouble::Garbage(ended.to_string())),
    }
    Ok((tunnel, driving))
}
