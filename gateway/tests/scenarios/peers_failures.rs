//! Requests to replicas that are stopped, slow, frozen or draining, that have a stale route or another secret, or that are
//! not replicas at all.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use agentk_core::Services;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use kas_testing::{
    fleet::{PeerBehaviour, ServeConnection, TestFleet, secret},
    handshake::{handshake, hello},
    world::{CALLER, World, text},
};
use proto::header::HELLO;
use secrecy::ExposeSecret as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tunnel::{
    Body, TunnelConfig,
    websocket::{Role, WebSocket},
};

use crate::peers::{PATH, cluster};

#[tokio::test(start_paused = true)]
async fn killed_owner_resets_the_response() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let mut watch = fleet.replicas[0].get("/agents/prod/kubernetes/watch?watch=1").await.into_body();
    watch.frame().await.unwrap().unwrap();
    fleet.kill(1).await;
    assert!(watch.frame().await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn stale_route_costs_one_probe() {
    let fleet = TestFleet::new(3);
    let _agent = fleet.agent(2, cluster("here")).await;
    fleet.announce_owner(fleet.id(1)).await;
    for _ in 0..20 {
        let answer = fleet.replicas[0].get(PATH).await;
        assert_eq!((answer.status(), text(answer).await), (StatusCode::OK, "here".to_owned()));
    }
    // Requests with effects succeed, too.
    for _ in 0..20 {
        let mut request = fleet.replicas[0].request(PATH).map(|_| Body::from("body"));
        *request.method_mut() = http::Method::POST;
        assert_eq!(text(fleet.replicas[0].send(request).await).await, "here");
    }
    assert!(fleet.replicas[0].metric("kas_peer_probes_total{result=\"not-connected\"}") >= 1.0);
    assert_eq!(fleet.replicas[0].metric("kas_peer_outliers_total"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn request_is_forwarded_once_at_most() {
    let fleet = TestFleet::new(2);
    // The directory has a route to each replica, but neither holds the agent.
    fleet.announce_owner(fleet.id(0)).await;
    fleet.announce_owner(fleet.id(1)).await;
    for index in [0, 1] {
        let started = Instant::now();
        let answer = fleet.replicas[index].get(PATH).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let text = text(answer).await;
        assert!(text.contains("does not hold the agent any more"), "{text}");
        assert!(text.contains(&fleet.id(1 - index).to_string()), "{text}");
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    }
    assert_eq!(fleet.replicas[0].metric("kas_routes_total{kind=\"peer\"}"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn killed_owner_causes_no_errors() {
    let fleet = TestFleet::new(3);
    let _first = fleet.agent(1, cluster("here")).await;
    let _second = fleet.agent(2, cluster("here")).await;
    let end = Instant::now() + Duration::from_secs(5);
    let callers = (0..10).map(|_| {
        let world = fleet.replicas[0].clone();
        async move {
            let mut answered = 0;
            while Instant::now() < end {
                let answer = world.get(PATH).await;
                assert_eq!(answer.status(), StatusCode::OK, "{}", text(answer).await);
                assert_eq!(text(answer).await, "here");
                answered += 1;
                sleep(Duration::from_millis(5)).await;
            }
            answered
        }
    });
    let killing = async {
        sleep(Duration::from_secs(2)).await;
        fleet.kill(1).await;
    };
    let (answered, ()) = tokio::join!(join_all(callers), killing);
    assert!(answered.into_iter().sum::<u32>() > 5_000);
    assert!(fleet.replicas[0].metric("kas_peer_outliers_total") >= 1.0);
}

/// While a pod of an agent stops, its tunnels refuse each request, and have the fewest in flight.
#[tokio::test(start_paused = true)]
async fn tunnel_that_refuses_requests_fails_none_of_another_replica() {
    let fleet = TestFleet::new(2);
    let agent = fleet.agent(1, cluster("here")).await;
    // These tunnels have requests in flight, so that the one that refuses is always the least loaded.
    let watches =
        join_all((0..4).map(|_| fleet.replicas[1].get("/agents/prod/kubernetes/watch?watch=1"))).await;
    let _refusing = refusing_agent(&fleet.replicas[1]).await;
    fleet.replicas[1].tunnels(3).await;
    let post = async || {
        let mut request = fleet.replicas[0].request(PATH).map(|_| Body::from("body"));
        *request.method_mut() = http::Method::POST;
        fleet.replicas[0].send(request).await
    };
    for _ in 0..20 {
        let answer = post().await;
        assert_eq!((answer.status(), text(answer).await), (StatusCode::OK, "here".to_owned()));
    }
    assert!(fleet.replicas[1].metric("kas_retries_total") >= 20.0);

    drop(watches);
    agent.stop().await;
    assert_eq!(post().await.status(), StatusCode::SERVICE_UNAVAILABLE, "there is no other tunnel");
}

/// Opens a tunnel that refuses each request.
async fn refusing_agent(world: &World) -> AbortOnDropHandle<()> {
    let hello = hello(env!("CARGO_PKG_VERSION"));
    let token = format!("Bearer {}", world.agent_token.expose_secret());
    let hello = hello.encode().unwrap();
    let name = HELLO;
    let headers = [("authorization", &*token), (name.as_str(), hello.to_str().unwrap())];
    let response = handshake(world, CALLER, &headers).await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let socket = WebSocket::new(io, bytes::Bytes::new(), Role::Client);
    let (server, drain) = tunnel::accept(socket, &TunnelConfig::default());
    AbortOnDropHandle::new(tokio::spawn(async move {
        let _drain = drain;
        drop(server.run(|request| request.refuse()).await);
    }))
}

#[tokio::test(start_paused = true)]
async fn frozen_owner_delays_only_requests_in_flight() {
    let fleet = TestFleet::new(3);
    let _first = fleet.agent(1, cluster("here")).await;
    let _second = fleet.agent(2, cluster("here")).await;
    for _ in 0..4 {
        assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "here");
    }
    fleet.freeze(1);
    let mut slowest = Duration::ZERO;
    for _ in 0..200 {
        let started = Instant::now();
        let answer = timeout(Duration::from_secs(10), fleet.replicas[0].get(PATH)).await.unwrap();
        assert_eq!(text(answer).await, "here");
        slowest = slowest.max(started.elapsed());
        sleep(Duration::from_millis(50)).await;
    }
    assert!(slowest < Duration::from_secs(8), "{slowest:?}");
    let started = Instant::now();
    for _ in 0..10 {
        assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "here");
    }
    assert!(started.elapsed() < Duration::from_millis(300), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn error_names_every_unreachable_owner() {
    let fleet = TestFleet::new(3);
    let first = fleet.agent(1, cluster("here")).await;
    let second = fleet.agent(2, cluster("here")).await;
    first.kill();
    second.kill();
    fleet.kill(1).await;
    fleet.kill(2).await;
    let answer = fleet.replicas[0].get(PATH).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["kas-error"], "agent-not-connected");
    assert!(answer.headers().contains_key("retry-after"));
    let text = text(answer).await;
    for id in [fleet.id(1), fleet.id(2)] {
        assert!(text.contains(&format!("{id}: it cannot be reached")), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_owner_is_hedged_and_then_ejected() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let silent = fleet.announce_peer(9, PeerBehaviour::Silent).await;
    let timed_get = async || {
        // The last response is too old, so the next request needs a probe.
        sleep(Duration::from_millis(1500)).await;
        let started = Instant::now();
        assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "here");
        started.elapsed()
    };
    let mut delays = Vec::new();
    for _ in 0..20 {
        delays.push(timed_get().await);
    }
    assert!(delays.iter().all(|delay| *delay < Duration::from_millis(30)), "{delays:?}");
    let delayed = delays.iter().filter(|delay| **delay >= Duration::from_millis(10)).count();
    assert!((1..10).contains(&delayed), "ejected in most cases: {delays:?}");
    assert!(fleet.replicas[0].metric("kas_peer_hedges_total") >= 1.0);
    assert!(fleet.replicas[0].metric("kas_peer_probes_total{result=\"timeout\"}") >= 1.0);
    assert!(fleet.owners().await.contains(&silent));
}

#[tokio::test(start_paused = true)]
async fn request_with_effects_reaches_one_owner_only() {
    let fleet = TestFleet::new(3);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = |count: &Arc<AtomicUsize>| {
        let count = count.clone();
        Services::new().with_fn("kubernetes", move |_: Request<Body>| {
            count.fetch_add(1, Relaxed);
            async {
                // Longer than the delay before the next owner gets a probe.
                sleep(Duration::from_secs(1)).await;
                Response::new(Body::from("done"))
            }
        })
    };
    let _agents = [fleet.agent(1, counted(&count)).await, fleet.agent(2, counted(&count)).await];
    for _ in 0..20 {
        let mut request = fleet.replicas[0].request(PATH).map(|_| Body::from("body"));
        *request.method_mut() = http::Method::POST;
        assert_eq!(text(fleet.replicas[0].send(request).await).await, "done");
    }
    assert_eq!(count.load(Relaxed), 20);
}

#[tokio::test(start_paused = true)]
async fn replica_with_another_secret_gets_no_request() {
    for secrets in [[Some(secret(1)), Some(secret(2))], [Some(secret(1)), None], [None, Some(secret(1))]] {
        let fleet = TestFleet::with_secrets(&secrets, |_| {});
        let _agent = fleet.agent(1, cluster("here")).await;
        let answer = fleet.replicas[0].get(PATH).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{secrets:?}");
        let text = text(answer).await;
        assert!(text.contains("different secrets"), "{text}");
        assert_eq!(fleet.replicas[1].metric("kas_peer_served_total{result=\"forwarded\"}"), 0.0);
        assert_eq!(fleet.replicas[0].metric("kas_peer_probes_total{result=\"untrusted\"}"), 1.0);
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_response_is_reported_and_another_owner_is_used() {
    let strangers: [(&str, ServeConnection); 3] = [
        ("it does not answer as a kas", |mut io| {
            tokio::spawn(async move {
                let _ = io.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
                let _ = io.read_to_end(&mut Vec::new()).await;
            });
        }),
        ("it does not answer as a kas", |io| {
            tokio::spawn(async move {
                let settings = TunnelConfig::default();
                let (session, _leave) = tunnel::direct::accept(io, &settings);
                session
                    .run(|exchange| {
                        drop(tokio::spawn(exchange.respond(async |_| Response::new(Body::from("hello")))))
                    })
                    .await
            });
        }),
        ("it and this replica do not trust one another", |io| {
            tokio::spawn(async move {
                let settings = TunnelConfig::default();
                let (session, _leave) = tunnel::direct::accept(io, &settings);
                let answer = async |_| {
                    let holds = Response::builder().header("kas-peer", "v1 holds -");
                    holds.body(Body::from("give me the request")).unwrap()
                };
                session.run(|exchange| drop(tokio::spawn(exchange.respond(answer)))).await
            });
        }),
    ];
    for (expected, stranger) in strangers {
        let fleet = TestFleet::new(2);
        fleet.announce_peer(9, PeerBehaviour::Custom(stranger)).await;
        let answer = fleet.replicas[0].get(PATH).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let text = text(answer).await;
        assert!(text.contains(expected), "{text}");
        let _agent = fleet.agent(1, cluster("here")).await;
        for _ in 0..10 {
            assert_eq!(kas_testing::world::text(fleet.replicas[0].get(PATH).await).await, "here");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn draining_replica_is_no_owner_and_completes_its_requests() {
    let fleet = TestFleet::new(3);
    let _agent = fleet.agent(1, cluster("old")).await;
    // One watch in each tunnel of the agent.
    let mut watches = Vec::new();
    for _ in 0..2 {
        watches.push(fleet.replicas[0].get("/agents/prod/kubernetes/watch?watch=1").await.into_body());
        watches.last_mut().unwrap().frame().await.unwrap().unwrap();
    }
    let _second = fleet.agent(2, cluster("new")).await;

    let leaving = &fleet.replicas[1].kas;
    leaving.agents.connections.draining.cancel();
    while fleet.owners().await != [fleet.id(2)] {
        sleep(Duration::from_millis(1)).await;
    }
    let server = leaving.peer_server.clone();
    server.connections.drain();
    let left = tokio::spawn(async move { server.connections.tasks.wait().await });
    sleep(Duration::from_secs(6)).await;
    for _ in 0..10 {
        assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "new");
    }
    // Watches in flight stay open, and the drain ends with them.
    for watch in &mut watches {
        assert!(timeout(Duration::from_secs(60), watch.frame()).await.is_err());
    }
    assert!(!left.is_finished());
    drop(watches);
    timeout(Duration::from_secs(10), left).await.unwrap().unwrap();
}
