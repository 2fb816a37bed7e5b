//! Four ways in which some streams can end or block a whole tunnel. Each happened with the defaults of h2.

use std::time::Duration;

use crate::support::{chunks, get, pair, text};
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tokio::time::timeout;
use tunnel::Body;

async fn answer(request: Request<Body>) -> Response<Body> {
    match request.uri().path() {
        "/large" => Response::new(chunks(&[7; 1 << 16], 1 << 10)),
        "/tiny" => Response::new(chunks(b"one more line", 400_000)),
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
