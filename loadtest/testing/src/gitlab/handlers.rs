//! The responses of GitLab to requests that keep the rules.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State as AxumState,
    response::Response,
};
use http::{HeaderMap, Method, StatusCode, Uri, header::CONTENT_TYPE};
use serde_json::{Value, json};

use crate::gitlab::{
    Fault, Shared,
    answer::{Answer, message, unauthorized},
    deployments,
    endpoint::{Endpoint, Subject},
    merge_requests, oauth, public, registration,
    request::{
        AccessType, AuthorizeBody, ConfigurationBody, EventsBody, KasRequest, UsageBody, Violation, check,
        parse, violation,
    },
    state::{AccessToken, AgentAccess, Job, State},
};

/// The counters that GitLab accepts.
const COUNTERS: [&str; 6] = [
    "k8s_api_proxy_request",
    "flux_git_push_notifications_total",
    "gitops_sync",
    "k8s_api_proxy_requests_via_ci_access",
    "k8s_api_proxy_requests_via_user_access",
    "k8s_api_proxy_requests_via_pat_access",
];
/// The unique counters that GitLab accepts.
const UNIQUE_COUNTERS: [&str; 8] = [
    "k8s_api_proxy_requests_unique_users_via_ci_access",
    "k8s_api_proxy_requests_unique_users_via_user_access",
    "k8s_api_proxy_requests_unique_users_via_pat_access",
    "k8s_api_proxy_requests_unique_agents_via_ci_access",
    "k8s_api_proxy_requests_unique_agents_via_user_access",
    "k8s_api_proxy_requests_unique_agents_via_pat_access",
    "flux_git_push_notified_unique_projects",
    "agent_users_using_ci_tunnel",
];
/// The events that GitLab accepts, with their keys.
const EVENTS: [(&str, &[&str]); 4] = [
    ("k8s_api_proxy_requests_unique_users_via_ci_access", &["user_id", "project_id"]),
    ("k8s_api_proxy_requests_unique_users_via_user_access", &["user_id", "project_id"]),
    ("k8s_api_proxy_requests_unique_users_via_pat_access", &["user_id", "project_id"]),
    (
        "register_agent_at_kas",
        &[
            "project_id",
            "agent_version",
            "architecture",
            "agent_id",
            "kubernetes_version",
            "extra_telemetry_data",
        ],
    ),
];

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new().fallback(handle).with_state(shared)
}

async fn handle(
    AxumState(shared): AxumState<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some(endpoint) = Endpoint::at(uri.path()) {
        *shared.requests.lock().entry(endpoint).or_default() += 1;
    }
    let request = match check((&method, &uri, &headers), body, &shared.secret) {
        Ok(request) => request,
        Err(violation) => return refuse(&shared, &format!("{method} {uri}"), &violation),
    };
    match shared.fault() {
        None | Some(Fault::Down) => {}
        Some(Fault::Slow(delay)) => tokio::time::sleep(delay).await,
        Some(Fault::Status(status)) => return response(status.as_u16(), "<html>oops</html>".to_owned()),
        Some(Fault::Garbage) => return response(200, "<html>".to_owned()),
        Some(Fault::Huge(bytes)) => return response(200, "{".repeat(bytes)),
        Some(Fault::SwitchedOff) if matches!(request.endpoint.subject(), Subject::Caller | Subject::User) => {
        }
        Some(Fault::SwitchedOff) => return json_response((404, message("404 Not Found"))),
    }
    let answer = answer(&mut shared.state.lock(), &request);
    match answer {
        Ok(answer) => json_response(answer),
        Err(violation) => refuse(&shared, &format!("{method} {uri}"), &violation),
    }
}

fn refuse(shared: &Shared, request: &str, violation: &Violation) -> Response {
    shared.record_violation(request, &violation.rule);
    let text = if violation.jwt { "KAS JWT authentication invalid" } else { &violation.rule };
    json_response((violation.status, message(text)))
}

/// Notes the request of a module, and answers with its body.
fn module(state: &mut State, request: &KasRequest) -> Answer {
    if state.agent(&request.token).is_none() {
        return unauthorized();
    }
    state.module_requests.push(format!("{} {}", request.method, request.part));
    (201, json!({"received": String::from_utf8_lossy(&request.body)}))
}

/// Returns the agents that kas dials. 404 without a licence.
fn receptive_agents(state: &State) -> Answer {
    match &state.receptive_agents {
        Some(agents) => (200, json!({ "agents": agents })),
        None => (404, message("404 Not Found")),
    }
}

/// Returns the answer to a request that keeps the rules.
fn answer(state: &mut State, request: &KasRequest) -> Result<Answer, Violation> {
    let is_public = matches!(request.endpoint.subject(), Subject::Caller | Subject::User);
    if is_public && state.is_shut_out(&request.token) {
        return Ok((403, message("403 Forbidden - Your account has been blocked.")));
    }
    match request.endpoint {
        Endpoint::AgentInfo | Endpoint::AgentInfoDeprecated => Ok(agent_info(state, &request.token)),
        Endpoint::ProjectInfo => Ok(project(state, request, 200)),
        Endpoint::VerifyProjectAccess => Ok(project(state, request, 204)),
        Endpoint::ReceptiveAgents => Ok(receptive_agents(state)),
        Endpoint::Module => Ok(module(state, request)),
        Endpoint::AllowedAgents => Ok(allowed_agents(state, &request.token)),
        Endpoint::AuthorizeProxyUser => authorize_proxy_user(state, &parse(&request.body)?),
        Endpoint::AgentConfiguration => agent_configuration(state, parse(&request.body)?),
        Endpoint::Job => Ok(deployments::job(state, request)),
        Endpoint::ProjectEnvironments => public::environments(state, request),
        Endpoint::ProjectEnvironment => Ok(deployments::environment(state, request)),
        Endpoint::ProjectDeployments => deployments::deployments(state, request),
        Endpoint::GroupProjects => public::group_projects(state, request),
        Endpoint::ProjectJob => Ok(deployments::project_job(state, request)),
        Endpoint::CommitMergeRequests => Ok(deployments::commit_merge_requests(state, request)),
        Endpoint::CommitStatuses => public::commit_statuses(state, request),
        Endpoint::SetCommitStatus => public::set_commit_status(state, request),
        Endpoint::MergeRequests => merge_requests::list(state, request),
        Endpoint::Notes if request.method == Method::GET => merge_requests::notes(state, request),
        Endpoint::Notes => merge_requests::add_note(state, request),
        Endpoint::Note => merge_requests::edit_note(state, request),
        Endpoint::CurrentUser => Ok(merge_requests::current_user(state, request)),
        Endpoint::GraphQl => oauth::memberships(state, request),
        Endpoint::OauthToken => oauth::token(state, request),
        Endpoint::OauthRevoke => oauth::revoke(state, request),
        Endpoint::Metadata
        | Endpoint::ProjectDetails
        | Endpoint::ClusterAgents
        | Endpoint::AgentTokens
        | Endpoint::AgentToken
        | Endpoint::RepositoryFile => registration::answer(state, request),
        Endpoint::UsageMetrics => usage_metrics(state, &request.body),
        Endpoint::AgentEvents => agent_events(state, &request.body),
    }
}

fn agent_info(state: &mut State, token: &str) -> Answer {
    let Some(agent) = state.agent(token) else { return unauthorized() };
    if let Some(status) = agent.refused {
        return (status, message("refused"));
    }
    let mut info = agent.project.info();
    info["agent_id"] = agent.id.into();
    info["agent_name"] = agent.name.clone().into();
    state.use_token(token);
    (200, info)
}

fn project(state: &mut State, request: &KasRequest, found: u16) -> Answer {
    if state.agent(&request.token).is_none() {
        return unauthorized();
    }
    state.use_token(&request.token);
    match state.project(&request.id) {
        None => (404, message("404 Project Not Found")),
        Some(_) if found == 204 => (204, Value::Null),
        Some(project) => (found, project.info()),
    }
}

fn allowed_agents(state: &State, token: &str) -> Answer {
    if state.other_tokens.iter().any(|other| other == token) {
        return (404, message("404 Not Found"));
    }
    match state.jobs.get(token) {
        None => unauthorized(),
        Some(Job { finished: true, .. }) => unauthorized(),
        Some(Job { refused: Some(status), .. }) => (*status, message("refused")),
        Some(job) => (200, job_info(job)),
    }
}

fn job_info(job: &Job) -> Value {
    let agents = job.allowed_agents.iter().map(|agent| {
        json!({"id": agent.id, "config_project": {"id": agent.config_project}, "configuration": agent.configuration})
    });
    let groups = job.groups.iter().map(|id| json!({"id": id}));
    let mut info = json!({
        "allowed_agents": agents.collect::<Vec<_>>(),
        "job": {"id": job.id},
        "pipeline": {"id": job.pipeline},
        "project": {"id": job.project, "groups": groups.collect::<Vec<_>>()},
        "user": {"id": job.user, "username": job.username, "roles_in_project": ["reporter", "developer"]},
    });
    if let Some(environment) = &job.environment {
        info["environment"] = json!(environment);
    }
    info
}

fn authorize_proxy_user(state: &State, body: &AuthorizeBody) -> Result<Answer, Violation> {
    if body.access_key.is_empty() {
        return Err(violation(400, "access_key is empty"));
    }
    let user = match (body.access_type, &body.csrf_token) {
        (AccessType::PersonalAccessToken, _) => {
            let has = |token: &AccessToken| token.token == body.access_key;
            if !state.users.iter().any(|user| user.tokens.iter().any(has)) {
                return Ok((400, message("400 Bad request - Unable to get user from request data")));
            }
            let scoped = |scopes: &[String]| scopes.iter().any(|scope| scope == "k8s_proxy");
            let admits = |token: &AccessToken| has(token) && scoped(&token.scopes);
            state.users.iter().find(|user| user.tokens.iter().any(admits))
        }
        (AccessType::SessionCookie, Some(csrf)) if !csrf.trim().is_empty() => {
            state.users.iter().find(|user| {
                let mut sessions = user.sessions.iter();
                sessions.any(|session| session.cookie == body.access_key && session.csrf_token == *csrf)
            })
        }
        (AccessType::SessionCookie, _) => return Err(violation(400, "csrf_token is missing")),
    };
    // GitLab does not look at the account of the user here.
    let Some(user) = user else { return Ok(unauthorized()) };
    let Some(agent) = state.agents.get(&body.agent_id) else {
        return Ok((404, message("404 Agent Not Found")));
    };
    let access_as = match user.access.get(&agent.id) {
        None => return Ok((403, message("403 Forbidden"))),
        Some(AgentAccess::Agent) => json!({"agent": {}}),
        Some(AgentAccess::User { projects, groups }) => {
            json!({"user": {"projects": projects, "groups": groups}})
        }
    };
    let answer = json!({
        "agent": {"id": state.wrong_agent.unwrap_or(agent.id), "config_project": {"id": agent.project.id}},
        "user": {"id": user.id, "username": user.username},
        "access_as": access_as,
    });
    Ok((200, answer))
}

fn agent_configuration(state: &mut State, body: ConfigurationBody) -> Result<Answer, Violation> {
    let config = match body.agent_config {
        Value::String(text) => {
            serde_json::from_str(&text).map_err(|error| violation(400, format!("agent_config: {error}")))?
        }
        config => config,
    };
    if !config.is_object() {
        return Err(violation(400, "agent_config is not an object"));
    }
    if !state.agents.contains_key(&body.agent_id) {
        return Ok((404, message("404 Agent Not Found")));
    }
    state.configurations.push((body.agent_id, config));
    Ok((204, Value::Null))
}

fn usage_metrics(state: &mut State, body: &[u8]) -> Result<Answer, Violation> {
    let usage: UsageBody = parse(body)?;
    let unknown_counter = usage.counters.keys().find(|name| !COUNTERS.contains(&name.as_str()));
    let unknown_unique = usage.unique_counters.keys().find(|name| !UNIQUE_COUNTERS.contains(&name.as_str()));
    if let Some(name) = unknown_counter.or(unknown_unique) {
        return Err(violation(400, format!("there is no counter {name}")));
    }
    state.usage_metrics.push(parse(body)?);
    Ok((204, Value::Null))
}

fn agent_events(state: &mut State, body: &[u8]) -> Result<Answer, Violation> {
    let posted: EventsBody = parse(body)?;
    for (name, events) in &posted.events {
        let known = EVENTS.iter().find(|(known, _)| known == name);
        let (_, keys) = known.ok_or_else(|| violation(400, format!("there is no event {name}")))?;
        for event in events {
            if let Some(key) = event.keys().find(|key| !keys.contains(&key.as_str())) {
                return Err(violation(400, format!("event {name} has no key {key}")));
            }
            if !event.contains_key("project_id") {
                return Err(violation(400, format!("event {name} has no project_id")));
            }
        }
    }
    state.agent_events.push(parse(body)?);
    Ok((204, Value::Null))
}

fn json_response((status, body): Answer) -> Response {
    response(status, if body.is_null() { String::new() } else { body.to_string() })
}

fn response(status: u16, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status of a test");
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}
