//! Streams that wait for a request: their order, and those that end before it.

use std::time::Duration;

use futures_util::future::join_all;
use h2::Reason;
use http::StatusCode;
use kas_testing::world::World;
use tokio::time::{Instant, sleep};

use super::{
    client::{Agentk, ok},
    get,
    messages::response,
    post, reason,
};

/// On a paused clock, it passes when kas has nothing to do.
const A_MOMENT: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn stream_that_waits_for_the_longest_time_is_the_next() {
    let world = World::new();
    let (mut agentk, [first, second]) = Agentk::start(&world).await;
    let mut streams = vec![first, second];
    for _ in 0..3 {
        sleep(A_MOMENT).await;
        streams.push(agentk.idle().await);
    }
    sleep(A_MOMENT).await;
    for (number, stream) in streams.into_iter().enumerate() {
        let calling = get(&world, &format!("/{number}"));
        assert_eq!(stream.serve().await.path(), format!("/{number}"));
        assert_eq!(calling.await.unwrap(), (StatusCode::OK, format!("/{number}")));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_streams_wait_for_new_ones() {
    let world = World::new();
    let (mut agentk, streams) = Agentk::start(&world).await;
    let callers: Vec<_> = (0..12).map(|number| get(&world, &format!("/{number}"))).collect();
    let mut open: Vec<_> = streams.into();
    for stream in &mut open {
        stream.request_head().await;
    }
    // GitLab's agentk opens ten more as soon as the first is in use.
    for _ in 0..10 {
        open.push(agentk.idle().await);
    }
    for mut stream in open.split_off(2) {
        stream.request().await;
        stream.finish(response(200, &[], b"done"));
        assert_eq!(stream.end().await, ok());
    }
    for mut stream in open {
        stream.finish(response(200, &[], b"done"));
        assert_eq!(stream.any_end().await, ok());
    }
    for answered in join_all(callers).await {
        assert_eq!(answered.unwrap(), (StatusCode::OK, "done".to_owned()));
    }
    assert_eq!(world.metric("kas_retries_total"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn stream_that_agentk_has_reset_costs_no_request() {
    let world = World::new();
    let (_agentk, [mut first, second]) = Agentk::start(&world).await;
    // kas has not read the reset when the request arrives, and has not chosen the stream either.
    first.reset(Reason::CANCEL);
    let calling = get(&world, "/api");
    second.serve().await;
    assert_eq!(calling.await.unwrap().0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn reset_that_crosses_the_request_is_retried_in_another_stream() {
    for is_post in [false, true] {
        let world = World::new();
        let (_agentk, [mut first, second]) = Agentk::start(&world).await;
        let started = Instant::now();
        let calling = if is_post { post(&world, "/api", "body") } else { get(&world, "/api") };
        first.request_head().await;
        first.reset(Reason::CANCEL);
        second.serve_later();
        assert_eq!(calling.await.unwrap(), (StatusCode::OK, "/api".to_owned()), "{is_post}");
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn connection_lost_after_the_request_fails_a_post_and_retries_a_get() {
    for (method, expected) in [("POST", 502), ("GET", 200)] {
        let world = World::new();
        let (agentk, [mut first, _second]) = Agentk::start(&world).await;
        let calling = if method == "POST" { post(&world, "/api", "body") } else { get(&world, "/api") };
        first.request().await;
        agentk.cut();
        world.tunnels(0).await;
        let (_agentk, [again, _second]) = Agentk::start(&world).await;
        let serving = again.serve_later();
        let (status, body) = calling.await.unwrap();
        assert_eq!(status, expected, "{method}: {body}");
        if method == "POST" {
            assert_eq!(reason(&body), "tunnel-lost");
        } else {
            serving.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_one_connection_does_not_process_is_sent_through_another() {
    let world = World::new();
    let body = "x".repeat(40 << 10);
    let (mut one, mut other) = (Agentk::connect(&world).await, Agentk::connect(&world).await);
    let (mut first, mut second) = (one.idle().await, other.idle().await);
    world.tunnels(2).await;
    let calling = post(&world, "/api", body.clone());
    let is_first = tokio::select! {
        _ = first.request_head() => true,
        _ = second.request_head() => false,
    };
    let (mut lost, mut next) = if is_first { (first, second) } else { (second, first) };
    lost.reset(Reason::CANCEL);
    let received = next.request().await;
    assert_eq!(received.data.concat(), body.as_bytes());
    assert_eq!(received.values("Content-Length"), [body.len().to_string()]);
    next.finish(response(200, &[], b"done"));
    assert_eq!(calling.await.unwrap(), (StatusCode::OK, "done".to_owned()));
    assert_eq!(world.metric("kas_retries_total"), 1.0);
}

/// A long body is not kept, and agentk cannot have executed the request: the caller repeats it.
#[tokio::test(start_paused = true)]
async fn reset_in_the_middle_of_a_long_body_is_retryable_for_the_caller() {
    let world = World::new();
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let calling = post(&world, "/api", "x".repeat(1 << 20));
    first.request_head().await;
    for _ in 0..10 {
        first.next_part().await;
    }
    first.reset(Reason::CANCEL);
    let (status, body) = calling.await.unwrap();
    assert_eq!((status.as_u16(), reason(&body).as_str()), (503, "agent-not-connected"));
}

#[tokio::test(start_paused = true)]
async fn agentk_that_stops_completes_its_request_and_gets_no_other() {
    let world = World::new();
    let (agentk, [mut busy, mut idle]) = Agentk::start(&world).await;
    let calling = get(&world, "/slow");
    busy.request().await;
    idle.reset(Reason::CANCEL);
    sleep(Duration::from_secs(5)).await;

    let started = Instant::now();
    let (status, body) = get(&world, "/later").await.unwrap();
    assert_eq!((status, reason(&body).as_str()), (StatusCode::SERVICE_UNAVAILABLE, "agent-not-connected"));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());

    busy.finish(response(200, &[], b"done"));
    assert_eq!(calling.await.unwrap(), (StatusCode::OK, "done".to_owned()));
    assert_eq!(busy.end().await, ok());
    agentk.closed().await;
    world.tunnels(0).await;
}

/// GitLab's agentk opens at most 500 streams, which watches can take up.
#[tokio::test(start_paused = true)]
async fn agentk_without_a_free_stream_is_busy() {
    let world = World::new();
    let (_agentk, [mut first, mut second]) = Agentk::start(&world).await;
    let _watches = [get(&world, "/watch"), get(&world, "/watch")];
    first.request().await;
    second.request().await;
    let started = Instant::now();
    let (status, body) = get(&world, "/later").await.unwrap();
    assert_eq!((status, reason(&body).as_str()), (StatusCode::TOO_MANY_REQUESTS, "too-many-requests"));
    assert!(body.contains("all streams of agent prod carry requests"), "{body}");
    assert_eq!(started.elapsed().as_secs(), 2, "agentk had time to open another one");
}
