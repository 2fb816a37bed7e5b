//! Agents of GitLab that are named like an agent of the identity file. Each project of GitLab may have an agent with any name.

use std::{path::Path, time::SystemTime};

use access::kill_switch::file;
use http::{Request, StatusCode, header::AUTHORIZATION};
use kas_testing::{
    gitlab::{AGENT, world},
    internal_api::get,
    world::{RunningAgent, World, text},
};
use proto::{
    AgentId,
    events::{Event, EventAgent, EventContent, EventKind, Severity},
};
use serde_json::{Value, json};
use store::NewEvent;
use testing::gitlab::{Job, StandIn};
use tunnel::Body;

/// The agent of GitLab, whose name is also that of agent 1 of the identity file.
const OF_GITLAB: &str = "group/config-7:prod";

/// A kas whose identity file has the agent `prod` (1), and a GitLab whose agent `prod` (7) is connected.
async fn attacked() -> (StandIn, World, RunningAgent) {
    let (gitlab, world, agent) = world(|_| {}).await;
    gitlab.state().add_job("job", Job::new(3, 30).with_agent(AGENT, json!({"access_as": {"agent": {}}})));
    (gitlab, world, agent)
}

fn disable(world: &World, agent: &str) {
    let text = format!("rules: [{{agent: '{agent}', reason: incident}}]");
    let rules = file::parse(Path::new("disabled.yaml"), &text).unwrap();
    world.kas.callers.kill_switch.set_file(rules);
}

async fn status(world: &World) -> StatusCode {
    let request =
        Request::get("/k8s-proxy/api").header("host", "kas").header(AUTHORIZATION, "Bearer ci:7:job");
    world.send(request.body(Body::empty()).unwrap()).await.status()
}

#[tokio::test(start_paused = true)]
async fn attack_120_rules_of_the_kill_switch_are_not_those_of_the_agent_with_the_same_name() {
    let (_gitlab, world, _agent) = attacked().await;
    for (rule, expected) in [
        ("prod", StatusCode::OK),
        ("1", StatusCode::OK),
        ("evil/config:prod", StatusCode::OK),
        (OF_GITLAB, StatusCode::SERVICE_UNAVAILABLE),
        ("7", StatusCode::SERVICE_UNAVAILABLE),
    ] {
        disable(&world, rule);
        assert_eq!(status(&world).await, expected, "{rule}");
    }
    disable(&world, "prod");
    let list = serde_json::to_value(world.kas.admin.agent_lister.list().await).unwrap();
    let rules: Vec<_> =
        list["agents"].as_array().unwrap().iter().map(|it| (&it["id"], &it["disabled"])).collect();
    assert_eq!(rules, [(&json!(1), &json!("agent prod: incident")), (&json!(7), &Value::Null)]);
}

#[tokio::test(start_paused = true)]
async fn attack_120_events_are_not_those_of_the_agent_with_the_same_name() {
    let (_gitlab, world, _agent) = attacked().await;
    let agent = EventAgent {
        id: AgentId(AGENT),
        name: "prod".parse().unwrap(),
        project_id: Some(107),
        project_path: Some("group/config-7".to_owned()),
    };
    let content = EventContent::new(EventKind::Alert, Severity::Warning, "of GitLab");
    let event = Event { time: SystemTime::now(), agent: Some(agent), content };
    world.kas.events.append(vec![NewEvent::new("one".to_owned(), event)]).await.unwrap();
    let count = async |query: &str| {
        let list: Value = serde_json::from_str(&text(get(&world, query).await).await).unwrap();
        list["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "alert").count()
    };
    for (agent, expected) in [("prod", 0), ("1", 0), ("evil/config:prod", 0), ("7", 1), (OF_GITLAB, 1)] {
        assert_eq!(count(&format!("/api/v1/events?agent={agent}")).await, expected, "{agent}");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_120_tunnel_ends_when_the_identity_file_gets_an_agent_with_the_id() {
    let (_gitlab, world, _agent) = attacked().await;
    let file = "agents: [{id: 7, name: prod, tokens: []}]\ncallers: []\n";
    world.kas.identities.replace(access::Identity::parse(Path::new("identity.yaml"), file).unwrap());
    // Without waiting for the next question to GitLab: the requests of the new agent's callers must not reach it.
    let started = tokio::time::Instant::now();
    world.tunnels(0).await;
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
}
