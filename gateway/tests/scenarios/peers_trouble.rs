//! Replicas that are gone, slow, frozen, mistaken, strangers, or about to leave.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use agent::Services;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

use crate::{
    fleet::{End, Several, Stranger, secret},
    peers::{PATH, cluster},
    world::text,
};

#[tokio::test(start_paused = true)]
async fn an_owner_that_dies_in_the_middle_of_an_answer_is_no_clean_end() {
    let fleet = Several::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let mut watch = fleet.replicas[0].get("/agents/prod/kubernetes/watch?watch=1").await.into_body();
    watch.frame().await.unwrap().unwrap();
    fleet.kill(1).await;
    assert!(watch.frame().await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_stale_route_costs_a_question_and_nothing_else() {
    let fleet = Several::new(3);
    let _agent = fleet.agent(2, cluster("here")).await;
    fleet.claim(fleet.id(1)).await;
    for _ in 0..20 {
        let answer = fleet.replicas[0].get(PATH).await;
        assert_eq!((answer.status(), text(answer).await), (StatusCode::OK, "here".to_owned()));
    }
    // Side effects, too.
    for _ in 0..20 {
        let mut request = fleet.replicas[0].request(PATH).map(|_| Body::from("body"));
        *request.method_mut() = http::Method::POST;
        assert_eq!(text(fleet.replicas[0].send(request).await).await, "here");
    }
    assert!(fleet.replicas[0].metric("kas_peer_questions_total{result=\"absent\"}") >= 1.0);
    assert_eq!(fleet.replicas[0].metric("kas_peer_outliers_total"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_never_passed_on_twice() {
    let fleet = Several::new(2);
    // Each says of the other that it holds the agent; neither does.
    fleet.claim(fleet.id(0)).await;
    fleet.claim(fleet.id(1)).await;
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
async fn an_owner_is_killed_while_requests_flow() {
    let fleet = Several::new(3);
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

#[tokio::test(start_paused = true)]
async fn a_frozen_owner_holds_up_for_seconds_what_it_had_and_nothing_after_that() {
    let fleet = Several::new(3);
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
async fn when_every_owner_is_dead_the_answer_says_so() {
    let fleet = Several::new(3);
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
        assert!(text.contains(&format!("{id}: no connection to it")), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_owner_delays_a_request_by_a_moment_and_then_not_at_all() {
    let fleet = Several::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let silent = fleet.invent(9, End::Silence).await;
    let ask = async || {
        // Each asks anew: nobody has just answered.
        sleep(Duration::from_millis(1500)).await;
        let started = Instant::now();
        assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "here");
        started.elapsed()
    };
    let mut delays = Vec::new();
    for _ in 0..20 {
        delays.push(ask().await);
    }
    assert!(delays.iter().all(|delay| *delay < Duration::from_millis(30)), "{delays:?}");
    let delayed = delays.iter().filter(|delay| **delay >= Duration::from_millis(10)).count();
    assert!((1..10).contains(&delayed), "passed over in most cases: {delays:?}");
    assert!(fleet.replicas[0].metric("kas_peer_hedges_total") >= 1.0);
    assert!(fleet.replicas[0].metric("kas_peer_questions_total{result=\"silent\"}") >= 1.0);
    assert!(fleet.owners().await.contains(&silent));
}

#[tokio::test(start_paused = true)]
async fn one_of_two_owners_gets_a_request_with_effects() {
    let fleet = Several::new(3);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = |count: &Arc<AtomicUsize>| {
        let count = count.clone();
        Services::new().with_fn("kubernetes", move |_: Request<Body>| {
            count.fetch_add(1, Relaxed);
            async {
                // Longer than anybody waits before another owner is asked.
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
async fn a_replica_with_another_secret_is_given_nothing() {
    for secrets in [[Some(secret(1)), Some(secret(2))], [Some(secret(1)), None], [None, Some(secret(1))]] {
        let fleet = Several::knowing(&secrets, |_| {});
        let _agent = fleet.agent(1, cluster("here")).await;
        let answer = fleet.replicas[0].get(PATH).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{secrets:?}");
        let text = text(answer).await;
        assert!(text.contains("different secrets"), "{text}");
        assert_eq!(fleet.replicas[1].metric("kas_peer_served_total{result=\"passed\"}"), 0.0);
        assert_eq!(fleet.replicas[0].metric("kas_peer_questions_total{result=\"untrusted\"}"), 1.0);
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_at_an_address_is_told_and_passed_over() {
    let strangers: [(&str, Stranger); 3] = [
        ("it does not answer as a kas", |mut io| {
            tokio::spawn(async move {
                let _ = io.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
                let _ = io.read_to_end(&mut Vec::new()).await;
            });
        }),
        ("it does not answer as a kas", |io| {
            tokio::spawn(async move {
                let settings = tunnel::Settings::default();
                let (session, _leave) = tunnel::direct::accept(io, &settings);
                session
                    .run(|exchange| {
                        drop(tokio::spawn(exchange.answer(async |_| Response::new(Body::from("hello")))))
                    })
                    .await
            });
        }),
        ("it and this replica do not trust one another", |io| {
            tokio::spawn(async move {
                let settings = tunnel::Settings::default();
                let (session, _leave) = tunnel::direct::accept(io, &settings);
                let answer = async |_| {
                    let holds = Response::builder().header("kas-peer", "v1 holds -");
                    holds.body(Body::from("give me the request")).unwrap()
                };
                session.run(|exchange| drop(tokio::spawn(exchange.answer(answer)))).await
            });
        }),
    ];
    for (expected, stranger) in strangers {
        let fleet = Several::new(2);
        fleet.invent(9, End::Stranger(stranger)).await;
        let answer = fleet.replicas[0].get(PATH).await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let text = text(answer).await;
        assert!(text.contains(expected), "{text}");
        let _agent = fleet.agent(1, cluster("here")).await;
        for _ in 0..10 {
            assert_eq!(crate::world::text(fleet.replicas[0].get(PATH).await).await, "here");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_leaves_is_an_owner_no_more_while_it_finishes_what_it_has() {
    let fleet = Several::new(3);
    let _agent = fleet.agent(1, cluster("old")).await;
    // One in each of its tunnels.
    let mut watches = Vec::new();
    for _ in 0..2 {
        watches.push(fleet.replicas[0].get("/agents/prod/kubernetes/watch?watch=1").await.into_body());
        watches.last_mut().unwrap().frame().await.unwrap().unwrap();
    }
    let _second = fleet.agent(2, cluster("new")).await;

    let leaving = &fleet.replicas[1].kas;
    leaving.agents.leaving.cancel();
    while fleet.owners().await != [fleet.id(2)] {
        sleep(Duration::from_millis(1)).await;
    }
    let host = leaving.host.clone();
    host.connections.drain();
    let left = tokio::spawn(async move { host.connections.tasks.wait().await });
    sleep(Duration::from_secs(6)).await;
    for _ in 0..10 {
        assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "new");
    }
    // What was in flight is finished, and nothing else is waited for.
    for watch in &mut watches {
        assert!(timeout(Duration::from_secs(60), watch.frame()).await.is_err());
    }
    assert!(!left.is_finished());
    drop(watches);
    timeout(Duration::from_secs(10), left).await.unwrap().unwrap();
}
