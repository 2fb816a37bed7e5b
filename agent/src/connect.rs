//! Opens a tunnel: a byte stream to kas, and the WebSocket handshake on it.
//!
//! ```text
//!   Dial::dial ──► HTTP/1.1 upgrade ──► 101 with Kas-Welcome ──► PendingTunnel::accept ──► TunnelServer::run
//!       │                 └──► any other response becomes a DialError, one readable line
//!       └──► DNS, TCP or CONNECT of a proxy, TLS
//! ```

mod address;
mod dial;
mod error;
mod extra_header;
mod proxy;
mod token;

use std::{future::Future, pin::pin};

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{AUTHORIZATION, HOST, LOCATION, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use proto::{Hello, Welcome, header as names};
use tokio::{
    io::AsyncWriteExt as _,
    time::{Duration, Instant, timeout, timeout_at},
};
use tunnel::{
    DrainHandle, TunnelConfig, TunnelServer, handshake,
    websocket::{Role, WebSocket},
};

pub(crate) use self::token::TokenChange;
pub use self::{
    address::{KasAddress, KasAddressError},
    dial::{BoxIo, Dial, TcpDialer},
    error::DialError,
    extra_header::{KasHeader, KasHeaderError},
    proxy::{HttpProxy, HttpProxyError},
    token::{AgentToken, AgentTokenError},
};
use crate::upstream::Io;

/// The time limit from the DNS lookup to the 101.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes that are read of the body of a refusal, which should be a sentence.
const MAX_REFUSAL: usize = 4096;
/// The User-Agent of agentk.
pub(crate) const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("agentk/", env!("CARGO_PKG_VERSION")));

/// A tunnel that kas accepted, and that agentk may still decline.
pub(crate) struct PendingTunnel<T> {
    socket: WebSocket<T>,
    pub(crate) welcome: Welcome,
    token_change: TokenChange,
}

/// Dials kas and performs the WebSocket handshake. Dropping the future closes the connection.
pub(crate) async fn open<D: Dial>(
    dialer: &D,
    kas: &KasAddress,
    token: &AgentToken,
    extra: &[KasHeader],
    hello: &Hello,
) -> Result<PendingTunnel<D::Io>, DialError> {
    let deadline = Instant::now() + TIMEOUT;
    let opening = async {
        let (request, key, token_change) = request(kas, token, extra, hello).await?;
        let io = dialer.dial().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| DialError::http(kas, error))?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(refusal(kas, token, response).await);
            }
            upgraded::<D::Io>(kas, response, &key).await
        };
        let (socket, welcome) = drive(connection.with_upgrades(), exchange).await?;
        Ok(PendingTunnel { socket, welcome, token_change })
    };

    timeout_at(deadline, opening).await.unwrap_or_else(|_| Err(DialError::timed_out(kas, TIMEOUT)))
}

impl<T: Io> PendingTunnel<T> {
    /// Closes the WebSocket.
    pub(crate) async fn decline(mut self) {
        const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

        // After the timeout, kas receives the end of the connection instead of a close frame.
        let _ = timeout(CLOSE_TIMEOUT, self.socket.shutdown()).await;
    }

    /// Returns the HTTP/2 session, in which kas is the client, the handle that drains it, and the change of its token.
    pub(crate) fn accept(
        self,
        settings: &TunnelConfig,
    ) -> (TunnelServer<WebSocket<T>>, DrainHandle, TokenChange) {
        let (session, drain) = tunnel::accept(self.socket, settings);
        (session, drain, self.token_change)
    }
}

async fn request(
    kas: &KasAddress,
    token: &AgentToken,
    extra: &[KasHeader],
    hello: &Hello,
) -> Result<(Request<Empty<Bytes>>, String, TokenChange), DialError> {
    let (mut headers, key) = handshake::request_headers(&[proto::TunnelProtocol::KasTunnel]);
    let (authorization, token_change) = token.authorization_until_change().await?;
    headers.insert(HOST, kas.url().authority().clone());
    headers.insert(USER_AGENT, USER_AGENT_VALUE);
    headers.insert(AUTHORIZATION, authorization);
    headers.insert(names::HELLO, hello.encode().map_err(DialError::Hello)?);
    for KasHeader { name, value } in extra {
        headers.append(name.clone(), value.clone());
    }
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = kas.path().parse().expect("a part of a URL");
    *request.headers_mut() = headers;

    Ok((request, key, token_change))
}

async fn upgraded<T: Io>(
    kas: &KasAddress,
    mut response: Response<Incoming>,
    key: &str,
) -> Result<(WebSocket<T>, Welcome), DialError> {
    let address = || kas.to_string();
    handshake::verify_response(&response, key, &[proto::TunnelProtocol::KasTunnel])
        .map_err(|cause| DialError::NotKas { address: address(), cause })?;
    let welcome = response.headers().get(&names::WELCOME);
    let welcome = welcome.ok_or_else(|| DialError::NoWelcome { address: address() })?;
    let welcome =
        Welcome::decode(welcome).map_err(|cause| DialError::Welcome { address: address(), cause })?;
    let upgraded = hyper::upgrade::on(&mut response).await.map_err(|error| DialError::http(kas, error))?;
    let parts = upgraded.downcast::<TokioIo<T>>().expect("the type of the stream above");

    Ok((WebSocket::new(parts.io.into_inner(), parts.read_buf, Role::Client), welcome))
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
    let message = sentence(&body);
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
            DialError::Redirect { address, location: sentence(location.as_bytes()) }
        }
        status => DialError::Refused { address, status, message },
    }
}

/// Returns untrusted bytes as one line without control characters, of at most 300 characters.
fn sentence(bytes: &[u8]) -> String {
    const MAX_CHARS: usize = 300;
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_becomes_one_short_line() {
        assert_eq!(sentence(b"  draining;\r\n try\x1b[31m again\xff\n"), "draining; try[31m again\u{fffd}");
        assert_eq!(sentence(&[b'x'; 4096]).len(), 300);
    }
}
