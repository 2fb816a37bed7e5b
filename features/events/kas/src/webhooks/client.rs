//! Sends one delivery: DNS, the check of the address, TCP, TLS and one exchange. Redirects are not followed.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::{RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;

use super::target::WebhookUrl;
use outbound::{AddressError, AddressPolicy};

/// The time for DNS, and for a connection with its TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for the head of the response after the connection, and that for its body. A body that does not end changes no answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest head of a response, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// The most bytes of a response that are read. The rest is not.
const MAX_BODY: usize = 64 << 10;
/// The protocol inside of TLS (RFC 7301).
const ALPN: &[u8] = b"http/1.1";
/// The User-Agent of kas.
const USER_AGENT_VALUE: HeaderValue = HeaderValue::from_static(concat!("kas/", env!("CARGO_PKG_VERSION")));

/// One delivery.
pub(super) struct DeliveryRequest {
    pub(super) id: String,
    /// The time in seconds since 1970.
    pub(super) timestamp: u64,
    pub(super) signature: Option<String>,
    pub(super) authorization: Option<HeaderValue>,
    pub(super) body: Vec<u8>,
}

/// The answer of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeliveryAnswer {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
}

/// The reason why there is no answer. It does not have the path of the URL, which may be a secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error("{0}")]
    Settings(String),
    #[error("{host} cannot be resolved: {error}")]
    Resolve { host: String, error: io::Error },
    #[error("{host}: {error}")]
    Address { host: String, error: AddressError },
    #[error("{address} does not accept a connection: {error}")]
    Connect { address: SocketAddr, error: io::Error },
    #[error("{address}: TLS failed: {error}")]
    Tls { address: SocketAddr, error: io::Error },
    #[error("the receiver does not respond within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the connection failed: {0}")]
    Exchange(#[from] hyper::Error),
}

/// Posts a delivery, and returns the answer.
///
/// # Errors
///
/// There is no answer. The receiver may have received the delivery.
pub(super) async fn post(
    url: &WebhookUrl,
    addresses: &AddressPolicy,
    roots: RootCertStore,
    delivery: DeliveryRequest,
) -> Result<DeliveryAnswer, DeliveryError> {
    let connecting = timeout(2 * CONNECT_TIMEOUT, async {
        let (tcp, address) = connect(url, addresses).await?;
        Ok::<_, DeliveryError>(if url.is_secure() {
            Either::Left(handshake(url, roots, tcp, address).await?)
        } else {
            Either::Right(tcp)
        })
    });
    let io = connecting.await.map_err(|_| DeliveryError::Timeout(2 * CONNECT_TIMEOUT))??;
    exchange(io, request(url, delivery)).await
}

/// Connects to an address of the host that the rules allow. The check is that of the address to which kas connects: a second lookup
/// of the name could have another result.
async fn connect(
    url: &WebhookUrl,
    addresses: &AddressPolicy,
) -> Result<(TcpStream, SocketAddr), DeliveryError> {
    let host = url.host();
    let resolve = |error| DeliveryError::Resolve { host: host.to_owned(), error };
    let found = timeout(CONNECT_TIMEOUT, lookup_host((host, url.port()))).await;
    let found = found.map_err(|_| resolve(io::ErrorKind::TimedOut.into()))?.map_err(resolve)?;
    let mut error = resolve(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in found {
        if let Err(refused) = addresses.check(address.ip()) {
            error = DeliveryError::Address { host: host.to_owned(), error: refused };
            continue;
        }
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => return Ok((tcp, address)),
            Ok(Err(cause)) => error = DeliveryError::Connect { address, error: cause },
            Err(_) => error = DeliveryError::Connect { address, error: io::ErrorKind::TimedOut.into() },
        }
    }
    Err(error)
}

async fn handshake(
    url: &WebhookUrl,
    roots: RootCertStore,
    tcp: TcpStream,
    address: SocketAddr,
) -> Result<TlsStream<TcpStream>, DeliveryError> {
    let name = ServerName::try_from(url.host().to_owned())
        .map_err(|error| DeliveryError::Settings(format!("{error}, which a certificate cannot have")))?;
    let config = tls::client_config(roots, &[ALPN]);
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, tcp);
    connecting.await.map_err(|error| DeliveryError::Tls { address, error })
}

fn request(url: &WebhookUrl, delivery: DeliveryRequest) -> Request<Full<Bytes>> {
    let DeliveryRequest { id, timestamp, signature, authorization, body } = delivery;
    let mut request = Request::post(url.path())
        .header(HOST, url.authority())
        .header(USER_AGENT, USER_AGENT_VALUE)
        .header(CONTENT_TYPE, "application/json")
        .header(CONNECTION, "close")
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp);
    if let Some(signature) = signature {
        request = request.header("webhook-signature", signature);
    }
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    request.body(Full::new(body.into())).expect("parts of a URL, numbers and base64 are valid")
}

async fn exchange<T>(io: T, request: Request<Full<Bytes>>) -> Result<DeliveryAnswer, DeliveryError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(io)).await?;
    let exchange = async {
        let response = timeout(RESPONSE_TIMEOUT, sender.send_request(request)).await;
        let response = response.map_err(|_| DeliveryError::Timeout(RESPONSE_TIMEOUT))??;
        let answer = DeliveryAnswer { status: response.status(), retry_after: retry_after(&response) };
        let _ = timeout(BODY_TIMEOUT, skip(response.into_body())).await;
        Ok(answer)
    };
    tokio::pin!(exchange);
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        _ = connection => exchange.await,
    }
}

fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Reads the beginning of a body, so that the receiver sees a complete exchange. Its content has no meaning.
async fn skip(mut body: Incoming) {
    let mut left = MAX_BODY;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
