//! Upgrades through a tunnel, with a cluster behind the agent that speaks plain HTTP/1.1.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use crate::support::{Pair, pair, text};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tunnel::{Body, upgrade};

/// A tunnel whose agent forwards requests to a cluster. The cluster responds with `script` to any request, and then echoes
/// in upper case.
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
            response.extensions_mut().insert(upgrade::UpgradedConnection::new(TokioIo::new(outside)));
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
async fn upgrade_directions_end_independently() {
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
    // The cluster responds only after the end of the input.
    caller.write_all(b"hello").await.unwrap();
    caller.shutdown().await.unwrap();
    let mut answer = String::new();
    caller.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "HELLO");
    splice.await.unwrap().unwrap();
}

/// A cluster that responds with 200 to an upgrade has not switched protocols either, whatever its headers are.
#[tokio::test(start_paused = true)]
async fn refused_upgrade_is_an_ordinary_response() {
    for (script, status, body) in [
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", StatusCode::FORBIDDEN, "no"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", StatusCode::OK, "ok"),
    ] {
        let pair = pair_with_cluster(script).await;

        let mut response = pair.tunnel.call(exec()).await.unwrap();
        assert_eq!(response.status(), status);
        assert!(upgrade::take(&mut response).is_none());
        assert_eq!(text(response).await, body);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_upgrade_closes_the_connection_to_the_cluster() {
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
                response.extensions_mut().insert(upgrade::UpgradedConnection::new(TokioIo::new(outside)));
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

/// Raw bytes of the caller are neither collected nor sent before the 101.
#[tokio::test(start_paused = true)]
async fn upgrade_has_no_request_body() {
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
async fn tiny_chunks_to_a_stopped_reader_keep_the_tunnel_open() {
    // h2 limits queued frames to 128 MiB at 255 bytes each, and this is more.
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
            response.extensions_mut().insert(upgrade::UpgradedConnection::new(near));
            response
        }
    })
    .await;
    let mut response = pair.tunnel.call(exec()).await.unwrap();
    // Each read returns one byte.
    let (near, mut caller) = tokio::io::duplex(1);
    tokio::spawn(upgrade::splice(upgrade::take(&mut response).unwrap(), near));
    let mut cluster = clusters.recv().await.unwrap();

    for number in 0..CHUNKS {
        caller.write_all(b"x").await.unwrap();
        if number % 20_000 == 0 {
            // Longer than the interval at which agentk joins the frames.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
    caller.shutdown().await.unwrap();
    let other = Request::get("/other").body(Body::empty()).unwrap();
    assert_eq!(text(pair.tunnel.call(other).await.unwrap()).await, "answered");

    let mut received = vec![0; CHUNKS];
    cluster.read_exact(&mut received).await.unwrap();
    assert!(received.iter().all(|byte| *byte == b'x'));
}

/// The API server resets its connection after its output, for example since it has not read the end of the input.
#[tokio::test(start_paused = true)]
async fn output_before_a_reset_reaches_a_slow_caller() {
    const OUTPUT: usize = 40_000;
    let pair = pair(move |_: Request<Body>| async move {
        let reset = Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        let output = futures_util::stream::iter([Ok(Bytes::from(vec![b'x'; OUTPUT])), reset]);
        let output = tokio::io::join(tokio_util::io::StreamReader::new(output), tokio::io::empty());
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
        response.extensions_mut().insert(upgrade::UpgradedConnection::new(output));
        response
    })
    .await;
    let mut response = pair.tunnel.call(exec()).await.unwrap();
    let (near, mut caller) = tokio::io::duplex(16);
    let splice = tokio::spawn(upgrade::splice(upgrade::take(&mut response).unwrap(), near));
    tokio::time::sleep(Duration::from_secs(1)).await;

    let mut received = Vec::new();
    caller.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), OUTPUT);
    splice.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn request_with_a_body_does_not_become_an_upgrade() {
    let pair = pair(async |_| unreachable!("it is not sent")).await;
    let error = pair.tunnel.call(exec().map(|_| Body::from("body"))).await.unwrap_err();
    let whole = error.request.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_eq!((error.kind.to_string().contains("cannot become an upgrade"), &*whole), (true, &b"body"[..]));
}
