//! The client of GitLab's internal API against the stand-in.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use gitops_wire::{CommitState, CommitStatus, CommitStatusApi as _, CommitStatusError, StatusPlace};
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kas_gitlab::{
    ApiRateLimit, Credential, Endpoint, GitLabClient, GitLabCommitStatuses, GitLabError, SwitchMonitor,
    Transport,
};
use secrecy::SecretString;
use serde_json::{Value, json};
use settings::Secret;
use testing::gitlab::{Agent, Endpoint as Received, Fault, Job, StandIn, User};
use tokio::time::{Instant, sleep};

/// The token of the agent of [`standin`].
pub(crate) const TOKEN: &str = "glagent-0123456789";

/// Starts a stand-in with one agent.
pub(crate) async fn standin() -> StandIn {
    let gitlab = StandIn::start().await;
    gitlab.state().add_agent(Agent::new(42, "production", TOKEN));
    gitlab
}

/// Returns a client of the stand-in over in-memory pipes.
pub(crate) fn client(gitlab: &StandIn) -> GitLabClient {
    client_with(gitlab, &gitlab.secret())
}

fn client_with(gitlab: &StandIn, secret: &str) -> GitLabClient {
    let gitlab = gitlab.clone();
    let transport = Transport::from_fn(move || {
        let (near, far) = tokio::io::duplex(64 << 10);
        let gitlab = gitlab.clone();
        tokio::spawn(async move { gitlab.serve(far).await });
        Ok(near)
    });
    new_client(transport, secret)
}

fn new_client(transport: Transport, secret: &str) -> GitLabClient {
    let address = "http://gitlab.example.com".parse().unwrap();
    GitLabClient::new(address, Secret::parse(secret).unwrap(), transport, &ApiRateLimit::default())
}

/// Returns a client of a server that answers each path with a status. Counts the requests.
fn scripted(answer: fn(&str) -> u16) -> (GitLabClient, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let transport = Transport::from_fn(move || {
        let (near, far) = tokio::io::duplex(64 << 10);
        let count = Arc::clone(&count);
        let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
            count.fetch_add(1, SeqCst);
            let mut response = Response::new(Full::<Bytes>::from(r#"{"message":"text"}"#));
            *response.status_mut() = StatusCode::from_u16(answer(request.uri().path())).unwrap();
            async { Ok::<_, io::Error>(response) }
        });
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service);
        tokio::spawn(connection);
        Ok(near)
    });
    (new_client(transport, &BASE64_STANDARD.encode([1; 32])), requests)
}

async fn allowed_agents(client: &GitLabClient) -> Result<Value, GitLabError> {
    let token = SecretString::from("job-token");
    client.get(Endpoint::AllowedAgents, &[], Credential::Job(&token)).await
}

fn token() -> SecretString {
    TOKEN.into()
}

fn is_unavailable<T>(result: &Result<T, GitLabError>) -> bool {
    matches!(result, Err(GitLabError::Unavailable { .. }))
}

#[tokio::test(start_paused = true)]
async fn each_endpoint_is_used_as_gitlab_expects() {
    let gitlab = standin().await;
    gitlab.state().add_job("job-token", Job::new(1, 7));
    let (client, token) = (client(&gitlab), token());
    let info = client.agent_info(&token).await.unwrap().unwrap();
    assert_eq!((info.agent.0, info.name.as_str(), info.project), (42, "production", 142));
    assert_eq!(info.repository.gl_project_path, "group/config-42");
    assert_eq!(info.default_branch, "main");

    let job = allowed_agents(&client).await.unwrap();
    assert_eq!(job["project"]["id"], 7);
    let credential = Credential::Agent(&token);
    let project: Value =
        client.get(Endpoint::ProjectInfo, &[("id", "group/config-42")], credential).await.unwrap();
    assert_eq!(project["project_id"], 142);
    let (): () = client.get(Endpoint::VerifyProjectAccess, &[("id", "142")], credential).await.unwrap();
    let body = json!({"agent_id": 42, "agent_config": {}});
    let (): () = client.post(Endpoint::AgentConfiguration, &body, Credential::None).await.unwrap();
    let body = json!({"counters": {}, "unique_counters": {}});
    let (): () = client.post(Endpoint::UsageMetrics, &body, Credential::None).await.unwrap();
    let (): () = client.post(Endpoint::AgentEvents, &json!({"events": {}}), Credential::None).await.unwrap();
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn wrong_secret_is_no_answer_about_the_token() {
    let gitlab = standin().await;
    let client = client_with(&gitlab, &BASE64_STANDARD.encode([1; 32]));
    let error = client.agent_info(&token()).await.unwrap_err().to_string();
    assert!(error.contains("gitlab.authentication_secret_file"), "{error}");
    assert_eq!(gitlab.violations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_of_gitlab_are_unavailable_and_refusals_are_not() {
    let gitlab = standin().await;
    let client = client(&gitlab);
    let status = |status: u16| Fault::Status(StatusCode::from_u16(status).unwrap());
    for (fault, attempts) in [
        (Fault::Down, 0),
        (status(429), 5),
        (status(500), 5),
        (status(503), 5),
        (status(302), 1),
        (Fault::Garbage, 1),
        (Fault::Huge(5 << 20), 1),
        (Fault::Slow(Duration::from_secs(60)), 2),
    ] {
        let before = gitlab.requests(Received::AllowedAgents);
        gitlab.set_fault(fault.clone());
        let result = allowed_agents(&client).await;
        assert!(is_unavailable(&result), "{fault:?}: {result:?}");
        assert_eq!(gitlab.requests(Received::AllowedAgents) - before, attempts, "{fault:?}");
    }
    for refused in [400, 403, 404] {
        gitlab.set_fault(status(refused));
        let error = allowed_agents(&client).await.unwrap_err();
        assert!(error.is_status(StatusCode::from_u16(refused).unwrap()), "{error}");
    }
    gitlab.set_fault(None);
    assert!(allowed_agents(&client).await.unwrap_err().is_status(StatusCode::UNAUTHORIZED));
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn total_time_of_a_request_is_bounded() {
    let gitlab = standin().await;
    let client = client(&gitlab);
    gitlab.set_fault(Fault::Slow(Duration::from_secs(3600)));
    let started = Instant::now();
    assert!(is_unavailable(&allowed_agents(&client).await));
    assert!(started.elapsed() <= Duration::from_secs(30), "{:?}", started.elapsed());

    // agent_info is not sent again: agentk connects again itself.
    let started = Instant::now();
    assert!(client.agent_info(&token()).await.is_err());
    assert_eq!(started.elapsed(), Duration::from_secs(20));
    assert_eq!(gitlab.requests(Received::AgentInfo), 1);
}

#[tokio::test(start_paused = true)]
async fn recovered_gitlab_answers_the_next_attempt() {
    let gitlab = standin().await;
    gitlab.state().add_job("job-token", Job::new(1, 7));
    let client = client(&gitlab);
    gitlab.set_fault(Fault::Down);
    let recover = async {
        sleep(Duration::from_millis(300)).await;
        gitlab.set_fault(None);
    };
    let (result, ()) = tokio::join!(allowed_agents(&client), recover);
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rate_limit_lets_a_burst_pass_and_then_waits() {
    let gitlab = standin().await;
    let client = client(&gitlab);
    let started = Instant::now();
    let token = token();
    for _ in 0..250 {
        client.agent_info(&token).await.unwrap();
    }
    assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
    for _ in 0..50 {
        client.agent_info(&token).await.unwrap();
    }
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn token_that_no_header_may_have_is_not_sent() {
    let gitlab = standin().await;
    let client = client(&gitlab);
    let token = SecretString::from("a\nb");
    let result: Result<Value, _> = client.get(Endpoint::AllowedAgents, &[], Credential::Job(&token)).await;
    assert!(result.unwrap_err().is_status(StatusCode::UNAUTHORIZED));
    assert_eq!(gitlab.requests(Received::AllowedAgents), 0);
}

#[tokio::test(start_paused = true)]
async fn path_of_an_old_gitlab_is_found_once() {
    let (client, requests) = scripted(|path| if path.contains("agentk") { 404 } else { 401 });
    assert!(client.agent_info(&token()).await.unwrap().is_none());
    assert!(client.agent_info(&token()).await.unwrap().is_none());
    assert_eq!(requests.load(SeqCst), 3, "the new path is tried once");
    let monitor = tokio::spawn(SwitchMonitor { client: client.clone() }.run());
    sleep(Duration::from_secs(600)).await;
    assert_eq!(requests.load(SeqCst), 3, "nothing is probed");
    monitor.abort();
}

#[tokio::test(start_paused = true)]
async fn gitlab_that_has_switched_kas_off_is_recognized_until_it_is_on_again() {
    let gitlab = standin().await;
    let client = client(&gitlab);
    let mut off = client.switched_off();
    let _monitor = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(
        SwitchMonitor { client: client.clone() }.run(),
    ));

    // A project that does not exist is no sign.
    let token = token();
    let credential = Credential::Agent(&token);
    let missing: Result<Value, _> = client.get(Endpoint::ProjectInfo, &[("id", "999")], credential).await;
    assert!(missing.unwrap_err().is_status(StatusCode::NOT_FOUND));
    sleep(Duration::from_secs(60)).await;
    assert!(!*off.borrow());

    gitlab.set_fault(Fault::SwitchedOff);
    assert!(is_unavailable(&client.agent_info(&token).await), "no answer about the token");
    off.wait_for(|off| *off).await.unwrap();
    gitlab.set_fault(None);
    off.wait_for(|off| !*off).await.unwrap();
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn statuses_of_commits_are_set_with_the_token_of_the_file() {
    let gitlab = standin().await;
    gitlab.state().users.push(User::new(1, "bot").with_api_token("glpat-bot", 142));
    let client = client(&gitlab);
    assert!(GitLabCommitStatuses::new(&client).is_none(), "the operator has given no token");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "glpat-bot\n").unwrap();
    let statuses = GitLabCommitStatuses::new(&client.with_status_token_file(Some(file.path()))).unwrap();

    let commit = "0123456789012345678901234567890123456789";
    let place = StatusPlace { project: 142, commit, name: "agentk/production" };
    assert_eq!(statuses.get(place).await.unwrap(), None);
    let status = CommitStatus { state: CommitState::Success, description: "3 objects".to_owned() };
    statuses.set(place, &status).await.unwrap();
    assert_eq!(statuses.get(place).await.unwrap(), Some(status.clone()));
    assert_eq!(statuses.get(StatusPlace { name: "agentk/other", ..place }).await.unwrap(), None);

    std::fs::write(file.path(), "glpat-unknown").unwrap();
    assert!(matches!(statuses.set(place, &status).await, Err(CommitStatusError::Refused(_))));
    std::fs::remove_file(file.path()).unwrap();
    let error = statuses.set(place, &status).await.unwrap_err();
    assert!(matches!(error, CommitStatusError::Unavailable(_)), "it is sent again");
    assert!(error.to_string().contains("gitlab.commit_status_token_file cannot be read"), "{error}");
}
