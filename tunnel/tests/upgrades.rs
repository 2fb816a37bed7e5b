//! Upgrades through a tunnel, with a cluster behind the agent that speaks plain HTTP/1.1.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use support::{Pair, pair, text};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tunnel::{Body, upgrade};

/// The agent's handler: asks a cluster that answers `script` to any request, and then echoes in upper case.
async fn pair_with_cluster(script: &'static str) -> Pair {
    pair(move |request: Request<Body>| async move {
        assert_eq!(request.method(), "POST");
        assert_eq!(request.headers()["upgrade"], "SPDY/3.1");
        let (near, far) = tokio::io::duplex(1024);
        tokio::spawn(cluster(far, script));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let request = request.map(|_| Empty::<Bytes>::new());
        let mut response = sender.send_request(request).await.unwrap();
        if let Ok(outside) = hyper::upgrade::on(&mut response).await {
            response.extensions_mut().insert(upgrade::Outside::new(TokioIo::new(outside)));
        }
        response.map(Body::new)
    })
    .await
}

async fn cluster(mut connection: DuplexStream, script: &'static str) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(connection.read_u8().await.unwrap());
    }
    connection.write_all(script.as_bytes()).await.unwrap();
    let mut input = Vec::new();
    connection.read_to_end(&mut input).await.unwrap();
    input.make_ascii_uppercase();
    connection.write_all(&input).await.unwrap();
}

fn exec() -> Request<Body> {
    Request::post("/exec")
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("content-length", "0")
        .body(Body::empty())
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_direction_of_an_upgrade_ends_on_its_own() {
    let script = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                  Content-Length: 0\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\nearly ";
    let pair = pair_with_cluster(script).await;

    let mut response = pair.tunnel.call(exec()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    assert_eq!(response.headers()["x-stream-protocol-version"], "v4.channel.k8s.io");
    assert!(!response.headers().contains_key("kas-upgraded"));
    let upgraded = upgrade::take(&mut response).unwrap();
    assert!(upgrade::take(&mut response).is_none());

    let (mut caller, far) = tokio::io::duplex(1024);
    let splice = tokio::spawn(upgrade::splice(upgraded, far));
    let mut early = [0; 6];
    caller.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early ");
    // The cluster answers only after it saw the end of the input.
    caller.write_all(b"hello").await.unwrap();
    caller.shutdown().await.unwrap();
    let mut answer = String::new();
    caller.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "HELLO");
    splice.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_the_cluster_refuses_is_an_ordinary_response() {
    let pair = pair_with_cluster("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno").await;

    let mut response = pair.tunnel.call(exec()).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(upgrade::take(&mut response).is_none());
    assert_eq!(text(response).await, "no");
}

/// A cluster that answers 200 to an upgrade has not switched protocols, whatever headers it invents.
#[tokio::test(start_paused = true)]
async fn an_upgrade_that_is_answered_200_is_an_ordinary_response() {
    let pair = pair_with_cluster("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;

    let mut response = pair.tunnel.call(exec()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(upgrade::take(&mut response).is_none());
    assert_eq!(text(response).await, "ok");
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_vanishes_ends_the_upgraded_connection_in_the_cluster() {
    let script = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    let (ended, wait) = tokio::sync::oneshot::channel();
    let ended = std::sync::Arc::new(parking_lot::Mutex::new(Some(ended)));
    let pair = pair(move |request: Request<Body>| {
        let ended = ended.lock().take().unwrap();
        async move {
            let (near, mut far) = tokio::io::duplex(1024);
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(far.read_u8().await.unwrap());
                }
                far.write_all(script.as_bytes()).await.unwrap();
                let mut rest = Vec::new();
                let _ = far.read_to_end(&mut rest).await;
                ended.send(()).unwrap();
            });
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            let request = request.map(|_| Empty::<Bytes>::new());
            let mut response = sender.send_request(request).await.unwrap();
            if let Ok(outside) = hyper::upgrade::on(&mut response).await {
                response.extensions_mut().insert(upgrade::Outside::new(TokioIo::new(outside)));
            }
            response.map(Body::new)
        }
    })
    .await;

    let mut response = pair.tunnel.call(exec()).await.unwrap();
    let upgraded = upgrade::take(&mut response).unwrap();
    drop((upgraded, response));
    wait.await.unwrap();
}

/// Raw bytes of the caller wait for the 101: nothing is collected, nothing is sent early.
#[tokio::test(start_paused = true)]
async fn an_upgrade_has_no_request_body() {
    let pair = pair(|request: Request<Body>| async move {
        assert!(!request.headers().contains_key("content-length"));
        let body = request.into_body().collect().await.unwrap().to_bytes();
        assert!(body.is_empty());
        Response::builder().status(400).body(Body::empty()).unwrap()
    })
    .await;

    assert_eq!(pair.tunnel.call(exec()).await.unwrap().status(), StatusCode::BAD_REQUEST);
}

/// h2 ends a connection in which too many small frames wait, and all of its streams with it.
#[tokio::test(start_paused = true)]
async fn tiny_chunks_to_a_stopped_reader_leave_the_tunnel_alone() {
    // More than h2 lets wait: 128 MiB at 255 bytes each.
    const CHUNKS: usize = 540_000;
    let (requests, mut clusters) = tokio::sync::mpsc::unbounded_channel();
    let pair = pair(move |request: Request<Body>| {
        let requests = requests.clone();
        async move {
            if request.uri() != "/exec" {
                return Response::new(Body::from("answered"));
            }
            let (near, cluster) = tokio::io::duplex(16);
            requests.send(cluster).unwrap();
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
            response.extensions_mut().insert(upgrade::Outside::new(near));
            response
        }
    })
    .await;
    let mut response = pair.tunnel.call(exec()).await.unwrap();
    // Each read of it is one byte.
    let (near, mut caller) = tokio::io::duplex(1);
    tokio::spawn(upgrade::splice(upgrade::take(&mut response).unwrap(), near));
    let mut cluster = clusters.recv().await.unwrap();

    for _ in 0..CHUNKS {
        caller.write_all(b"x").await.unwrap();
    }
    caller.shutdown().await.unwrap();
    let other = Request::get("/other").body(Body::empty()).unwrap();
    assert_eq!(text(pair.tunnel.call(other).await.unwrap()).await, "answered");

    let mut received = vec![0; CHUNKS];
    cluster.read_exact(&mut received).await.unwrap();
    assert!(received.iter().all(|byte| *byte == b'x'));
}
