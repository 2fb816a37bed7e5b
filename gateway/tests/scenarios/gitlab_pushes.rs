//! Pushes that GitLab reports, and requests of modules: from GitLab to agents of GitLab, and back.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use gateway::test_support::api_messages::Empty;
use kas_testing::{
    fleet::TestFleet,
    gitaly::{TestFile, TestGitaly},
    world::World,
};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use testing::gitlab::{Agent, Endpoint, Gitaly, Project as GitLabProject, StandIn};
use tokio::time::{sleep, timeout};

use crate::{
    gitlab_agentk::{
        client::{Agentk, Call, ok},
        messages::{
            self, Any, GitlabAccessExtra, HttpRequest, HttpResponse, Payload, Project, RECONCILE_PROJECTS,
            ReconcileProjectsRequest, ReconcileProjectsResponse, RequestHead, RequestHeader, RequestPart,
            ResponsePart, fields,
        },
    },
    gitlab_client::{TOKEN, client, standin},
    grpc::{PUSH, push_of, rpc},
    manifests,
    project_events::Pod,
};

const SHOP: &str = "group/shop";
pub(crate) const OWN: &str = "group/project";
const SECRET: &str = "group/secret";
const GITLAB_ACCESS: &str = "/gitlab.agent.gitlab_access.rpc.GitlabAccess/MakeRequest";

/// Starts a stand-in whose agent may read the shop.
async fn gitlab() -> StandIn {
    let gitlab = standin().await;
    gitlab.state().projects.push(GitLabProject::new(77, SHOP));
    gitlab
}

/// Reports a push to a project, as GitLab does.
pub(crate) async fn push(world: &World, id: i64, path: &str) {
    let _: Empty = rpc(world, PUSH, push_of(id, path)).await.unwrap();
}

async fn reconcile(agentk: &mut Agentk, projects: &[&str]) -> Call {
    let mut call = agentk.call(RECONCILE_PROJECTS).await;
    let project = projects.iter().map(|id| Project { id: (*id).to_owned() }).collect();
    call.send(&ReconcileProjectsRequest { project });
    call.half_close();
    sleep(Duration::from_secs(1)).await;
    call
}

async fn next(call: &mut Call) -> String {
    let response: ReconcileProjectsResponse = call.next().await.unwrap();
    response.project.unwrap().id
}

#[tokio::test(start_paused = true)]
async fn push_at_another_replica_reaches_flux_of_an_agentk_of_gitlab() {
    let gitlab = gitlab().await;
    let fleet = TestFleet::with_gitlab(2, || client(&gitlab), TOKEN);
    let (mut agentk, _streams) = Agentk::start(&fleet.replicas[0]).await;
    let mut call = reconcile(&mut agentk, &[SHOP, SECRET]).await;
    // The agent may not read the first one, and has not named the second one.
    push(&fleet.replicas[1], 78, SECRET).await;
    push(&fleet.replicas[1], 79, "group/another").await;
    push(&fleet.replicas[1], 77, SHOP).await;
    assert_eq!(next(&mut call).await, SHOP);
    push(&fleet.replicas[0], 77, SHOP).await;
    assert_eq!(next(&mut call).await, SHOP);
    assert_eq!(gitlab.requests(Endpoint::VerifyProjectAccess), 2, "the answer is cached");
    gitlab.assert_no_violations();
}

/// Starts a stand-in and a Gitaly with the project of the agent, whose configuration is this text.
pub(crate) async fn with_repository(configuration: &str) -> (StandIn, TestGitaly) {
    let gitaly = TestGitaly::new();
    let file = TestFile::Content(configuration.as_bytes());
    gitaly.repository.commit("main", &[(".gitlab/agents/production/config.yaml", file)]);
    let server = gitaly.listen().await;
    let mut agent = Agent::new(42, "production", TOKEN);
    agent.project = GitLabProject::new(7, OWN);
    agent.project.relative_path = gitaly.location().relative_path;
    let token = server.token.expose_secret().to_owned();
    let features = server.features.into_iter().collect();
    agent.project.gitaly = Gitaly { address: server.address, token, features };
    let gitlab = StandIn::start().await;
    gitlab.state().add_agent(agent);
    (gitlab, gitaly)
}

/// Starts the tasks of a replica that send events.
pub(crate) fn start_features(world: &World) {
    let tasks = world.kas.features.background_tasks(&world.kas.agents);
    tasks.into_iter().for_each(|task| drop(tokio::spawn(task)));
}

/// Waits until the condition is true, in real time.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(Duration::from_secs(30), reached).await.is_ok(), "{what}");
}

/// In real time, because Gitaly listens on loopback.
#[tokio::test]
async fn push_at_another_replica_reaches_the_events_of_an_agent_of_gitlab() {
    let (gitlab, _gitaly) = with_repository("notify: {projects: [{id: group/shop}]}").await;
    let own = gitlab.state().agents[&42].project.clone();
    gitlab.state().projects.push(GitLabProject { id: 77, path: SHOP.to_owned(), ..own });
    let fleet = TestFleet::with_gitlab(2, || client(&gitlab), TOKEN);
    fleet.replicas.iter().for_each(start_features);
    let pod = Pod::new(&[SHOP]);
    let _agent = fleet.replicas[0].agent(pod.services()).await;
    let arrives = async {
        // kas forgets events of a project that no agent has named yet.
        while pod.events.lock().is_empty() {
            push(&fleet.replicas[1], 79, "group/another").await;
            push(&fleet.replicas[1], 77, SHOP).await;
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(Duration::from_secs(30), arrives).await.is_ok(), "no event arrives");
    assert!(pod.events.lock().iter().all(|event| event.project() == SHOP));
}

/// In real time, because Gitaly listens on loopback.
#[tokio::test]
async fn look_of_kas_adds_the_commit_to_the_push_of_a_project_with_poll() {
    let (gitlab, gitaly) = with_repository("notify: {projects: [{id: group/project, poll: 1h}]}").await;
    let first = gitaly.repository.commit("main", &[("a", TestFile::Content(b"1"))]);
    let fleet = TestFleet::with_gitlab(2, || client(&gitlab), TOKEN);
    fleet.replicas.iter().for_each(start_features);
    let pod = Pod::new(&[OWN]);
    let _agent = fleet.replicas[0].agent(pod.services()).await;
    let has = |commit: &str| {
        let events = pod.events.lock();
        events.iter().any(|event| event.fields().after.as_deref() == Some(commit))
    };
    until("the first look", || has(&first)).await;
    let second = gitaly.repository.commit("main", &[("a", TestFile::Content(b"2"))]);
    push(&fleet.replicas[1], 7, OWN).await;
    until("the look after the push", || has(&second)).await;
    let events = pod.events.lock();
    let last = events.iter().find(|event| event.fields().after.as_ref() == Some(&second)).unwrap();
    assert_eq!(last.fields().before.as_ref(), Some(&first));
    assert_eq!(last.reference(), "refs/heads/main");
}

/// In real time, because Gitaly listens on loopback.
#[tokio::test]
async fn push_at_another_replica_sends_the_manifests_of_the_new_commit() {
    let (gitlab, gitaly) =
        with_repository("gitops: {manifest_projects: [{id: group/project, interval: 1h}]}").await;
    let fleet = TestFleet::with_gitlab(2, || client(&gitlab), TOKEN);
    fleet.replicas.iter().for_each(start_features);
    let pod = manifests::Pod::new(200);
    let _agent = fleet.replicas[0].agent(pod.services()).await;
    let is_sent = || pod.take_requests().iter().any(|request| request == "POST /v1/sync");
    until("the first commit is sent", is_sent).await;
    sleep(Duration::from_millis(500)).await;
    pod.take_requests();
    let manifest = TestFile::Content(b"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}");
    gitaly.repository.commit("main", &[("a.yaml", manifest)]);
    push(&fleet.replicas[1], 7, OWN).await;
    until("the new commit is sent", is_sent).await;
}

#[tokio::test(start_paused = true)]
async fn request_of_a_module_reaches_gitlab_and_its_answer_agentk() {
    let gitlab = gitlab().await;
    let world = World::with_gitlab(client(&gitlab), TOKEN, |_| {});
    let (mut agentk, _streams) = Agentk::start(&world).await;
    let mut call = agentk.call(GITLAB_ACCESS).await;
    let request = RequestHead {
        method: "POST".to_owned(),
        header: fields(&[("Content-Type", "application/json"), ("X-Forwarded-For", "10.0.0.1")]),
        url_path: "/reconcile".to_owned(),
        query: fields(&[("full", "true")]),
    };
    let extra = GitlabAccessExtra { module_name: "remote_development".to_owned() };
    let extra = Any { type_url: String::new(), value: prost::Message::encode_to_vec(&extra) };
    let header = RequestHeader { request: Some(request), extra: Some(extra), content_length: None };
    for part in [
        RequestPart::Header(header),
        RequestPart::Data(Payload { data: b"{}".to_vec() }),
        RequestPart::Trailer(messages::Empty {}),
    ] {
        call.send(&HttpRequest { part: Some(part) });
    }
    call.half_close();
    let (mut status, mut body) = (0, Vec::new());
    while let Some(HttpResponse { part }) = call.next().await {
        match part.unwrap() {
            ResponsePart::Header(header) => status = header.response.unwrap().status_code,
            ResponsePart::Data(Payload { data }) => body.extend(data),
            _ => {}
        }
    }
    assert_eq!(call.end().await, ok());
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, body), (201, json!({"received": "{}"})));
    let path = "POST /api/v4/internal/kubernetes/modules/remote_development/reconcile?full=true";
    assert_eq!(gitlab.state().module_requests, [path]);
    gitlab.assert_no_violations();
}
