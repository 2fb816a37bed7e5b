//! Webhooks: receivers of events outside of kas. The connections are TCP on this machine, in real time.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use gateway::config::EventsConfig;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kas_events::webhooks::Webhook;
use kas_testing::{fleet::TestFleet, world::World};
use parking_lot::Mutex;
use proto::{
    AgentId,
    events::{Event, EventAgent, EventContent, EventKind, Severity},
};
use serde_json::Value;
use sha2::Sha256;
use store::NewEvent;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// The time after which a wait fails the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The key of receivers.
pub(crate) const KEY: [u8; 32] = [7; 32];

/// A request that a receiver got.
pub(crate) struct Delivery {
    head: HeaderMap,
    body: Bytes,
}

/// A receiver of webhooks.
pub(crate) struct Receiver {
    address: SocketAddr,
    deliveries: UnboundedReceiver<Delivery>,
    _task: AbortOnDropHandle<()>,
}

impl Delivery {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.head[name].to_str().unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn message(&self) -> String {
        self.json()["data"]["message"].as_str().unwrap().to_owned()
    }

    /// Checks the signature as a receiver does that knows nothing of kas.
    pub(crate) fn verify(&self, key: &[u8]) {
        let signed = [self.header("webhook-id"), ".", self.header("webhook-timestamp"), "."].concat();
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(signed.as_bytes());
        mac.update(&self.body);
        let expected = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
        let signatures: Vec<&str> = self.header("webhook-signature").split(' ').collect();
        assert!(signatures.contains(&&*expected), "{signatures:?}");
        let sent: u64 = self.header("webhook-timestamp").parse().unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(sent) < 60);
    }
}

impl Receiver {
    /// Starts a receiver that gives these answers, and 204 afterwards. It answers alerts as GitLab does.
    pub(crate) async fn start(answers: Vec<Response<Full<Bytes>>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, deliveries) = unbounded_channel();
        let answers = Arc::new(Mutex::new(answers.into_iter()));
        let open: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let task = tokio::spawn(async move {
            loop {
                let (io, _) = listener.accept().await.unwrap();
                let (sender, answers, open) = (sender.clone(), Arc::clone(&answers), Arc::clone(&open));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (sender, answers, open) = (sender.clone(), Arc::clone(&answers), Arc::clone(&open));
                    async move {
                        assert_eq!(request.method(), Method::POST);
                        let (head, body) = request.into_parts();
                        // A process that is killed may cut the body.
                        let mut of_gitlab = None;
                        if let Ok(body) = body.collect().await {
                            let body = body.to_bytes();
                            of_gitlab = answer_of_gitlab(&open, &body);
                            let _ = sender.send(Delivery { head: head.headers, body });
                        }
                        if let Some(answer) = of_gitlab {
                            return Ok(answer);
                        }
                        let none = || Response::builder().status(204).body(Full::default()).unwrap();
                        Ok::<_, Infallible>(answers.lock().next().unwrap_or_else(none))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(io), service));
            }
        });
        Self { address, deliveries, _task: AbortOnDropHandle::new(task) }
    }

    pub(crate) async fn next(&mut self) -> Delivery {
        timeout(PATIENCE, self.deliveries.recv()).await.expect("a delivery").unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook?token=secret", self.address)
    }
}

fn answer(status: u16) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::default()).unwrap()
}

/// Returns the answer of GitLab to an alert: 400 to the end of one that is not open. Other bodies have none.
fn answer_of_gitlab(open: &Mutex<BTreeSet<String>>, body: &[u8]) -> Option<Response<Full<Bytes>>> {
    let alert: Value = serde_json::from_slice(body).ok()?;
    let fingerprint = alert["fingerprint"].as_str()?;
    let is_valid = if alert.get("end_time").is_some() {
        open.lock().remove(fingerprint)
    } else {
        open.lock().insert(fingerprint.to_owned());
        true
    };
    Some(answer(if is_valid { 200 } else { 400 }))
}

/// The webhooks of a configuration. `$KEY` is a file with the key.
fn webhooks(directory: &Path, text: &str) -> Result<Vec<Webhook>, String> {
    let key = directory.join("key");
    std::fs::write(&key, BASE64_STANDARD.encode(KEY)).unwrap();
    let text = text.replace("$KEY", &key.display().to_string());
    let file = Path::new("kas.yaml");
    let config: EventsConfig = settings::parse(file, &text).map_err(|error| error.to_string())?;
    Webhook::read(file, &config).map_err(|error| error.to_string())
}

/// A webhook with the name `ops` that may connect to this machine.
pub(crate) fn local(directory: &Path, url: &str, keys: &str) -> Webhook {
    let entry =
        format!("{{name: ops, url: '{url}', secret_file: $KEY, allowed_networks: [127.0.0.0/8]{keys}}}");
    webhooks(directory, &format!("webhooks: [{entry}]")).unwrap().remove(0)
}

pub(crate) fn run(world: &World, webhook: &Webhook) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(webhook.clone().run(world.kas.webhook_context())))
}

async fn append(world: &World, kind: EventKind, message: &str) {
    append_as(world, kind, Severity::Warning, message).await;
}

async fn append_as(world: &World, kind: EventKind, severity: Severity, message: &str) {
    let agent =
        EventAgent { id: AgentId(1), name: "prod".parse().unwrap(), project_id: None, project_path: None };
    let content = EventContent::new(kind, severity, message);
    let event = Event { time: SystemTime::now(), agent: Some(agent), content };
    world.kas.events.append(vec![NewEvent::new(message, event)]).await.unwrap();
}

/// Waits until a webhook is delivered to by one of the replicas. A new one begins after the events that are there.
pub(crate) async fn active(worlds: &[World]) {
    let until = Instant::now() + PATIENCE;
    while !worlds.iter().any(is_active) {
        assert!(Instant::now() < until, "no replica delivers");
        sleep(Duration::from_millis(5)).await;
    }
}

fn is_active(world: &World) -> bool {
    let metric = "kas_webhook_active{webhook=\"ops\"}";
    world.has_metric(metric) && world.metric(metric) == 1.0
}

fn deliveries(world: &World, result: &str) -> f64 {
    let metric = format!("kas_webhook_deliveries_total{{webhook=\"ops\",result=\"{result}\"}}");
    if world.has_metric(&metric) { world.metric(&metric) } else { 0.0 }
}

#[tokio::test]
async fn each_event_is_delivered_once_by_one_replica_with_a_signature() {
    let (directory, fleet, mut receiver) =
        (tempfile::tempdir().unwrap(), TestFleet::new(2), Receiver::start(vec![]).await);
    append(&fleet.replicas[0], EventKind::Sync, "before the webhook").await;
    let webhook = local(directory.path(), &receiver.url(), ", kinds: [sync, drift]");
    let _running: Vec<_> = fleet.replicas.iter().map(|world| run(world, &webhook)).collect();
    active(&fleet.replicas).await;
    for number in 0..20 {
        append(&fleet.replicas[number % 2], EventKind::Sync, &number.to_string()).await;
        append(&fleet.replicas[number % 2], EventKind::Alert, &format!("not selected {number}")).await;
    }
    let mut ids = BTreeSet::new();
    for number in 0..20 {
        let delivery = receiver.next().await;
        delivery.verify(&KEY);
        assert_eq!(delivery.message(), number.to_string());
        let json = delivery.json();
        assert_eq!((&json["type"], &json["data"]["agent"]["name"]), (&"kas.sync".into(), &"prod".into()));
        assert_eq!(json["data"]["id"], delivery.header("webhook-id"));
        assert_eq!(delivery.header("content-type"), "application/json");
        assert!(ids.insert(delivery.header("webhook-id").to_owned()));
    }
    append(&fleet.replicas[0], EventKind::Drift, "last").await;
    assert_eq!(receiver.next().await.message(), "last", "nothing was delivered twice");
    assert_eq!(fleet.replicas.iter().filter(|world| is_active(world)).count(), 1);
}

#[tokio::test]
async fn alert_of_gitlab_begins_and_ends_with_the_authorization_key() {
    let directory = tempfile::tempdir().unwrap();
    let (world, mut gitlab) = (World::new(), Receiver::start(vec![]).await);
    let key = directory.path().join("authorization-key");
    std::fs::write(&key, "0123456789abcdef\n").unwrap();
    let keys = format!(
        ", format: gitlab_alert, token_file: {}, kinds: [agent-disconnected], severity: warning",
        key.display()
    );
    let webhook = local(directory.path(), &gitlab.url(), &keys);
    let _running = run(&world, &webhook);
    active(std::slice::from_ref(&world)).await;
    append(&world, EventKind::Sync, "not selected").await;
    append_as(&world, EventKind::AgentConnected, Severity::Info, "no alert is open").await;
    append(&world, EventKind::AgentDisconnected, "no tunnel").await;
    append_as(&world, EventKind::AgentConnected, Severity::Info, "2 tunnels").await;

    let refused = gitlab.next().await.json();
    assert!(refused["end_time"].is_string(), "GitLab answers 400 to {refused}");
    let begin = gitlab.next().await;
    assert_eq!(begin.header("authorization"), "Bearer 0123456789abcdef");
    let begin = begin.json();
    assert_eq!(begin["title"], "prod: agent-disconnected: no tunnel");
    assert_eq!((&begin["severity"], &begin["hosts"]), (&"medium".into(), &"prod".into()));
    assert!(begin.get("end_time").is_none());
    let end = gitlab.next().await.json();
    assert!(end["end_time"].is_string(), "{end}");
    assert_eq!(end["fingerprint"], begin["fingerprint"]);
    assert_eq!(refused["fingerprint"], begin["fingerprint"]);
    assert_eq!(deliveries(&world, "failed"), 0.0, "the end that GitLab refused is not sent again");
}

#[tokio::test]
async fn receiver_that_fails_gets_the_event_again_and_the_next_one_later() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new();
    let mut receiver = Receiver::start(vec![answer(500), answer(404), answer(200), answer(410)]).await;
    let webhook = local(directory.path(), &receiver.url(), "");
    append(&world, EventKind::Sync, "before").await;
    let _running = run(&world, &webhook);
    active(std::slice::from_ref(&world)).await;
    append(&world, EventKind::Sync, "a").await;
    append(&world, EventKind::Sync, "gone").await;
    append(&world, EventKind::Sync, "b").await;
    let mut attempts = Vec::new();
    for _ in 0..5 {
        let delivery = receiver.next().await;
        delivery.verify(&KEY);
        attempts.push((delivery.header("webhook-id").to_owned(), delivery.message()));
    }
    let messages: Vec<&str> = attempts.iter().map(|(_, message)| &**message).collect();
    assert_eq!(messages, ["a", "a", "a", "gone", "b"]);
    assert!(attempts[0].0 == attempts[1].0 && attempts[1].0 == attempts[2].0, "the id stays");
    let until = Instant::now() + PATIENCE;
    while deliveries(&world, "delivered") < 2.0 {
        assert!(Instant::now() < until);
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((deliveries(&world, "failed"), deliveries(&world, "gone")), (2.0, 1.0));
}

#[tokio::test]
async fn redirect_is_never_followed() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new();
    let mut other = Receiver::start(vec![]).await;
    let redirects = [301, 302, 307, 308].map(|status| {
        let location = format!("http://{}/", other.address);
        Response::builder().status(status).header("location", location).body(Full::default()).unwrap()
    });
    let mut receiver = Receiver::start(redirects.into_iter().take(2).collect()).await;
    let webhook = local(directory.path(), &receiver.url(), "");
    append(&world, EventKind::Sync, "before").await;
    let _running = run(&world, &webhook);
    active(std::slice::from_ref(&world)).await;
    append(&world, EventKind::Sync, "a").await;
    for _ in 0..3 {
        assert_eq!(receiver.next().await.message(), "a");
    }
    assert!(other.deliveries.try_recv().is_err(), "nothing was sent elsewhere");
}

#[tokio::test]
async fn addresses_that_are_not_named_get_no_connection() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new();
    for (url, networks) in [
        ("https://169.254.169.254/latest/meta-data", ""),
        ("https://[fe80::1]/", ""),
        ("https://127.0.0.1/", ""),
        ("https://192.168.0.1/", ""),
        ("http://169.254.169.254/", ", allowed_networks: [0.0.0.0/0]"),
    ] {
        let text = format!("webhooks: [{{name: ops, url: '{url}', secret_file: $KEY{networks}}}]");
        let error = webhooks(directory.path(), &text).unwrap_err();
        assert!(error.starts_with("kas.yaml:1:") && error.contains("events.webhooks[0].url"), "{error}");
    }

    // The name passes the check of the configuration, and its address is checked when kas connects.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for (url, networks) in [
        (format!("https://localhost:{port}/"), ""),
        (format!("http://localhost:{port}/"), ", allowed_networks: [10.0.0.0/8]"),
    ] {
        let text = format!("webhooks: [{{name: ops, url: '{url}', secret_file: $KEY{networks}}}]");
        let webhook = webhooks(directory.path(), &text).unwrap().remove(0);
        let before = deliveries(&world, "failed");
        append(&world, EventKind::Sync, &format!("before {url}")).await;
        let _running = run(&world, &webhook);
        active(std::slice::from_ref(&world)).await;
        append(&world, EventKind::Sync, &format!("for {url}")).await;
        let until = Instant::now() + PATIENCE;
        while deliveries(&world, "failed") <= before {
            assert!(Instant::now() < until, "an attempt has failed");
            sleep(Duration::from_millis(5)).await;
        }
        let accepted = timeout(Duration::from_millis(100), listener.accept()).await;
        assert!(accepted.is_err(), "kas has connected to {url}");
    }
}

#[tokio::test]
async fn receiver_that_resets_or_never_answers_does_not_stop_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut good = Receiver::start(vec![]).await;
    let text = format!(
        "webhooks:\n\
         - {{name: ops, url: 'http://{address}/', secret_file: $KEY, allowed_networks: [127.0.0.0/8]}}\n\
         - {{name: good, url: '{}', secret_file: $KEY, allowed_networks: [127.0.0.0/8]}}\n",
        good.url()
    );
    let hooks = webhooks(directory.path(), &text).unwrap();
    append(&world, EventKind::Sync, "before").await;
    let _running: Vec<_> = hooks.iter().map(|webhook| run(&world, webhook)).collect();
    active(std::slice::from_ref(&world)).await;
    while world.metric("kas_webhook_active{webhook=\"good\"}") != 1.0 {
        sleep(Duration::from_millis(5)).await;
    }
    append(&world, EventKind::Sync, "a").await;
    append(&world, EventKind::Sync, "b").await;
    // The first connection is reset while the request arrives.
    let (io, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    io.set_zero_linger().unwrap();
    drop(io);
    // The second one is read and never answered.
    let (mut io, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let mut read = vec![0; 4096];
    assert!(io.read(&mut read).await.unwrap() > 0);
    assert_eq!(good.next().await.message(), "a");
    assert_eq!(good.next().await.message(), "b");
    // kas gives up the silent connection, and tries again.
    let (mut third, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let length = third.read(&mut read).await.unwrap();
    assert!(String::from_utf8_lossy(&read[..length]).contains("webhook-id"));
    assert_eq!(deliveries(&world, "failed"), 2.0);
}

#[tokio::test]
async fn answer_whose_body_does_not_end_is_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let webhook = local(directory.path(), &format!("http://{}/", listener.local_addr().unwrap()), "");
    append(&world, EventKind::Sync, "before").await;
    let _running = run(&world, &webhook);
    active(std::slice::from_ref(&world)).await;
    append(&world, EventKind::Sync, "first").await;
    append(&world, EventKind::Sync, "second").await;
    let mut open = Vec::new();
    for message in ["first", "second"] {
        let (mut io, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
        let mut request = Vec::new();
        while !String::from_utf8_lossy(&request).contains(message) {
            assert_ne!(timeout(PATIENCE, io.read_buf(&mut request)).await.unwrap().unwrap(), 0, "{message}");
        }
        io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nnot all of it").await.unwrap();
        open.push(io);
    }
    assert_eq!((deliveries(&world, "delivered"), deliveries(&world, "failed")), (1.0, 0.0));
}

#[tokio::test]
async fn nothing_is_lost_when_the_delivering_task_is_killed_at_random_points() {
    let directory = tempfile::tempdir().unwrap();
    let fleet = TestFleet::new(2);
    let mut receiver = Receiver::start(vec![]).await;
    let webhook = local(directory.path(), &receiver.url(), "");
    append(&fleet.replicas[0], EventKind::Sync, "before").await;
    let mut running = run(&fleet.replicas[0], &webhook);
    active(&fleet.replicas).await;
    for number in 0..200 {
        append(&fleet.replicas[number % 2], EventKind::Sync, &format!("{number:03}")).await;
        if number % 10 == 9 {
            sleep(Duration::from_micros(rand::random_range(0..4000))).await;
            // The claim stays that of the replica, as after a crash and a quick restart with the same id.
            drop(running);
            running = run(&fleet.replicas[0], &webhook);
        }
    }
    // Another replica goes on once the claim has ended.
    drop(running);
    let _other = run(&fleet.replicas[1], &webhook);
    append(&fleet.replicas[1], EventKind::Sync, "last").await;
    let (mut received, mut ids) = (Vec::new(), BTreeSet::new());
    loop {
        let delivery = receiver.next().await;
        let message = delivery.message();
        if ids.insert(delivery.header("webhook-id").to_owned()) {
            received.push(message.clone());
        } else {
            assert_eq!(received.last(), Some(&message), "only the event in flight is delivered again");
        }
        if message == "last" {
            break;
        }
    }
    let mut expected: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    expected.push("last".to_owned());
    assert_eq!(received, expected);
}

#[tokio::test]
async fn replica_that_stops_hands_the_webhook_over_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let fleet = TestFleet::new(2);
    let mut receiver = Receiver::start(vec![]).await;
    let webhook = local(directory.path(), &receiver.url(), "");
    append(&fleet.replicas[0], EventKind::Sync, "before").await;
    let first = run(&fleet.replicas[0], &webhook);
    active(&fleet.replicas).await;
    append(&fleet.replicas[0], EventKind::Sync, "a").await;
    assert_eq!(receiver.next().await.message(), "a");
    fleet.replicas[0].kas.agents.connections.draining.cancel();
    first.await.unwrap();
    let (start, _second) = (Instant::now(), run(&fleet.replicas[1], &webhook));
    append(&fleet.replicas[1], EventKind::Sync, "b").await;
    assert_eq!(receiver.next().await.message(), "b");
    assert!(start.elapsed() < Duration::from_secs(8), "the claim did not have to end by itself");
}

#[tokio::test]
async fn url_and_key_are_read_for_each_delivery() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new();
    let (mut first, mut second) = (Receiver::start(vec![]).await, Receiver::start(vec![]).await);
    let url = directory.path().join("url");
    std::fs::write(&url, first.url()).unwrap();
    let text = format!(
        "webhooks: [{{name: ops, url_file: {}, secret_file: $KEY, format: json, allowed_networks: [127.0.0.0/8]}}]",
        url.display()
    );
    let webhook = webhooks(directory.path(), &text).unwrap().remove(0);
    append(&world, EventKind::Sync, "before").await;
    let _running = run(&world, &webhook);
    active(std::slice::from_ref(&world)).await;
    append(&world, EventKind::Sync, "a").await;
    first.next().await.verify(&KEY);
    std::fs::write(&url, format!("{}\n", second.url())).unwrap();
    let keys = format!("{}\n{}\n", BASE64_STANDARD.encode([8; 32]), BASE64_STANDARD.encode(KEY));
    std::fs::write(directory.path().join("key"), keys).unwrap();
    append(&world, EventKind::Sync, "b").await;
    let delivery = second.next().await;
    delivery.verify(&KEY);
    delivery.verify(&[8; 32]);
    assert_eq!(StatusCode::NO_CONTENT, 204);
}
