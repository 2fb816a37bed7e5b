//! Requests whose body does not end, or whose response does not begin, after the caller has lost its rights.

use std::{path::Path, time::Duration};

use access::kill_switch;
use agentk_core::Services;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kas_testing::{
    fleet::TestFleet,
    server,
    world::{World, endless},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

use crate::http1::{self, status};

/// The time until a change takes effect.
const BOUND: Duration = Duration::from_secs(3);

/// A way to end the requests of the caller, with the status and the reason that it gets.
type End = (&'static str, u16, &'static str);

const ENDS: [End; 4] = [
    ("kill switch by agent", 503, "disabled"),
    ("kill switch by caller", 503, "disabled"),
    ("revoked token", 403, "forbidden"),
    ("removed right", 403, "forbidden"),
];

fn disable(world: &World, rules: &str) {
    let rules = kill_switch::file::parse(Path::new("disabled.yaml"), rules).unwrap();
    world.kas.callers.kill_switch.set_file(rules);
}

fn end(world: &World, (how, ..): End) {
    match how {
        "kill switch by agent" => disable(world, "rules: [{agent: prod, reason: an incident}]"),
        "kill switch by caller" => disable(world, "rules: [{caller: me, reason: an incident}]"),
        "revoked token" => world.revoke_caller(),
        _ => world.set_caller_rights("services: [prometheus]"),
    }
}

/// An event of a request, as the cluster sees it.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Data,
    Complete,
    Aborted,
}

/// Reports the end of a request when it is dropped.
struct EndRecorder {
    complete: bool,
    seen: mpsc::UnboundedSender<Seen>,
}

impl EndRecorder {
    fn complete(mut self) {
        self.complete = true;
    }
}

impl Drop for EndRecorder {
    fn drop(&mut self) {
        let end = if self.complete { Seen::Complete } else { Seen::Aborted };
        let _ = self.seen.send(end);
    }
}

/// A cluster that answers a request when its body is complete. `/early` is answered before it, `/never` is not answered.
fn cluster() -> (Services, mpsc::UnboundedReceiver<Seen>) {
    let (seen, all) = mpsc::unbounded_channel();
    let services = Services::new().with_fn("kubernetes", move |request: Request<Body>| {
        let recorder = EndRecorder { complete: false, seen: seen.clone() };
        async move {
            let path = request.uri().path().to_owned();
            let mut body = request.into_body();
            if path == "/early" {
                body.frame().await;
                recorder.seen.send(Seen::Data).unwrap();
                // A length, so that the response is not one that may grow.
                let started = endless("12345").map_frame(move |frame| {
                    let _ = &recorder;
                    frame
                });
                return Response::builder().header("content-length", "10").body(Body::new(started)).unwrap();
            }
            while let Some(frame) = body.frame().await {
                if frame.is_err() {
                    return Response::new(Body::empty());
                }
                recorder.seen.send(Seen::Data).unwrap();
            }
            if path == "/never" {
                std::future::pending::<()>().await;
            }
            recorder.complete();
            Response::new(Body::from("applied"))
        }
    });
    (services, all)
}

/// Sends a POST on a new connection, and waits until the cluster has seen the begin of its body.
async fn post(
    world: &World,
    path: &str,
    rest: &str,
    seen: &mut mpsc::UnboundedReceiver<Seen>,
) -> DuplexStream {
    let mut caller = world.connect();
    let request = http1::head(world, "POST", &format!("/kubernetes{path}")) + rest;
    caller.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(timeout(BOUND, seen.recv()).await.unwrap(), Some(Seen::Data));
    caller
}

/// Checks the response, which the caller gets at once, although it goes on with its body.
async fn assert_refused(mut caller: DuplexStream, (how, expected, reason): End) {
    let head = timeout(BOUND, server::read_head(&mut caller)).await;
    let head = head.unwrap_or_else(|_| panic!("{how}: the request goes on"));
    let answer = head + &http1::read(&mut caller).await;
    assert_eq!(status(&answer), expected, "{how}: {answer}");
    assert!(answer.contains(&format!("kas-error: {reason}")), "{how}: {answer}");
    assert!(answer.contains("the request was cut before its response"), "{how}: {answer}");
    assert_eq!(answer.contains("an incident"), expected == 503, "{how}: {answer}");
}

/// Tries all ends of a request that `path` and `rest` begin. `caller` accepts it, and the agent is at another replica or not.
async fn assert_all_end(caller: &World, seen: &mut mpsc::UnboundedReceiver<Seen>, path: &str, rest: &str) {
    for how in ENDS {
        let sending = post(caller, path, rest, seen).await;
        end(caller, how);
        assert_refused(sending, how).await;
        assert_eq!(timeout(BOUND, seen.recv()).await.unwrap(), Some(Seen::Aborted), "{how:?} {path}");
        disable(caller, "rules: []");
        caller.set_caller_rights("services: ['*']");
        assert_eq!(caller.in_flight(), 0);
    }
}

const HALF: [&str; 2] =
    ["Content-Length: 10\r\n\r\nhalf!", "Transfer-Encoding: chunked\r\n\r\n5\r\nhalf!\r\n"];
const WHOLE: &str = "Content-Length: 5\r\n\r\nwhole";

#[tokio::test(start_paused = true)]
async fn attack_81_half_sent_body_ends_with_the_rights_of_its_caller() {
    let (world, (services, mut seen)) = (World::new(), cluster());
    let _agent = world.agent(services).await;
    for half in HALF {
        assert_all_end(&world, &mut seen, "/apply", half).await;
    }
}

#[tokio::test(start_paused = true)]
async fn attack_81_half_sent_body_ends_in_the_cluster_behind_another_replica() {
    let (fleet, (services, mut seen)) = (TestFleet::new(2), cluster());
    let _agent = fleet.agent(1, services).await;
    for half in HALF {
        assert_all_end(&fleet.replicas[0], &mut seen, "/apply", half).await;
    }
}

#[tokio::test(start_paused = true)]
async fn attack_81_awaited_response_ends_with_the_rights_of_its_caller() {
    let (world, (services, mut seen)) = (World::new(), cluster());
    let _agent = world.agent(services).await;
    assert_all_end(&world, &mut seen, "/never", WHOLE).await;
}

#[tokio::test(start_paused = true)]
async fn attack_81_short_response_with_an_unfinished_request_is_cut() {
    let (world, (services, mut seen)) = (World::new(), cluster());
    let _agent = world.agent(services).await;
    for how in ENDS {
        let mut caller = post(&world, "/early", HALF[0], &mut seen).await;
        let head = server::read_head(&mut caller).await;
        assert_eq!(status(&head), 200, "{head}");
        end(&world, how);
        let mut part = Vec::new();
        timeout(BOUND, caller.read_to_end(&mut part)).await.expect("the connection is closed").ok();
        assert_eq!(part, b"12345");
        assert_eq!(timeout(BOUND, seen.recv()).await.unwrap(), Some(Seen::Aborted), "{how:?}");
        disable(&world, "rules: []");
        world.set_caller_rights("services: ['*']");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_81_request_that_waits_for_its_agent_ends_with_the_rights_of_its_caller() {
    for how in ENDS {
        let world = World::with(|config| config.agent.tunnel.reconnect_wait = Duration::from_secs(60));
        let mut caller = world.connect();
        let request = http1::head(&world, "POST", "/kubernetes/apply") + WHOLE;
        caller.write_all(request.as_bytes()).await.unwrap();
        let mut first = [0];
        assert!(timeout(BOUND, caller.read(&mut first)).await.is_err(), "it waits");
        end(&world, how);
        assert_refused(caller, how).await;
    }
}

/// The last chunk arrives in the moment of the refusal: it is too late.
#[tokio::test(start_paused = true)]
async fn attack_81_body_that_is_completed_after_the_kill_switch_stays_aborted() {
    let (world, (services, mut seen)) = (World::new(), cluster());
    let _agent = world.agent(services).await;
    let mut caller = post(&world, "/apply", HALF[1], &mut seen).await;
    end(&world, ENDS[0]);
    sleep(Duration::from_millis(1)).await;
    caller.write_all(b"0\r\n\r\n").await.ok();
    assert_refused(caller, ENDS[0]).await;
    assert_eq!(timeout(BOUND, seen.recv()).await.unwrap(), Some(Seen::Aborted));
}

/// Sends chunks of this size each second. Returns the response, and the time that it took.
async fn trickle(world: &World, size: usize, chunks: usize) -> (String, Duration) {
    let (mut reader, mut writer) = tokio::io::split(world.connect());
    let head = http1::head(world, "POST", "/kubernetes/apply") + "Transfer-Encoding: chunked\r\n\r\n";
    let sending = async move {
        writer.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..chunks {
            let chunk = format!("{size:x}\r\n{}\r\n", "x".repeat(size));
            if writer.write_all(chunk.as_bytes()).await.is_err() {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
        writer.write_all(b"0\r\n\r\n").await.ok();
        std::future::pending().await
    };
    let started = Instant::now();
    let head = tokio::select! {
        head = server::read_head(&mut reader) => head,
        () = sending => String::new(),
    };
    (head, started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn attack_81_trickling_body_is_cut() {
    let fleet = TestFleet::new(2);
    let (services, mut seen) = cluster();
    let _agent = fleet.agent(1, services).await;
    for world in fleet.replicas.iter().rev() {
        let (answer, elapsed) = trickle(world, 1, 10_000).await;
        assert_eq!(status(&answer), 408, "{answer}");
        assert!(answer.contains("kas-error: body-timeout"), "{answer}");
        assert!(elapsed < Duration::from_secs(35), "{elapsed:?}");
        assert_eq!(world.limit_count("body-rate"), 1.0);
        while let Some(Seen::Data) = seen.recv().await {}
        assert_eq!(world.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn body_above_the_smallest_rate_and_slow_reader_of_the_body_are_not_cut() {
    let (world, (services, _seen)) = (World::new(), cluster());
    let _agent = world.agent(services).await;
    let (answer, elapsed) = trickle(&world, 300, 600).await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(elapsed >= Duration::from_secs(600));
    // A short body may be slow: the first seconds do not count.
    let (answer, _) = trickle(&world, 1, 25).await;
    assert_eq!(status(&answer), 200, "{answer}");

    // The time in which the cluster does not read is not that of the caller.
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        sleep(Duration::from_secs(250)).await;
        let length = request.into_body().collect().await.unwrap().to_bytes().len();
        Response::new(Body::from(length.to_string()))
    });
    let _agent = world.agent(services).await;
    let mut upload = world.request("/agents/prod/kubernetes/apply").map(|_| Body::from(vec_of(16 << 20)));
    *upload.method_mut() = http::Method::POST;
    let answer = kas_testing::world::text(world.send(upload).await).await;
    assert_eq!(answer, (16 << 20).to_string());
    assert_eq!(world.limit_count("body-rate"), 0.0);
}

fn vec_of(length: usize) -> bytes::Bytes {
    vec![7; length].into()
}
