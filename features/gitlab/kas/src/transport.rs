//! Connections to GitLab: TCP, TLS, and Unix sockets.

use std::{
    fmt,
    future::ready,
    io::{self, IoSlice},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use arc_swap::ArcSwap;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use rustls::ClientConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};
use tower::{
    ServiceExt as _,
    util::{BoxCloneSyncService, service_fn},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The service that hyper calls for each new connection.
pub(super) type Connector = BoxCloneSyncService<Uri, Stream, BoxError>;

/// Opens connections to GitLab. Clones are cheap.
#[derive(Clone)]
pub struct Transport(pub(super) Connector);

/// A connection to GitLab.
pub struct Stream(Pin<Box<dyn ReadWrite>>);

trait ReadWrite: Read + Write + Send {}

impl<T: Read + Write + Send> ReadWrite for T {}

impl Transport {
    /// Connects to the host of the URL without TLS.
    pub(super) fn tcp() -> Self {
        Self(BoxCloneSyncService::new(service_fn(|uri: Uri| async move {
            Ok(Stream::new(connector().oneshot(uri).await?))
        })))
    }

    /// Connects to the host of the URL with the TLS configuration that is current then.
    pub(super) fn tls(config: Arc<ArcSwap<ClientConfig>>) -> Self {
        Self(BoxCloneSyncService::new(service_fn(move |uri: Uri| {
            let tls = config.load_full();
            async move { Ok(Stream::new(HttpsConnector::from((connector(), tls)).oneshot(uri).await?)) }
        })))
    }

    /// Connects to a socket, for each URL.
    pub(super) fn socket(path: PathBuf) -> Self {
        Self(BoxCloneSyncService::new(service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok(Stream::new(TokioIo::new(UnixStream::connect(path).await?))) }
        })))
    }

    /// Gets each connection from a function, for tests without a network.
    pub fn from_fn<T>(connect: impl Fn() -> io::Result<T> + Clone + Send + Sync + 'static) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        Self(BoxCloneSyncService::new(service_fn(move |_: Uri| {
            ready(connect().map(|io| Stream::new(TokioIo::new(io))).map_err(BoxError::from))
        })))
    }
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector
}

impl Stream {
    fn new(io: impl Read + Write + Send + 'static) -> Self {
        Self(Box::pin(io))
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write_vectored(cx, slices)
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}
