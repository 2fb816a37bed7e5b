//! The views of agents: kas keeps the last values, also while the agent is away.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use access::kill_switch::file;
use agentk_core::Services;
use bytes::Bytes;
use futures_util::stream;
use gateway::test_support::api_messages::{GetAgentViewsRequest, GetAgentViewsResponse};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use kas_testing::{
    internal_api,
    world::{RunningAgent, World, endless, text},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use tunnel::Body;

use crate::set_configuration::Configuration;

/// An agent whose views a test sets.
struct Fixture {
    world: World,
    configuration: Configuration,
    views: watch::Sender<Value>,
    /// The streams of views that are open.
    streams: Arc<AtomicUsize>,
    agent: Option<RunningAgent>,
}

/// Counts a stream while it exists.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Fixture {
    async fn new(configuration_text: &str) -> Self {
        let (world, configuration) = (World::new(), Configuration::default());
        configuration.set(configuration_text);
        world.kas.agents.configuration.add_source(Arc::new(configuration.clone()));
        let (views, streams) = (watch::Sender::new(json!([])), Arc::<AtomicUsize>::default());
        let mut fixture = Self { world, configuration, views, streams, agent: None };
        fixture.connect().await;
        fixture
    }

    async fn connect(&mut self) {
        let (views, streams) = (self.views.clone(), Arc::clone(&self.streams));
        let services = Services::new().with_fn("graph", move |request: Request<Body>| {
            assert_eq!(request.uri(), "/v1/watch?views=all");
            assert!(request.headers().keys().all(|name| !name.as_str().starts_with("impersonate")));
            streams.fetch_add(1, Relaxed);
            std::future::ready(follow(views.subscribe(), Counted(Arc::clone(&streams))))
        });
        let services = with_configuration(services);
        self.agent = Some(self.world.agent(services).await);
        sleep(Duration::from_secs(20)).await;
    }

    fn send(&self, views: Value) {
        self.views.send_replace(views);
    }

    /// Returns what the internal API has of the agent.
    async fn values(&self) -> Value {
        let response = internal_api::get(&self.world, "/api/v1/agents/prod/views").await;
        assert_eq!(response.status(), 200);
        let response: Value = serde_json::from_str(&text(response).await).unwrap();
        response["values"].clone()
    }

    async fn wake(&self) {
        self.world.kas.agents.configuration.wake("group/agents");
        sleep(Duration::from_secs(20)).await;
    }
}

/// Lets an agent receive its configuration.
fn with_configuration(services: Services) -> Services {
    services.with_fn("configuration", async |_: Request<Body>| Response::new(Body::empty()))
}

/// Sends the views, each time that they change, and a sign of life every 15 s.
fn follow(views: watch::Receiver<Value>, counted: Counted) -> Response<Body> {
    let lines = stream::unfold((views, true, counted), async |(mut views, first, counted)| {
        let line = tokio::select! {
            biased;
            () = async {
                if !first {
                    views.changed().await.unwrap();
                }
            } => json!({"event": "views", "views": *views.borrow_and_update()}),
            () = sleep(Duration::from_secs(15)) => json!({"event": "alive"}),
        };
        let frame = Frame::data(Bytes::from(format!("{line}\n")));
        Some((Ok::<_, std::io::Error>(frame), (views, false, counted)))
    });
    Response::new(Body::new(StreamBody::new(Box::pin(lines))))
}

const NODES: &str = "graph: {views: [{name: nodes, count: v1/nodes}]}";

fn nodes(count: u64) -> Value {
    json!([{"name": "nodes", "count": count}])
}

#[tokio::test(start_paused = true)]
async fn values_are_kept_while_the_agent_is_away() {
    let mut fixture = Fixture::new(NODES).await;
    fixture.send(nodes(3));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.values().await["views"], nodes(3));
    assert_eq!(fixture.streams.load(Relaxed), 1, "one of the tunnels is followed");

    fixture.agent = None;
    sleep(Duration::from_secs(60)).await;
    assert_eq!((fixture.values().await["views"].clone(), fixture.streams.load(Relaxed)), (nodes(3), 0));
    fixture.send(nodes(4));
    fixture.connect().await;
    assert_eq!(fixture.values().await["views"], nodes(4));

    let request = GetAgentViewsRequest { agent_ids: vec![99, 1] };
    let token = format!("Bearer {}", internal_api::valid_token());
    let method = "/kas.agent_views.rpc.AgentViews/GetAgentViews";
    let found: GetAgentViewsResponse =
        internal_api::call(&fixture.world, method, Some(&token), request).await.unwrap();
    assert_eq!(found.agents.len(), 1);
    assert_eq!((found.agents[0].agent_id, found.agents[0].views[0].count), (1, 4));
    assert!(found.agents[0].time.is_some());
    let many = GetAgentViewsRequest { agent_ids: vec![1; 21] };
    let refused =
        internal_api::call::<_, GetAgentViewsResponse>(&fixture.world, method, Some(&token), many).await;
    assert!(refused.unwrap_err().message().contains("more than 20 agents"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_followed_without_views() {
    let fixture = Fixture::new("").await;
    assert_eq!((fixture.values().await, fixture.streams.load(Relaxed)), (Value::Null, 0));
    let missing = internal_api::get(&fixture.world, "/api/v1/agents/other/views").await;
    assert_eq!(missing.status(), 404);
    assert_eq!(internal_api::get(&fixture.world, "/api/v1/agents/99/views").await.status(), 404);
    assert_eq!(internal_api::get(&fixture.world, "/api/v1/agents/prod/views?a=1").await.status(), 400);

    fixture.configuration.set(NODES);
    fixture.send(nodes(1));
    fixture.wake().await;
    assert_eq!(fixture.values().await["views"], nodes(1));
    fixture.configuration.set("");
    fixture.wake().await;
    assert_eq!(fixture.streams.load(Relaxed), 0, "nobody follows views that do not exist");
    assert_eq!(fixture.values().await["views"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn kill_switch_ends_the_stream_and_keeps_the_values() {
    let fixture = Fixture::new(NODES).await;
    fixture.send(nodes(3));
    sleep(Duration::from_secs(1)).await;
    let rules = "rules: [{service: graph, reason: incident 7}]";
    let rules = file::parse(Path::new("disabled.yaml"), rules).unwrap();
    fixture.world.kas.callers.kill_switch.set_file(rules);
    sleep(Duration::from_secs(60)).await;
    fixture.send(nodes(5));
    sleep(Duration::from_secs(60)).await;
    assert_eq!((fixture.values().await["views"].clone(), fixture.streams.load(Relaxed)), (nodes(3), 0));
    // A rule about addresses is about callers.
    let rules = "rules: [{address: 0.0.0.0/0, reason: incident 8}]";
    fixture.world.kas.callers.kill_switch.set_file(file::parse(Path::new("disabled.yaml"), rules).unwrap());
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.values().await["views"], nodes(5));
}

#[tokio::test(start_paused = true)]
async fn agent_that_sends_other_or_huge_views_is_bounded() {
    let fixture = Fixture::new(NODES).await;
    let row = vec!["x".repeat(1000); 50];
    let huge = json!([
        {"name": "other", "count": 1},
        {"name": "nodes", "count": 1, "columns": ["a"], "rows": vec![row; 3]},
        {"name": "nodes", "count": 2},
    ]);
    fixture.send(huge);
    sleep(Duration::from_secs(1)).await;
    let values = fixture.values().await;
    assert_eq!(values["views"].as_array().unwrap().len(), 1);
    assert_eq!(values["views"][0]["rows"][0], json!(["x".repeat(512)]));
    // A line without an end ends the stream, and later attempts get the last good values.
    fixture.send(json!([{"name": "nodes", "count": 1, "partial": ["x".repeat(300 << 10)]}]));
    sleep(Duration::from_secs(1)).await;
    fixture.send(nodes(7));
    sleep(Duration::from_secs(20)).await;
    assert_eq!(fixture.values().await["views"], nodes(7));
}

#[tokio::test(start_paused = true)]
async fn agent_that_sends_no_line_is_asked_again() {
    let (world, configuration) = (World::new(), Configuration::default());
    configuration.set(NODES);
    world.kas.agents.configuration.add_source(Arc::new(configuration));
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    let services = Services::new().with_fn("graph", move |_: Request<Body>| {
        count.fetch_add(1, Relaxed);
        std::future::ready(Response::new(endless("{")))
    });
    let _agent = world.agent(with_configuration(services)).await;
    sleep(Duration::from_secs(200)).await;
    assert!((2..6).contains(&asked.load(Relaxed)), "{asked:?}");
}
