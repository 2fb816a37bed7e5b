//! Opens the connection of a tunnel to an agent: DNS, the check of the address, TCP, TLS, and the upgrade to a WebSocket.
//!
//! kas authenticates first: by its certificate, by a key, or by both. Only then agentk sends its token, with the 101.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::DialTarget;
use bytes::Bytes;
use files::unreadable;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{AUTHORIZATION, HOST, LOCATION, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Incoming, client::conn::http1, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use kas_listen::tls::Certificate;
use proto::{TunnelProtocol, Welcome, header as names, short_line};
use rustls::{ClientConfig, pki_types::ServerName};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    net::{TcpStream, lookup_host},
    task::spawn_blocking,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;
use tunnel::{
    ReadAhead,
    handshake::{self, UpgradeResponseError},
};

use super::error::DialError;
use outbound::AddressPolicy;

/// The only protocol that kas offers.
const OFFERED: &[TunnelProtocol] = &[TunnelProtocol::KasTunnel];
/// The protocol inside of TLS (RFC 7301) with agents that kas dials.
pub const DIAL_ALPN: &[u8] = b"http/1.1";
/// The longest head of a response, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// The most bytes that are read of the body of a refusal, which should be a sentence.
const MAX_REFUSAL: usize = 4096;
/// The longest key, in bytes.
const MAX_KEY: usize = 4096;
/// The User-Agent of kas.
const USER_AGENT_VALUE: HeaderValue = HeaderValue::from_static(concat!("kas/", env!("CARGO_PKG_VERSION")));

/// The byte stream of a tunnel that kas has dialled.
pub(super) type DialledIo = Either<TcpStream, Box<TlsStream<ReadAhead<TcpStream>>>>;

/// Dials agents.
#[derive(Debug)]
pub struct AgentDialer {
    /// The rules for addresses.
    pub addresses: AddressPolicy,
    /// The certificate with which kas authenticates, if it has one.
    pub certificate: Option<Certificate>,
    /// The time for each step.
    pub timeout: Duration,
}

/// A connection whose agentk has sent the 101.
pub(super) struct DialledConnection {
    pub(super) upgraded: Upgraded,
    /// The headers by which an agent is admitted: its token and its hello.
    pub(super) headers: HeaderMap,
    pub(super) address: SocketAddr,
}

impl AgentDialer {
    /// Opens a connection. Dropping the future closes it.
    pub(super) async fn dial(
        &self,
        target: &DialTarget,
        welcome: &Welcome,
    ) -> Result<DialledConnection, DialError> {
        let key = bearer(target).await?;
        let (tcp, address) = self.connect(target).await?;
        let io = match target.url.is_secure() {
            true => Either::Right(Box::new(self.handshake(target, tcp, address).await?)),
            false if address.ip().is_loopback() => Either::Left(tcp),
            false => return Err(DialError::PlainText(address)),
        };
        let (request, websocket_key) = request(target, welcome, key.as_ref());
        let upgrading = timeout(self.timeout, upgrade(io, request, &websocket_key)).await;
        let (upgraded, headers) = upgrading.map_err(|_| self.timed_out(address))??;
        Ok(DialledConnection { upgraded, headers, address })
    }

    /// Connects to an address of the host that the rules allow. The check is that of the address to which kas connects: a second
    /// lookup of the name could have another result.
    async fn connect(&self, target: &DialTarget) -> Result<(TcpStream, SocketAddr), DialError> {
        let (host, port) = (target.url.host(), target.url.port());
        let resolve = |error| DialError::Resolve { host: host.to_owned(), error };
        let found = timeout(self.timeout, lookup_host((host, port))).await;
        let found = found.map_err(|_| resolve(io::ErrorKind::TimedOut.into()))?.map_err(resolve)?;
        let mut error = resolve(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        let mut allowed = Vec::new();
        for address in found {
            match self.addresses.check(address.ip()) {
                Ok(()) => allowed.push(address),
                Err(refused) => error = DialError::Address { host: host.to_owned(), error: refused },
            }
        }
        let share = self.timeout / u32::try_from(allowed.len().max(1)).unwrap_or(u32::MAX);
        for address in allowed {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(tcp)) => {
                    // Without the option, small frames are late; the connection is usable.
                    let _ = tcp.set_nodelay(true);
                    return Ok((tcp, address));
                }
                Ok(Err(cause)) => error = DialError::Connect { address, error: cause },
                Err(_) => error = self.timed_out(address),
            }
        }
        Err(error)
    }

    async fn handshake(
        &self,
        target: &DialTarget,
        tcp: TcpStream,
        address: SocketAddr,
    ) -> Result<TlsStream<ReadAhead<TcpStream>>, DialError> {
        let name = target.tls_server_name.as_deref().unwrap_or_else(|| target.url.host()).to_owned();
        let name = ServerName::try_from(name)
            .map_err(|error| DialError::Setup(format!("{error}, which a certificate cannot have")))?;
        let config = self.tls_config(target).await?;
        let connecting = TlsConnector::from(config).connect(name, ReadAhead::new(tcp));
        let connected = timeout(self.timeout, connecting).await.map_err(|_| self.timed_out(address))?;
        connected.map_err(|error| DialError::Tls { address, error })
    }

    /// Returns the TLS configuration that the target has, or that of its files.
    async fn tls_config(&self, target: &DialTarget) -> Result<Arc<ClientConfig>, DialError> {
        if let Some(credentials) = &target.credentials {
            return Ok(Arc::clone(&credentials.tls));
        }
        let (certificate, ca_file) = (self.certificate.clone(), target.ca_file.clone());
        let config = spawn_blocking(move || client_config(certificate.as_ref(), ca_file.as_deref())).await;
        config.map_err(|error| DialError::Setup(error.to_string()))?.map(Arc::new)
    }

    fn timed_out(&self, address: SocketAddr) -> DialError {
        DialError::Timeout { address: address.to_string(), after: self.timeout }
    }
}

/// Returns the TLS configuration of a connection. It reads certificates, which blocks.
fn client_config(
    certificate: Option<&Certificate>,
    ca_file: Option<&Path>,
) -> Result<ClientConfig, DialError> {
    let roots = match ca_file {
        Some(path) => {
            let error = |what: String| DialError::Setup(format!("ca_file {}: {what}", path.display()));
            let bytes = files::read(path).map_err(|cause| error(unreadable(&cause)))?;
            tls::parse_roots(&bytes).map_err(|invalid| error(invalid.to_string()))?
        }
        None => tls::system_roots(),
    };
    Ok(match certificate {
        Some(certificate) => certificate.client_config(roots, &[DIAL_ALPN]),
        None => tls::client_config(roots, &[DIAL_ALPN]),
    })
}

/// Returns the key for an agentk, or a new token, if it needs one.
async fn bearer(target: &DialTarget) -> Result<Option<SecretString>, DialError> {
    let key = target.credentials.as_ref().and_then(|credentials| credentials.token_key.as_ref());
    match (key, &target.key_file) {
        (Some(key), _) => Ok(Some(key.token(SystemTime::now()).into())),
        (None, Some(path)) => read_key(path).await.map(Some),
        (None, None) => Ok(None),
    }
}

/// Reads the key for an agentk. It is read for each dial, so that it can be rotated.
async fn read_key(path: &Path) -> Result<SecretString, DialError> {
    let path = path.to_owned();
    let reading = spawn_blocking(move || {
        let error = |what: &str| DialError::Setup(format!("key_file {}: {what}", path.display()));
        let text = files::read_text(&path).map_err(|cause| error(&unreadable(&cause)))?;
        let text = SecretString::from(text);
        let key = text.expose_secret().trim();
        match key.len() {
            0 => Err(error("is empty")),
            1..=MAX_KEY if key.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(SecretString::from(key)),
            _ => Err(error("holds no key: a key is one line of visible ASCII characters")),
        }
    });
    reading.await.unwrap_or_else(|error| Err(DialError::Setup(error.to_string())))
}

/// Returns the request for a tunnel, and the key with which its response is compared.
fn request(
    target: &DialTarget,
    welcome: &Welcome,
    key: Option<&SecretString>,
) -> (Request<Empty<Bytes>>, String) {
    let (mut headers, websocket_key) = handshake::request_headers(OFFERED);
    let host = target.url.authority().parse().expect("a part of a URL");
    headers.insert(HOST, host);
    headers.insert(USER_AGENT, USER_AGENT_VALUE);
    headers.insert(names::WELCOME, welcome.encode().expect("ids and numbers are ASCII"));
    if let Some(key) = key {
        let bearer = format!("Bearer {}", key.expose_secret());
        let mut bearer = HeaderValue::from_str(&bearer).expect("visible ASCII");
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = target.url.path().parse().expect("a part of a URL");
    *request.headers_mut() = headers;
    (request, websocket_key)
}

/// Performs the handshake of the WebSocket. Returns the connection, and the headers by which an agent is admitted.
async fn upgrade(
    io: DialledIo,
    request: Request<Empty<Bytes>>,
    websocket_key: &str,
) -> Result<(Upgraded, HeaderMap), DialError> {
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(io)).await?;
    let exchange = async {
        let mut response = sender.send_request(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(response).await);
        }
        let headers = admission_headers(&mut response, websocket_key)?;
        Ok((hyper::upgrade::on(response).await?, headers))
    };
    tokio::pin!(exchange);
    tokio::select! {
        biased;
        output = &mut exchange => output,
        _ = connection.with_upgrades() => exchange.await,
    }
}

/// Checks the 101, and takes the token and the hello of agentk from it.
fn admission_headers(response: &mut Response<Incoming>, websocket_key: &str) -> Result<HeaderMap, DialError> {
    handshake::verify_response(response, websocket_key, OFFERED).map_err(|error| {
        DialError::NotAgentk(match error {
            UpgradeResponseError::Subprotocol { offered } => {
                format!("it does not support {}", TunnelProtocol::list(offered))
            }
            error => error.to_string(),
        })
    })?;
    let mut headers = HeaderMap::new();
    for (theirs, name) in [(names::AUTHORIZATION, AUTHORIZATION), (names::HELLO, names::HELLO)] {
        let value = response.headers_mut().remove(&theirs);
        let mut value = value.ok_or_else(|| DialError::NotAgentk(format!("it sent no header {theirs}")))?;
        value.set_sensitive(name == AUTHORIZATION);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Returns the error for a response other than 101.
async fn refusal(response: Response<Incoming>) -> DialError {
    let (head, body) = response.into_parts();
    // If the body fails or is too long, the status has to do.
    let body = Limited::new(body, MAX_REFUSAL).collect().await;
    let message = short_line(&body.map(|body| body.to_bytes()).unwrap_or_default());
    let text = |name| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    match head.status {
        StatusCode::UNAUTHORIZED => DialError::KeyRefused { message },
        status if status.is_redirection() => {
            DialError::Redirect { location: short_line(text(LOCATION).unwrap_or("nowhere").as_bytes()) }
        }
        status => {
            let retry_after = text(RETRY_AFTER).and_then(|seconds| seconds.trim().parse().ok());
            DialError::Refused { status, message, retry_after: retry_after.map(Duration::from_secs) }
        }
    }
}
