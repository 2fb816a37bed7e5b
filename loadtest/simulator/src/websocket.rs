//! The WebSocket protocol of the kubelet: the first byte of each message is the channel.

use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::error::StatusError;
use super::response::{self, ApiResponse};

/// The size limit of a message. `kubectl` sends at most 32 KiB.
const MAX_MESSAGE: usize = 1024 * 1024;

/// The server side of a connection.
pub(crate) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The version of the protocol. Only version 5 can close stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V4,
    V5,
}

impl Version {
    fn protocol(self) -> &'static str {
        match self {
            Self::V4 => "v4.channel.k8s.io",
            Self::V5 => "v5.channel.k8s.io",
        }
    }
}

/// Selects the first of `spoken` that the caller offers. Returns it with the response.
pub(crate) fn switch<const N: usize>(
    headers: &HeaderMap,
    spoken: [Version; N],
) -> Result<(Version, ApiResponse), StatusError> {
    let header =
        |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let key = header(SEC_WEBSOCKET_KEY);
    if !header(UPGRADE).eq_ignore_ascii_case("websocket") || key.is_empty() {
        return Err(StatusError::bad_request("the simulator speaks WebSocket here, and not SPDY"));
    }
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let offered: Vec<&str> = offered.flat_map(|list| list.split(',')).map(str::trim).collect();
    let version = spoken.into_iter().find(|version| offered.contains(&version.protocol()));
    let version = version.ok_or_else(|| {
        let spoken = spoken.map(Version::protocol).join(" and ");
        StatusError::bad_request(format!("the simulator speaks {spoken} here, and nothing else was offered"))
    })?;
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes())).expect("base64 is a header value");
    let mut reply = response::text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = reply.headers_mut();
    headers.clear();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(version.protocol()));
    Ok((version, reply))
}

/// Waits until the response is written, and returns the connection.
pub(crate) async fn accept(upgrade: OnUpgrade) -> hyper::Result<Socket> {
    let io = TokioIo::new(upgrade.await?);
    let config =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    Ok(WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await)
}
