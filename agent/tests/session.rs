//! An agent and a kas: tunnels come, go and come back.

mod support;

use agent::{Options, Services};
use http::{Request, Response};
use proto::{Hello, ReplicaId};
use support::{Answer, Kas, echo, options, start, text};
use tokio::{
    sync::mpsc,
    time::{Duration, Instant, timeout},
};
use tunnel::{Body, Ended};

/// Answers when the test says so.
fn held() -> (Services, mpsc::UnboundedSender<()>) {
    let (release, released) = mpsc::unbounded_channel();
    let released = std::sync::Arc::new(parking_lot::Mutex::new(Some(released)));
    let services = echo().with_fn("held", move |_: Request<Body>| {
        let mut released = released.lock().take().expect("asked once");
        async move {
            released.recv().await.expect("released, not dropped");
            Response::new(Body::from("finished"))
        }
    });
    (services, release)
}

#[tokio::test(start_paused = true)]
async fn an_agent_connects_says_who_it_is_and_serves() {
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
    let mut options = options(2);
    options.pod.name = Some("agentk-0".into());
    let agent = start(options, dial, echo());

    let (mut indices, mut tunnels) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let tunnel = kas.opened().await;
        assert_eq!(tunnel.path, "/prefix");
        assert_eq!(tunnel.headers["host"], "kas.test:8150");
        assert_eq!(tunnel.headers["authorization"], "Bearer agent-token");
        assert_eq!(tunnel.headers["user-agent"], concat!("agentk/", env!("CARGO_PKG_VERSION")));
        let hello = Hello::decode(&tunnel.headers["kas-hello"]).unwrap();
        assert_eq!(hello.pod_name.as_deref(), Some("agentk-0"));
        assert_eq!(hello.services, ["echo".parse().unwrap()]);
        indices.push(hello.tunnel_index);
        assert_eq!(text(tunnel.get("echo", "/hello").await).await, "/hello");
        tunnels.push(tunnel);
    }
    indices.sort_unstable();
    assert_eq!(indices, [0, 1]);
    agent.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_tunnel_is_opened_again() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |_| Answer::Accept(replica));
    let _agent = start(options(1), dial, echo());

    let first = kas.opened().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    first.driver.abort();
    let lost = Instant::now();
    let second = kas.opened().await;
    assert!(lost.elapsed() <= Duration::from_millis(500));
    assert_eq!(text(second.get("echo", "/again").await).await, "/again");
}

#[tokio::test(start_paused = true)]
async fn a_drained_tunnel_is_replaced_first_and_loses_nothing() {
    let (a, b) = (ReplicaId::random(), ReplicaId::random());
    let (mut kas, dial) = Kas::new(move |number| match number {
        0 => Answer::Accept(a),
        _ => Answer::AcceptAfter(Duration::from_secs(3), b),
    });
    let (services, release) = held();
    let _agent = start(options(1), dial, services);

    let old = kas.opened().await;
    let handle = old.tunnel.clone();
    let in_flight = tokio::spawn(async move {
        let request = Request::get("/slow").header("kas-service", "held").body(Body::empty()).unwrap();
        text(handle.call(request).await.unwrap()).await
    });
    assert_eq!(old.drain("max-age", "60s").await.status(), 202);
    // Still the only tunnel: it serves on.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(text(old.get("echo", "/meanwhile").await).await, "/meanwhile");

    let new = kas.opened().await;
    assert_eq!(new.replica, b);
    assert_eq!(text(new.get("echo", "/new").await).await, "/new");
    // The old one is left, and ends only after what is in flight.
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!old.driver.is_finished());
    release.send(()).unwrap();
    assert_eq!(in_flight.await.unwrap(), "finished");
    assert!(matches!(old.driver.await.unwrap(), Ended::Gracefully));
    assert_eq!(text(new.get("echo", "/still").await).await, "/still");
}

#[tokio::test(start_paused = true)]
async fn a_stopping_kas_is_left_even_if_there_is_no_other() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |number| match number {
        1..6 => Answer::NoRoute,
        _ => Answer::Accept(replica),
    });
    let agent = start(options(1), dial, echo());

    let old = kas.opened().await;
    let asked = Instant::now();
    assert_eq!(old.drain("shutdown", "60s").await.status(), 202);
    assert!(matches!(old.driver.await.unwrap(), Ended::Gracefully));
    assert!(asked.elapsed() < Duration::from_secs(6), "{:?}", asked.elapsed());
    kas.opened().await;
    agent.tunnels(1).await;
}

#[tokio::test(start_paused = true)]
async fn control_requests_that_make_no_sense_are_refused() {
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, echo());

    let tunnel = kas.opened().await;
    let response = tunnel.drain("boredom", "60s").await;
    assert_eq!(response.headers()["kas-error"], "bad-request");
    let response = tunnel.get("control", "/drain").await;
    assert_eq!(response.headers()["kas-error"], "unknown-path");
    assert!(!tunnel.driver.is_finished());
}

#[tokio::test(start_paused = true)]
async fn tunnels_go_to_different_replicas() {
    let (a, b) = (ReplicaId::random(), ReplicaId::random());
    let (mut kas, dial) = Kas::new(move |number| Answer::Accept(if number < 3 { a } else { b }));
    let agent = start(options(2), dial, echo());

    let (first, second) = (kas.opened().await, kas.opened().await);
    assert_ne!(first.replica, second.replica);
    assert_eq!(kas.dials(), 4);
    agent.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn where_there_is_one_replica_it_is_dialled_once_for_each_tunnel() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |_| Answer::Accept(replica));
    kas.says(1);
    let agent = start(options(2), dial, echo());

    let (_first, second) = (kas.opened().await, kas.opened().await);
    agent.tunnels(2).await;
    assert_eq!(kas.dials(), 2);
    second.driver.abort();
    let _third = kas.opened().await;
    agent.tunnels(2).await;
    assert_eq!(kas.dials(), 3);
}

#[tokio::test(start_paused = true)]
async fn tunnels_that_share_a_replica_part_once_another_is_found_and_streams_go_on() {
    let (a, b) = (ReplicaId::random(), ReplicaId::random());
    // Two tunnels, two dials again at once, and a look: none finds it.
    let (mut kas, dial) = Kas::new(move |number| Answer::Accept(if number < 5 { a } else { b }));
    let (services, release) = held();
    let agent = start(options(2), dial, services);
    let (first, second) = (kas.opened().await, kas.opened().await);
    assert_eq!((first.replica, second.replica), (a, a));
    let handle = second.tunnel.clone();
    let in_flight = tokio::spawn(async move {
        let request = Request::get("/slow").header("kas-service", "held").body(Body::empty()).unwrap();
        text(handle.call(request).await.unwrap()).await
    });

    let third = kas.opened().await;
    assert_eq!((third.replica, kas.dials()), (b, 6));
    agent.tunnels(3).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    release.send(()).unwrap();
    assert_eq!(in_flight.await.unwrap(), "finished");
    agent.tunnels(2).await;
    assert_eq!(kas.dials(), 6, "nobody looks any more");
}

#[tokio::test(start_paused = true)]
async fn a_stopping_agent_finishes_what_is_in_flight() {
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
    let (services, release) = held();
    let agent = start(options(1), dial, services);

    let tunnel = kas.opened().await;
    let handle = tunnel.tunnel.clone();
    let in_flight = tokio::spawn(async move {
        let request = Request::get("/slow").header("kas-service", "held").body(Body::empty()).unwrap();
        text(handle.call(request).await.unwrap()).await
    });
    assert_eq!(text(tunnel.get("echo", "/").await).await, "/");
    agent.shut_down();
    tokio::time::sleep(Duration::from_secs(20)).await;
    release.send(()).unwrap();
    assert_eq!(in_flight.await.unwrap(), "finished");
    assert!(matches!(tunnel.driver.await.unwrap(), Ended::Gracefully));
    agent.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopping_agent_does_not_wait_for_ever() {
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
    let (services, _release) = held();
    let agent = start(options(1), dial, services);

    let tunnel = kas.opened().await;
    let handle = tunnel.tunnel.clone();
    let in_flight = tokio::spawn(async move {
        let request = Request::get("/slow").header("kas-service", "held").body(Body::empty()).unwrap();
        handle.call(request).await
    });
    assert_eq!(text(tunnel.get("echo", "/").await).await, "/");
    let asked = Instant::now();
    agent.shut_down();
    agent.ended().await;
    assert!((25..28).contains(&asked.elapsed().as_secs()), "{:?}", asked.elapsed());
    assert!(in_flight.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_connect_stops_at_once() {
    let (_kas, dial) = Kas::new(|_| Answer::NoRoute);
    let agent = start(options(4), dial, echo());

    agent.dial_failure().await;
    agent.shut_down();
    timeout(Duration::from_millis(1), agent.ended()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_handler_ends_its_own_request_only() {
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
    let services = echo().with_fn("broken", |request: Request<Body>| async move {
        assert_eq!(request.uri().path(), "never", "a defect");
        Response::new(Body::empty())
    });
    let _agent = start(options(1), dial, services);

    let tunnel = kas.opened().await;
    let response = tunnel.get("broken", "/").await;
    assert_eq!(response.status(), 500);
    assert_eq!(response.headers()["kas-error"], "internal");
    assert_eq!(text(tunnel.get("echo", "/alive").await).await, "/alive");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_served() {
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, echo());

    let tunnel = kas.opened().await;
    let response = tunnel.get("gitops", "/").await;
    assert_eq!(response.status(), 404);
    assert_eq!(response.headers()["kas-error"], "unknown-service");
    assert_eq!(response.headers()["kas-error-message"], "gitops is not served here");
    assert_eq!(text(response).await, "");
}

#[tokio::test(start_paused = true)]
async fn stop_with_request_that_hangs_ends_after_grace_period() {
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
    let grace = Duration::from_secs(5);
    let services = Services::new().with_fn("hang", async |_: Request<Body>| std::future::pending().await);
    let agent = start(Options { grace, ..options(1) }, dial, services);
    let tunnel = kas.opened().await.tunnel;
    let request = Request::get("/").header("kas-service", "hang").body(Body::empty()).unwrap();
    let asking = tokio::spawn(async move { tunnel.call(request).await });
    tokio::time::sleep(Duration::from_secs(1)).await;

    let stopped = Instant::now();
    agent.shut_down();
    agent.ended().await;
    let took = stopped.elapsed();
    assert!(took >= grace && took < grace + Duration::from_secs(1), "{took:?}");
    assert!(asking.await.unwrap().is_err());
}
