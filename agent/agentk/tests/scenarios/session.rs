//! Tests of an agent and a kas: how tunnels are opened, replaced and drained.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::support::{DialResponse, Kas, OpenedTunnel, echo, options, start, text};
use agentk_core::{AgentToken, Services, SessionConfig, services::response::WatchResponse};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use proto::{Hello, ReplicaId};
use tokio::{
    sync::mpsc,
    time::{Duration, Instant, timeout},
};
use tunnel::{
    Body, CloseReason,
    upgrade::{self, UpgradedConnection},
};

/// Returns a service `held` that responds when the test sends to the channel.
fn held() -> (Services, mpsc::UnboundedSender<()>) {
    let (release, released) = mpsc::unbounded_channel();
    let released = Arc::new(parking_lot::Mutex::new(Some(released)));
    let services = echo().with_fn("held", move |_: Request<Body>| {
        let mut released = released.lock().take().expect("there is one request");
        async move {
            released.recv().await.expect("the sender is not dropped");
            Response::new(Body::from("finished"))
        }
    });
    (services, release)
}

#[tokio::test(start_paused = true)]
async fn agent_sends_its_hello_and_serves() {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
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
async fn lost_tunnel_is_opened_again() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |_| DialResponse::Accept(replica));
    let _agent = start(options(1), dial, echo());

    let first = kas.opened().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    first.driver.abort();
    let lost = Instant::now();
    let second = kas.opened().await;
    assert!(lost.elapsed() <= Duration::from_millis(250));
    assert_eq!(text(second.get("echo", "/again").await).await, "/again");
}

#[tokio::test(start_paused = true)]
async fn unusable_token_file_does_not_stop_redials() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "first").unwrap();
    let token = AgentToken::file(file.clone());
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(SessionConfig { token, ..options(1) }, dial, echo());

    let mut tunnel = kas.opened().await;
    for (text, expected) in [
        ("", "Bearer first"),
        ("two\nlines", "Bearer first"),
        ("second", "Bearer second"),
        ("\n", "Bearer second"),
    ] {
        fs::write(&file, text).unwrap();
        tunnel.driver.abort();
        tunnel = kas.opened().await;
        assert_eq!(tunnel.headers["authorization"], expected, "{text:?}");
    }
    fs::remove_file(&file).unwrap();
    tunnel.driver.abort();
    assert_eq!(kas.opened().await.headers["authorization"], "Bearer second");
}

#[tokio::test(start_paused = true)]
async fn rotated_token_replaces_each_tunnel_before_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "first").unwrap();
    let token = AgentToken::file(file.clone());
    // The identity file of kas has the second token some time after agentk.
    let known = Arc::new(AtomicBool::new(false));
    let is_known = Arc::clone(&known);
    let (mut kas, dial) = Kas::new(move |number| match number {
        2.. if !is_known.load(Relaxed) => DialResponse::Refuse(401, &[], "the token is not known"),
        _ => DialResponse::Accept(ReplicaId::random()),
    });
    let agent = start(SessionConfig { token: token.clone(), ..options(2) }, dial, echo());
    let old = [kas.opened().await, kas.opened().await];
    token.reload().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(kas.dials(), 2, "the token is still the same");

    fs::write(&file, "second").unwrap();
    token.reload().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(kas.dials() > 4, "each slot dials again");
    for tunnel in &old {
        assert_eq!(text(tunnel.get("echo", "/meanwhile").await).await, "/meanwhile");
    }
    known.store(true, Relaxed);
    let new = [kas.opened().await, kas.opened().await];
    for tunnel in &new {
        assert_eq!(tunnel.headers["authorization"], "Bearer second");
        assert_eq!(text(tunnel.get("echo", "/new").await).await, "/new");
    }
    for tunnel in old {
        assert!(matches!(tunnel.driver.await.unwrap(), CloseReason::Graceful));
    }
    agent.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn tunnels_lost_after_short_lives_are_dialled_again_at_once() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |_| DialResponse::Accept(replica));
    let _agent = start(options(1), dial, echo());

    // A proxy may close idle connections after 10 s.
    let mut tunnel = kas.opened().await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        tunnel.driver.abort();
        let lost = Instant::now();
        tunnel = kas.opened().await;
        assert!(lost.elapsed() <= Duration::from_millis(250), "{:?}", lost.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn restarted_kas_is_dialled_within_half_a_second() {
    let replica = ReplicaId::random();
    let away = Arc::new(AtomicBool::new(false));
    let is_away = Arc::clone(&away);
    let (mut kas, dial) =
        Kas::new(
            move |_| {
                if is_away.load(Relaxed) { DialResponse::NoRoute } else { DialResponse::Accept(replica) }
            },
        );
    let _agent = start(options(1), dial, echo());

    for _ in 0..18 {
        let tunnel = kas.opened().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        away.store(true, Relaxed);
        tunnel.driver.abort();
        tokio::time::sleep(Duration::from_secs(2)).await;
        away.store(false, Relaxed);
        let back = Instant::now();
        let tunnel = kas.opened().await;
        assert!(back.elapsed() <= Duration::from_millis(500), "{:?}", back.elapsed());
        tunnel.driver.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_kas_is_redialled_despite_earlier_refusal() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |number| match number {
        1 => DialResponse::Refuse(503, &[("retry-after", "60")], "this kas is stopping"),
        _ => DialResponse::Accept(replica),
    });
    let _agent = start(options(1), dial, echo());

    let old = kas.opened().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(old.drain("shutdown", "60s").await.status(), 202);
    tokio::time::sleep(Duration::from_secs(1)).await;
    old.driver.abort();
    let gone = Instant::now();
    kas.opened().await;
    assert!(gone.elapsed() <= Duration::from_millis(250), "{:?}", gone.elapsed());
}

#[tokio::test(start_paused = true)]
async fn unstable_tunnel_does_not_delay_others() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |_| DialResponse::Accept(replica));
    kas.set_replicas(1);
    let _agent = start(options(2), dial, echo());

    let index = |tunnel: &OpenedTunnel| Hello::decode(&tunnel.headers["kas-hello"]).unwrap().tunnel_index;
    let (one, other) = (kas.opened().await, kas.opened().await);
    let (mut failing, steady) = if index(&one) == 0 { (one, other) } else { (other, one) };
    for _ in 0..6 {
        failing.driver.abort();
        failing = kas.opened().await;
        assert_eq!(index(&failing), 0);
    }
    failing.driver.abort();
    steady.driver.abort();
    let lost = Instant::now();
    assert_eq!(index(&kas.opened().await), 1);
    assert!(lost.elapsed() <= Duration::from_millis(250), "{:?}", lost.elapsed());
}

#[tokio::test(start_paused = true)]
async fn drained_tunnel_is_replaced_first_and_completes_its_requests() {
    let (a, b) = (ReplicaId::random(), ReplicaId::random());
    let (mut kas, dial) = Kas::new(move |number| match number {
        0 => DialResponse::Accept(a),
        _ => DialResponse::AcceptAfter(Duration::from_secs(3), b),
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
    // It still serves, since it is the only tunnel.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(text(old.get("echo", "/meanwhile").await).await, "/meanwhile");

    let new = kas.opened().await;
    assert_eq!(new.replica, b);
    assert_eq!(text(new.get("echo", "/new").await).await, "/new");
    // The old tunnel ends after its request in flight.
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!old.driver.is_finished());
    release.send(()).unwrap();
    assert_eq!(in_flight.await.unwrap(), "finished");
    assert!(matches!(old.driver.await.unwrap(), CloseReason::Graceful));
    assert_eq!(text(new.get("echo", "/still").await).await, "/still");
}

#[tokio::test(start_paused = true)]
async fn tunnel_of_a_stopping_replica_is_drained_without_a_replacement() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |number| match number {
        1..20 => DialResponse::NoRoute,
        _ => DialResponse::Accept(replica),
    });
    let agent = start(options(1), dial, echo());

    let old = kas.opened().await;
    let started = Instant::now();
    assert_eq!(old.drain("shutdown", "60s").await.status(), 202);
    assert!(matches!(old.driver.await.unwrap(), CloseReason::Graceful));
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    kas.opened().await;
    agent.tunnels(1).await;
}

#[tokio::test(start_paused = true)]
async fn invalid_control_request_is_refused() {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, echo());

    let tunnel = kas.opened().await;
    let response = tunnel.drain("boredom", "60s").await;
    assert_eq!(response.headers()["kas-error"], "bad-request");
    let response = tunnel.get("control", "/drain").await;
    assert_eq!(response.headers()["kas-error"], "unknown-path");
    assert!(!tunnel.driver.is_finished());
}

#[tokio::test(start_paused = true)]
async fn tunnels_are_spread_over_replicas() {
    let (a, b) = (ReplicaId::random(), ReplicaId::random());
    let (mut kas, dial) = Kas::new(move |number| DialResponse::Accept(if number < 3 { a } else { b }));
    let agent = start(options(2), dial, echo());

    let (first, second) = (kas.opened().await, kas.opened().await);
    assert_ne!(first.replica, second.replica);
    assert_eq!(kas.dials(), 4);
    agent.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn single_replica_is_dialled_once_for_each_tunnel() {
    let replica = ReplicaId::random();
    let (mut kas, dial) = Kas::new(move |_| DialResponse::Accept(replica));
    kas.set_replicas(1);
    let agent = start(options(2), dial, echo());

    let (_first, second) = (kas.opened().await, kas.opened().await);
    agent.tunnels(2).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(kas.dials(), 2);
    second.driver.abort();
    let _third = kas.opened().await;
    agent.tunnels(2).await;
    assert_eq!(kas.dials(), 3);
}

#[tokio::test(start_paused = true)]
async fn tunnel_leaves_shared_replica_and_keeps_streams() {
    let (a, b) = (ReplicaId::random(), ReplicaId::random());
    // Two tunnels, two immediate redials and one later dial end at the same replica.
    let (mut kas, dial) = Kas::new(move |number| DialResponse::Accept(if number < 5 { a } else { b }));
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
    assert_eq!(kas.dials(), 6, "no slot dials any more");
}

#[tokio::test(start_paused = true)]
async fn stopping_agent_completes_requests_in_flight() {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
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
    assert!(matches!(tunnel.driver.await.unwrap(), CloseReason::Graceful));
    agent.ended().await;
}

#[tokio::test(start_paused = true)]
async fn stopping_agent_cuts_requests_after_the_grace_period() {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let (services, _release) = held();
    let agent = start(options(1), dial, services);

    let tunnel = kas.opened().await;
    let handle = tunnel.tunnel.clone();
    let in_flight = tokio::spawn(async move {
        let request = Request::get("/slow").header("kas-service", "held").body(Body::empty()).unwrap();
        handle.call(request).await
    });
    assert_eq!(text(tunnel.get("echo", "/").await).await, "/");
    let started = Instant::now();
    agent.shut_down();
    agent.ended().await;
    assert!((25..28).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    assert!(in_flight.await.unwrap().is_err());
}

/// A watch is sent again by its client, so that agentk does not wait for it. It waits for a log.
#[tokio::test(start_paused = true)]
async fn stopping_agent_ends_watches_and_waits_for_logs() {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        let event = stream::once(async { Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"event"))) });
        let mut response =
            Response::new(Body::new(StreamBody::new(Box::pin(event.chain(stream::pending())))));
        if request.uri().query() == Some("watch=1") {
            response.extensions_mut().insert(WatchResponse);
        }
        if request.headers().contains_key("upgrade") {
            let (near, far) = tokio::io::duplex(64);
            response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.extensions_mut().insert(WatchResponse);
            response.extensions_mut().insert(UpgradedConnection::new(near));
            // The cluster keeps its end open.
            tokio::spawn(async move {
                let _far = far;
                std::future::pending::<()>().await;
            });
        }
        response
    });
    let agent = start(options(1), dial, services);

    let tunnel = kas.opened().await;
    let watch = tunnel.get("kubernetes", "/api/v1/pods?watch=1").await;
    let log = tunnel.get("kubernetes", "/api/v1/namespaces/a/pods/b/log?follow=true").await;
    let head = Request::get("/api/v1/pods?watch=1").header("kas-service", "kubernetes");
    let head = head.header("connection", "upgrade").header("upgrade", "websocket");
    let mut upgraded = tunnel.tunnel.call(head.body(Body::empty()).unwrap()).await.unwrap();
    let upgraded = upgrade::take(&mut upgraded).expect("an upgrade");
    let started = Instant::now();
    agent.shut_down();
    assert_eq!(text(watch).await, "event");
    assert!((2..=5).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    let (caller, _browser) = tokio::io::duplex(64);
    let spliced = upgrade::splice(upgraded, caller);
    assert!(timeout(Duration::from_secs(4), spliced).await.is_ok(), "the watch by WebSocket has ended");
    assert!(log.into_body().collect().await.is_err(), "the log was cut");
    assert_eq!(started.elapsed().as_secs(), 25);
    agent.ended().await;
}

#[tokio::test(start_paused = true)]
async fn agent_without_connection_stops_at_once() {
    let (_kas, dial) = Kas::new(|_| DialResponse::NoRoute);
    let agent = start(options(4), dial, echo());

    agent.dial_error().await;
    agent.shut_down();
    timeout(Duration::from_millis(1), agent.ended()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_service_ends_its_own_request_only() {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
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
async fn identity_that_the_api_server_would_trim_is_refused() {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, echo());
    let tunnel = kas.opened().await;
    for (value, expected) in [("dev", 200), (" dev", 400), ("dev\t", 400), ("", 400)] {
        let request = Request::get("/pods")
            .header("kas-service", "echo")
            .header("impersonate-user", "alice")
            .header("impersonate-group", value);
        let response = tunnel.tunnel.call(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), expected, "{value:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_service_is_refused() {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, echo());

    let tunnel = kas.opened().await;
    let response = tunnel.get("gitops", "/").await;
    assert_eq!(response.status(), 404);
    assert_eq!(response.headers()["kas-error"], "unknown-service");
    assert_eq!(response.headers()["kas-error-message"], "gitops is not served here");
    assert_eq!(text(response).await, "");
}

#[tokio::test(start_paused = true)]
async fn hanging_request_delays_stop_by_grace_period() {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let grace = Duration::from_secs(5);
    let services = Services::new().with_fn("hang", async |_: Request<Body>| std::future::pending().await);
    let agent = start(SessionConfig { grace, ..options(1) }, dial, services);
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
