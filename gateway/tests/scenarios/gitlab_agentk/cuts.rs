//! Responses that kas cuts: the streams of agentk end with them.

use std::{path::Path, time::Duration};

use access::kill_switch::file;
use futures_util::future::join_all;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_testing::world::World;
use prost::Message as _;
use tokio::time::{sleep, timeout};

use super::{
    assert_aborted,
    client::{Agentk, Call, End, ok},
    messages::{ConnectRequest, data, grpc_header, grpc_trailer, head, http_trailer},
};

/// Sends a request of a caller that does not read the body of its response, and begins the response.
async fn begin(world: &World, stream: &mut Call) -> Response<Incoming> {
    let caller = world.clone();
    let calling = tokio::spawn(async move { caller.get("/agents/prod/kubernetes/large").await });
    stream.request().await;
    for step in [grpc_header(), head(200, &[])] {
        stream.step(step);
    }
    calling.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn callers_who_do_not_read_share_so_much_memory_and_no_more() {
    // Each stream has a window of 1 MiB, of which at least a half is full.
    let world = World::with(|config| config.agent.kubernetes_api.limits.max_bytes_in_flight = 2 << 20);
    let (mut agentk, [first, second]) = Agentk::start(&world).await;
    let mut streams = vec![first, second];
    let mut responses = Vec::new();
    for number in 0..5 {
        streams.push(agentk.idle().await);
        let stream = &mut streams[number];
        responses.push(begin(&world, stream).await);
        // Without gzip, so that the bytes fill the window.
        let piece = ConnectRequest { step: Some(data(&[7; 32 << 10])) }.encode_to_vec();
        for _ in 0..96 {
            stream.send_raw(0, &piece);
        }
        stream.finish(vec![http_trailer(), grpc_trailer()]);
        sleep(Duration::from_secs(1)).await;
        if number == 1 {
            assert_eq!(world.limit_count("bytes-in-flight"), 0.0);
            assert!(world.metric("kas_in_flight_bytes") >= f64::from(1 << 20));
        }
    }
    let cut = world.limit_count("bytes-in-flight");
    assert!((1.0..4.0).contains(&cut), "{cut}");
    // Streams of responses that are cut end at once.
    let mut reset = 0.0;
    for stream in &mut streams[..5] {
        if let Ok(End::Reset(_)) = timeout(Duration::from_millis(1), stream.any_end()).await {
            reset += 1.0;
        }
    }
    assert_eq!(reset, cut);
    let bodies = responses.into_iter().map(|response| response.into_body().collect());
    let whole = join_all(bodies).await.into_iter().filter(Result::is_ok).count();
    assert_eq!(whole as f64, 5.0 - cut, "the others go on");
}

#[tokio::test(start_paused = true)]
async fn kill_switch_ends_an_open_response() {
    let world = World::new();
    let (_agentk, [mut first, mut second]) = Agentk::start(&world).await;
    let response = begin(&world, &mut first).await;
    first.step(data(b"watching"));
    let rules =
        file::parse(Path::new("disabled.yaml"), "rules: [{agent: prod, reason: an incident}]").unwrap();
    world.kas.callers.kill_switch.set_file(rules);
    assert_aborted(response.into_body()).await;
    assert_eq!(first.any_end().await, End::Status(1, "the caller is gone".to_owned()));

    world.kas.callers.kill_switch.set_file(Vec::new());
    let mut response = begin(&world, &mut second).await;
    second.finish(vec![data(b"again"), http_trailer(), grpc_trailer()]);
    assert_eq!(response.body_mut().collect().await.unwrap().to_bytes(), "again");
    assert_eq!((response.status(), second.end().await), (StatusCode::OK, ok()));
}
