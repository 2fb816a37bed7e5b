//! Connections to Gitaly servers.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use http::Uri;
use hyper_util::rt::TokioIo;
use rand::seq::SliceRandom as _;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::{GitalyAddress, HostPort};

/// The time for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The silence after which a PING is sent while there are calls; Gitaly closes connections with more than one in 10 s.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// The time for the response to a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to Gitaly.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Returns a channel that connects to the server when a call needs it, and again after the connection ended.
pub(super) fn channel(address: GitalyAddress, tls: Option<Arc<ClientConfig>>) -> Channel {
    let endpoint = Endpoint::from(origin(&address))
        .user_agent(concat!("gitlab-kas/", env!("CARGO_PKG_VERSION")))
        .expect("a valid header")
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let (address, tls) = (address.clone(), tls.clone());
        async move { connect(&address, tls).await.map(TokioIo::new) }
    }))
}

/// Returns the scheme and the authority of the requests.
fn origin(address: &GitalyAddress) -> Uri {
    let (scheme, authority) = match address {
        GitalyAddress::Tcp(address) => ("http", address.to_string()),
        GitalyAddress::Tls(address) => ("https", address.to_string()),
        GitalyAddress::Unix(_) => ("http", "localhost".to_owned()),
    };
    // A host that is valid as an address may be no valid authority of a URL, for example `_`.
    format!("{scheme}://{authority}").parse().unwrap_or_else(|_| Uri::from_static("http://gitaly"))
}

async fn connect(address: &GitalyAddress, tls: Option<Arc<ClientConfig>>) -> io::Result<Box<dyn Stream>> {
    Ok(match address {
        GitalyAddress::Unix(path) => Box::new(connect_socket(path).await?),
        GitalyAddress::Tcp(address) => Box::new(connect_tcp(address).await?),
        GitalyAddress::Tls(address) => {
            let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
            let stream = connect_tcp(address).await?;
            let trusting_system = || tls::client_config(tls::system_roots(), &[]);
            let mut config = tls.map_or_else(trusting_system, |config| ClientConfig::clone(&config));
            config.alpn_protocols = vec![b"h2".to_vec()];
            Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
        }
    })
}

async fn connect_socket(path: &PathBuf) -> io::Result<UnixStream> {
    let explain = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    UnixStream::connect(path).await.map_err(explain)
}

/// Connects to one of the addresses of the host, in a random order: the servers behind a name share the load.
async fn connect_tcp(address: &HostPort) -> io::Result<TcpStream> {
    let explain = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    let found = lookup_host((address.host.as_str(), address.port)).await.map_err(explain)?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.shuffle(&mut rand::rng());
    let stream = TcpStream::connect(&found[..]).await.map_err(explain)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
