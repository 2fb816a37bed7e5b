//! The WebSocket protocol of the kubelet, whose messages begin with the channel, and `pods/portforward`.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};

use crate::simulator::{
    request::ApiRequest,
    resources::PODS,
    response::{self, ApiResponse, StatusError},
    store::Key,
};

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

/// The maximum number of ports of one connection: each has two channels.
const MAX_PORTS: usize = 100;

/// `pods/portforward`: every port of a simulated pod echoes.
pub(crate) fn port_forward(mut call: ApiRequest, key: &Key) -> Result<ApiResponse, StatusError> {
    call.cluster.store.get(key).ok_or_else(|| StatusError::not_found(&PODS, &key.name))?;
    let ports: Result<Vec<u16>, _> =
        call.query.all("ports").flat_map(|list| list.split(',')).map(str::parse).collect();
    let ports = ports.map_err(|_| StatusError::bad_request("ports: what is there is no port"))?;
    if ports.is_empty() || ports.len() > MAX_PORTS {
        return Err(StatusError::bad_request(format!("ports: there must be 1 to {MAX_PORTS}")));
    }
    let (_, reply) = switch(call.request.headers(), [Version::V4])?;
    let upgrade = hyper::upgrade::on(&mut call.request);
    let cluster = Arc::clone(&call.cluster);
    call.cluster.tasks.spawn(async move {
        let _open = cluster.open_stream();
        cluster.stop.run_until_cancelled(echo(upgrade, &ports)).await;
    });
    Ok(reply)
}

/// Echoes until the caller closes the connection. Each port has a channel for data and one for errors.
async fn echo(upgrade: OnUpgrade, ports: &[u16]) {
    let Ok(mut socket) = accept(upgrade).await else { return };
    // The first message of each channel is the port number, as from the kubelet.
    for (channel, port) in (0..).zip(ports.iter().flat_map(|port| [port, port])) {
        let [low, high] = port.to_le_bytes();
        if socket.send(Message::Binary(Bytes::from(vec![channel, low, high]))).await.is_err() {
            return;
        }
    }
    while let Some(Ok(message)) = socket.next().await {
        let Message::Binary(data) = message else { continue };
        let of_bytes = data.first().is_some_and(|channel| channel % 2 == 0);
        if of_bytes && socket.send(Message::Binary(data)).await.is_err() {
            return;
        }
    }
}
