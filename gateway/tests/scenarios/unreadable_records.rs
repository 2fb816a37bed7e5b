//! A replica that does not reach Redis does not know which agents are connected to others, and says so where it would say that there is no
//! agent.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use access::token::TokenHash;
use agentk_core::Services;
use gateway::test_support::api_messages::AgentSelector;
use http::StatusCode;
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    gitlab::client,
    internal_api,
    world::{World, parse, text},
};
use serde_json::Value;
use testing::gitlab::{Agent, StandIn};
use tonic::Code;

use crate::{api::without_redis, grpc::connected};

const AGENT_TOKEN: &str = "glagent-7";

/// Returns a replica whose caller may use the agents of GitLab.
fn world(gitlab: &StandIn) -> World {
    let (replica, config) = without_redis();
    let world = World::gitlab_replica(replica, config, client(gitlab, &ApiRateLimit::default()), AGENT_TOKEN);
    let caller = TokenHash::of(&world.caller_token);
    world.kas.identities.replace(parse(&format!(
        "agents: [{{id: 1, name: edge, tokens: []}}]\n\
         callers: [{{name: me, tokens: ['{caller}'], agents: ['gitlab:**'], services: [graph]}}]"
    )));
    world
}

#[tokio::test(start_paused = true)]
async fn answer_without_an_agent_is_503_while_records_cannot_be_read() {
    let gitlab = StandIn::start().await;
    let world = world(&gitlab);
    for path in ["/agents", "/agents?name=x", "/agents/fleet", "/agents/applications", "/agents/components"] {
        let response = world.get(path).await;
        let expected = (StatusCode::SERVICE_UNAVAILABLE, "identity-unavailable", "2");
        let header = |name: &str| response.headers()[name].to_str().unwrap();
        assert_eq!((response.status(), header("kas-error"), header("retry-after")), expected, "{path}");
        let body = text(response).await;
        let parts = ["Redis was not reached yet", "kas or its Redis is at fault", "try again", "/readiness"];
        assert!(parts.iter().all(|part| body.contains(part)), "{path}: {body}");
    }
    let of_programs = [
        "/api/v1/agents",
        "/api/v1/agents/7",
        "/api/v1/agents/7/views",
        "/api/v1/fleet?group=shop",
        "/api/v1/applications?group=shop",
    ];
    for path in of_programs {
        let response = internal_api::get(&world, path).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        let body = text(response).await;
        assert!(body.contains("\"unavailable\"") && body.contains("Redis was not reached yet"), "{body}");
    }
    let absent = internal_api::get(&world, "/api/v1/agents/nobody").await;
    assert_eq!(absent.status(), StatusCode::NOT_FOUND, "agents of GitLab have ids");
    let status = connected(&world, Some(AgentSelector::ProjectId(20))).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[tokio::test(start_paused = true)]
async fn list_has_the_agents_that_are_known_and_says_that_some_may_be_missing() {
    let gitlab = StandIn::start().await;
    gitlab.state().add_agent(Agent::new(7, "prod", AGENT_TOKEN));
    let world = world(&gitlab);
    let _agent = world.agent(Services::new()).await;
    let response = world.get("/agents").await;
    assert_eq!(response.status(), StatusCode::OK);
    let list: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!((&list["agents"][0]["name"], &list["agents"][1]), (&"7".into(), &Value::Null), "{list}");
    assert!(list["missing"].as_str().unwrap().contains("Redis was not reached yet"), "{list}");
}
