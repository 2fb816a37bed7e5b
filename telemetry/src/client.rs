//! OTLP over HTTP/1.1: one connection, kept while the collector keeps it.

use std::{io, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request, StatusCode,
    header::{CONTENT_TYPE, HOST, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::spawn_blocking,
    time::timeout,
};

use crate::{Collector, CollectorError};

/// For one attempt: name, connection, TLS, request and answer. It is the default of OpenTelemetry's exporters.
const TIMEOUT: Duration = Duration::from_secs(10);
/// An answer says how many spans were not liked, and why.
const ANSWER_MAX: usize = 64 << 10;

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error(transparent)]
    Collector(#[from] CollectorError),
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
    #[error("the connection failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("its answer cannot be read: {0}")]
    Answer(Box<dyn std::error::Error + Send + Sync>),
}

impl SendError {
    /// Whether it may go well a moment later (OTLP specification, "Failures").
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Status(status) => matches!(status.as_u16(), 429 | 502..=504),
            Self::Collector(_) | Self::Answer(_) => false,
            Self::Connect(_) | Self::Timeout | Self::Http(_) => true,
        }
    }
}

/// Sends to one collector.
#[derive(Debug)]
pub(crate) struct Client {
    collector: Collector,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(crate) fn new(collector: Collector) -> Self {
        Self { collector, connection: None }
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Sends one message and returns the answer's.
    pub(crate) async fn send(&mut self, message: Bytes) -> Result<Bytes, SendError> {
        // Taken out, so that whatever goes wrong, or is dropped half way, leaves no connection behind.
        let mut kept = self.connection.take();
        let exchange = async {
            let request = self.request(message).await?;
            if let Some(connection) = &mut kept
                && connection.ready().await.is_err()
            {
                kept = None;
            }
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            let (head, body) = connection.send_request(request).await?.into_parts();
            let body = Limited::new(body, ANSWER_MAX).collect().await.map_err(SendError::Answer)?;
            if !head.status.is_success() {
                return Err(SendError::Status(head.status));
            }
            Ok((connection, body.to_bytes()))
        };
        let (connection, answer) = timeout(TIMEOUT, exchange).await.map_err(|_| SendError::Timeout)??;
        self.connection = Some(connection);
        Ok(answer)
    }

    async fn request(&self, message: Bytes) -> Result<Request<Full<Bytes>>, SendError> {
        let collector = self.collector.clone();
        let headers = spawn_blocking(move || collector.headers()).await.map_err(io::Error::from)??;
        let endpoint = self.collector.endpoint();
        let mut request = Request::post(endpoint.path()).body(Full::new(message)).expect("it was a URL");
        let said = request.headers_mut();
        said.extend(headers);
        said.insert(HOST, endpoint.authority().clone());
        said.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        said.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("kas-telemetry/", env!("CARGO_PKG_VERSION"))),
        );
        Ok(request)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, SendError> {
        let endpoint = self.collector.endpoint();
        let tcp = TcpStream::connect((endpoint.host(), endpoint.port())).await?;
        let collector = self.collector.clone();
        match spawn_blocking(move || collector.tls()).await.map_err(io::Error::from)?? {
            None => self.start(tcp).await,
            Some(tls) => {
                let name = ServerName::try_from(endpoint.host().to_owned()).map_err(io::Error::other)?;
                self.start(TlsConnector::from(tls).connect(name, tcp).await?).await
            }
        }
    }

    async fn start<T>(&self, io: T) -> Result<SendRequest<Full<Bytes>>, SendError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = handshake(TokioIo::new(io)).await?;
        // It ends with the sender; what went wrong is said to whoever waits for an answer.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }
}
