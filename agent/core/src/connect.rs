//! Opens a connection to kas: a byte stream, and the WebSocket handshake on it.
//!
//! ```text
//!   Dial::dial ──► HTTP/1.1 upgrade ──► 101 with Kas-Welcome ──► PendingTunnel::accept ──► TunnelServer::run
//!       │                 ├──► 101 of GitLab's kas ───┬──► GitLabStream ──► ClientProtocol
//!       │                 └──► any other response     │    becomes a DialError, one readable line
//!       ├──► DNS, TCP or CONNECT of a proxy, TLS      │
//!       └──► grpc://, grpcs:// ───────────────────────┘
//! ```

mod address;
mod dial;
mod error;
mod extra_header;
mod protocol;
mod proxy;
mod token;

use std::{future::Future, pin::pin};

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{AUTHORIZATION, HOST, LOCATION, RETRY_AFTER, SERVER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use proto::{Hello, TunnelProtocol, Welcome, header as names, short_line};
use tokio::{
    io::AsyncWriteExt as _,
    time::{Duration, Instant, timeout, timeout_at},
};
use tunnel::{
    DrainHandle, TunnelConfig, TunnelServer,
    handshake::{self, UpgradeResponseError},
    websocket::{Role, WebSocket},
};

pub(crate) use self::token::TokenChange;
pub use self::{
    address::{KasAddress, KasAddressError},
    dial::{BoxIo, Dial, TcpDialer},
    error::DialError,
    extra_header::{KasHeader, KasHeaderError},
    protocol::ProtocolChoice,
    proxy::{HttpProxy, HttpProxyError},
    token::{AgentToken, AgentTokenError},
};
use crate::upstream::Io;

/// The time limit from the DNS lookup to the 101.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of a close. After it, kas receives the end of the connection instead of a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The most bytes that are read of the body of a refusal, which should be a sentence.
const MAX_REFUSAL: usize = 4096;
/// The User-Agent of agentk.
pub const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("agentk/", env!("CARGO_PKG_VERSION")));

/// The kas to connect to, and what agentk sends to it.
#[derive(Clone, Copy)]
pub struct KasTarget<'a> {
    /// The address of kas.
    pub kas: &'a KasAddress,
    /// The protocol with kas.
    pub protocol: ProtocolChoice,
    /// The agent token.
    pub token: &'a AgentToken,
    /// The headers to add to the handshake.
    pub headers: &'a [KasHeader],
}

/// A connection whose handshake is complete.
#[expect(clippy::large_enum_variant, reason = "there is one for each dial, for a moment")]
pub enum PendingConnection<T> {
    /// kas has accepted a tunnel.
    Tunnel(PendingTunnel<T>),
    /// kas has the protocol of GitLab.
    GitLab(GitLabStream),
}

/// A tunnel that kas accepted, and that agentk may still decline.
pub struct PendingTunnel<T> {
    socket: WebSocket<T>,
    /// The response of kas to the hello.
    pub welcome: Welcome,
    token_change: TokenChange,
}

/// A connection to GitLab's kas, on which agentk is the client of HTTP/2.
pub struct GitLabStream {
    /// The byte stream.
    pub io: BoxIo,
    /// The credential of each RPC.
    pub authorization: HeaderValue,
    pub(crate) token_change: TokenChange,
    /// The header `Server` of the handshake, which has the version of kas. Connections without a WebSocket have none.
    pub server: Option<String>,
}

/// The request that opens a WebSocket, and what its response is compared with.
struct UpgradeRequest {
    request: Request<Empty<Bytes>>,
    key: String,
    authorization: HeaderValue,
    token_change: TokenChange,
}

/// Dials kas and performs the WebSocket handshake, if the address has one. Dropping the future closes the connection.
pub async fn open<D: Dial>(
    dialer: &D,
    target: KasTarget<'_>,
    hello: &Hello,
) -> Result<PendingConnection<D::Io>, DialError> {
    let KasTarget { kas, token, .. } = target;
    let deadline = Instant::now() + TIMEOUT;
    let opening = async {
        if kas.is_grpc() {
            let (authorization, token_change) = token.authorization_until_change().await?;
            let io: BoxIo = Box::new(dialer.dial().await?);
            let stream = GitLabStream { io, authorization, token_change, server: None };
            return Ok(PendingConnection::GitLab(stream));
        }
        let upgrade = request(target, hello).await?;
        let io = dialer.dial().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
        let exchange = async {
            let response =
                sender.send_request(upgrade.request).await.map_err(|error| DialError::http(kas, error))?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(refusal(kas, token, response).await);
            }
            let protocol = handshake::verify_response(&response, &upgrade.key, target.protocol.offered())
                .map_err(|cause| not_kas(kas, &response, cause))?;
            match protocol {
                TunnelProtocol::KasTunnel => {
                    let welcome = welcome(kas, &response)?;
                    let socket = upgraded::<D::Io>(kas, response).await?;
                    let token_change = upgrade.token_change;
                    Ok(PendingConnection::Tunnel(PendingTunnel { socket, welcome, token_change }))
                }
                TunnelProtocol::GitLab => {
                    let server = response.headers().get(SERVER).map(|server| short_line(server.as_bytes()));
                    let io: BoxIo = Box::new(upgraded::<D::Io>(kas, response).await?.with_gitlab_roles());
                    let (authorization, token_change) = (upgrade.authorization, upgrade.token_change);
                    Ok(PendingConnection::GitLab(GitLabStream { io, authorization, token_change, server }))
                }
            }
        };
        drive(connection.with_upgrades(), exchange).await
    };

    timeout_at(deadline, opening).await.unwrap_or_else(|_| Err(DialError::timed_out(kas, TIMEOUT)))
}

impl<T: Io> PendingTunnel<T> {
    /// Closes the WebSocket.
    pub(crate) async fn decline(mut self) {
        let _ = timeout(CLOSE_TIMEOUT, self.socket.shutdown()).await;
    }

    /// Returns the HTTP/2 session, in which kas is the client, the handle that drains it, and the change of its token.
    pub fn accept(self, settings: &TunnelConfig) -> (TunnelServer<WebSocket<T>>, DrainHandle, TokenChange) {
        let (session, drain) = tunnel::accept(self.socket, settings);
        (session, drain, self.token_change)
    }
}

impl GitLabStream {
    /// Closes the connection.
    pub(crate) async fn decline(mut self) {
        let _ = timeout(CLOSE_TIMEOUT, self.io.shutdown()).await;
    }
}

/// Returns the error of a 101 that does not answer the request.
fn not_kas(kas: &KasAddress, response: &Response<Incoming>, cause: UpgradeResponseError) -> DialError {
    let address = kas.to_string();
    match response.headers().get(SERVER) {
        Some(server) if server.as_bytes().starts_with(b"gitlab-kas") => DialError::GitLabKas { address },
        _ => DialError::NotKas { address, cause },
    }
}

async fn request(target: KasTarget<'_>, hello: &Hello) -> Result<UpgradeRequest, DialError> {
    let KasTarget { kas, protocol, token, headers: extra } = target;
    let (mut headers, key) = handshake::request_headers(protocol.offered());
    let (authorization, token_change) = token.authorization_until_change().await?;
    headers.insert(HOST, kas.url().authority().clone());
    headers.insert(USER_AGENT, USER_AGENT_VALUE);
    headers.insert(AUTHORIZATION, authorization.clone());
    if protocol != ProtocolChoice::GitLab {
        headers.insert(names::HELLO, hello.encode().map_err(DialError::Hello)?);
    }
    for KasHeader { name, value } in extra {
        headers.append(name.clone(), value.clone());
    }
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = kas.path().parse().expect("a part of a URL");
    *request.headers_mut() = headers;

    Ok(UpgradeRequest { request, key, authorization, token_change })
}

fn welcome(kas: &KasAddress, response: &Response<Incoming>) -> Result<Welcome, DialError> {
    let welcome = response.headers().get(&names::WELCOME);
    let welcome = welcome.ok_or_else(|| DialError::NoWelcome { address: kas.to_string() })?;
    Welcome::decode(welcome).map_err(|cause| DialError::Welcome { address: kas.to_string(), cause })
}

/// Returns the WebSocket of a 101.
async fn upgraded<T: Io>(
    kas: &KasAddress,
    mut response: Response<Incoming>,
) -> Result<WebSocket<T>, DialError> {
    let upgraded = hyper::upgrade::on(&mut response).await.map_err(|error| DialError::http(kas, error))?;
    let parts = upgraded.downcast::<TokioIo<T>>().expect("the type of the stream above");

    Ok(WebSocket::new(parts.io.into_inner(), parts.read_buf, Role::Client))
}

/// Completes `exchange`, and polls `driver` until then.
async fn drive<T>(driver: impl Future, exchange: impl Future<Output = T>) -> T {
    match select(pin!(exchange), pin!(driver)).await {
        Either::Left((output, _)) => output,
        Either::Right((_, exchange)) => exchange.await,
    }
}

/// Returns the error for a response other than 101.
async fn refusal(kas: &KasAddress, token: &AgentToken, response: Response<Incoming>) -> DialError {
    let (head, body) = response.into_parts();
    // If the body fails or is too long, the status has to do.
    let body =
        Limited::new(body, MAX_REFUSAL).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let message = short_line(&body);
    let address = kas.to_string();
    let status = head.status;
    let text = |name| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    match status {
        StatusCode::UNAUTHORIZED => DialError::Unauthorized { token: token.to_string(), message },
        StatusCode::NOT_FOUND => DialError::NotFound { address, message },
        StatusCode::UPGRADE_REQUIRED => DialError::Protocol { address, message },
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            let retry_after = text(RETRY_AFTER).and_then(|seconds| seconds.trim().parse().ok());
            DialError::Busy { status, message, retry_after: retry_after.map(Duration::from_secs) }
        }
        status if status.is_redirection() => {
            let location = text(LOCATION).unwrap_or("nowhere");
            DialError::Redirect { address, location: short_line(location.as_bytes()) }
        }
        status => DialError::Refused { address, status, message },
    }
}
