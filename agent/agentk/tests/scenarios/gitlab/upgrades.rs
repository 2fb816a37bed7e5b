//! Tests of upgraded connections.

use std::time::Duration;

use agentk_core::Services;
use http::{Request, Response, StatusCode};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    sync::mpsc,
    time::{sleep, timeout},
};
use tunnel::{Body, upgrade::UpgradedConnection};

use super::{connect, get};
use crate::support::{
    gitlab_kas::{AgentStream, KasConnection, Step},
    protobuf::Message,
};

/// Returns a cluster that accepts upgrades, and the cluster's ends of the upgraded connections.
fn upgrading() -> (Services, mpsc::UnboundedReceiver<DuplexStream>) {
    let (sender, upgraded) = mpsc::unbounded_channel();
    let services = Services::new().with_fn("kubernetes", move |request: Request<Body>| {
        let (near, far) = tokio::io::duplex(16 << 10);
        let accepted = request.headers().get("upgrade").is_some_and(|protocol| protocol == "SPDY/3.1");
        sender.send(far).expect("the test runs");
        async move {
            let mut response = Response::new(Body::empty());
            if !accepted {
                *response.status_mut() = StatusCode::BAD_REQUEST;
                return response;
            }
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("upgrade", "SPDY/3.1".parse().expect("a value"));
            response.extensions_mut().insert(UpgradedConnection::new(near));
            response
        }
    });
    (services, upgraded)
}

async fn upgraded(connection: &mut KasConnection, early: &str) -> AgentStream {
    let mut stream = connection.stream().await;
    let headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")];
    stream.head("POST", "/exec", &headers, 0);
    stream.trailer();
    if !early.is_empty() {
        stream.upgrade_data(early);
    }
    let (status, head) = stream.response_head().await;
    assert_eq!((status, head.get_text(2)), (101, "101 Switching Protocols".into()));
    assert_eq!(head.get_values(3, "Upgrade"), ["SPDY/3.1"]);
    assert_eq!(head.get_values(3, "Connection"), ["Upgrade"]);
    assert_eq!(stream.response_part().await, (3, Message::new()));
    stream
}

async fn read(cluster: &mut DuplexStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    cluster.read_exact(&mut bytes).await.expect("the bytes arrive");
    String::from_utf8(bytes).expect("text")
}

#[tokio::test(start_paused = true)]
async fn half_close_of_the_caller_reaches_the_cluster() {
    let (services, mut ends) = upgrading();
    let (_agent, _kas, mut connection) = connect(services).await;
    let mut stream = upgraded(&mut connection, "early ").await;
    let mut cluster = ends.recv().await.unwrap();
    stream.upgrade_data("bytes");
    assert_eq!(read(&mut cluster, 11).await, "early bytes");
    stream.close_send();
    assert_eq!(timeout(Duration::from_secs(1), cluster.read(&mut [0; 8])).await.unwrap().unwrap(), 0);

    // The other direction stays open.
    sleep(Duration::from_secs(60)).await;
    cluster.write_all(b"answer").await.unwrap();
    assert_eq!(stream.response_data(4).await, b"answer");
    drop(cluster);
    assert_eq!(stream.step().await, Step::Trailer(Message::new()));
    assert_eq!(stream.step().await, Step::End);
    stream.end(0);
    assert_eq!(get(connection.stream().await, "/not-upgraded").await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn half_close_of_the_cluster_ends_the_response_after_its_bytes() {
    let (services, mut ends) = upgrading();
    let (_agent, _kas, mut connection) = connect(services).await;
    let mut stream = upgraded(&mut connection, "").await;
    let mut cluster = ends.recv().await.unwrap();
    let sent = "x".repeat(100_000);
    let writing = sent.clone();
    let writer = tokio::spawn(async move {
        cluster.write_all(writing.as_bytes()).await.unwrap();
        cluster.shutdown().await.unwrap();
        cluster
    });
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let piece = stream.response_data(4).await;
        assert!(piece.len() <= 32 << 10);
        received.extend(piece);
    }
    assert_eq!(received, sent.as_bytes());
    assert_eq!(timeout(Duration::from_secs(1), stream.step()).await.unwrap(), Step::Trailer(Message::new()));
    assert_eq!(stream.step().await, Step::End);

    // Bytes of the caller still pass until kas ends the stream.
    let mut cluster = writer.await.unwrap();
    stream.upgrade_data("late");
    assert_eq!(read(&mut cluster, 4).await, "late");
    stream.end(0);
    let end = timeout(Duration::from_secs(1), cluster.read(&mut [0; 8])).await.unwrap();
    assert_eq!(end.unwrap_or(0), 0);
}

#[tokio::test(start_paused = true)]
async fn end_of_the_stream_closes_the_upgraded_connection() {
    for ending in 0..3 {
        let (services, mut ends) = upgrading();
        let (_agent, _kas, mut connection) = connect(services).await;
        let mut stream = upgraded(&mut connection, "").await;
        let mut cluster = ends.recv().await.unwrap();
        match ending {
            0 => stream.end(1),
            // The cluster takes no bytes meanwhile.
            1 => {
                for _ in 0..100 {
                    stream.upgrade_data(vec![b'x'; 32 << 10]);
                }
                sleep(Duration::from_secs(1)).await;
                stream.reset();
            }
            _ => connection.cut(),
        }
        let mut rest = Vec::new();
        let reading = cluster.read_to_end(&mut rest);
        assert!(timeout(Duration::from_secs(1), reading).await.is_ok(), "{ending}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_upgrade_is_an_ordinary_response() {
    let services = Services::new().with_fn("kubernetes", |_: Request<Body>| async {
        let mut response = Response::new(Body::from("forbidden"));
        *response.status_mut() = StatusCode::FORBIDDEN;
        response
    });
    let (_agent, _kas, mut connection) = connect(services).await;
    let mut stream = connection.stream().await;
    stream.head("GET", "/exec", &[("Connection", "upgrade"), ("Upgrade", "websocket")], 0);
    stream.trailer();
    stream.upgrade_data("early bytes of the caller");
    stream.upgrade_data("which nobody reads");
    assert_eq!(timeout(Duration::from_secs(1), stream.response()).await.unwrap(), (403, "forbidden".into()));
    stream.end(0);
    assert_eq!(get(connection.stream().await, "/").await.0, 403);
}

#[tokio::test(start_paused = true)]
async fn request_with_a_body_is_forwarded_whole_and_is_no_upgrade() {
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        assert!(!request.headers().contains_key("upgrade"));
        Response::new(request.into_body())
    });
    let (_agent, _kas, mut connection) = connect(services).await;
    let headers = [("Connection", "Upgrade"), ("Upgrade", "foo/1")];
    for (method, length) in [("DELETE", 4), ("POST", 4), ("POST", -1)] {
        let mut stream = connection.stream().await;
        stream.head(method, "/api/v1/pods", &headers, length);
        stream.data("body");
        stream.trailer();
        stream.close_send();
        assert_eq!(stream.response().await, (200, "body".to_owned()), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn body_that_the_head_denies_is_an_error() {
    for headers in [&[("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")][..], &[]] {
        let services = Services::new().with_fn("kubernetes", async |_| std::future::pending().await);
        let (_agent, _kas, mut connection) = connect(services).await;
        let mut stream = connection.stream().await;
        stream.head("POST", "/exec", headers, 0);
        stream.data("body");
        let (code, message) = stream.error().await;
        assert_eq!((code, message.contains("has a body")), (3, true), "{message}");
    }
}
