//! Hand-made ends of a tunnel: a scripted agent for kas, and a scripted kas for agentk.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use kas_testing::{
    handshake::hello,
    world::{World, text},
};
use proto::{Hello, InstanceId, TunnelProtocol};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    task::JoinHandle,
};
use tunnel::{
    Body, CloseReason, IncomingRequest, TunnelConfig, handshake,
    websocket::{Role, WebSocket},
};

use crate::http2::{END_HEADERS, END_STREAM, HEADERS, Peer, block, frame, headers, string};

pub(crate) const INITIAL_WINDOW: u16 = 4;
const ENABLE_CONNECT: u16 = 8;

pub(crate) type Tunnel = Peer<WebSocket<DuplexStream>>;

/// Returns the handshake request of an agent.
pub(crate) fn upgrade(world: &World) -> String {
    upgrade_as(&world.agent_token, InstanceId::random())
}

/// Returns the handshake request of an agent with this instance id.
pub(crate) fn upgrade_as(token: &SecretString, instance: InstanceId) -> String {
    let hello = Hello { instance, ..hello("0") };
    let (mut headers, _) = handshake::request_headers(&[TunnelProtocol::KasTunnel]);
    headers.insert(proto::header::HELLO, hello.encode().unwrap());
    let bearer = format!("Bearer {}", token.expose_secret());
    headers.insert("authorization", bearer.parse().unwrap());
    let lines: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap())).collect();
    format!("GET / HTTP/1.1\r\nHost: kas\r\n{}\r\n", lines.concat())
}

/// Opens a connection to the listener for agents.
pub(crate) fn connect(world: &World) -> DuplexStream {
    let (near, far) = tokio::io::duplex(64 << 10);
    let agents = Arc::clone(&world.kas.agents);
    tokio::spawn(async move { agents.serve(far, kas_testing::world::CALLER, Arc::default()).await });
    near
}

/// Opens a connection and upgrades it to WebSocket.
pub(crate) async fn switched(world: &World) -> DuplexStream {
    switched_by(world, &upgrade(world)).await
}

async fn switched_by(world: &World, upgrade: &str) -> DuplexStream {
    let mut near = connect(world);
    near.write_all(upgrade.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(near.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"));
    near
}

/// Opens a tunnel and returns the hand-made end of the agent.
pub(crate) async fn agent(world: &World, settings: &[(u16, u32)]) -> Tunnel {
    agent_by(world, &upgrade(world), settings).await
}

/// Opens a tunnel with this handshake request.
pub(crate) async fn agent_by(world: &World, upgrade: &str, settings: &[(u16, u32)]) -> Tunnel {
    let before = world.kas.agents.metrics.tunnels.get();
    let socket = WebSocket::new(switched_by(world, upgrade).await, Bytes::new(), Role::Client);
    let peer = Peer::server(socket, &[&[(ENABLE_CONNECT, 1)], settings].concat()).await;
    world.tunnels(before + 1).await;
    peer
}

/// Sends a request into the only tunnel. Returns it with its stream.
pub(crate) async fn asked(world: &World, agent: &mut Tunnel) -> (JoinHandle<(StatusCode, String)>, u32) {
    let (asking, stream) = asked_for(world, agent, "/attacked").await;
    let reading = tokio::spawn(async move {
        let answer = asking.await.unwrap();
        let status = answer.status();
        (status, text(answer).await)
    });
    (reading, stream)
}

/// Sends a request for a path into the only tunnel. The response is not read yet.
pub(crate) async fn asked_for(
    world: &World,
    agent: &mut Tunnel,
    path: &str,
) -> (JoinHandle<Response<Incoming>>, u32) {
    let (caller, path) = (world.clone(), format!("/agents/prod/kubernetes{path}"));
    let asking = tokio::spawn(async move { caller.get(&path).await });
    (asking, agent.next_of(HEADERS).await.unwrap().stream)
}

/// Checks that the caller receives an error of the agent. A safe request was retried and has waited for another tunnel.
pub(crate) async fn assert_failed(asking: JoinHandle<(StatusCode, String)>) {
    let (status, body) = asking.await.unwrap();
    assert!(matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE), "{status} {body}");
}

/// Returns the hand-made end of kas, and the end of agentk's side.
pub(crate) async fn kas(settings: &[(u16, u32)]) -> (Tunnel, JoinHandle<CloseReason>) {
    let (tunnel, agentk, _) = counting_kas(settings, 64 << 10).await;
    (tunnel, agentk)
}

/// The same over a network that holds this many bytes, with the number of requests that reached agentk's handler.
pub(crate) async fn counting_kas(
    settings: &[(u16, u32)],
    network: usize,
) -> (Tunnel, JoinHandle<CloseReason>, Arc<AtomicUsize>) {
    let (near, far) = tokio::io::duplex(network);
    let handled = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&handled);
    let agentk = tokio::spawn(async move {
        let socket = WebSocket::new(far, Bytes::new(), Role::Client);
        let (session, _leave) = tunnel::accept(socket, &TunnelConfig::default());
        let answer = move |request: Request<Body>| async move {
            match request.uri().path() {
                "/never" => std::future::pending().await,
                _ => Response::new(Body::from("answered")),
            }
        };
        let on_request = |request: IncomingRequest| {
            let counter = Arc::clone(&counter);
            tokio::spawn(request.respond(move |request| {
                counter.fetch_add(1, Relaxed);
                answer(request)
            }));
        };
        session.run(on_request).await
    });
    let tunnel = Peer::client(WebSocket::new(near, Bytes::new(), Role::Server), settings).await;
    (tunnel, agentk, handled)
}

pub(crate) fn ask(stream: u32, flags: u8, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "agent"), (":path", path)];
    headers(stream, flags, &[&fields, more].concat())
}

/// Opens another tunnel beside the attacked one.
pub(crate) async fn assert_agentk_serves() {
    let (mut kas, _agentk) = kas(&[]).await;
    kas.send(&ask(1, END_STREAM, "/", &[])).await;
    assert_eq!(kas.body(1).await.unwrap(), b"answered");
}

/// Returns a head of 60 MB in 16 kB.
pub(crate) fn bomb(stream: u32, first: &[(&str, &str)]) -> Vec<u8> {
    let mut bomb = block(first);
    bomb.push(0x40);
    string(&mut bomb, b"x");
    string(&mut bomb, &[b'x'; 4000]);
    bomb.resize(16_000, 0x80 | 62);
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &bomb)
}
