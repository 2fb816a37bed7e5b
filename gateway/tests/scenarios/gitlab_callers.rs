//! CI jobs and users of GitLab.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use agentk_core::Services;
use environments_wire::{Deployment, DeploymentRecords as _, DeploymentStatus, Tier};
use http::{HeaderMap, Request, Response, StatusCode, header::AUTHORIZATION};
use hyper::body::Incoming;
use kas_gitlab::UsageReporter;
use kas_testing::{
    gitlab::{AGENT, AGENT_TOKEN, echo, world},
    issuer::now,
    world::{RunningAgent, World, text},
};
use serde_json::{Value, json};
use testing::gitlab::{
    Agent, AgentAccess, Endpoint, Fault, Job, Membership, Project, StandIn, User, sha_of_job, sign_for_kas,
};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tunnel::Body;

const SECOND: Duration = Duration::from_secs(1);

fn with_job(gitlab: &StandIn, token: &str, access_as: Value) {
    let job = Job { groups: vec![23], ..Job::new(3, 30) }.with_agent(AGENT, json!({"access_as": access_as}));
    gitlab.state().add_job(token, job.with_environment("prod", "production"));
}

async fn attached() -> (StandIn, World, RunningAgent) {
    let (gitlab, world, agent) = world(|_| {}).await;
    with_job(&gitlab, "job", json!({"ci_job": {}}));
    let roles = vec![Membership { id: 30, roles: vec!["developer".into()] }];
    gitlab.state().users.push(
        User::new(5, "alice")
            .with_token("glpat-alice")
            .with_session("cookie+/=", "csrf")
            .with_access(AGENT, AgentAccess::User { projects: roles, groups: Vec::new() }),
    );
    (gitlab, world, agent)
}

async fn get(world: &World, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
    let request = Request::get(path).header("host", "kas");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    world.send(request.body(Body::empty()).unwrap()).await
}

async fn get_with(world: &World, path: &str, token: &str) -> Response<Incoming> {
    get(world, path, &[("authorization", &format!("Bearer {token}"))]).await
}

async fn status(world: &World, token: &str) -> u16 {
    get_with(world, "/k8s-proxy/api", token).await.status().as_u16()
}

/// Returns the values of a header in the text of an echoed request.
fn values<'a>(echo: &'a str, name: &str) -> Vec<&'a str> {
    echo.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
}

#[tokio::test(start_paused = true)]
async fn job_reaches_its_agent_as_itself() {
    let (gitlab, world, _agent) = attached().await;
    for path in ["/k8s-proxy/api?x=1", "/agents/7/kubernetes/api?x=1", "/agents/prod/kubernetes/api?x=1"] {
        let response = get_with(&world, path, "ci:7:job").await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let echo = text(response).await;
        assert!(echo.starts_with("/api?x=1\n"), "{echo}");
        assert_eq!(values(&echo, "impersonate-user"), ["gitlab:ci_job:3"]);
        let mut groups = values(&echo, "impersonate-group");
        groups.sort_unstable();
        let expected = [
            "gitlab:ci_job",
            "gitlab:group:23",
            "gitlab:group_env_tier:23:production",
            "gitlab:project:30",
            "gitlab:project_env:30:prod",
            "gitlab:project_env_tier:30:production",
        ];
        assert_eq!(groups, expected);
        assert_eq!(values(&echo, "impersonate-extra-agent.gitlab.com%2fenvironment_tier"), ["production"]);
        assert!(!echo.contains("authorization"), "{echo}");
    }
    assert_eq!(get_with(&world, "/agents/7/events/v1/events", "ci:7:job").await.status(), 403);
    assert_eq!(gitlab.requests(Endpoint::AllowedAgents), 1);
    gitlab.assert_no_violations();
}

/// The nginx of Omnibus removes `/k8s-proxy/` before it forwards a request.
#[tokio::test(start_paused = true)]
async fn paths_without_a_prefix_are_those_of_the_cluster() {
    let without_prefix = |config: &mut gateway::config::Config| {
        config.agent.kubernetes_api.url_path_prefix = "/".parse().unwrap();
    };
    let (gitlab, world, _agent) = world(without_prefix).await;
    with_job(&gitlab, "job", json!({"ci_job": {}}));
    for (path, expected) in [
        ("/version", "/version\n"),
        ("/api/v1/pods?x=%20", "/api/v1/pods?x=%20\n"),
        // Both credentials and paths name the agent here, and no API server has such a path.
        ("/agents/7/kubernetes/version", "/version\n"),
        ("/agents/prod/kubernetes/version", "/version\n"),
    ] {
        let response = get_with(&world, path, "ci:7:job").await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let echo = text(response).await;
        assert!(echo.starts_with(expected), "{path}: {echo}");
        assert_eq!(values(&echo, "impersonate-user"), ["gitlab:ci_job:3"]);
    }
    for (path, token, status) in [
        ("/version", "ci:7:other", 401),
        ("/version", "ci:8:job", 403),
        // It would be a path of the cluster, if the path did not name the agent.
        ("/agents/8/kubernetes/version", "ci:7:job", 403),
        ("/agents/7/control/drain", "ci:7:job", 404),
        ("/agents/7", "ci:7:job", 404),
    ] {
        assert_eq!(get_with(&world, path, token).await.status(), status, "{path} {token}");
    }
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn modes_of_a_job_have_their_identities() {
    let (gitlab, world, _agent) = attached().await;
    with_job(&gitlab, "agent", json!({"agent": {}}));
    with_job(
        &gitlab,
        "impersonate",
        json!({"impersonate": {"username": "bob", "uid": "9", "groups": ["g"]}}),
    );
    with_job(&gitlab, "invalid", json!({"ci_user": {}}));
    for (token, user) in [("agent", &[][..]), ("job", &["gitlab:ci_job:3"]), ("impersonate", &["bob"])] {
        let echo = text(get_with(&world, "/k8s-proxy/api", &format!("ci:7:{token}")).await).await;
        assert_eq!(values(&echo, "impersonate-user"), user, "{token}: {echo}");
    }
    let response = get_with(&world, "/k8s-proxy/api", "ci:7:invalid").await;
    assert_eq!(response.status(), 500);
    assert!(text(response).await.contains("Failed to construct impersonation config"));
}

/// RBAC of the cluster does not apply to PromQL.
#[tokio::test(start_paused = true)]
async fn promql_is_for_jobs_and_users_that_act_as_agentk() {
    let (gitlab, world, _agent) = attached().await;
    with_job(&gitlab, "agent", json!({"agent": {}}));
    with_job(&gitlab, "default", json!({}));
    with_job(&gitlab, "impersonate", json!({"impersonate": {"username": "bob"}}));
    gitlab
        .state()
        .users
        .push(User::new(6, "bob").with_token("glpat-bob").with_access(AGENT, AgentAccess::Agent));
    for (token, expected) in [
        ("ci:7:agent", 200),
        ("ci:7:default", 200),
        ("pat:7:glpat-bob", 200),
        ("ci:7:job", 403),
        ("ci:7:impersonate", 403),
        ("pat:7:glpat-alice", 403),
    ] {
        let response = get_with(&world, "/agents/7/prometheus/api/v1/query?query=up", token).await;
        assert_eq!(response.status(), expected, "{token}");
        let body = text(response).await;
        assert_eq!(body.contains("RBAC does not limit PromQL"), expected == 403, "{token}: {body}");
        assert_eq!(status(&world, token).await, 200, "{token}");
    }
    // An entry of `ci_access` that changes to an identity ends what the job may do as agentk.
    with_job(&gitlab, "agent", json!({"ci_job": {}}));
    sleep(60 * SECOND).await;
    let response = get_with(&world, "/agents/7/prometheus/api/v1/query?query=up", "ci:7:agent").await;
    assert_eq!(response.status(), 403);
}

/// The table of authorization results of GitLab's kas, with one row for each line.
#[tokio::test(start_paused = true)]
async fn each_refusal_has_its_status_and_message() {
    let (gitlab, world, _agent) = attached().await;
    gitlab.state().other_tokens.push("glpat-alice".into());
    for (token, refused, finished) in
        [("finished", None, true), ("forbidden", Some(403), false), ("unprocessable", Some(422), false)]
    {
        gitlab.state().add_job(token, Job { refused, finished, ..Job::new(4, 30) });
    }
    gitlab.state().users.push(User::new(6, "mallory").with_token("glpat-mallory"));
    for (token, expected, message) in [
        ("", 401, "malformed"),
        ("ci:7:finished", 401, "Unauthorized: CI job token"),
        ("ci:7:unknown", 401, "Unauthorized: CI job token"),
        ("ci:7:forbidden", 403, "Forbidden: CI job token"),
        ("ci:7:glpat-alice", 404, "Not found: agents for CI job token"),
        ("ci:7:unprocessable", 503, "Failed to get allowed agents for CI job token"),
        ("ci:8:job", 403, "Forbidden: agentId is not allowed"),
        ("pat:7:unknown", 401, "Unauthorized"),
        ("pat:7:glpat-mallory", 403, "user_access in the configuration of agent 7 does not admit this user"),
        ("pat:8:glpat-alice", 401, "Unauthorized"),
    ] {
        let response = get_with(&world, "/k8s-proxy/api", token).await;
        let unauthorized = response.headers().get("gitlab-unauthorized").is_some();
        assert_eq!((response.status().as_u16(), unauthorized), (expected, expected == 401), "{token}");
        let body = text(response).await;
        assert!(body.contains(message), "{token}: {body}");
    }
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn answers_are_valid_for_a_minute_and_refusals_for_ten_seconds() {
    let (gitlab, world, _agent) = attached().await;
    let lookups = || gitlab.requests(Endpoint::AllowedAgents);
    for _ in 0..3 {
        assert_eq!(status(&world, "ci:7:job").await, 200);
        assert_eq!(status(&world, "ci:7:later").await, 401);
    }
    assert_eq!(lookups(), 2);
    with_job(&gitlab, "later", json!({}));
    assert_eq!(status(&world, "ci:7:later").await, 401);
    sleep(10 * SECOND).await;
    assert_eq!(status(&world, "ci:7:later").await, 200);
    assert_eq!(lookups(), 3);

    gitlab.state().jobs.clear();
    sleep(49 * SECOND).await;
    assert_eq!(status(&world, "ci:7:job").await, 200);
    sleep(SECOND).await;
    assert_eq!(status(&world, "ci:7:job").await, 401);
    assert_eq!(lookups(), 4);
}

#[tokio::test(start_paused = true)]
async fn without_gitlab_cached_answers_are_used_for_their_time() {
    let (gitlab, world, _agent) = attached().await;
    assert_eq!(status(&world, "ci:7:job").await, 200);
    assert_eq!(status(&world, "pat:7:glpat-alice").await, 200);
    for fault in [
        Fault::Down,
        Fault::Status(StatusCode::BAD_GATEWAY),
        Fault::Garbage,
        Fault::Huge(8 << 20),
        Fault::Slow(3600 * SECOND),
    ] {
        gitlab.set_fault(fault.clone());
        assert_eq!(status(&world, "ci:7:job").await, 200, "{fault:?}");
        for token in ["ci:7:other", "pat:7:other"] {
            let started = tokio::time::Instant::now();
            let response =
                get_with(&world, "/k8s-proxy/api", &format!("{token}{}", fault_name(&fault))).await;
            assert_eq!(response.status(), 503, "{fault:?}");
            assert_eq!(response.headers()["kas-error"], "identity-unavailable");
            assert!(response.headers().contains_key("retry-after"));
            assert!(started.elapsed() < 15 * SECOND, "{fault:?}");
        }
    }
    sleep(60 * SECOND).await;
    for token in ["ci:7:job", "pat:7:glpat-alice"] {
        assert_eq!(status(&world, token).await, 503, "{token}");
    }
    gitlab.set_fault(None);
    sleep(10 * SECOND).await;
    assert_eq!(status(&world, "ci:7:job").await, 200);
}

fn fault_name(fault: &Fault) -> String {
    format!("{fault:?}").chars().take_while(char::is_ascii_alphabetic).collect()
}

#[tokio::test(start_paused = true)]
async fn user_reaches_the_agent_with_a_token_or_a_session() {
    let (gitlab, world, _agent) = attached().await;
    let cookie = ("cookie", "a=b; _gitlab_kas=cookie%2B%2F%3D");
    for (path, headers, access_type) in [
        (
            "/k8s-proxy/api?a=%20&b",
            vec![("authorization", "Bearer pat:7:glpat-alice")],
            "personal_access_token",
        ),
        (
            "/k8s-proxy/api?a=%20&b",
            vec![cookie, ("gitlab-agent-id", "7"), ("x-csrf-token", "csrf")],
            "session_cookie",
        ),
        ("/k8s-proxy/api?gitlab-agent-id=7&a=%20&gitlab-csrf-token=csrf&b", vec![cookie], "session_cookie"),
    ] {
        let response = get(&world, path, &headers).await;
        assert_eq!(response.status(), 200, "{path}");
        let echo = text(response).await;
        assert!(echo.starts_with("/api?a=%20&b\n"), "{echo}");
        assert_eq!(values(&echo, "impersonate-user"), ["gitlab:user:alice"]);
        assert_eq!(values(&echo, "impersonate-group"), ["gitlab:user", "gitlab:project_role:30:developer"]);
        assert_eq!(values(&echo, "impersonate-extra-agent.gitlab.com%2faccess_type"), [access_type]);
        for secret in ["csrf", "_gitlab_kas", "gitlab-agent-id", "glpat"] {
            assert!(!echo.contains(secret), "{secret}: {echo}");
        }
    }
    assert_eq!(gitlab.requests(Endpoint::AuthorizeProxyUser), 2);
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn page_of_gitlab_may_read_responses() {
    let edit = |config: &mut gateway::config::Config| {
        let section = json!({
            "address": "http://gitlab", "authentication_secret_file": "secret",
            "external_url": "https://gitlab.example.com/path",
        });
        config.gitlab = Some(serde_json::from_value(section).unwrap());
    };
    let (_gitlab, world, _agent) = world(edit).await;
    let origin = |origin| {
        let world = world.clone();
        async move { get(&world, "/k8s-proxy/api", &[("origin", origin)]).await }
    };
    let response = origin("https://gitlab.example.com").await;
    assert_eq!(response.status(), 401);
    assert_eq!(response.headers()["access-control-allow-origin"], "https://gitlab.example.com");
    assert_eq!(response.headers()["access-control-allow-credentials"], "true");
    assert_eq!(origin("https://evil.example").await.status(), 403);
}

#[tokio::test(start_paused = true)]
async fn limit_counts_all_credentials_of_a_user() {
    let (gitlab, world, _agent) = world(|config| {
        config.agent.kubernetes_api.limits.max_requests_per_caller = 2;
    })
    .await;
    with_job(&gitlab, "job", json!({}));
    gitlab.state().users.push(
        User::new(5, "alice").with_token("one").with_token("two").with_access(AGENT, AgentAccess::Agent),
    );
    let watch = |token| {
        let world = world.clone();
        async move { get_with(&world, "/k8s-proxy/watch?watch=1", token).await }
    };
    let open = [watch("pat:7:one").await, watch("pat:7:two").await];
    assert_eq!(open.each_ref().map(|response| response.status().as_u16()), [200, 200]);
    assert_eq!(status(&world, "pat:7:one").await, 429);
    assert_eq!(status(&world, "ci:7:job").await, 200, "another caller");
}

#[tokio::test(start_paused = true)]
async fn gitlab_queries_prometheus_on_behalf_of_a_project() {
    let (_gitlab, world, _agent) = attached().await;
    let token = |claims: Value| {
        kas_testing::internal_api::jwt(&[1; 32], &json!({"alg": "HS256", "typ": "JWT"}), &claims)
    };
    let query = "/agents/7/prometheus/api/v1/query?query=up";
    let good =
        token(json!({"iss": "gitlab.example.com", "aud": "gitlab-kas", "project_id": 30, "exp": now() + 60}));
    let response = get_with(&world, query, &good).await;
    assert_eq!(response.status(), 200);
    let echo = text(response).await;
    assert!(echo.starts_with("/api/v1/query?query=up\n") && !echo.contains("impersonate"), "{echo}");
    let without_project = sign_for_kas(&[1; 32], std::time::SystemTime::now());
    for (path, token, expected) in [
        ("/agents/7/kubernetes/api", &*good, 403),
        ("/k8s-proxy/api", &good, 403),
        (query, &without_project, 403),
        (query, &token(json!({"aud": "gitlab", "project_id": 30, "exp": now() + 60})), 401),
        ("/agents/unknown/prometheus/api/v1/query?query=up", &good, 404),
    ] {
        assert_eq!(get_with(&world, path, token).await.status().as_u16(), expected, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn message_of_a_wrong_path_names_the_cause() {
    let (_gitlab, world, _agent) = attached().await;
    let response = get_with(&world, "/agents/8/kubernetes/api", "ci:7:job").await;
    assert_eq!(response.status(), 403);
    let headers: HeaderMap = response.headers().clone();
    assert_eq!(headers["kas-error"], "forbidden");
    assert!(text(response).await.contains("for another agent than the path names"));
    let basic = get(&world, "/k8s-proxy/api", &[(AUTHORIZATION.as_str(), "Basic YTpjaTo3OmpvYg==")]).await;
    assert_eq!(basic.status(), 401, "a user name is not part of credentials of GitLab");
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_for_gitlab() {
    let (gitlab, world, _agent) = attached().await;
    let (usage, period) = (world.kas.usage.clone(), 60 * SECOND);
    let reporter = UsageReporter {
        client: kas_testing::gitlab::client(&gitlab, &kas_gitlab::ApiRateLimit::default()),
        usage,
        period,
    };
    let _reporting = AbortOnDropHandle::new(tokio::spawn(reporter.run()));
    for (token, status) in
        [("ci:7:job", 200), ("ci:7:job", 200), ("pat:7:glpat-alice", 200), ("ci:8:job", 403)]
    {
        assert_eq!(get_with(&world, "/k8s-proxy/api", token).await.status(), status);
    }
    get_with(&world, "/agents/7/prometheus/api/v1/query?query=up", "ci:7:job").await;
    sleep(61 * SECOND).await;
    let posted = gitlab.state().usage_metrics.clone();
    let counters = json!({
        "k8s_api_proxy_request": 3,
        "k8s_api_proxy_requests_via_ci_access": 2,
        "k8s_api_proxy_requests_via_pat_access": 1,
    });
    assert_eq!(posted[0]["counters"], counters);
    let users = "k8s_api_proxy_requests_unique_users_via_pat_access";
    assert_eq!(posted[0]["unique_counters"][users], json!([5]));
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn job_with_an_environment_is_a_deployment() {
    let (gitlab, world, _agent) = attached().await;
    let job = Job::new(4, 30).with_agent(AGENT, json!({"default_namespace": "web"}));
    gitlab.state().add_job("web", job.with_environment("live", "staging"));
    gitlab.state().add_job("lint", Job::new(5, 30).with_agent(AGENT, json!({})));
    for token in ["ci:7:job", "ci:7:job", "ci:7:web", "ci:7:lint", "pat:7:glpat-alice"] {
        assert_eq!(status(&world, token).await, 200, "{token}");
    }
    assert_eq!(status(&world, "ci:8:job").await, 403, "another agent");

    let deployments = world.kas.deployments.list().await.unwrap();
    let found: Vec<_> =
        deployments.iter().map(|d| (d.job, &*d.environment, d.namespace.as_deref())).collect();
    assert_eq!(found, [(4, "live", Some("web")), (3, "prod", None)]);
    assert_eq!((deployments[0].tier, deployments[0].project_id), (Tier::Staging, 30));
}

/// Returns the newest deployment when it fulfils a condition, within an hour.
async fn deployment_when(world: &World, is_so: impl Fn(&Deployment) -> bool) -> Deployment {
    for _ in 0..3600 {
        let deployments = world.kas.deployments.list().await.unwrap();
        if let Some(found) = deployments.first().filter(|found| is_so(found)) {
            return found.clone();
        }
        sleep(SECOND).await;
    }
    panic!("the deployment never is so");
}

#[tokio::test(start_paused = true)]
async fn deployment_has_what_gitlab_tells_the_job_while_it_runs() {
    let (gitlab, world, _agent) = attached().await;
    gitlab.state().projects.push(Project::new(30, "shop/web"));
    assert_eq!(status(&world, "ci:7:job").await, 200);
    let running = deployment_when(&world, |found| found.commit.is_some()).await;
    let facts = running.facts;
    assert_eq!((running.commit, running.project), (Some(sha_of_job(3)), Some("shop/web".to_owned())));
    assert_eq!((facts.status, facts.pipeline), (DeploymentStatus::Running, Some(1003)));
    assert_eq!((facts.reference.as_deref(), facts.author.as_deref()), (Some("main"), Some("Alice Liddell")));
    assert_eq!(facts.job_url.as_deref(), Some("https://gitlab.example.com/shop/web/-/jobs/3"));
    assert!(facts.started.is_some() && facts.finished.is_none());

    gitlab.state().jobs.get_mut("job").unwrap().finished = true;
    let ended = deployment_when(&world, |found| found.facts.finished.is_some()).await;
    assert_eq!(ended.facts.status, DeploymentStatus::Unknown, "the token does not show the result");
    assert_eq!(ended.commit, Some(sha_of_job(3)));
    let asked = gitlab.requests(Endpoint::Job);
    sleep(600 * SECOND).await;
    assert_eq!(gitlab.requests(Endpoint::Job), asked, "an ended job is not followed");
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn job_that_gitlab_did_not_describe_is_described_later() {
    let (gitlab, world, _agent) = attached().await;
    // GitLab answers once, and is then down.
    let requests = async {
        while gitlab.requests(Endpoint::AllowedAgents) == 0 {
            tokio::task::yield_now().await;
        }
        gitlab.set_fault(Fault::Status(StatusCode::BAD_GATEWAY));
    };
    gitlab.set_fault(Fault::Slow(SECOND));
    let (answered, ()) = tokio::join!(status(&world, "ci:7:job"), requests);
    assert_eq!(answered, 200, "the job does not wait for the description");
    sleep(50 * SECOND).await;
    assert_eq!(world.kas.deployments.list().await.unwrap()[0].commit, None);
    gitlab.set_fault(None);
    deployment_when(&world, |found| found.commit.is_some()).await;
    gitlab.assert_no_violations();
}

/// Starts a kas with a token of the operator, which may read this project, and a job of the project 30.
async fn with_operator_token(project: u64) -> (tempfile::TempDir, StandIn, World, RunningAgent) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "glpat-kas\n").unwrap();
    let gitlab = StandIn::start().await;
    gitlab.state().add_agent(Agent::new(AGENT, "prod", AGENT_TOKEN));
    let client = kas_testing::gitlab::client(&gitlab, &kas_gitlab::ApiRateLimit::default());
    let client = client.with_deployment_token_file(Some(&file));
    let world = World::with_gitlab(client, AGENT_TOKEN.to_owned(), |_| {});
    let agent = world.agent(Services::new().with_fn("kubernetes", echo)).await;
    with_job(&gitlab, "job", json!({"ci_job": {}}));
    gitlab.state().projects.push(Project::new(30, "shop/web"));
    gitlab.state().users.push(User::new(9, "kas").with_project("glpat-kas", project));
    (directory, gitlab, world, agent)
}

#[tokio::test(start_paused = true)]
async fn operator_token_shows_how_a_deployment_has_ended() {
    let (_directory, gitlab, world, _agent) = with_operator_token(30).await;

    assert_eq!(status(&world, "ci:7:job").await, 200);
    deployment_when(&world, |found| found.commit.is_some()).await;
    sleep(600 * SECOND).await;
    assert_eq!(gitlab.requests(Endpoint::Job), 1, "the job is asked once, and not while it runs");
    gitlab.state().jobs.get_mut("job").unwrap().finished = true;
    gitlab.state().merged_commits.push((30, sha_of_job(3), 12));
    let query = format!("/api/v1/deployments?commit={}&status=success", &sha_of_job(3)[..8]);
    let list: Value =
        serde_json::from_str(&text(kas_testing::internal_api::get(&world, &query).await).await).unwrap();
    let found = &list["deployments"][0];
    assert_eq!((&found["status"], &found["current"]), (&json!("success"), &json!(true)));
    assert_eq!(found["finished"], json!("2026-01-01T00:01:00Z"));
    let page = "https://gitlab.example.com/shop/web/-/merge_requests/12";
    assert_eq!((&found["merge_request"], &found["merge_request_url"]), (&json!(12), &json!(page)));

    let asked = gitlab.requests(Endpoint::ProjectJob);
    sleep(600 * SECOND).await;
    deployment_when(&world, |found| found.facts.status == DeploymentStatus::Success).await;
    assert_eq!(gitlab.requests(Endpoint::ProjectJob), asked, "a known result is not asked for");
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn result_that_gitlab_does_not_show_stays_unknown_and_is_asked_for_rarely() {
    let (_directory, gitlab, world, _agent) = with_operator_token(31).await;
    assert_eq!(status(&world, "ci:7:job").await, 200);
    deployment_when(&world, |found| found.commit.is_some()).await;
    let asked = gitlab.requests(Endpoint::ProjectJob);
    for _ in 0..20 {
        let list = world.kas.deployments.list().await.unwrap();
        assert_eq!(list[0].facts.status, DeploymentStatus::Running);
    }
    assert!(gitlab.requests(Endpoint::ProjectJob) <= asked + 1, "readers share the answer");
    gitlab.assert_no_violations();
}
