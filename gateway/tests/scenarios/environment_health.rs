//! The health of environments in the internal API: kas asks the agents of their places.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{path::Path, sync::Arc, time::Duration};

use access::kill_switch::file;
use agentk_core::Services;
use environments_wire::EnvironmentSources;
use gateway::test_support::AddressRules;
use http::{Request, Response, StatusCode};
use kas_environments::EnvironmentFile;
use kas_testing::{
    fleet::TestFleet,
    internal_api::{self, connect_with, send_over, valid_request},
    world::{World, endless, text},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tunnel::Body;

/// Environments in namespaces of the agent `prod`: their slugs, and their namespaces.
struct Environments {
    _directory: tempfile::TempDir,
    sources: EnvironmentSources,
}

impl Environments {
    fn new(places: &[(&str, &[&str])]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let entries = places.iter().enumerate().map(|(id, (slug, namespaces))| {
            let agents: Vec<Value> = namespaces
                .iter()
                .map(|name| json!({"agent": "prod", "namespace": name, "labels": {"app": "web"}}))
                .collect();
            json!({"id": id + 1, "project": "shop/web", "slug": slug, "tier": "production", "agents": agents})
        });
        let path = directory.path().join("environments.yaml");
        std::fs::write(&path, json!({"environments": entries.collect::<Vec<_>>()}).to_string()).unwrap();
        let file = EnvironmentFile::read(&path).unwrap();
        Self { _directory: directory, sources: EnvironmentSources(vec![Arc::new(file)]) }
    }

    async fn get(&self, world: &World, query: &str) -> (StatusCode, Value) {
        let io = connect_with(world, self.sources.clone());
        let response = send_over(io, valid_request(&format!("/api/v1/environments?{query}"))).await;
        (response.status(), serde_json::from_str(&text(response).await).unwrap())
    }

    /// Returns the health of each environment: its state, and the reasons why places have none.
    async fn health(&self, world: &World) -> Vec<(String, Vec<String>)> {
        let (status, list) = self.get(world, "health=true").await;
        assert_eq!(status, 200, "{list}");
        let environments = list["environments"].as_array().unwrap().iter();
        let health = environments.map(|environment| {
            let health = &environment["health"];
            let places = health["places"].as_array().unwrap().iter();
            let missing = places.filter_map(|place| place["missing"].as_str().map(str::to_owned));
            (health["health"].as_str().unwrap().to_owned(), missing.collect())
        });
        health.collect()
    }
}

/// An agent in whose cluster the namespace `bad` is degraded.
fn services() -> Services {
    Services::new().with_fn("graph", async |request: Request<Body>| {
        let health = match request.uri().to_string().as_str() {
            "/v1/health?namespace=good&label=app%3Dweb" => "healthy",
            "/v1/health?namespace=bad&label=app%3Dweb" => "degraded",
            other => panic!("kas asks for {other}"),
        };
        let report = json!({"health": health, "counts": {health: 1}});
        Response::new(Body::from(report.to_string()))
    })
}

fn answering(answer: fn() -> Response<Body>) -> Services {
    Services::new().with_fn("graph", move |_: Request<Body>| std::future::ready(answer()))
}

fn healthy() -> Vec<(String, Vec<String>)> {
    vec![("healthy".to_owned(), Vec::new())]
}

#[tokio::test(start_paused = true)]
async fn environment_is_as_healthy_as_its_worst_place_at_any_replica() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(0, services()).await;
    let environments = Environments::new(&[("live", &["good"]), ("review", &["good", "bad"])]);
    for world in &fleet.replicas {
        let (status, list) = environments.get(world, "health=true&project=shop/web").await;
        assert_eq!(status, 200, "{list}");
        let place = |namespace: &str, health: &str| json!({"agent": "prod", "namespace": namespace, "missing": null, "health": health, "counts": {health: 1}});
        assert_eq!(
            list["environments"][0]["health"],
            json!({"health": "healthy", "places": [place("good", "healthy")]})
        );
        let worst =
            json!({"health": "degraded", "places": [place("good", "healthy"), place("bad", "degraded")]});
        assert_eq!(list["environments"][1]["health"], worst);
    }
    let (_, list) = environments.get(&fleet.replicas[0], "slug=live").await;
    assert_eq!(list["environments"][0].get("health"), None, "nobody has asked for it");
}

#[tokio::test(start_paused = true)]
async fn agent_that_is_away_is_named_at_once_and_hides_no_other_one() {
    let world = World::new();
    let environments = Environments::new(&[("live", &["good"])]);
    let start = Instant::now();
    let health = environments.health(&world).await;
    assert_eq!(health[0].0, "unknown");
    assert!(health[0].1[0].contains("prod"), "{health:?}");
    assert!(start.elapsed() < Duration::from_secs(1), "it does not wait for a reconnect");

    let _agent = world.agent(services()).await;
    assert_eq!(environments.health(&world).await, healthy());
}

#[tokio::test(start_paused = true)]
async fn agent_that_misbehaves_has_no_report_and_is_bounded() {
    let environments = Environments::new(&[("live", &["good"])]);
    type Answer = fn() -> Response<Body>;
    let cases: [(Answer, &str); 5] = [
        (|| Response::new(endless("{")), "did not respond within 12 s"),
        (|| Response::new(Body::from("x".repeat(200 << 10))), "length limit exceeded"),
        (|| Response::new(Body::from("[]")), "is not a report"),
        (|| Response::builder().status(500).body(Body::from("no")).unwrap(), "responds 500"),
        (|| Response::new(Body::from("{\"health\": \"fine\"}")), "is not a report"),
    ];
    for (answer, expected) in cases {
        let world = World::new();
        let _agent = world.agent(answering(answer)).await;
        let health = environments.health(&world).await;
        assert_eq!(health[0].0, "unknown");
        assert!(health[0].1[0].contains(expected), "{expected}: {health:?}");
    }
    let world = World::new();
    let _agent =
        world.agent(Services::new().with_fn("kubernetes", async |_| Response::new(Body::empty()))).await;
    let health = environments.health(&world).await;
    assert!(health[0].1[0].contains("graph"), "an agent without the service: {health:?}");
}

#[tokio::test(start_paused = true)]
async fn kill_switch_disables_the_question() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let environments = Environments::new(&[("live", &["good"])]);
    assert_eq!(environments.health(&world).await, healthy());
    let rules =
        file::parse(Path::new("disabled.yaml"), "rules: [{agent: prod, reason: incident 7}]").unwrap();
    world.kas.callers.kill_switch.set_file(rules);
    let health = environments.health(&world).await;
    assert!(health[0].1[0].contains("incident 7"), "{health:?}");
}

#[tokio::test(start_paused = true)]
async fn third_request_at_the_same_time_is_refused() {
    let world = World::new();
    let _agent = world.agent(answering(|| Response::new(endless("{")))).await;
    let environments = Environments::new(&[("live", &["good"])]);
    let api = internal_api::server(&world, Some(environments.sources.clone()), AddressRules::default());
    let get = async || {
        let io = internal_api::connect_to(&api);
        send_over(io, valid_request("/api/v1/environments?health=true")).await.status().as_u16()
    };
    let (first, second, third) = tokio::join!(get(), get(), get());
    let mut statuses = [first, second, third];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503]);
    assert_eq!(get().await, 200, "the others have ended");
}

#[tokio::test(start_paused = true)]
async fn too_many_places_are_refused() {
    let world = World::new();
    let namespaces: Vec<String> = (0..501).map(|number| format!("n{number}")).collect();
    let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
    let environments = Environments::new(&[("live", &namespaces)]);
    let (status, error) = environments.get(&world, "health=true").await;
    assert_eq!(status, 400, "{error}");
    assert!(error["message"].as_str().unwrap().contains("501 places"), "{error}");
    assert_eq!(environments.get(&world, "").await.0, 200);
}
