//! The HTTP request with which an agent opens a tunnel.

use std::{net::SocketAddr, sync::Arc};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use proto::{Hello, InstanceId};
use tunnel::Body;

use crate::world::World;

/// Returns the data of an agent of this version that serves the Kubernetes API.
pub fn hello(version: &str) -> Hello {
    Hello {
        instance: InstanceId::random(),
        version: version.into(),
        pod_name: None,
        pod_namespace: None,
        kubernetes_version: None,
        services: vec!["kubernetes".parse().unwrap()],
        tunnel_index: 0,
        cluster: None,
        scope: None,
    }
}

/// Sends a handshake without the data of the agent, with additional headers, on a new connection from `peer`.
///
/// kas responds with 400 once the address and the token are accepted.
pub async fn handshake(world: &World, peer: SocketAddr, headers: &[(&str, &str)]) -> Response<Incoming> {
    let (near, far) = tokio::io::duplex(64 << 10);
    let agents = Arc::clone(&world.kas.agents);
    tokio::spawn(async move { agents.serve(far, peer, Arc::default()).await });
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut request = Request::get("/")
        .header("host", "kas")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("sec-websocket-protocol", proto::SUBPROTOCOL);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    sender.send_request(request.body(Body::empty()).unwrap()).await.unwrap()
}
