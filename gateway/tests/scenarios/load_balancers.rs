//! Some hours behind each load balancer of docs/load-balancers.md, with its own timers and without settings for kas.

use std::time::Duration;

use agentk_core::Services;
use http::{Method, Request, Response};
use kas_testing::{
    load_balancer::{BackendConnection, LoadBalancer, Timers},
    world::{World, text},
};
use tokio::time::{Instant, sleep};
use tunnel::Body;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Six times the longest timer of a load balancer. All that happens in a day happens in that time.
const TIME: Duration = Duration::from_secs(6 * 3600);
/// With an age of 30 s, agents open a tunnel every thirteen seconds, with 15 s every six. Five cuts are enough to learn an age.
const TIME_OF_MANY_CUTS: Duration = Duration::from_secs(3600);

/// No timer but those that a test sets.
const NONE: Timers = Timers { idle: DAY, age: None, reuse: DAY, buffering: Duration::ZERO };

/// The cluster takes a second for a response.
fn services() -> Services {
    Services::new().with_fn("kubernetes", async |_: Request<Body>| {
        sleep(SECOND).await;
        Response::new(Body::from("done"))
    })
}

/// Sends a request, and returns whether it had a response of the cluster.
async fn request(world: &World, backend: &mut BackendConnection, method: Method) -> bool {
    let mut request = world.request("/agents/prod/kubernetes/");
    *request.method_mut() = method;
    match backend.send(request).await {
        Ok(response) => response.status().is_success() && text(response).await == "done",
        Err(_) => false,
    }
}

/// The result: failed requests while kas knew no age, and after it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Failures {
    before: u32,
    after: u32,
}

/// Sends requests for a time: one a minute, and one whenever the connection was idle for almost as long as the load balancer
/// reuses it. Returns the failures, and the age that kas detected.
async fn send_requests(
    world: &World,
    balancer: &LoadBalancer,
    (time, reuse): (Duration, Duration),
    method: Method,
) -> (Failures, f64) {
    let _agent = world.start_agent_through(balancer.clone(), services());
    world.tunnels(2).await;
    let (mut busy, mut idle) = (balancer.backend(), balancer.backend());
    let (start, mut last_idle) = (Instant::now(), Instant::now());
    let mut failures = Failures::default();
    let (mut detected, cut_age) = (false, world.kas.agents.metrics.cut_age("agent"));
    while start.elapsed() < time {
        let mut failed = !request(world, &mut busy, method.clone()).await;
        if last_idle.elapsed() + 60 * SECOND > reuse {
            sleep((reuse - SECOND).saturating_sub(last_idle.elapsed())).await;
            failed |= !request(world, &mut idle, method.clone()).await;
            last_idle = Instant::now();
        }
        if detected {
            failures.after += u32::from(failed)
        } else {
            failures.before += u32::from(failed)
        }
        detected |= cut_age.get() > 0;
        sleep(58 * SECOND).await;
    }
    (failures, world.metric("kas_cut_age_seconds{listener=\"agent\"}"))
}

/// Behind a load balancer that cuts at an age, no request fails after the fifth cut.
async fn assert_age_is_detected(timers: Timers, expected: f64) {
    let world = World::new();
    let balancer = LoadBalancer::new(&world, timers);
    let (failures, age) =
        send_requests(&world, &balancer, (TIME_OF_MANY_CUTS, timers.reuse), Method::POST).await;
    assert!((expected * 0.97..=expected).contains(&age), "{age} s");
    assert_eq!(failures.after, 0, "{failures:?}");
    // Each time the load balancer cuts both tunnels.
    assert!(balancer.cuts() <= 2 * 5, "{} connections were cut", balancer.cuts());
}

/// Behind a load balancer that does not cut at an age, no request fails.
async fn assert_nothing_fails(timers: Timers) {
    let world = World::new();
    let balancer = LoadBalancer::new(&world, timers);
    let result = send_requests(&world, &balancer, (TIME, timers.reuse), Method::POST).await;
    assert_eq!((result, balancer.cuts()), ((Failures::default(), 0.0), 0));
}

/// Behind a load balancer that restarts, no request fails that only reads.
async fn assert_restarts_are_survived(timers: Timers, period: Duration) {
    let world = World::new();
    let balancer = LoadBalancer::new(&world, timers);
    let restarts = async {
        loop {
            sleep(period).await;
            balancer.reload();
        }
    };
    let requests = send_requests(&world, &balancer, (TIME, timers.reuse), Method::GET);
    tokio::select! {
        (failures, _) = requests => assert_eq!(failures, Failures::default()),
        () = restarts => {}
    }
    assert!(balancer.cuts() >= 4, "{} connections were cut", balancer.cuts());
}

#[tokio::test(start_paused = true)]
async fn google_cloud() {
    let timers = Timers { idle: 600 * SECOND, age: Some(30 * SECOND), reuse: 600 * SECOND, ..NONE };
    assert_age_is_detected(timers, 30.0).await;
}

#[tokio::test(start_paused = true)]
async fn aws_application_load_balancer() {
    assert_nothing_fails(Timers { idle: 60 * SECOND, reuse: 60 * SECOND, ..NONE }).await;
}

#[tokio::test(start_paused = true)]
async fn aws_network_load_balancer() {
    assert_nothing_fails(Timers { idle: 350 * SECOND, reuse: 350 * SECOND, ..NONE }).await;
}

#[tokio::test(start_paused = true)]
async fn ingress_nginx() {
    let timers = Timers { idle: 60 * SECOND, reuse: 60 * SECOND, ..NONE };
    assert_restarts_are_survived(timers, 75 * MINUTE).await;
}

/// Some versions cut a WebSocket at the timeout of a response, 15 s (envoyproxy/envoy#20062).
#[tokio::test(start_paused = true)]
async fn envoy_that_cuts_websockets() {
    let timers = Timers { idle: 300 * SECOND, age: Some(15 * SECOND), reuse: HOUR, ..NONE };
    assert_age_is_detected(timers, 15.0).await;
}

/// Others end that timeout with the 101 (envoyproxy/envoy#41075).
#[tokio::test(start_paused = true)]
async fn envoy() {
    assert_nothing_fails(Timers { idle: 300 * SECOND, reuse: HOUR, ..NONE }).await;
}

#[tokio::test(start_paused = true)]
async fn cloudflare() {
    let timers = Timers { idle: 100 * SECOND, reuse: 900 * SECOND, ..NONE };
    assert_restarts_are_survived(timers, 85 * MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn load_balancer_that_buffers() {
    assert_nothing_fails(Timers { idle: 60 * SECOND, reuse: 600 * SECOND, buffering: SECOND / 5, ..NONE })
        .await;
}

/// The timers of the load balancer matter: a kas that closes idle connections earlier makes requests fail.
#[tokio::test(start_paused = true)]
async fn short_idle_timeout_fails_behind_a_load_balancer() {
    let world = World::with(|config| config.agent.kubernetes_api.limits.idle_timeout = 60 * SECOND);
    let timers = Timers { reuse: 600 * SECOND, ..NONE };
    let balancer = LoadBalancer::new(&world, timers);
    let (failures, _) = send_requests(&world, &balancer, (TIME, timers.reuse), Method::POST).await;
    assert!(failures.before > 25, "{failures:?}");
}
