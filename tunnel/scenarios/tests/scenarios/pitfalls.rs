//! Six ways in which some streams can end or block a whole tunnel. Four of them happened with the defaults of h2.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use crate::support::{chunks, get, pair, send_single_bytes, send_unread_input, text, unread_exec};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::time::timeout;
use tunnel::{
    Body, TunnelConfig,
    websocket::{Role, WebSocket},
};

async fn answer(request: Request<Body>) -> Response<Body> {
    match request.uri().path() {
        "/large" => Response::new(chunks(&[7; 1 << 16], 1 << 10)),
        "/tiny" => Response::new(chunks(b"one more line", 400_000)),
        "/late" => {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Response::new(request.into_body().collect().await.unwrap().to_bytes().into())
        }
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Response::new(Body::from("slow"))
        }
        _ => Response::new(Body::from("fine")),
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_requests_do_not_end_the_tunnel() {
    let pair = pair(answer).await;

    for _ in 0..50 {
        let calls = join_all((0..200).map(|_| pair.tunnel.call(get("/slow"))));
        // The requests are written, and all of them are reset before agentk accepts the first.
        assert!(timeout(Duration::from_micros(1), calls).await.is_err());
    }

    assert_eq!(text(pair.tunnel.call(get("/")).await.unwrap()).await, "fine");
}

#[tokio::test(start_paused = true)]
async fn stopped_reader_of_tiny_chunks_does_not_end_the_tunnel() {
    let pair = pair(answer).await;

    let stopped = pair.tunnel.call(get("/tiny")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(text(pair.tunnel.call(get("/")).await.unwrap()).await, "fine");

    // The reader continues, and no byte is lost.
    let body = stopped.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body.len(), b"one more line".len() * 400_000);
}

/// Attack 88. kas sends single bytes if those of a caller arrive one by one.
#[tokio::test(start_paused = true)]
async fn request_body_of_single_bytes_that_is_not_read_does_not_end_the_tunnel() {
    let (kas, agent) = tokio::io::duplex(64 << 10);
    let (server, _drain) =
        tunnel::accept(WebSocket::new(agent, Bytes::new(), Role::Client), &TunnelConfig::default());
    tokio::spawn(server.run(|request| {
        tokio::spawn(request.respond(answer));
    }));
    let kas = WebSocket::new(kas, Bytes::new(), Role::Server);
    let (client, connection) = h2::client::handshake(kas).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();

    let request = Request::post("http://kas/late").body(()).unwrap();
    let (late, mut body) = client.send_request(request, false).unwrap();
    send_single_bytes(&mut body).await;
    let other = Request::get("http://kas/").body(()).unwrap();
    let (other, _) = client.send_request(other, true).unwrap();
    assert_eq!(other.await.unwrap().status(), StatusCode::OK);

    // The reader reads at last, and no byte is lost.
    body.send_data(Bytes::new(), true).unwrap();
    let mut received = late.await.unwrap().into_body();
    let mut echoed = Vec::new();
    while let Some(data) = received.data().await {
        let data = data.unwrap();
        received.flow_control().release_capacity(data.len()).unwrap();
        echoed.extend_from_slice(&data);
    }
    assert!(echoed == (0..20_000).map(|number| number as u8).collect::<Vec<_>>().repeat(27));
}

/// Attack 88. The last bytes before the single ones are a large chunk that waits, too.
#[tokio::test(start_paused = true)]
async fn upgrade_with_single_bytes_that_are_not_read_does_not_end_the_tunnel() {
    let (kas, agent) = tokio::io::duplex(64 << 10);
    let agent = WebSocket::new(agent, Bytes::new(), Role::Client);
    let (server, _drain) = tunnel::accept(agent, &TunnelConfig::default());
    tokio::spawn(server.run(|request| {
        tokio::spawn(request.respond(unread_exec));
    }));
    send_unread_input(WebSocket::new(kas, Bytes::new(), Role::Server), 1 << 20).await;
}

#[tokio::test(start_paused = true)]
async fn hundred_stopped_readers_do_not_block_other_requests() {
    let pair = pair(answer).await;

    let stopped = join_all((0..100).map(|_| pair.tunnel.call(get("/large")))).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let other = timeout(Duration::from_secs(1), pair.tunnel.call(get("/"))).await.expect("not frozen");
    assert_eq!(text(other.unwrap()).await, "fine");
    drop(stopped);
}

#[tokio::test(start_paused = true)]
async fn thousand_requests_are_in_flight_at_once() {
    let pair = pair(answer).await;

    let calls = join_all((0..1000).map(|_| pair.tunnel.call(get("/slow"))));
    let responses = timeout(Duration::from_millis(1500), calls).await.expect("no request waits for another");
    for response in responses {
        assert_eq!(text(response.unwrap()).await, "slow");
    }
}

#[tokio::test(start_paused = true)]
async fn long_queries_do_not_end_the_tunnel() {
    let pair = pair(answer).await;
    let path = format!("/?query={}", "x".repeat(50_000));
    for _ in 0..300 {
        assert_eq!(text(pair.tunnel.call(get(&path)).await.unwrap()).await, "fine");
    }
}
