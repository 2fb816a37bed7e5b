//! Requests and responses through a tunnel, also when an end of it or the upstream fails.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use crate::support::{Pair, breakable, chunks, endless, get, pair, pair_over, text};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::{Notify, mpsc};
use tunnel::{Body, CallErrorKind, CloseReason, Delivery};

#[tokio::test(start_paused = true)]
async fn request_arrives_unchanged() {
    let pair = pair(|request: Request<Body>| async move {
        assert_eq!(request.method(), Method::PATCH);
        assert_eq!(request.uri(), "/a%2fb//c?x=%20&y");
        assert_eq!(request.headers()["kas-service"], "kubernetes");
        assert!(!request.headers().contains_key("transfer-encoding"));
        let body = request.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["checksum"], "42");
        Response::builder()
            .status(StatusCode::CREATED)
            .header("x-from", "cluster")
            .body(Body::from(body.to_bytes()))
            .unwrap()
    })
    .await;

    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", "42".parse().unwrap());
    let frames = [
        Frame::data(Bytes::from_static(b"hel")),
        Frame::data(Bytes::from_static(b"lo")),
        Frame::trailers(trailers),
    ];
    let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, std::io::Error>)));
    let request = Request::builder()
        .method(Method::PATCH)
        .uri("/a%2fb//c?x=%20&y")
        .header("kas-service", "kubernetes")
        .header("transfer-encoding", "chunked")
        .body(Body::new(body))
        .unwrap();
    let response = pair.tunnel.call(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(response.headers()["x-from"], "cluster");
    assert_eq!(text(response).await, "hello");
}

#[tokio::test(start_paused = true)]
async fn large_bodies_flow_both_ways_at_once() {
    let pair = pair(|request: Request<Body>| async move { Response::new(request.into_body()) }).await;

    // The agent echoes 64 MiB, so neither end may wait for the end of the other body.
    let request = Request::post("/").body(chunks(&[7; 1 << 16], 1 << 10)).unwrap();
    let mut body = pair.tunnel.call(request).await.unwrap().into_body();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        received += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(received, 64 << 20);
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_other_end_are_stalls() {
    let pair = pair(|request: Request<Body>| async move {
        if request.uri().path() == "/read" {
            request.into_body().collect().await.unwrap();
        } else {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        Response::new(Body::empty())
    })
    .await;

    // These bodies wait only until their HEADERS are sent.
    for _ in 0..10 {
        pair.tunnel.call(Request::post("/read").body("a small body".into()).unwrap()).await.unwrap();
    }
    assert_eq!(pair.stalls.count(), 0);

    let request = Request::post("/unread").body(chunks(&[7; 1 << 16], 1 << 10)).unwrap();
    pair.tunnel.call(request).await.unwrap();
    assert_ne!(pair.stalls.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn response_may_precede_end_of_request() {
    let pair = pair(|_| async { Response::builder().status(403).body(Body::from("no")).unwrap() }).await;

    let request = Request::post("/").body(endless("first bytes")).unwrap();
    let response = pair.tunnel.call(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    let mut body = response.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "no");
}

/// Returns a tunnel whose handler never responds, the starts of the handler, and a notification when its future is dropped.
async fn pair_that_never_responds() -> (Pair, mpsc::UnboundedReceiver<()>, Arc<Notify>) {
    let (started, starts) = mpsc::unbounded_channel();
    let dropped = Arc::new(Notify::new());
    let handler_dropped = Arc::clone(&dropped);
    let pair = pair(move |_| {
        let (started, guard) = (started.clone(), NotifyOnDrop(Arc::clone(&handler_dropped)));
        async move {
            let _guard = guard;
            started.send(()).unwrap();
            std::future::pending().await
        }
    })
    .await;
    (pair, starts, dropped)
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_is_cancelled_at_the_other_end() {
    let (pair, mut starts, dropped) = pair_that_never_responds().await;

    let tunnel = pair.tunnel.clone();
    let call = tokio::spawn(async move { tunnel.call(get("/")).await.map(drop) });
    starts.recv().await.unwrap();
    call.abort();
    dropped.notified().await;
}

#[tokio::test(start_paused = true)]
async fn dropped_response_drops_its_source() {
    let dropped = Arc::new(Notify::new());
    let source_dropped = Arc::clone(&dropped);
    let pair = pair(move |_| {
        let guard = NotifyOnDrop(Arc::clone(&source_dropped));
        async move {
            let body = endless("watching").map_frame(move |frame| {
                let _ = &guard;
                frame
            });
            Response::new(Body::new(body))
        }
    })
    .await;

    let mut body = pair.tunnel.call(get("/watch")).await.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "watching");
    drop(body);
    dropped.notified().await;
}

#[tokio::test(start_paused = true)]
async fn reset_of_unread_response_frees_both_ends() {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let pair = pair(move |request: Request<Body>| {
        let ended = ended.clone();
        async move {
            let mut sent = request.into_body();
            tokio::spawn(async move {
                while let Some(Ok(_)) = sent.frame().await {}
                ended.send(()).unwrap();
            });
            Response::new(endless("answer"))
        }
    })
    .await;

    let request = Request::post("/").body(endless("a request that goes on")).unwrap();
    let mut body = pair.tunnel.call(request).await.unwrap().into_body();
    let monitor = body.monitor().unwrap();
    body.frame().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(ends.try_recv().is_err());

    // The body is neither read nor dropped.
    monitor.reset();
    ends.recv().await.unwrap();
    assert_eq!(monitor.stats().unread, 0);
    assert!(body.frame().await.unwrap().is_err(), "an abort must not look like a clean end");
}

#[tokio::test(start_paused = true)]
async fn stats_distinguish_slow_waiting_and_finished_readers() {
    let pair = pair(|request: Request<Body>| async move {
        if request.uri() == "/pieces" {
            Response::new(chunks(&[7; 16 << 10], 2))
        } else if request.uri() == "/short" {
            Response::new(Body::from("short"))
        } else {
            Response::new(endless("long"))
        }
    })
    .await;

    let mut body = pair.tunnel.call(get("/long")).await.unwrap().into_body();
    let monitor = body.monitor().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((monitor.stats().unread, monitor.stats().reader_waiting), (4, false), "slow");
    body.frame().await.unwrap().unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(1), body.frame()).await.is_err());
    assert_eq!((monitor.stats().unread, monitor.stats().reader_waiting), (0, true), "waits");

    let response = pair.tunnel.call(get("/pieces")).await.unwrap();
    let monitor = response.body().monitor().unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 32 << 10);
    assert!(monitor.stats().reader_waiting, "done");

    // No part of this body waits in the tunnel.
    let response = pair.tunnel.call(get("/short")).await.unwrap();
    assert!(response.body().monitor().is_none(), "whole");
}

#[tokio::test(start_paused = true)]
async fn killed_agent_aborts_the_response() {
    let pair = pair(|_| async { Response::new(endless("first")) }).await;

    let mut body = pair.tunnel.call(get("/")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    pair.agent.abort();
    assert!(body.frame().await.unwrap().is_err(), "an abort must not look like a clean end");
    assert!(matches!(pair.kas.await.unwrap(), CloseReason::Lost { .. }));
}

#[tokio::test(start_paused = true)]
async fn failed_upstream_aborts_only_its_response() {
    let dies = Arc::new(Notify::new());
    let upstream_dies = Arc::clone(&dies);
    let pair = pair(move |request: Request<Body>| {
        let dies = Arc::clone(&upstream_dies);
        async move {
            if request.uri().path() == "/fine" {
                return Response::new(Body::from("fine"));
            }
            let half = futures_util::stream::once(async { Ok(Frame::data(Bytes::from_static(b"half"))) });
            let death = futures_util::stream::once(async move {
                dies.notified().await;
                Err(std::io::Error::other("gone"))
            });
            Response::new(Body::new(StreamBody::new(futures_util::StreamExt::chain(half, death))))
        }
    })
    .await;

    let mut body = pair.tunnel.call(get("/")).await.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
    dies.notify_one();
    assert!(body.frame().await.unwrap().is_err(), "an abort must not look like a clean end");
    assert_eq!(text(pair.tunnel.call(get("/fine")).await.unwrap()).await, "fine");
}

#[tokio::test(start_paused = true)]
async fn killed_kas_cancels_its_requests() {
    let (pair, mut starts, dropped) = pair_that_never_responds().await;

    let tunnel = pair.tunnel.clone();
    let call = tokio::spawn(async move { tunnel.call(get("/")).await.map(drop) });
    starts.recv().await.unwrap();
    pair.kas.abort();
    dropped.notified().await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.delivery, Delivery::Unknown);
}

#[tokio::test(start_paused = true)]
async fn drain_finishes_requests_in_flight_and_refuses_new_ones() {
    let go_on = Arc::new(Notify::new());
    let gate = Arc::clone(&go_on);
    let (started, mut starts) = mpsc::unbounded_channel();
    let pair = pair(move |_| {
        let (gate, started) = (Arc::clone(&gate), started.clone());
        async move {
            started.send(()).unwrap();
            gate.notified().await;
            Response::new(Body::from("finished"))
        }
    })
    .await;

    let tunnel = pair.tunnel.clone();
    let in_flight = tokio::spawn(async move { text(tunnel.call(get("/")).await.unwrap()).await });
    starts.recv().await.unwrap();
    pair.drain.drain(Duration::from_secs(60));
    // GOAWAY, a ping and the final GOAWAY cross the pipe while the clock stands.
    tokio::time::sleep(Duration::from_millis(1)).await;

    let request = Request::post("/late").body(Body::from("whole")).unwrap();
    let refused = pair.tunnel.call(request).await.unwrap_err();
    assert_eq!(refused.delivery, Delivery::NotProcessed);
    assert_eq!(refused.request.unwrap().uri().path(), "/late");

    go_on.notify_one();
    assert_eq!(in_flight.await.unwrap(), "finished");
    assert!(matches!(pair.agent.await.unwrap(), CloseReason::Graceful));
    assert!(matches!(pair.kas.await.unwrap(), CloseReason::Graceful));
}

/// Requests that cross a GOAWAY are not processed, and can be sent again.
#[tokio::test(start_paused = true)]
async fn request_that_crosses_goaway_is_returned_with_its_body() {
    let pair = pair(|_| async { Response::new(Body::from("served")) }).await;
    pair.drain.drain(Duration::from_secs(60));
    let calls = (0..50).map(|_| async {
        let request = Request::post("/").body(Body::from("a small body")).unwrap();
        match pair.tunnel.call(request).await {
            Ok(response) => assert_eq!(text(response).await, "served"),
            Err(error) => {
                assert_eq!(error.delivery, Delivery::NotProcessed);
                let body = error.request.expect("whole").into_body().collect().await.unwrap();
                assert_eq!(body.to_bytes(), "a small body");
            }
        }
    });
    futures_util::future::join_all(calls).await;
}

#[tokio::test(start_paused = true)]
async fn drain_ends_at_its_deadline() {
    let pair = pair(|_| async { Response::new(endless("watching")) }).await;

    let mut body = pair.tunnel.call(get("/")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    pair.drain.drain(Duration::from_secs(60));
    assert!(matches!(pair.agent.await.unwrap(), CloseReason::LocallyClosed));
    assert!(body.frame().await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn tunnel_ends_with_its_last_handle_after_whole_responses() {
    let Pair { tunnel, kas, .. } = pair(|_| async { Response::new(Body::from("short")) }).await;
    for _ in 0..2 {
        assert_eq!(text(tunnel.call(get("/")).await.unwrap()).await, "short");
    }
    drop(tunnel);
    let ended = tokio::time::timeout(Duration::from_secs(1), kas).await.unwrap().unwrap();
    assert!(matches!(ended, CloseReason::Graceful), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn closed_tunnel_aborts_requests_and_refuses_new_ones() {
    let pair = pair(|_| async { Response::new(endless("watching")) }).await;

    let mut body = pair.tunnel.call(get("/")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    pair.tunnel.close();
    assert!(matches!(pair.kas.await.unwrap(), CloseReason::LocallyClosed));
    assert!(body.frame().await.unwrap().is_err());
    let error = pair.tunnel.call(get("/")).await.unwrap_err();
    assert!(matches!(error.kind, CallErrorKind::Closed));
}

#[tokio::test(start_paused = true)]
async fn dead_connection_times_out_at_both_ends() {
    let (kas, agent, cut) = breakable();
    let pair = pair_over(kas, agent, |_| async { Response::new(Body::from("alive")) }).await;
    assert_eq!(text(pair.tunnel.call(get("/")).await.unwrap()).await, "alive");

    cut.cancel();
    let (kas, agent) =
        tokio::time::timeout(Duration::from_secs(51), async { tokio::join!(pair.kas, pair.agent) })
            .await
            .expect("two intervals of 20 s and 10 s for the answer");
    assert!(matches!(kas.unwrap(), CloseReason::TimedOut));
    assert!(matches!(agent.unwrap(), CloseReason::TimedOut));
}

#[tokio::test(start_paused = true)]
async fn idle_tunnel_stays_open() {
    let pair = pair(|_| async { Response::new(Body::from("alive")) }).await;

    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(text(pair.tunnel.call(get("/")).await.unwrap()).await, "alive");
    assert!(pair.tunnel.round_trip().is_some());
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn connect_without_upgrade_is_not_sent() {
    let pair = pair(|_| async { Response::new(Body::empty()) }).await;
    let request = Request::connect("/").body(Body::empty()).unwrap();
    let error = pair.tunnel.call(request).await.unwrap_err();
    assert!(matches!(error.kind, CallErrorKind::Unsupported(_)), "{error}");
    assert_eq!(error.delivery, Delivery::NotProcessed);
}

#[tokio::test]
async fn request_with_invalid_headers_does_not_look_like_a_closed_tunnel() {
    let pair = pair(|_| async { Response::new(Body::from("alive")) }).await;
    // RFC 9113 section 8.2.2 forbids it.
    let request = Request::get("/").header("keep-alive", "timeout=5").body(Body::empty()).unwrap();
    let error = pair.tunnel.call(request).await.unwrap_err();
    assert!(matches!(error.kind, CallErrorKind::Unsupported(_)), "{error}");
    assert_eq!(error.delivery, Delivery::NotProcessed);
    assert_eq!(text(pair.tunnel.call(get("/")).await.unwrap()).await, "alive");
}
