//! The public API with which a user registers an agent: projects, agents, their tokens, and files of repositories.
//!
//! Statuses and messages are those of `lib/api/clusters`, `lib/api/files.rb` and `lib/api/helpers.rb` of GitLab.

use std::{collections::BTreeMap, time::SystemTime};

use http::Method;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gitlab::{
    answer::{Answer, message, unauthorized},
    endpoint::Endpoint,
    request::{KasRequest, Violation, parse, violation},
    state::{Agent, AgentTokenRecord, Project, State},
};

/// The active tokens that an agent may have.
const MAX_TOKENS: usize = 2;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentBody {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    name: String,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileBody {
    branch: String,
    start_branch: Option<String>,
    content: String,
    commit_message: String,
}

/// Answers a request of a user.
pub(crate) fn answer(state: &mut State, request: &KasRequest) -> Result<Answer, Violation> {
    match state.writer(&request.token) {
        None => return Ok(unauthorized()),
        Some(false) => {
            let text = "The request requires higher privileges than provided by the access token.";
            let body = json!({"error": "insufficient_scope", "error_description": text, "scope": "api"});
            return Ok((403, body));
        }
        Some(true) => {}
    }
    if request.endpoint == Endpoint::Metadata {
        let kas =
            json!({"enabled": state.kas_url.is_some(), "externalUrl": state.kas_url, "version": "18.1.1"});
        return Ok((
            200,
            json!({"version": "18.1.1-ee", "revision": "ceb07b24cb0", "kas": kas, "enterprise": true}),
        ));
    }
    let Some(project) = state.visible_project(&request.token, &request.id).cloned() else {
        return Ok((404, message("404 Project Not Found")));
    };
    if request.method != Method::GET
        && request.endpoint != Endpoint::RepositoryFile
        && !state.is_maintainer(&request.token)
    {
        return Ok((403, message("403 Forbidden")));
    }
    match (request.endpoint, request.method == Method::GET) {
        (Endpoint::ProjectDetails, _) => Ok((200, project_details(&project))),
        (Endpoint::ClusterAgents, true) => agents(state, &project, &request.query),
        (Endpoint::ClusterAgents, false) => register(state, project, &parse(&request.body)?),
        (Endpoint::RepositoryFile, true) => file(&project, request),
        (Endpoint::RepositoryFile, false) => create_file(state, &project, request),
        (Endpoint::AgentTokens | Endpoint::AgentToken, _) => tokens(state, &project, request),
        _ => Err(violation(404, "it is no endpoint of users")),
    }
}

fn project_details(project: &Project) -> Value {
    json!({
        "id": project.id,
        "description": null,
        "name": project.path,
        "path_with_namespace": project.path,
        "default_branch": project.default_branch,
        "empty_repo": project.branches.is_empty(),
        "archived": false,
    })
}

fn agents(state: &State, project: &Project, query: &str) -> Result<Answer, Violation> {
    let page = query.strip_prefix("per_page=100&page=").and_then(|page| page.parse::<usize>().ok());
    let page =
        page.filter(|page| *page > 0).ok_or_else(|| violation(400, format!("the query is {query:?}")))?;
    let of_project = state.agents.values().filter(|agent| agent.project.id == project.id);
    let listed = of_project.skip((page - 1) * 100).take(100).map(rest_agent);
    Ok((200, listed.collect()))
}

fn register(state: &mut State, project: Project, body: &AgentBody) -> Result<Answer, Violation> {
    let invalid = |text: &str| Ok((400, message(&format!("400 Bad request - [{text:?}]"))));
    if state.agents.values().any(|agent| agent.project.id == project.id && agent.name == body.name) {
        return invalid("Name has already been taken");
    }
    let label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if body.name.is_empty() || body.name.len() > 63 || !body.name.bytes().all(label) {
        return invalid(
            "Name can contain only lowercase letters, digits, and '-', but cannot start or end with '-'",
        );
    }
    let id = state.agents.keys().next_back().copied().unwrap_or_default() + 1;
    let agent = Agent { id, name: body.name.clone(), tokens: Vec::new(), project, refused: None };
    let answer = rest_agent(&agent);
    state.add_agent(agent);
    Ok((201, answer))
}

fn tokens(state: &mut State, project: &Project, request: &KasRequest) -> Result<Answer, Violation> {
    let id = request.part.parse::<u64>().ok();
    let agent = id.filter(|id| state.agents.get(id).is_some_and(|agent| agent.project.id == project.id));
    let Some(agent) = agent else { return Ok((404, message("404 Not found"))) };
    let of_agent = |record: &&AgentTokenRecord| record.agent == agent && record.active;
    if request.endpoint == Endpoint::AgentTokens {
        if request.method == Method::GET {
            return Ok((200, state.agent_tokens.iter().filter(of_agent).map(rest_token).collect()));
        }
        let body: TokenBody = parse(&request.body)?;
        if state.agent_tokens.iter().filter(of_agent).count() >= MAX_TOKENS {
            return Ok((
                400,
                message("400 Bad request - An agent can have only two active tokens at a time"),
            ));
        }
        return Ok((201, create_token(state, agent, body)));
    }
    let record = state
        .agent_tokens
        .iter_mut()
        .find(|record| record.agent == agent && record.active && record.id.to_string() == request.token_id);
    let Some(record) = record else { return Ok((404, message("404 Not found"))) };
    if request.method == Method::GET {
        let mut token = rest_token(record);
        token["last_used_at"] = record.last_used_at.map(time).into();
        return Ok((200, token));
    }
    record.active = false;
    let revoked = record.token.clone();
    state.agents.entry(agent).and_modify(|agent| agent.tokens.retain(|token| *token != revoked));
    Ok((204, Value::Null))
}

fn create_token(state: &mut State, agent: u64, TokenBody { name, description }: TokenBody) -> Value {
    let id = state.agent_tokens.len() as u64 + 1;
    let token = format!("glagent-secret-of-token-{id:05}-of-agent-{agent:05}");
    state.agents.entry(agent).and_modify(|agent| agent.tokens.push(token.clone()));
    let record = AgentTokenRecord { id, agent, name, token, active: true, last_used_at: None };
    let mut answer = rest_token(&record);
    answer["description"] = description.into();
    answer["last_used_at"] = Value::Null;
    answer["token"] = record.token.clone().into();
    state.agent_tokens.push(record);
    answer
}

fn file(project: &Project, request: &KasRequest) -> Result<Answer, Violation> {
    let branch = request.query.strip_prefix("ref=");
    let branch = branch.ok_or_else(|| violation(400, format!("the query is {:?}", request.query)))?;
    let branch = percent_decode_str(branch).decode_utf8_lossy();
    let Some(files) = project.branches.get(&*branch) else {
        return Ok((404, message("404 Commit Not Found")));
    };
    match files.get(&request.part) {
        None => Ok((404, message("404 File Not Found"))),
        Some(text) => Ok((200, json!({"file_path": request.part, "size": text.len(), "ref": branch}))),
    }
}

fn create_file(state: &mut State, project: &Project, request: &KasRequest) -> Result<Answer, Violation> {
    let FileBody { branch, start_branch, content, commit_message } = parse(&request.body)?;
    if commit_message.is_empty() || content.is_empty() {
        return Err(violation(400, "commit_message or content is empty"));
    }
    let is_protected = project.protected && branch == project.default_branch;
    if is_protected && !state.is_maintainer(&request.token) {
        return Ok((400, message("You are not allowed to push into this branch")));
    }
    let Some(project) = state.project_mut(project.id) else {
        return Ok((404, message("404 Project Not Found")));
    };
    let branches = &mut project.branches;
    let refused = match &start_branch {
        Some(_) if branches.contains_key(&branch) => Some(format!(
            "A branch called '{branch}' already exists. Switch to that branch in order to make changes"
        )),
        Some(start) if branches.contains_key(start) => {
            let files = branches[start].clone();
            branches.insert(branch.clone(), files);
            None
        }
        // The first commit of an empty repository makes its branch.
        None if branches.contains_key(&branch) || branches.is_empty() => None,
        _ => Some("You can only create or edit files when you are on a branch".to_owned()),
    };
    if let Some(refused) = refused {
        return Ok((400, message(&refused)));
    }
    let files: &mut BTreeMap<String, String> = branches.entry(branch.clone()).or_default();
    if files.contains_key(&request.part) {
        return Ok((400, message("A file with this name already exists")));
    }
    files.insert(request.part.clone(), content);
    Ok((201, json!({"file_path": request.part, "branch": branch})))
}

fn rest_agent(agent: &Agent) -> Value {
    json!({
        "id": agent.id,
        "name": agent.name,
        "config_project": {"id": agent.project.id, "path_with_namespace": agent.project.path},
        "created_at": "2022-04-20T20:42:40.221Z",
        "created_by_user_id": 42,
    })
}

/// Returns a token as lists have it: without its use and its text.
fn rest_token(record: &AgentTokenRecord) -> Value {
    json!({
        "id": record.id,
        "name": record.name,
        "description": null,
        "agent_id": record.agent,
        "status": "active",
        "created_at": "2022-03-25T14:12:11.497Z",
        "created_by_user_id": 42,
    })
}

fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}
