//! Tests of upgrades, as `kubectl exec` and `kubectl port-forward` request them.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    time::sleep,
};
use tunnel::{Body, upgrade::UpgradedConnection};

use super::{
    super::{UpstreamConfig, UpstreamError},
    get, idle, pooled, refused,
    server::{OK, Server, answer, closed},
    soon, text, upstream,
};

const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nhello";

fn exec() -> http::Request<Body> {
    let mut request = get("/exec");
    request.headers_mut().insert("connection", "Upgrade".parse().unwrap());
    request.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
    request
}

#[tokio::test]
async fn raw_stream_supports_half_close() {
    let server = Server::start(|mut stream, _| async move {
        let head = answer(&mut stream, SWITCH).await;
        assert!(head.contains("upgrade: SPDY/3.1\r\n") && head.contains("connection: Upgrade\r\n"), "{head}");
        let mut received = String::new();
        stream.read_to_string(&mut received).await.unwrap();
        stream.write_all(format!("{received}, bye").as_bytes()).await.unwrap();
    })
    .await;
    let upstream = upstream(&server.url, UpstreamConfig::default());

    let mut response = soon(upstream.send(exec())).await.unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    let mut raw = UpgradedConnection::take(&mut response).unwrap();
    drop((response, upstream));

    let mut early = [0; 5];
    soon(raw.read_exact(&mut early)).await.unwrap();
    assert_eq!(&early, b"hello");
    raw.write_all(b"ping").await.unwrap();
    raw.shutdown().await.unwrap();
    let mut rest = String::new();
    soon(raw.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "ping, bye");
}

#[tokio::test]
async fn upgrade_takes_a_pooled_connection_for_good() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, OK).await;
        answer(&mut stream, SWITCH).await;
        closed(&mut stream).await;
    })
    .await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    text(soon(upstream.send(get("/"))).await.unwrap()).await;
    idle(&upstream, 1).await;

    let mut response = soon(upstream.send(exec())).await.unwrap();
    let raw = UpgradedConnection::take(&mut response).unwrap();
    text(soon(upstream.send(get("/"))).await.unwrap()).await;
    assert_eq!(server.connections(), 2);
    drop(raw);
}

#[tokio::test(start_paused = true)]
async fn upgraded_connection_has_no_write_timeout() {
    let upstream = upstream("http://127.0.0.1:1", UpstreamConfig::default());
    let (client, mut server) = duplex(1024);
    pooled(&upstream, client).await;
    let (response, _) = tokio::join!(upstream.send(exec()), answer(&mut server, SWITCH));
    let mut raw = UpgradedConnection::take(&mut response.unwrap()).unwrap();

    let stdin = [b'x'; 4096];
    let mut received = [0; 4096];
    let reading = async {
        sleep(Duration::from_secs(3600)).await;
        server.read_exact(&mut received).await.unwrap();
    };
    let (written, ()) = tokio::join!(raw.write_all(&stdin), reading);
    written.unwrap();
    assert_eq!(received, stdin);
}

#[tokio::test]
async fn refused_upgrade_is_an_ordinary_response() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, "HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\n").await;
        // After the head, so that the body must keep the connection open.
        tokio::task::yield_now().await;
        stream.write_all(b"nope").await.unwrap();
        closed(&mut stream).await;
    })
    .await;
    let upstream = upstream(&server.url, UpstreamConfig::default());

    let mut response = soon(upstream.send(exec())).await.unwrap();
    assert_eq!(response.status(), 403);
    assert!(UpgradedConnection::take(&mut response).is_none());
    assert_eq!(text(response).await, "nope");

    assert_eq!(soon(upstream.send(exec())).await.unwrap().status(), 403);
    assert_eq!((server.connections(), upstream.0.pools.current().idle()), (2, 0));
}

#[tokio::test]
async fn upgrade_without_request_is_an_error() {
    let server = Server::answering(SWITCH).await;
    let error = refused(&upstream(&server.url, UpstreamConfig::default())).await;
    assert!(matches!(error, UpstreamError::InvalidResponse { .. }), "{error}");
}
