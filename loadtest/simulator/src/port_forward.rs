//! `pods/portforward` over WebSocket: every port of a simulated pod echoes.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::OnUpgrade;
use tokio_tungstenite::tungstenite::Message;

use super::error::StatusError;
use super::request::ApiRequest;
use super::resources::PODS;
use super::response::ApiResponse;
use super::store::Key;
use super::websocket::{self, Version};

/// The maximum number of ports of one connection: each has two channels.
const MAX_PORTS: usize = 100;

pub(crate) fn answer(mut call: ApiRequest, key: &Key) -> Result<ApiResponse, StatusError> {
    call.cluster.store.get(key).ok_or_else(|| StatusError::not_found(&PODS, &key.name))?;
    let ports: Result<Vec<u16>, _> =
        call.query.all("ports").flat_map(|list| list.split(',')).map(str::parse).collect();
    let ports = ports.map_err(|_| StatusError::bad_request("ports: what is there is no port"))?;
    if ports.is_empty() || ports.len() > MAX_PORTS {
        return Err(StatusError::bad_request(format!("ports: there must be 1 to {MAX_PORTS}")));
    }
    let (_, reply) = websocket::switch(call.request.headers(), [Version::V4])?;
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
    let Ok(mut socket) = websocket::accept(upgrade).await else { return };
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
