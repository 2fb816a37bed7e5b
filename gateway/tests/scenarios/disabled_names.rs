//! The kill switch with names of GitLab's agents, at a replica that holds the tunnels and at one that does not.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{path::Path, time::Duration};

use access::kill_switch::{file, fleet};
use agentk_core::Services;
use http::{Request, Response, header::AUTHORIZATION};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    fleet::TestFleet,
    gitlab::{AGENT, AGENT_TOKEN, client},
    issuer::now,
    world::{RunningAgent, World, endless, text},
};
use proto::AgentId;
use serde_json::json;
use store::RouteStore as _;
use testing::gitlab::{Agent, AgentAccess, Job, StandIn, User};
use tokio::time::{sleep, timeout};
use tunnel::Body;

const QUERY: &str = "/agents/7/prometheus/api/v1/query?query=up";

/// The agent.
const PROD: &str = "group/config-7:prod";
/// Agents of GitLab with another name, and in another project.
const TEST: &str = "group/config-7:test";
const OTHER: &str = "evil/config:prod";

/// The requests for the agent: their paths and credentials.
fn requests() -> [(&'static str, String); 5] {
    let claims =
        json!({"iss": "gitlab.example.com", "aud": "gitlab-kas", "project_id": 30, "exp": now() + 600});
    let rails = kas_testing::internal_api::jwt(&[1; 32], &json!({"alg": "HS256", "typ": "JWT"}), &claims);
    [
        ("/k8s-proxy/api", "ci:7:job".to_owned()),
        ("/k8s-proxy/api", "pat:7:glpat-alice".to_owned()),
        ("/agents/7/kubernetes/api", "ci:7:job".to_owned()),
        (QUERY, "ci:7:job".to_owned()),
        (QUERY, rails),
    ]
}

fn services() -> Services {
    let answer = async |request: Request<Body>| match request.uri().query() {
        Some("watch=1") => Response::new(endless("watching")),
        _ => Response::new(Body::from("done")),
    };
    Services::new().with_fn("kubernetes", answer).with_fn("prometheus", answer)
}

/// Two replicas with a GitLab that has the agent `prod`, which is not connected.
async fn replicas() -> (StandIn, TestFleet) {
    let gitlab = StandIn::start().await;
    gitlab.state().add_agent(Agent::new(AGENT, "prod", AGENT_TOKEN));
    gitlab.state().add_job("job", Job::new(3, 30).with_agent(AGENT, json!({"access_as": {"agent": {}}})));
    let alice = User::new(5, "alice").with_token("glpat-alice").with_access(AGENT, AgentAccess::Agent);
    gitlab.state().users.push(alice);
    let fleet = TestFleet::with_gitlab(2, || client(&gitlab, &ApiRateLimit::default()), AGENT_TOKEN);
    (gitlab, fleet)
}

/// Connects the agent to the first replica.
async fn connect(fleet: &TestFleet) -> RunningAgent {
    let agent = fleet.replicas[0].agent(services()).await;
    while fleet.store.lookup(AgentId(AGENT)).await.unwrap().routes.is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    agent
}

async fn send(world: &World, path: &str, token: &str) -> Response<Incoming> {
    let request = Request::get(path).header("host", "kas").header(AUTHORIZATION, format!("Bearer {token}"));
    world.send(request.body(Body::empty()).unwrap()).await
}

async fn statuses(world: &World) -> Vec<u16> {
    let mut statuses = Vec::new();
    for (path, token) in requests() {
        statuses.push(send(world, path, &token).await.status().as_u16());
    }
    statuses
}

/// Sets the rule of a file at each replica, or that of the fleet.
fn disable(fleet: &TestFleet, of_fleet: bool, agent: &str) {
    for replica in &fleet.replicas {
        let switch = &replica.kas.callers.kill_switch;
        if of_fleet {
            let record = format!("[1,7,{{\"rules\":[{{\"agent\":\"{agent}\",\"reason\":\"incident\"}}]}}]");
            switch.set_fleet(7, fleet::parse(record.as_bytes()).unwrap().1);
        } else {
            let text = format!("rules: [{{agent: '{agent}', reason: incident}}]");
            switch.set_file(file::parse(Path::new("disabled.yaml"), &text).unwrap());
        }
    }
}

fn enable(fleet: &TestFleet) {
    for replica in &fleet.replicas {
        replica.kas.callers.kill_switch.set_file(Vec::new());
        replica.kas.callers.kill_switch.set_fleet(8, Vec::new());
    }
}

#[tokio::test(start_paused = true)]
async fn rule_matches_by_name_and_by_id_at_each_replica() {
    let (_gitlab, fleet) = replicas().await;
    let _agent = connect(&fleet).await;
    for of_fleet in [false, true] {
        for (rule, expected) in
            [(PROD, 503), ("7", 503), ("prod", 200), (TEST, 200), (OTHER, 200), ("8", 200)]
        {
            disable(&fleet, of_fleet, rule);
            for (index, replica) in fleet.replicas.iter().enumerate() {
                assert_eq!(statuses(replica).await, [expected; 5], "{rule} at replica {index}");
            }
        }
        enable(&fleet);
        assert_eq!(statuses(&fleet.replicas[1]).await, [200; 5]);
    }
}

#[tokio::test(start_paused = true)]
async fn name_whose_agent_connects_after_the_rule_matches() {
    let (_gitlab, fleet) = replicas().await;
    disable(&fleet, true, PROD);
    let other = &fleet.replicas[1];
    assert_eq!(statuses(other).await, [503; 5]);
    let _agent = connect(&fleet).await;
    for _ in 0..5 {
        assert_eq!(statuses(other).await, [503; 5]);
        sleep(Duration::from_secs(1)).await;
    }
    disable(&fleet, true, TEST);
    assert_eq!(statuses(other).await, [200; 5]);
}

#[tokio::test(start_paused = true)]
async fn agent_without_a_known_name_is_refused_while_a_rule_has_a_name() {
    let (_gitlab, fleet) = replicas().await;
    let other = &fleet.replicas[1];
    disable(&fleet, false, TEST);
    let response = send(other, "/k8s-proxy/api", "ci:7:job").await;
    assert_eq!(response.headers()["kas-error"], "disabled");
    let message = text(response).await;
    assert!(
        message.contains("does not know the name and the project of agent 7")
            && !message.contains("incident"),
        "{message}"
    );
    disable(&fleet, false, "8");
    let response = send(other, "/k8s-proxy/api", "ci:7:job").await;
    assert_eq!(response.headers()["kas-error"], "agent-not-connected");
}

#[tokio::test(start_paused = true)]
async fn watch_through_another_replica_ends_when_a_rule_names_its_agent() {
    let (_gitlab, fleet) = replicas().await;
    let _agent = connect(&fleet).await;
    let mut watch = send(&fleet.replicas[1], "/k8s-proxy/api/v1/pods?watch=1", "ci:7:job").await.into_body();
    watch.frame().await.unwrap().unwrap();
    disable(&fleet, true, TEST);
    assert!(timeout(Duration::from_secs(5), watch.frame()).await.is_err(), "the rule is for another agent");
    disable(&fleet, true, PROD);
    let end = timeout(Duration::from_secs(3), watch.frame()).await.expect("it ends");
    assert!(matches!(end, Some(Err(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn path_may_have_the_name_at_a_replica_without_the_tunnel() {
    let (_gitlab, fleet) = replicas().await;
    let other = &fleet.replicas[1];
    let status = async |path: &str| send(other, path, "ci:7:job").await.status().as_u16();
    assert_eq!(status("/agents/prod/kubernetes/api").await, 403);
    let _agent = connect(&fleet).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(status("/agents/prod/kubernetes/api").await, 200);
    for path in ["/agents/agent-7/kubernetes/api", "/agents/test/kubernetes/api"] {
        assert_eq!(status(path).await, 403, "{path}");
    }
}
