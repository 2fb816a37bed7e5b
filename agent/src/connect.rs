//! Opening a tunnel: a byte stream to kas, the WebSocket handshake on it, and what the answers mean.
//!
//! ```text
//!   Dial::dial ──► HTTP/1.1 upgrade ──► 101 with Kas-Welcome ──► Opened::accept ──► serve
//!       │                 └──► any other answer, one readable line
//!       └──► TCP, or a proxy's CONNECT; TLS
//! ```

mod dial;
mod error;
mod header;
mod proxy;

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
    DrainHandle, Session, Settings,
    websocket::{Role, WebSocket, handshake},
};

pub use self::{
    dial::{BoxIo, Dial, Io, TcpDial},
    error::DialError,
    header::{ExtraHeader, ExtraHeaderError},
    proxy::{Proxy, ProxyError},
};
use crate::{Address, Token};

/// For everything from the name to the first bytes of HTTP/2: a kas that is reached at all answers at once.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of a refusal that are read; it should be a sentence.
const MAX_REFUSAL: usize = 4096;
const AGENT: HeaderValue = HeaderValue::from_static(concat!("agentk/", env!("CARGO_PKG_VERSION")));

/// A WebSocket that kas accepted.
pub(crate) struct Opened<T> {
    socket: WebSocket<T>,
    pub(crate) welcome: Welcome,
}

/// Dials kas and asks for a tunnel.
pub(crate) async fn open<D: Dial>(
    dial: &D,
    kas: &Address,
    token: &Token,
    extra: &[ExtraHeader],
    hello: &Hello,
) -> Result<Opened<D::Io>, DialError> {
    let deadline = Instant::now() + TIMEOUT;
    let opening = async {
        let (request, key) = request(kas, token, extra, hello).await?;
        let io = dial.dial().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| DialError::http(kas, error))?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(refusal(kas, token, response).await);
            }
            upgraded::<D::Io>(kas, response, &key).await
        };
        let (socket, welcome) = alongside(connection.with_upgrades(), exchange).await?;
        Ok(Opened { socket, welcome })
    };

    timeout_at(deadline, opening).await.unwrap_or_else(|_| Err(DialError::timed_out(kas, TIMEOUT)))
}

impl<T: Io> Opened<T> {
    /// Tells kas that this tunnel is not wanted.
    pub(crate) async fn decline(mut self) {
        const PATIENCE: Duration = Duration::from_secs(1);

        // A kas that does not take the news sees the connection close.
        let _ = timeout(PATIENCE, self.socket.shutdown()).await;
    }

    /// Starts HTTP/2, in which kas is the client.
    pub(crate) fn accept(self, settings: &Settings) -> (Session<WebSocket<T>>, DrainHandle) {
        tunnel::accept(self.socket, settings)
    }
}

async fn request(
    kas: &Address,
    token: &Token,
    extra: &[ExtraHeader],
    hello: &Hello,
) -> Result<(Request<Empty<Bytes>>, String), DialError> {
    let (mut headers, key) = handshake::ask();
    headers.insert(HOST, kas.endpoint().authority().clone());
    headers.insert(USER_AGENT, AGENT);
    headers.insert(AUTHORIZATION, token.authorization().await?);
    headers.insert(names::HELLO, hello.encode().map_err(DialError::Hello)?);
    for ExtraHeader { name, value } in extra {
        headers.append(name.clone(), value.clone());
    }
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = kas.path().parse().expect("it was part of a URL");
    *request.headers_mut() = headers;

    Ok((request, key))
}

async fn upgraded<T: Io>(
    kas: &Address,
    mut response: Response<Incoming>,
    key: &str,
) -> Result<(WebSocket<T>, Welcome), DialError> {
    let address = || kas.to_string();
    handshake::check(&response, key).map_err(|cause| DialError::NotKas { address: address(), cause })?;
    let welcome = response.headers().get(&names::WELCOME);
    let welcome = welcome.ok_or_else(|| DialError::NoWelcome { address: address() })?;
    let welcome =
        Welcome::decode(welcome).map_err(|cause| DialError::Welcome { address: address(), cause })?;
    let upgraded = hyper::upgrade::on(&mut response).await.map_err(|error| DialError::http(kas, error))?;
    let parts = upgraded.downcast::<TokioIo<T>>().expect("the stream that was handed in");

    Ok((WebSocket::new(parts.io.into_inner(), parts.read_buf, Role::Client), welcome))
}

/// Runs `task` for as long as `wanted` needs it.
async fn alongside<T>(task: impl Future, wanted: impl Future<Output = T>) -> T {
    match select(pin!(wanted), pin!(task)).await {
        Either::Left((output, _)) => output,
        Either::Right((_, wanted)) => wanted.await,
    }
}

/// What an answer other than 101 means.
async fn refusal(kas: &Address, token: &Token, response: Response<Incoming>) -> DialError {
    let (head, body) = response.into_parts();
    // A broken or endless body leaves the status, which says enough.
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

/// Foreign bytes as one short line of a log.
fn sentence(bytes: &[u8]) -> String {
    const LONGEST: usize = 300;
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().filter(|c| !c.is_control()).take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_becomes_one_short_line() {
        assert_eq!(sentence(b"  draining;\r\n try\x1b[31m again\xff\n"), "draining; try[31m again\u{fffd}");
        assert_eq!(sentence(&[b'x'; 4096]).len(), 300);
    }
}
