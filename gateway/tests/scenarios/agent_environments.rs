//! The environments that agents name in their configurations.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use agentk_core::Services;
use environments_wire::{EnvironmentSource, EnvironmentSources};
use http::{Request, Response};
use kas_environments::EnvironmentFile;
use kas_testing::{
    internal_api::{connect_with, send_over, valid_request},
    world::{World, text},
};
use serde_json::{Value, json};
use tokio::time::sleep;
use tunnel::Body;

use crate::set_configuration::Configuration;

const LIVE: &str = "environments: [{slug: live, project: group/web, tier: production, namespace: good}, {slug: live, project: bank/web, namespace: x}]";

async fn list(world: &World, file: Option<EnvironmentFile>, query: &str) -> Vec<Value> {
    let named = world.kas.environments.0.iter().cloned();
    let file = file.map(|file| Arc::new(file) as Arc<dyn EnvironmentSource>);
    let io = connect_with(world, EnvironmentSources(file.into_iter().chain(named).collect()));
    let response = send_over(io, valid_request(&format!("/api/v1/environments?{query}"))).await;
    assert_eq!(response.status(), 200);
    let list: Value = serde_json::from_str(&text(response).await).unwrap();
    list["environments"].as_array().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn agent_names_environments_of_its_group() {
    let (world, configuration) = (World::new(), Configuration::default());
    configuration.set(LIVE);
    world.kas.agents.configuration.add_source(Arc::new(configuration.clone()));
    assert!(list(&world, None, "").await.is_empty());
    let services = Services::new().with_fn("graph", async |request: Request<Body>| {
        assert_eq!(request.uri(), "/v1/health?namespace=good");
        Response::new(Body::from(json!({"health": "degraded", "counts": {}}).to_string()))
    });
    let agent = world.agent(services).await;
    sleep(Duration::from_secs(5)).await;
    let found = list(&world, None, "health=true&tier=production").await;
    assert_eq!(
        (found.len(), &found[0]["project"], &found[0]["slug"]),
        (1, &json!("group/web"), &json!("live"))
    );
    assert_eq!(found[0]["agents"], json!([{"agent": "prod", "namespace": "good", "labels": {}}]));
    assert_eq!(found[0]["health"]["health"], "degraded");
    assert_eq!(list(&world, None, "").await.len(), 1, "a project of another group is ignored");

    // The file of the operator hides it.
    let file = tempfile::NamedTempFile::new().unwrap();
    let place = json!([{"agent": "prod", "namespace": "central"}]);
    let entry = json!({"id": 1, "project": "group/web", "slug": "live", "agents": place});
    std::fs::write(file.path(), json!({"environments": [entry]}).to_string()).unwrap();
    let central = list(&world, Some(EnvironmentFile::read(file.path()).unwrap()), "").await;
    assert_eq!((central.len(), &central[0]["agents"][0]["namespace"]), (1, &json!("central")));

    // An agent that is away is still a place.
    drop(agent);
    sleep(Duration::from_secs(60)).await;
    let away = list(&world, None, "health=true").await;
    assert_eq!(away[0]["health"]["health"], "unknown");

    configuration.set("");
    let _agent = world.agent(Services::new().with_fn("graph", async |_| Response::new(Body::empty()))).await;
    configuration.set(LIVE);
    world.kas.agents.configuration.wake("group/agents");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(list(&world, None, "").await.len(), 1);
    configuration.set("");
    world.kas.agents.configuration.wake("group/agents");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(list(&world, None, "").await.len(), 0, "the configuration does not name it any more");
}
