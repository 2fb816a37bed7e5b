//! Watches that last for hours.

use std::time::Duration;

use agentk_core::Services;
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use kas_testing::world::{World, text};
use tokio::time::{Instant, sleep};
use tunnel::Body;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns a watch that sends an event each minute for six hours, and then ends like that of an API server.
fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if request.uri().path() != "/watch" {
            return Response::new(Body::from("done"));
        }
        let events = stream::unfold(1, async |minute| {
            if minute > 360 {
                return None;
            }
            sleep(MINUTE).await;
            let event = Bytes::from(format!("{minute}\n"));
            Some((Ok::<_, std::io::Error>(Frame::data(event)), minute + 1))
        });
        Response::new(Body::new(StreamBody::new(Box::pin(events))))
    })
}

#[tokio::test(start_paused = true)]
async fn watch_of_six_hours_outlives_tunnel_replacements() {
    let world = World::with(|config| {
        config.agent.listen.max_connection_age = HOUR.into();
        config.agent.kubernetes_api.listen.shutdown_grace_period = 12 * HOUR;
    });
    let _agent = world.agent(services()).await;
    let started = Instant::now();
    let mut watch = world.get("/agents/prod/kubernetes/watch").await.into_body();
    let mut seen = String::new();
    while let Some(frame) = watch.frame().await {
        seen += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap();
        // Each event comes when it happens, and not with a later one.
        let minutes = u32::try_from(seen.lines().count()).unwrap();
        assert!(started.elapsed() < minutes * MINUTE + Duration::from_secs(1), "event {minutes}");
        if minutes % 90 == 0 {
            assert_eq!(text(world.get("/agents/prod/kubernetes/").await).await, "done");
        }
    }
    let all: String = (1..=360).map(|minute| format!("{minute}\n")).collect();
    assert_eq!(seen, all);
    // Its own tunnel ends with it: what is left are two that are younger than an hour.
    world.tunnels(2).await;
    assert_eq!(world.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn watch_is_cut_an_hour_after_its_tunnel_was_replaced() {
    let world = World::with(|config| {
        config.agent.listen.max_connection_age = HOUR.into();
        // Only a stopping replica has as little time.
        config.agent.kubernetes_api.listen.shutdown_grace_period = 5 * MINUTE;
    });
    let _agent = world.agent(services()).await;
    let started = Instant::now();
    let mut watch = world.get("/agents/prod/kubernetes/watch").await.into_body();
    let mut events = 0;
    let end = loop {
        match watch.frame().await {
            Some(Ok(_)) => events += 1,
            end => break end,
        }
    };
    // Cut, and not ended: a caller does not take a part for the whole.
    assert!(matches!(end, Some(Err(_))), "{end:?}");
    assert!((115..125).contains(&events), "{events}");
    assert!(started.elapsed() < 2 * HOUR + 5 * MINUTE, "{:?}", started.elapsed());
    let mut again = world.get("/agents/prod/kubernetes/watch").await.into_body();
    assert_eq!(again.frame().await.unwrap().unwrap().into_data().unwrap(), "1\n");
}
