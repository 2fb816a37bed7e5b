//! The RPCs that GitLab calls.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::Path;

use access::{Identity, token::TokenHash};
use agentk_core::Services;
use gateway::test_support::api_messages::{
    AgentSelector, ConnectedAgentInfo, Empty, GetConnectedAgentsByAgentIdsRequest, GetConnectedAgentsRequest,
    GetConnectedAgentsResponse, GetServerInfoResponse, GitPushEvent, GitPushEventRequest, GitalyInfo,
    ListAgentConfigFilesRequest, ListAgentConfigFilesResponse, Project,
};
use http::{Request, StatusCode, header::AUTHORIZATION};
use kas_testing::{
    fleet::TestFleet,
    gitaly::{TestFile, TestGitaly},
    internal_api::{call, send, valid_token},
    world::{World, text},
};
use secrecy::ExposeSecret as _;
use store::GitPush;
use tonic::{Code, Status};
use tunnel::Body;

const SERVER_INFO: &str = "/gitlab.agent.server_info.rpc.ServerInfo/GetServerInfo";
const CONNECTED: &str = "/gitlab.agent.agent_tracker.rpc.AgentTracker/GetConnectedAgents";
const CONNECTED_BY_IDS: [&str; 2] = [
    "/gitlab.agent.agent_tracker.rpc.AgentTracker/GetConnectedAgentsByAgentIDs",
    "/gitlab.agent.agent_tracker.rpc.AgentTracker/GetConnectedAgentksByAgentIDs",
];
const LIST_FILES: &str = "/gitlab.agent.configuration_project.rpc.ConfigurationProject/ListAgentConfigFiles";
pub(crate) const PUSH: &str = "/gitlab.agent.notifications.rpc.Notifications/GitPushEvent";

pub(crate) async fn rpc<Q, R>(world: &World, method: &'static str, message: Q) -> Result<R, Status>
where
    Q: prost::Message + 'static,
    R: prost::Message + Default + 'static,
{
    call(world, method, Some(&format!("bearer {}", valid_token())), message).await
}

pub(crate) async fn connected(
    world: &World,
    request: Option<AgentSelector>,
) -> Result<Vec<ConnectedAgentInfo>, Status> {
    let response = rpc(world, CONNECTED, GetConnectedAgentsRequest { request }).await;
    response.map(|GetConnectedAgentsResponse { agents }| agents)
}

pub(crate) fn push_of(id: i64, full_path: &str) -> GitPushEventRequest {
    let project = Some(Project { id, full_path: full_path.into() });
    GitPushEventRequest { event: Some(GitPushEvent { project }) }
}

#[tokio::test(start_paused = true)]
async fn server_info_has_the_version() {
    let world = World::new();
    let response: GetServerInfoResponse = rpc(&world, SERVER_INFO, Empty {}).await.unwrap();
    assert_eq!(response.current_server_info.unwrap().version, env!("CARGO_PKG_VERSION"));
    assert_eq!(world.metric("kas_api_requests_total{result=\"ok\"}"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn each_replica_lists_one_entry_for_each_process_of_an_agent() {
    let fleet = TestFleet::new(3);
    let _agent = fleet.agent(1, Services::new()).await;
    let _again = fleet.agent(2, Services::new()).await;
    let mut ids = Vec::new();
    for world in &fleet.replicas {
        let agents = connected(world, Some(AgentSelector::AgentId(1))).await.unwrap();
        assert_eq!(agents.len(), 2, "{agents:?}");
        for agent in &agents {
            let meta = agent.agent_meta.as_ref().unwrap();
            assert_eq!((&*meta.version, agent.agent_id), (env!("CARGO_PKG_VERSION"), 1));
            assert!(agent.connected_at.as_ref().unwrap().seconds > 1_700_000_000);
            assert!(agent.connection_id > 0);
        }
        ids.push(agents.iter().map(|agent| agent.connection_id).collect::<Vec<_>>());
        for method in CONNECTED_BY_IDS {
            let request = GetConnectedAgentsByAgentIdsRequest { agent_ids: vec![99, 1, 1] };
            let response: GetConnectedAgentsResponse = rpc(world, method, request).await.unwrap();
            assert_eq!(response.agents, agents, "{method}");
        }
    }
    assert!(ids.iter().all(|other| *other == ids[0] && other[0] != other[1]), "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn agents_of_a_project_are_listed() {
    let world = World::new();
    let hash = TokenHash::of(&world.agent_token);
    let file = format!(
        "agents: [{{id: 1, name: prod, project_id: 7, tokens: ['{hash}']}}, {{id: 2, name: b, project_id: 7, tokens: []}}]"
    );
    world.kas.identities.replace(Identity::parse(Path::new("identity.yaml"), &file).unwrap());
    let _agent = world.agent(Services::new()).await;
    let agents = connected(&world, Some(AgentSelector::ProjectId(7))).await.unwrap();
    let found: Vec<_> = agents.iter().map(|agent| (agent.agent_id, agent.project_id)).collect();
    assert_eq!(found, [(1, 7)], "the other agent is not connected");
    assert_eq!(connected(&world, Some(AgentSelector::ProjectId(8))).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn push_event_reaches_every_replica() {
    let fleet = TestFleet::new(2);
    let mut receivers: Vec<_> = fleet.replicas.iter().map(|world| world.kas.agents.store.pushes()).collect();
    let _: Empty = rpc(&fleet.replicas[0], PUSH, push_of(7, "group/project")).await.unwrap();
    for receiver in &mut receivers {
        assert_eq!(receiver.try_recv().unwrap(), GitPush::new(7, "group/project").unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_request_is_refused_with_its_reason() {
    let world = World::new();
    let invalid = |result: Result<Vec<ConnectedAgentInfo>, Status>| {
        let status = result.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        status.message().to_owned()
    };
    assert!(invalid(connected(&world, None).await).contains("neither project_id nor agent_id"));
    assert!(invalid(connected(&world, Some(AgentSelector::AgentId(0))).await).contains("agent_id: 0"));
    assert!(invalid(connected(&world, Some(AgentSelector::ProjectId(-1))).await).contains("project_id: -1"));
    for (push, expected) in [
        (GitPushEventRequest::default(), "no project"),
        (push_of(0, "a/b"), "id: 0 is not greater"),
        (push_of(7, ""), "not a project"),
        (push_of(7, "a\nb"), "not a project"),
    ] {
        let status = rpc::<_, Empty>(&world, PUSH, push).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(expected), "{status}");
    }
    for request in [
        ListAgentConfigFilesRequest::default(),
        ListAgentConfigFilesRequest { repository: Some(Default::default()), ..Default::default() },
    ] {
        let status = rpc::<_, ListAgentConfigFilesResponse>(&world, LIST_FILES, request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    assert_eq!(world.metric("kas_api_requests_total{result=\"bad-request\"}"), 9.0);
    let unknown = "/gitlab.agent.agent_tracker.rpc.AgentTracker/Reboot";
    let status = rpc::<_, Empty>(&world, unknown, Empty {}).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn request_above_the_largest_size_is_refused() {
    let world = World::new();
    let agent_ids = (0..1_000_000).map(|id| id + (1 << 60)).collect();
    let request = GetConnectedAgentsByAgentIdsRequest { agent_ids };
    let status =
        rpc::<_, GetConnectedAgentsResponse>(&world, CONNECTED_BY_IDS[0], request).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
}

#[tokio::test(start_paused = true)]
async fn rpc_over_http1_is_an_unknown_path() {
    let world = World::new();
    let request = Request::post(SERVER_INFO)
        .header(AUTHORIZATION, format!("Bearer {}", valid_token()))
        .header("content-type", "application/grpc")
        .body(Body::empty())
        .unwrap();
    let response = send(&world, request).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    assert!(text(response).await.contains("there is nothing at"));
}

async fn files(world: &World, gitaly: &TestGitaly, branch: &str) -> Result<Vec<(String, String)>, Status> {
    let server = gitaly.listen().await;
    let request = ListAgentConfigFilesRequest {
        repository: Some(gitaly.location()),
        gitaly_info: Some(GitalyInfo {
            address: server.address,
            token: server.token.expose_secret().to_owned(),
            features: server.features,
        }),
        default_branch: branch.into(),
    };
    let response: ListAgentConfigFilesResponse = rpc(world, LIST_FILES, request).await?;
    Ok(response.config_files.into_iter().map(|file| (file.name, file.agent_name)).collect())
}

#[tokio::test]
async fn configuration_files_of_a_project_are_listed() {
    let (world, gitaly) = (World::new(), TestGitaly::new());
    assert_eq!(files(&world, &gitaly, "").await.unwrap(), [], "an empty repository");
    let file = |agent: &str| (format!(".gitlab/agents/{agent}/config.yaml"), agent.to_owned());
    let (prod, staging) = (file("prod"), file("staging"));
    let content = || TestFile::Content(b"{}");
    gitaly.repository.commit("main", &[(&prod.0, content()), (&staging.0, content()), ("README", content())]);
    for branch in ["", "main"] {
        assert_eq!(files(&world, &gitaly, branch).await.unwrap(), [prod.clone(), staging.clone()]);
    }
    let status = files(&world, &gitaly, "gone").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "the repository has no branch \"gone\""));
    gitaly.fail_with(Status::unavailable("down for maintenance"));
    let status = files(&world, &gitaly, "").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("down for maintenance"), "{status}");
    assert_eq!(world.metric("kas_api_requests_total{result=\"unavailable\"}"), 1.0);
}
