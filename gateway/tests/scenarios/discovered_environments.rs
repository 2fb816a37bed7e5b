//! Environments without a file: those that objects in clusters name.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use agentk_core::Services;
use environments_wire::{Deployment, DeploymentFacts, DeploymentRecords as _, EnvironmentSources, Tier};
use http::{Request, Response};
use kas_environments::EnvironmentFile;
use kas_testing::{
    internal_api::{connect_with, send_over, valid_request},
    world::{World, endless, text},
};
use proto::AgentId;
use serde_json::{Value, json};
use tokio::time::Instant;
use tunnel::Body;

/// A cluster with an environment that labels name, one that annotations name, and one that is in the file, too.
fn services() -> Services {
    Services::new().with_fn("graph", async |request: Request<Body>| {
        assert_eq!(request.uri(), "/v1/environments");
        let labels = json!({"app.gitlab.com/project_id": "30", "app.gitlab.com/environment_slug": "live"});
        let found = [
            json!({"namespace": "web", "slug": "live", "project_id": 30, "labels": labels, "objects": 3}),
            json!({"namespace": "api", "slug": "dev", "app": "shop-api", "objects": 1}),
            json!({"namespace": "tool", "slug": "live", "app": "shop-tool", "objects": 1}),
        ];
        Response::new(Body::from(json!({"environments": found}).to_string()))
    })
}

async fn get(world: &World, query: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("environments.yaml");
    let text_of_file =
        "environments: [{id: 1, project: shop/tool, slug: live, agents: [{agent: prod, namespace: file}]}]";
    std::fs::write(&path, text_of_file).unwrap();
    let sources = EnvironmentSources(vec![Arc::new(EnvironmentFile::read(&path).unwrap())]);
    let request = valid_request(&format!("/api/v1/environments?{query}"));
    let response = send_over(connect_with(world, sources), request).await;
    assert_eq!(response.status(), 200);
    serde_json::from_str(&text(response).await).unwrap()
}

fn lines(list: &Value) -> Vec<String> {
    let environments = list["environments"].as_array().unwrap().iter();
    let line = |environment: &Value| {
        let place = &environment["agents"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        format!(
            "{}:{} {} {}/{}",
            text(&environment["project"]),
            text(&environment["slug"]),
            text(&environment["tier"]),
            text(&place["agent"]),
            text(&place["namespace"]),
        )
    };
    environments.map(line).collect()
}

#[tokio::test(start_paused = true)]
async fn clusters_add_the_environments_that_no_file_has() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let record = Deployment {
        time: SystemTime::now(),
        agent: AgentId(1),
        namespace: None,
        project_id: 30,
        project: Some("shop/web".to_owned()),
        environment: "live".to_owned(),
        tier: Tier::Production,
        job: 1,
        commit: None,
        username: None,
        facts: DeploymentFacts::default(),
    };
    world.kas.deployments.record(record).await.unwrap();
    let list = get(&world, "discovered=true").await;
    let expected = [
        "shop/tool:live other prod/file",
        "shop-api:dev other prod/api",
        "shop/web:live production prod/web",
    ];
    assert_eq!(lines(&list), expected);
    assert_eq!(list["missing"], json!([]));
    assert_eq!(lines(&get(&world, "").await), expected[..1], "nobody has asked for them");
    assert_eq!(lines(&get(&world, "discovered=true&group=shop&tier=production").await), expected[2..]);
    let by_label = "discovered=true&label=app.gitlab.com/project_id%3D30";
    assert_eq!(lines(&get(&world, by_label).await), expected[2..]);
    // The file has the environment, with another place: the one in the cluster does not replace it.
    assert!(lines(&get(&world, "discovered=true&namespace=tool").await).is_empty());
    let by_project = get(&world, "discovered=true&project=shop/api").await;
    assert_eq!(lines(&by_project), ["shop/api:dev other prod/api"], "the query has the path of the slug");
}

#[tokio::test(start_paused = true)]
async fn pages_have_all_environments_of_a_large_list() {
    let world = World::new();
    let entry = |id: usize| {
        format!("{{id: {id}, project: shop/p, slug: e{id:04}, agents: [{{agent: prod, namespace: a}}]}}")
    };
    let entries: Vec<_> = (1..=5001).map(entry).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("environments.yaml");
    std::fs::write(&path, format!("environments: [{}]", entries.join(", "))).unwrap();
    let sources = EnvironmentSources(vec![Arc::new(EnvironmentFile::read(&path).unwrap())]);
    let get = async |query: &str| -> Value {
        let request = valid_request(&format!("/api/v1/environments?{query}"));
        let response = send_over(connect_with(&world, sources.clone()), request).await;
        serde_json::from_str(&text(response).await).unwrap()
    };
    let all = get("").await;
    assert_eq!(all["environments"].as_array().unwrap().len(), 5000);
    assert!(all["missing"][0]["reason"].as_str().unwrap().contains("1 more are selected"), "{all}");
    let page = get("limit=500&continue=shop/p:e4999").await;
    assert_eq!((lines(&page).len(), &page["missing"]), (2, &json!([])), "the page has the last ones");
}

#[tokio::test(start_paused = true)]
async fn agent_that_hangs_or_lies_is_missing_with_its_reason() {
    type Answer = fn() -> Response<Body>;
    let cases: [(Answer, &str); 3] = [
        (|| Response::new(endless("{")), "did not respond within 12 s"),
        (|| Response::new(Body::from("[]")), "is no list of environments"),
        (|| Response::new(Body::from("x".repeat(1 << 20))), "ended early"),
    ];
    for (answer, expected) in cases {
        let world = World::new();
        let services = Services::new().with_fn("graph", move |_: Request<Body>| std::future::ready(answer()));
        let _agent = world.agent(services).await;
        let start = Instant::now();
        let list = get(&world, "discovered=true").await;
        assert!(start.elapsed() <= Duration::from_secs(13), "{:?}", start.elapsed());
        assert_eq!(lines(&list), ["shop/tool:live other prod/file"]);
        let missing = &list["missing"][0];
        assert_eq!(missing["agent"], "prod");
        assert!(missing["reason"].as_str().unwrap().contains(expected), "{missing}");
    }
}
