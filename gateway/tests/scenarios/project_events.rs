//! Events of Git projects: from GitLab, programs and repositories to the agents whose configuration names the project.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    time::Duration,
};

use access::kill_switch::file;
use agentk_core::Services;
use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use kas_testing::{
    fleet::TestFleet,
    internal_api::{send, valid_request},
    world::{RunningAgent, World, parse, text},
};
use parking_lot::Mutex;
use proto::notify::{ProjectEvent, Subscription};
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use tunnel::Body;

use crate::set_configuration::Configuration;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CONFIGURATION: &str = "notify: {projects: [{id: group/shop}]}";

/// A pod of agentk that notes the events.
#[derive(Clone)]
pub(crate) struct Pod {
    /// The projects that it wants, and the generation.
    wanted: watch::Sender<(Vec<&'static str>, u64)>,
    pub(crate) events: Arc<Mutex<Vec<ProjectEvent>>>,
    /// The status of the responses to events.
    status: Arc<AtomicU16>,
}

impl Pod {
    pub(crate) fn new(wanted: &[&'static str]) -> Self {
        Self {
            wanted: watch::Sender::new((wanted.to_vec(), 0)),
            events: Arc::default(),
            status: Arc::new(AtomicU16::new(204)),
        }
    }

    pub(crate) fn services(&self) -> Services {
        let services = self.add_to(Services::new());
        services.with_fn("configuration", async |_: Request<Body>| Response::new(Body::empty()))
    }

    /// Adds the service for events.
    pub(crate) fn add_to(&self, services: Services) -> Services {
        let pod = self.clone();
        services.with_fn("notify", move |request: Request<Body>| {
            let pod = pod.clone();
            async move { pod.respond(request).await }
        })
    }

    async fn respond(&self, request: Request<Body>) -> Response<Body> {
        if request.method() == Method::GET {
            assert!(request.uri().to_string().starts_with("/v1/subscription?agent="));
            return self.subscribe();
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let status = self.status.load(Relaxed);
        if status == 204 {
            self.events.lock().push(serde_json::from_slice(&body).unwrap());
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status.try_into().unwrap();
        response
    }

    /// Sends the wanted projects, each time that they change, and after each period.
    fn subscribe(&self) -> Response<Body> {
        let lines = stream::unfold((self.wanted.subscribe(), true), async |(mut wanted, first)| {
            if !first {
                tokio::select! {
                    changed = wanted.changed() => changed.unwrap(),
                    () = sleep(Duration::from_secs(15)) => {}
                }
            }
            let (projects, generation) = wanted.borrow_and_update().clone();
            let projects = projects.into_iter().map(str::to_owned).collect();
            let line = serde_json::to_string(&Subscription { projects, generation }).unwrap() + "\n";
            Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from(line))), (wanted, false)))
        });
        Response::new(Body::new(StreamBody::new(Box::pin(lines))))
    }

    /// Returns the ids of the events that have arrived.
    pub(crate) async fn ids(&self) -> Vec<String> {
        sleep(Duration::from_secs(1)).await;
        self.events.lock().iter().map(|event| event.id().to_owned()).collect()
    }
}

pub(crate) fn configure(world: &World, configuration: &str) -> Configuration {
    let source = Configuration::default();
    source.set(configuration);
    world.kas.agents.configuration.add_source(Arc::new(source.clone()));
    world
        .kas
        .features
        .background_tasks(&world.kas.agents)
        .into_iter()
        .for_each(|task| drop(tokio::spawn(task)));
    source
}

async fn connected(world: &World, pod: &Pod) -> RunningAgent {
    let agent = world.agent(pod.services()).await;
    sleep(Duration::from_secs(20)).await;
    agent
}

/// Reports an event, and returns the status and the body of the response.
pub(crate) async fn report(world: &World, event: &Value) -> (u16, String) {
    let mut request = valid_request("/api/v1/events").map(|_| Body::from(event.to_string()));
    *request.method_mut() = Method::POST;
    let response = send(world, request).await;
    (response.status().as_u16(), text(response).await)
}

pub(crate) fn event(id: &str) -> Value {
    json!({"id": id, "project": "group/shop", "ref": "refs/heads/main", "after": COMMIT})
}

#[tokio::test(start_paused = true)]
async fn event_reaches_the_agent_through_another_replica() {
    let fleet = TestFleet::new(2);
    let pod = Pod::new(&["group/shop"]);
    let _configuration = configure(&fleet.replicas[0], CONFIGURATION);
    let _agent = fleet.agent(0, pod.services()).await;
    sleep(Duration::from_secs(20)).await;
    let (status, body) = report(&fleet.replicas[1], &event("e-1")).await;
    assert_eq!((status, body.as_str()), (201, "{\"id\":\"e-1\",\"known\":false}\n"));
    assert_eq!(pod.ids().await, ["e-1"], "through one of its tunnels");
    let (status, body) = report(&fleet.replicas[0], &event("e-1")).await;
    assert_eq!((status, body.as_str()), (200, "{\"id\":\"e-1\",\"known\":true}\n"));
    assert_eq!(pod.ids().await, ["e-1"]);
    report(&fleet.replicas[1], &event("e-2")).await;
    assert_eq!(pod.ids().await, ["e-1", "e-2"]);
}

#[tokio::test(start_paused = true)]
async fn agent_that_was_away_receives_the_latest_event_once() {
    let (world, pod) = (World::new(), Pod::new(&["group/shop"]));
    let _configuration = configure(&world, CONFIGURATION);
    connected(&world, &pod).await.stop().await;
    for id in ["e-1", "e-2", "e-3"] {
        assert_eq!(report(&world, &event(id)).await.0, 201);
    }
    sleep(Duration::from_secs(86_400)).await;
    assert!(pod.events.lock().is_empty());
    let _agent = connected(&world, &pod).await;
    assert_eq!(pod.ids().await, ["e-3"]);
}

#[tokio::test(start_paused = true)]
async fn pod_that_leads_receives_the_events_and_other_pods_none() {
    let (world, pod) = (World::new(), Pod::new(&[]));
    let _configuration = configure(&world, CONFIGURATION);
    let _agent = connected(&world, &pod).await;
    // No agent has named the project yet.
    assert_eq!(report(&world, &event("e-1")).await.0, 404);
    pod.wanted.send_replace((vec!["group/shop"], 0));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(report(&world, &event("e-1")).await.0, 201);
    assert!(!pod.ids().await.is_empty());
    pod.wanted.send_replace((vec![], 0));
    sleep(Duration::from_secs(1)).await;
    pod.events.lock().clear();
    assert_eq!(report(&world, &event("e-2")).await.0, 201);
    assert!(pod.ids().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn pod_that_may_have_lost_an_event_receives_it_again() {
    let (world, pod) = (World::new(), Pod::new(&["group/shop"]));
    let _configuration = configure(&world, CONFIGURATION);
    let _agent = connected(&world, &pod).await;
    report(&world, &event("e-1")).await;
    let before = pod.ids().await.len();
    pod.wanted.send_replace((vec!["group/shop"], 1));
    assert_eq!(pod.ids().await.len(), 2 * before);
    // A line that only shows that the pod is alive changes nothing.
    sleep(Duration::from_secs(60)).await;
    assert_eq!(pod.ids().await.len(), 2 * before);
}

#[tokio::test(start_paused = true)]
async fn event_that_agentk_refuses_is_sent_again() {
    let (world, pod) = (World::new(), Pod::new(&["group/shop"]));
    let _configuration = configure(&world, CONFIGURATION);
    let _agent = connected(&world, &pod).await;
    pod.status.store(500, Relaxed);
    report(&world, &event("e-1")).await;
    sleep(Duration::from_secs(30)).await;
    assert!(pod.events.lock().is_empty());
    pod.status.store(204, Relaxed);
    sleep(Duration::from_secs(60)).await;
    assert!(pod.ids().await.iter().all(|id| id == "e-1"));
    assert!(!pod.events.lock().is_empty());
    assert!(world.metric("kas_project_event_deliveries_total{result=\"failed\"}") > 0.0);
}

#[tokio::test(start_paused = true)]
async fn agent_of_the_identity_file_receives_its_events_also_if_it_has_a_project_of_gitlab() {
    let (world, pod) = (World::new(), Pod::new(&["group/shop"]));
    let text = world.identity_file("services: ['*']").replace("name: prod,", "name: prod, project_id: 7,");
    world.kas.identities.replace(parse(&text));
    let _configuration = configure(&world, CONFIGURATION);
    let _agent = connected(&world, &pod).await;
    assert_eq!(report(&world, &event("e-1")).await.0, 201);
    assert_eq!(pod.ids().await, ["e-1"]);
}

#[tokio::test(start_paused = true)]
async fn agent_receives_no_events_of_projects_beyond_its_configuration() {
    let (world, pod) = (World::new(), Pod::new(&["group/shop", "group/secret"]));
    let _configuration = configure(&world, "notify: {projects: [{id: group/shop}]}\nflux: {}");
    let _agent = connected(&world, &pod).await;
    let mut secret = event("e-1");
    secret["project"] = "group/secret".into();
    assert_eq!(report(&world, &secret).await.0, 404, "no agent that may read the project has named it");
    assert_eq!(report(&world, &event("e-2")).await.0, 201);
    assert!(pod.ids().await.iter().all(|id| id == "e-2"));
}

#[tokio::test(start_paused = true)]
async fn kill_switch_keeps_events_until_it_is_off() {
    let (world, pod) = (World::new(), Pod::new(&["group/shop"]));
    let _configuration = configure(&world, CONFIGURATION);
    let _agent = connected(&world, &pod).await;
    let rules = "rules: [{service: notify, reason: maintenance}]";
    let rules = file::parse(std::path::Path::new("disabled.yaml"), rules).unwrap();
    world.kas.callers.kill_switch.set_file(rules);
    report(&world, &event("e-1")).await;
    report(&world, &event("e-2")).await;
    assert!(pod.ids().await.is_empty());
    world.kas.callers.kill_switch.set_file(Vec::new());
    let ids = pod.ids().await;
    assert_eq!(ids.last().map(String::as_str), Some("e-2"), "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn revoked_agent_receives_no_further_event() {
    let (world, pod) = (World::new(), Pod::new(&["group/shop"]));
    let _configuration = configure(&world, CONFIGURATION);
    let _agent = connected(&world, &pod).await;
    world.revoke();
    sleep(Duration::from_secs(5)).await;
    report(&world, &event("e-1")).await;
    assert!(pod.ids().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn hostile_subscription_ends_and_harms_no_other_service() {
    for line in ["not json\n".to_owned(), "{\"projects\": [\"a b\"]}\n".to_owned(), "x".repeat(5 << 20)] {
        let (world, streams) = (World::new(), Arc::<AtomicU16>::default());
        let _configuration = configure(&world, CONFIGURATION);
        let counted = Arc::clone(&streams);
        let services = Services::new()
            .with_fn("notify", move |_: Request<Body>| {
                counted.fetch_add(1, Relaxed);
                let line = line.clone();
                async move { Response::new(Body::from(line)) }
            })
            .with_fn("configuration", async |_: Request<Body>| Response::new(Body::empty()))
            .with_fn("kubernetes", async |_: Request<Body>| Response::new(Body::from("fine")));
        let _agent = world.agent(services).await;
        sleep(Duration::from_secs(600)).await;
        let opened = streams.load(Relaxed);
        assert!((2..100).contains(&opened), "it is tried again, less and less often: {opened}");
        assert_eq!(text(world.get("/agents/prod/kubernetes/api").await).await, "fine");
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_event_is_refused_with_its_reason() {
    let world = World::new();
    for (event, expected) in [
        (json!({"project": "a b"}), "project is invalid"),
        (json!({"project": "a/b", "ref": "main"}), "ref is invalid"),
        (json!({"project": "a/b", "after": "0123"}), "before or after is invalid"),
        (json!({"project": "a/b", "urls": ["https://u:hunter2@a/b"]}), "urls is invalid"),
        (json!({"project": "a/b", "sequence": 7}), "unknown field `sequence`"),
        (json!({"project": "a/b", "time": "yesterday"}), "the event is invalid"),
        (json!({}), "missing field `project`"),
        (json!([]), "the event is invalid"),
        (json!({"project": "a".repeat(30_000)}), "more than 24576 bytes"),
    ] {
        let (status, body) = report(&world, &event).await;
        assert_eq!(status, 400, "{event}");
        assert!(body.contains(expected) && !body.contains("hunter2"), "{body}");
    }
    let (status, body) = report(&world, &json!({"project": "a/b"})).await;
    assert!(status == 404 && body.contains("notify.projects"), "{body}");
    let mut unsigned = Request::new(Body::from(event("e-1").to_string()));
    (*unsigned.method_mut(), *unsigned.uri_mut()) = (Method::POST, "/api/v1/events".parse().unwrap());
    assert_eq!(send(&world, unsigned).await.status(), 401);
}
