//! Agents whose identity comes from GitLab.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use agentk_core::Services;
use gateway::config::Config;
use http::{Request, Response, StatusCode};
use kas_gitlab::{Usage, UsageKind, UsageReporter, UsageSubject};
use kas_testing::{
    internal_api,
    world::{AGENT_ADDRESS, World, text},
};
use proto::{AgentId, Epoch, ReplicaId};
use serde_json::{Value, json};
use store::{ProjectAgent, Route};
use testing::gitlab::{Agent, Endpoint, Fault, StandIn};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tunnel::Body;

use crate::gitlab_client::{TOKEN, client, standin};

const MINUTE: Duration = Duration::from_secs(60);

fn services() -> Services {
    Services::new().with_fn("kubernetes", async |_: Request<Body>| Response::new(Body::from("hello")))
}

fn world(gitlab: &StandIn) -> World {
    // Tunnels are not replaced because of their age.
    let edit = |config: &mut Config| config.agent.listen.max_connection_age = (1000 * MINUTE).into();
    World::with_gitlab(client(gitlab), TOKEN, edit)
}

/// Sends a handshake without the data of the agent, which is 400 once its token is accepted.
async fn handshake(world: &World, token: &str) -> Response<hyper::body::Incoming> {
    kas_testing::handshake::handshake(world, AGENT_ADDRESS, &[("authorization", &format!("Bearer {token}"))])
        .await
}

#[tokio::test(start_paused = true)]
async fn agent_of_gitlab_opens_tunnels_with_one_lookup() {
    let gitlab = standin().await;
    let world = world(&gitlab);
    let _agent = world.agent(services()).await;
    assert_eq!(gitlab.requests(Endpoint::AgentInfo), 1);
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn open_tunnel_uses_the_token_every_five_minutes() {
    let gitlab = standin().await;
    let world = world(&gitlab);
    let _agent = world.agent(services()).await;
    sleep(60 * MINUTE).await;
    let uses = gitlab.state().token_uses[TOKEN];
    assert!((12..=15).contains(&uses), "{uses} in an hour");
    world.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn revoked_token_ends_all_tunnels_when_the_answer_expires() {
    let gitlab = standin().await;
    let world = world(&gitlab);
    let _agent = world.agent(services()).await;
    gitlab.state().agents.remove(&42);
    sleep(4 * MINUTE).await;
    world.tunnels(2).await;
    sleep(2 * MINUTE).await;
    assert_eq!(world.kas.agents.metrics.tunnels.get(), 0);
    assert_eq!(handshake(&world, TOKEN).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn token_that_moved_to_another_agent_ends_the_tunnels() {
    let gitlab = standin().await;
    let world = world(&gitlab);
    let agent = world.agent(services()).await;
    {
        let mut state = gitlab.state();
        state.agents.remove(&42);
        state.add_agent(Agent::new(43, "staging", TOKEN));
    }
    sleep(6 * MINUTE).await;
    assert!(world.metric(r#"kas_tunnel_lifetime_seconds_count{reason="closed"}"#) >= 2.0);
    drop(agent);
}

#[tokio::test(start_paused = true)]
async fn outage_of_gitlab_cuts_no_tunnel() {
    let gitlab = standin().await;
    for fault in [
        Fault::Down,
        Fault::Slow(10 * MINUTE),
        Fault::Garbage,
        Fault::Huge(5 << 20),
        Fault::SwitchedOff,
        Fault::Status(StatusCode::INTERNAL_SERVER_ERROR),
        Fault::Status(StatusCode::TOO_MANY_REQUESTS),
        Fault::Status(StatusCode::FORBIDDEN),
    ] {
        gitlab.set_fault(None);
        let world = world(&gitlab);
        let _agent = world.agent(services()).await;
        gitlab.set_fault(fault.clone());
        sleep(15 * MINUTE).await;
        assert_eq!(world.kas.agents.metrics.tunnels.get(), 2, "{fault:?}");
        assert_eq!(world.metric("kas_tunnels"), 2.0);
        assert_eq!(world.metric(r#"kas_tunnel_lifetime_seconds_count{reason="closed"}"#), 0.0, "{fault:?}");

        // Revoked during the outage: noticed after it.
        gitlab.state().agents.remove(&42);
        gitlab.set_fault(None);
        sleep(2 * MINUTE).await;
        assert_eq!(world.kas.agents.metrics.tunnels.get(), 0, "{fault:?}");
        gitlab.state().add_agent(Agent::new(42, "production", TOKEN));
    }
}

#[tokio::test(start_paused = true)]
async fn cached_answer_lives_its_time_and_then_the_handshake_is_503() {
    let gitlab = standin().await;
    let world = world(&gitlab);
    let agent = world.agent(services()).await;
    agent.kill();
    world.tunnels(0).await;
    gitlab.set_fault(Fault::Down);
    sleep(4 * MINUTE).await;
    // The token is valid; the handshake fails only because this test sends no hello.
    assert_eq!(handshake(&world, TOKEN).await.status(), StatusCode::BAD_REQUEST);
    sleep(2 * MINUTE).await;
    let refused = handshake(&world, TOKEN).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "5");
    assert!(text(refused).await.contains("GitLab is not available"));
    gitlab.set_fault(None);
    assert_eq!(handshake(&world, TOKEN).await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn unknown_token_is_looked_up_once_in_a_minute() {
    let gitlab = standin().await;
    let world = world(&gitlab);
    for _ in 0..10 {
        assert_eq!(handshake(&world, "glagent-unknown").await.status(), StatusCode::UNAUTHORIZED);
    }
    assert_eq!(gitlab.requests(Endpoint::AgentInfo), 1);
    sleep(MINUTE).await;
    assert_eq!(handshake(&world, "glagent-unknown").await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(gitlab.requests(Endpoint::AgentInfo), 2);
}

#[tokio::test(start_paused = true)]
async fn concurrent_handshakes_share_one_lookup() {
    let gitlab = standin().await;
    gitlab.set_fault(Fault::Slow(Duration::from_secs(1)));
    let world = world(&gitlab);
    let attempts = (0..20).map(|_| handshake(&world, TOKEN));
    for response in futures_util::future::join_all(attempts).await {
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "no hello");
    }
    assert_eq!(gitlab.requests(Endpoint::AgentInfo), 1);
}

#[tokio::test(start_paused = true)]
async fn token_of_the_identity_file_is_never_sent_to_gitlab() {
    let gitlab = standin().await;
    let world = world(&gitlab);
    assert_eq!(handshake(&world, "kas-agent-0123456789").await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(gitlab.requests(Endpoint::AgentInfo), 0);
}

#[tokio::test(start_paused = true)]
async fn agent_with_an_id_of_the_identity_file_is_refused() {
    let gitlab = standin().await;
    // The identity file has an agent 1.
    gitlab.state().add_agent(Agent::new(1, "prod", "glagent-another"));
    let world = world(&gitlab);
    assert_eq!(handshake(&world, "glagent-another").await.status(), StatusCode::UNAUTHORIZED);
}

async fn listed(world: &World, path: &str) -> Vec<(u64, String)> {
    let response = internal_api::get(world, path).await;
    assert_eq!(response.status(), StatusCode::OK);
    let page: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(page["missing"], Value::Null);
    let agents = page["agents"].as_array().unwrap().iter();
    let named = |agent: &Value| (agent["id"].as_u64().unwrap(), agent["name"].as_str().unwrap().to_owned());
    agents.map(named).collect()
}

#[tokio::test(start_paused = true)]
async fn connected_agents_of_gitlab_are_listed_also_those_of_other_replicas() {
    let gitlab = standin().await;
    let world = world(&gitlab);
    let agent = world.agent(services()).await;
    // Another replica shares the store.
    let (store, other) = (&world.kas.agents.store, ReplicaId::random());
    let elsewhere = ProjectAgent {
        agent: AgentId(50),
        name: "staging".parse().unwrap(),
        project: 142,
        project_path: None,
    };
    store.set_project(elsewhere, other);
    store.announce(AgentId(50), Route { replica: other, epoch: Epoch(1) }).await.unwrap();

    let both = [(42, "production".to_owned()), (50, "staging".to_owned())];
    assert_eq!(listed(&world, "/api/v1/agents").await, both);
    assert_eq!(listed(&world, "/api/v1/agents?project=142").await, both);
    assert_eq!(listed(&world, "/api/v1/agents?project=142&name=staging").await, both[1..]);
    assert_eq!(listed(&world, "/api/v1/agents?id=42").await, both[..1]);
    assert_eq!(listed(&world, "/api/v1/agents?limit=2").await, both[..1], "and the one of the identity file");
    assert_eq!(listed(&world, "/api/v1/agents?limit=2&continue=42").await, both[1..]);
    assert_eq!(listed(&world, "/api/v1/agents?project=7").await, []);
    let one = text(internal_api::get(&world, "/api/v1/agents/42").await).await;
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!((&one["agent"]["project_id"], &one["agent"]["state"]), (&json!(142), &json!("connected")));
    assert_eq!(internal_api::get(&world, "/api/v1/agents/43").await.status(), StatusCode::NOT_FOUND);

    let list = serde_json::to_value(world.kas.admin.agent_lister.list().await).unwrap();
    let states = list["agents"].as_array().unwrap().iter().map(|agent| (&agent["id"], &agent["state"]));
    // In order of their names; the agent of the identity file is not connected.
    let expected =
        [(1, "never"), (42, "connected"), (50, "elsewhere")].map(|(id, state)| (json!(id), json!(state)));
    let expected: Vec<_> = expected.iter().map(|(id, state)| (id, state)).collect();
    assert_eq!(states.collect::<Vec<_>>(), expected);

    agent.stop().await;
    world.tunnels(0).await;
    assert_eq!(listed(&world, "/api/v1/agents").await, both[1..]);
}

#[tokio::test(start_paused = true)]
async fn connected_agents_are_posted_as_events_once() {
    let gitlab = standin().await;
    let world = world(&gitlab);
    let _agent = world.agent(services()).await;
    let reporter = UsageReporter { client: client(&gitlab), usage: world.kas.usage.clone(), period: MINUTE };
    let _reporter = AbortOnDropHandle::new(tokio::spawn(reporter.run()));
    sleep(5 * MINUTE).await;
    let posted = gitlab.state().agent_events.clone();
    assert_eq!(posted.len(), 1, "{posted:?}");
    let events = posted[0]["events"]["register_agent_at_kas"].as_array().unwrap();
    assert_eq!(events.len(), 1, "one process with two tunnels: {events:?}");
    assert_eq!((&events[0]["agent_id"], &events[0]["project_id"]), (&json!(42), &json!(142)));
    assert_eq!(events[0]["agent_version"], env!("CARGO_PKG_VERSION"));
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn usage_is_posted_and_carried_over_while_gitlab_fails() {
    let gitlab = standin().await;
    let usage = Usage::default();
    let reporter = UsageReporter { client: client(&gitlab), usage: usage.clone(), period: MINUTE };
    let _reporter = AbortOnDropHandle::new(tokio::spawn(reporter.run()));
    let job = UsageSubject { user: 5, agent: AgentId(42), project: 7 };
    usage.count_request(UsageKind::Ci, job);
    gitlab.set_fault(Fault::Down);
    sleep(2 * MINUTE).await;
    usage.count_request(UsageKind::Ci, job);
    usage.count_request(UsageKind::Pat, UsageSubject { user: 6, ..job });
    gitlab.set_fault(None);
    sleep(3 * MINUTE).await;

    let posted = gitlab.state().usage_metrics.clone();
    let expected = json!({
        "counters": {
            "k8s_api_proxy_request": 3,
            "k8s_api_proxy_requests_via_ci_access": 2,
            "k8s_api_proxy_requests_via_pat_access": 1,
        },
        "unique_counters": {
            "k8s_api_proxy_requests_unique_users_via_ci_access": [5],
            "k8s_api_proxy_requests_unique_agents_via_ci_access": [42],
            "k8s_api_proxy_requests_unique_users_via_pat_access": [6],
            "k8s_api_proxy_requests_unique_agents_via_pat_access": [42],
        },
    });
    assert_eq!(posted, [expected]);
    let events = gitlab.state().agent_events.clone();
    let expected = json!({"events": {
        "k8s_api_proxy_requests_unique_users_via_ci_access": [{"user_id": 5, "project_id": 7}],
        "k8s_api_proxy_requests_unique_users_via_pat_access": [{"user_id": 6, "project_id": 7}],
    }});
    assert_eq!(events, [expected]);
    gitlab.assert_no_violations();
}
