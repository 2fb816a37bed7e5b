//! The stand-in answers correct requests, and refuses and records all others.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::SystemTime;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use testing::gitlab::{
    Account, Agent, AgentAccess, Endpoint, Fault, Job, Project, StandIn, User, sign_for_gitlab,
};

const AGENT_INFO: &str = "/internal/agents/agentk/agent_info";
const CONFIGURATION: &str = "/internal/kubernetes/agent_configuration";
const AUTHORIZE: &str = "/internal/kubernetes/authorize_proxy_user";

async fn gitlab() -> StandIn {
    let gitlab = StandIn::start().await;
    let mut state = gitlab.state();
    state.add_agent(Agent::new(7, "prod", "glagent-a"));
    state.add_job("job-a", Job::new(3, 30).with_agent(7, json!({"access_as": {"ci_job": {}}})));
    state.add_job("job-b", Job { finished: true, ..Job::new(4, 30) });
    state.other_tokens.push("glpat-a".into());
    state.users.push(
        User::new(5, "alice")
            .with_token("glpat-a")
            .with_session("cookie", "csrf")
            .with_access(7, AgentAccess::Agent),
    );
    drop(state);
    gitlab
}

/// Returns a correct request without the token of a subject.
fn request(gitlab: &StandIn, method: &str, path: &str, body: Option<Value>) -> Request<String> {
    let secret = BASE64_STANDARD.decode(gitlab.secret()).unwrap();
    let request = Request::builder()
        .method(method)
        .uri(format!("/api/v4{path}"))
        .header("host", "gitlab")
        .header("user-agent", "gitlab-kas/v1/abc")
        .header("accept", "application/json")
        .header("gitlab-kas-api-request", sign_for_gitlab(&secret, SystemTime::now()));
    match body {
        None => request.body(String::new()),
        Some(body) => request.header("content-type", "application/json").body(body.to_string()),
    }
    .unwrap()
}

fn with(mut request: Request<String>, name: &'static str, value: &str) -> Request<String> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

fn without(mut request: Request<String>, name: &str) -> Request<String> {
    request.headers_mut().remove(name);
    request
}

async fn try_send(gitlab: &StandIn, request: Request<String>) -> hyper::Result<Response<Incoming>> {
    let (near, far) = tokio::io::duplex(64 << 10);
    let serving = gitlab.clone();
    tokio::spawn(async move { serving.serve(far).await });
    let (mut sender, connection) = http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    sender.send_request(request).await
}

async fn send(gitlab: &StandIn, request: Request<String>) -> (u16, Value) {
    let response = try_send(gitlab, request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn correct_requests_are_answered() {
    let gitlab = gitlab().await;
    let agent = |path| with(request(&gitlab, "GET", path, None), "authorization", "Bearer glagent-a");
    let (status, info) = send(&gitlab, agent(AGENT_INFO)).await;
    assert_eq!((status, &info["agent_id"], &info["project_id"]), (200, &json!(7), &json!(107)));
    let (status, info) = send(&gitlab, agent("/internal/kubernetes/project_info?id=group%2Fconfig-7")).await;
    assert_eq!((status, &info["project_id"]), (200, &json!(107)));
    assert_eq!(send(&gitlab, agent("/internal/kubernetes/verify_project_access?id=107")).await.0, 204);
    assert_eq!(send(&gitlab, agent("/internal/kubernetes/verify_project_access?id=9")).await.0, 404);
    let other = request(&gitlab, "GET", "/internal/kubernetes/agent_info", None);
    assert_eq!(send(&gitlab, with(other, "gitlab-agent-api-request", "glagent-a")).await.0, 200);
    let unknown = with(request(&gitlab, "GET", AGENT_INFO, None), "authorization", "Bearer glagent-b");
    assert_eq!(send(&gitlab, unknown).await.0, 401);

    for (token, status) in [("job-a", 200), ("job-b", 401), ("job-c", 401), ("glpat-a", 404)] {
        let job = with(request(&gitlab, "GET", "/job/allowed_agents", None), "job-token", token);
        assert_eq!(send(&gitlab, job).await.0, status, "{token}");
    }
    for (agent, access_type, key, csrf, status) in [
        (7, "personal_access_token", "glpat-a", None, 200),
        (7, "personal_access_token", "glpat-b", None, 400),
        (8, "personal_access_token", "glpat-a", None, 404),
        (7, "session_cookie", "cookie", Some("csrf"), 200),
        (7, "session_cookie", "cookie", Some("other"), 401),
    ] {
        let body =
            json!({"agent_id": agent, "access_type": access_type, "access_key": key, "csrf_token": csrf});
        assert_eq!(
            send(&gitlab, request(&gitlab, "POST", AUTHORIZE, Some(body))).await.0,
            status,
            "{key} {agent}"
        );
    }

    let file = json!({"agent_id": 7, "agent_config": {"ci_access": {}}});
    assert_eq!(send(&gitlab, request(&gitlab, "POST", CONFIGURATION, Some(file))).await.0, 204);
    let usage = json!({"counters": {"k8s_api_proxy_request": 3}, "unique_counters": {}});
    let path = "/internal/kubernetes/usage_metrics";
    assert_eq!(send(&gitlab, request(&gitlab, "POST", path, Some(usage))).await.0, 204);
    let events = json!({"events": {"register_agent_at_kas": [{"project_id": 107, "agent_id": 7}]}});
    let path = "/internal/kubernetes/agent_events";
    assert_eq!(send(&gitlab, request(&gitlab, "POST", path, Some(events))).await.0, 204);
    let state = gitlab.state();
    assert_eq!(state.configurations, [(7, json!({"ci_access": {}}))]);
    assert_eq!((state.usage_metrics.len(), state.agent_events.len()), (1, 1));
    drop(state);
    gitlab.assert_no_violations();
    assert_eq!(gitlab.requests(Endpoint::AllowedAgents), 4);
}

#[tokio::test]
async fn incorrect_request_is_refused_and_recorded() {
    let gitlab = gitlab().await;
    let agent = |request| with(request, "authorization", "Bearer glagent-a");
    let get = |path| request(&gitlab, "GET", path, None);
    let post = |path, body| request(&gitlab, "POST", path, Some(body));
    let jwt = |token: &str| with(agent(get(AGENT_INFO)), "gitlab-kas-api-request", token);
    let wrong_secret = sign_for_gitlab(&[1; 32], SystemTime::now());
    let public = |path: &str| {
        let mut request = without(get(""), "gitlab-kas-api-request");
        *request.uri_mut() = path.parse().unwrap();
        with(request, "authorization", "Bearer glpat-a")
    };
    let by_name = || public("/api/v4/projects/a%2Fb/environments?name=x&states=available");
    let user = |access_type, key, csrf| json!({"agent_id": 7, "access_type": access_type, "access_key": key, "csrf_token": csrf});
    for (request, status, rule) in [
        (agent(get("/internal/kubernetes/unknown")), 404, "nothing at this path"),
        (without(agent(get(AGENT_INFO)), "gitlab-kas-api-request"), 401, "is missing"),
        (jwt("a.b.c"), 401, "JWT"),
        (jwt(&wrong_secret), 401, "signature"),
        (agent(post(AGENT_INFO, json!({}))), 405, "method"),
        (get(AGENT_INFO), 401, "token of the agent is missing"),
        (with(agent(get(AGENT_INFO)), "gitlab-agent-api-request", "other"), 401, "different tokens"),
        (with(agent(get(AGENT_INFO)), "job-token", "job-a"), 401, "another subject"),
        (agent(get("/internal/agents/agentk/agent_info?x=1")), 400, "the query is"),
        (agent(get("/internal/kubernetes/project_info")), 400, "the query is"),
        (agent(get("/internal/kubernetes/project_info?id=a/b")), 400, "the query is"),
        (with(agent(get(AGENT_INFO)), "user-agent", "curl/8"), 400, "User-Agent"),
        (without(agent(get(AGENT_INFO)), "accept"), 400, "Accept"),
        (get("/job/allowed_agents"), 401, "Job-Token is missing"),
        (post(CONFIGURATION, json!({"agent_id": 7})), 400, "agent_config"),
        (post(CONFIGURATION, json!({"agent_id": 7, "agent_config": []})), 400, "not an object"),
        (post(CONFIGURATION, json!({"agent_id": 7, "agent_config": {}, "x": 1})), 400, "unknown field"),
        (agent(post(CONFIGURATION, json!({"agent_id": 7, "agent_config": {}}))), 401, "another subject"),
        (post(AUTHORIZE, user("cookie", "a", Some("b"))), 400, "unknown variant"),
        (post(AUTHORIZE, user("session_cookie", "a", None)), 400, "csrf_token"),
        (post(AUTHORIZE, user("personal_access_token", "", None)), 400, "access_key"),
        (
            post("/internal/kubernetes/usage_metrics", json!({"counters": {"x": 1}})),
            400,
            "there is no counter x",
        ),
        (
            post("/internal/kubernetes/usage_metrics", json!({"counters": {"k8s_api_proxy_request": -1}})),
            400,
            "invalid value",
        ),
        (post("/internal/kubernetes/agent_events", json!({"events": {"x": []}})), 400, "there is no event x"),
        (public("/api/v5/graphql"), 404, "nothing at this path"),
        (with(by_name(), "gitlab-kas-api-request", "jwt"), 401, "needs no gitlab-kas-api-request"),
        (with(by_name(), "private-token", "glpat-a"), 401, "needs no private-token"),
        (with(by_name(), "job-token", "job-a"), 401, "more than one"),
        (without(by_name(), "authorization"), 401, "there is no token"),
        (public("/api/v4/projects/a/b/environments?name=x&states=available"), 404, "nothing at this path"),
        (public("/api/v4/projects/a%2Fb/environments"), 400, "the query is"),
        (public("/api/v4/projects/a%2Fb/environments?name=x"), 400, "the query is"),
        (public("/api/v4/projects/a%2Fb/deployments"), 400, "the query is"),
        (
            with(public("/api/v4/job"), "gitlab-kas-api-request", "jwt"),
            401,
            "needs no gitlab-kas-api-request",
        ),
        (
            public("/api/v4/projects/a%2Fb/environments?states=available&per_page=100&page=0"),
            400,
            "the query is",
        ),
    ] {
        let before = gitlab.violations().len();
        let (answered, _) = send(&gitlab, request).await;
        let violations = gitlab.violations();
        assert_eq!((answered, violations.len()), (status, before + 1), "{rule}: {violations:?}");
        assert!(violations.last().unwrap().contains(rule), "{violations:?}");
    }
}

#[tokio::test]
async fn blocked_and_deactivated_users_may_not_use_the_public_api() {
    let gitlab = gitlab().await;
    for (account, status) in [(Account::Active, 200), (Account::Blocked, 403), (Account::Deactivated, 403)] {
        gitlab.state().set_account("alice", account);
        let request = without(request(&gitlab, "GET", "/user", None), "gitlab-kas-api-request");
        let request = with(request, "authorization", "Bearer glpat-a");
        assert_eq!(send(&gitlab, request).await.0, status, "{account:?}");
    }
    gitlab.assert_no_violations();
}

#[tokio::test]
async fn user_registers_an_agent_as_in_gitlab() {
    let gitlab = gitlab().await;
    let mut project = Project::new(30, "group/shop");
    project.protected = true;
    gitlab.state().projects.push(project);
    gitlab.state().users.push(User::new(6, "bob").with_api_token("glpat-m", 30));
    gitlab.state().users.push(User { developer: true, ..User::new(8, "eve").with_api_token("glpat-d", 30) });
    let ask = async |token: &str, method: &str, path: &str, body: Option<Value>| {
        let request = without(request(&gitlab, method, path, body), "gitlab-kas-api-request");
        let request =
            with(with(request, "user-agent", "kas/0.1.0"), "authorization", &format!("Bearer {token}"));
        let (status, body) = send(&gitlab, request).await;
        let message = body["message"].as_str().unwrap_or_default().to_owned();
        (status, message, body)
    };
    let agents = "/projects/group%2Fshop/cluster_agents";
    let name = || Some(json!({"name": "shop"}));
    let (status, message, _) = ask("glpat-d", "POST", agents, name()).await;
    assert_eq!((status, &*message), (403, "403 Forbidden"));
    let (status, _, agent) = ask("glpat-m", "POST", agents, name()).await;
    assert_eq!((status, &agent["id"]), (201, &json!(8)));
    let (status, message, _) = ask("glpat-m", "POST", agents, name()).await;
    assert_eq!((status, &*message), (400, "400 Bad request - [\"Name has already been taken\"]"));

    let tokens = "/projects/30/cluster_agents/8/tokens";
    let (_, _, token) = ask("glpat-m", "POST", tokens, name()).await;
    assert_eq!((&token["id"], &token["last_used_at"]), (&json!(1), &Value::Null));
    let authorization = format!("Bearer {}", token["token"].as_str().unwrap());
    let info = with(request(&gitlab, "GET", AGENT_INFO, None), "authorization", &authorization);
    assert_eq!(send(&gitlab, info).await.1["agent_name"], "shop");
    let (_, _, used) = ask("glpat-d", "GET", &format!("{tokens}/1"), None).await;
    assert!(used["last_used_at"].is_string() && used["token"].is_null(), "{used}");
    assert_eq!(ask("glpat-m", "POST", tokens, name()).await.0, 201);
    let (status, message, _) = ask("glpat-m", "POST", tokens, name()).await;
    assert_eq!(
        (status, &*message),
        (400, "400 Bad request - An agent can have only two active tokens at a time")
    );
    assert_eq!(ask("glpat-m", "DELETE", &format!("{tokens}/1"), None).await.0, 204);
    let info = with(request(&gitlab, "GET", AGENT_INFO, None), "authorization", &authorization);
    assert_eq!(send(&gitlab, info).await.0, 401);

    let file = "/projects/30/repository/files/a%2Fb.yaml";
    let commit = |branch: &str| Some(json!({"branch": branch, "content": "a", "commit_message": "Add"}));
    assert_eq!(ask("glpat-m", "GET", &format!("{file}?ref=main"), None).await.1, "404 File Not Found");
    assert_eq!(ask("glpat-m", "GET", &format!("{file}?ref=no"), None).await.1, "404 Commit Not Found");
    let (status, message, _) = ask("glpat-d", "POST", file, commit("main")).await;
    assert_eq!((status, &*message), (400, "You are not allowed to push into this branch"));
    assert_eq!(ask("glpat-m", "POST", file, commit("main")).await.0, 201);
    assert_eq!(ask("glpat-m", "GET", &format!("{file}?ref=main"), None).await.0, 200);
    let (status, message, _) = ask("glpat-m", "POST", file, commit("main")).await;
    assert_eq!((status, &*message), (400, "A file with this name already exists"));
    assert_eq!(ask("glpat-a", "GET", agents, None).await.0, 403, "the scope is missing");
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn faults_are_simulated() {
    let gitlab = gitlab().await;
    let info = || with(request(&gitlab, "GET", AGENT_INFO, None), "authorization", "Bearer glagent-a");
    gitlab.set_fault(Fault::Down);
    assert!(try_send(&gitlab, info()).await.is_err());
    gitlab.set_fault(Fault::Status(StatusCode::BAD_GATEWAY));
    assert_eq!(send(&gitlab, info()).await, (502, Value::Null));
    gitlab.set_fault(Fault::Garbage);
    assert_eq!(send(&gitlab, info()).await, (200, Value::Null));
    gitlab.set_fault(Fault::SwitchedOff);
    assert_eq!(send(&gitlab, info()).await.0, 404);
    gitlab.set_fault(Fault::Slow(std::time::Duration::from_secs(60)));
    let started = tokio::time::Instant::now();
    assert_eq!(send(&gitlab, info()).await.0, 200);
    assert_eq!(started.elapsed().as_secs(), 60);
    gitlab.set_fault(None);
    assert_eq!(send(&gitlab, info()).await.0, 200);
    gitlab.assert_no_violations();
}
