//! The public API: the environments of a project, and the statuses of its commits.

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::gitlab::{
    answer::{Answer, message, unauthorized},
    request::{KasRequest, Violation, parse, violation},
    state::{Project, ProjectEnvironment, State},
};

/// The environments of one page.
const PAGE: usize = 100;

/// Answers `GET /projects/:id/environments`.
pub(crate) fn environments(state: &State, request: &KasRequest) -> Result<Answer, Violation> {
    let wrong = || violation(400, format!("the query is {:?}", request.query));
    let name = request.query.strip_prefix("name=").map(|rest| rest.strip_suffix("&states=available"));
    let page = match name {
        Some(name) => {
            name.ok_or_else(wrong)?;
            None
        }
        None => {
            let page = request.query.strip_prefix("states=available&per_page=100&page=").ok_or_else(wrong)?;
            Some(page.parse::<usize>().ok().filter(|page| *page > 0).ok_or_else(wrong)?)
        }
    };
    let project = match readable_project(state, request) {
        Ok(project) => project,
        Err(answer) => return Ok(answer),
    };
    let found: Vec<_> = match (page, name.flatten()) {
        (Some(page), _) => project.environments.iter().skip((page - 1) * PAGE).take(PAGE).collect(),
        (None, name) => {
            let name = percent_decode_str(name.unwrap_or_default()).decode_utf8_lossy();
            project.environments.iter().filter(|environment| environment.name == name).collect()
        }
    };
    let found = found.into_iter().map(|environment| rest_environment(project, environment));
    Ok((200, found.collect()))
}

/// Answers `GET /groups/:id/projects` with the projects of the group and of those below it. GitLab does not allow the token of a job.
pub(crate) fn group_projects(state: &State, request: &KasRequest) -> Result<Answer, Violation> {
    let wrong = || violation(400, format!("the query is {:?}", request.query));
    let begin = "include_subgroups=true&with_shared=false&archived=false&simple=true&order_by=id&sort=asc&per_page=100&page=";
    let page = request.query.strip_prefix(begin).and_then(|page| page.parse::<usize>().ok());
    let page = page.filter(|page| *page > 0).ok_or_else(wrong)?;
    match state.reader(&request.token) {
        _ if request.token.starts_with("job:") => return Ok((404, message("404 Group Not Found"))),
        None => return Ok(unauthorized()),
        Some(false) => return Ok((403, json!({"error": "insufficient_scope"}))),
        Some(true) => {}
    }
    let group = format!("{}/", request.id);
    let is_visible = |path: &str| state.visible_project(&request.token, path).is_some();
    let mut found: Vec<&Project> = state
        .projects
        .iter()
        .filter(|project| project.path.starts_with(&group) && is_visible(&project.path))
        .collect();
    if found.is_empty() {
        return Ok((404, message("404 Group Not Found")));
    }
    found.sort_by_key(|project| project.id);
    let page = found.into_iter().skip((page - 1) * PAGE).take(PAGE);
    Ok((200, page.map(|project| json!({"id": project.id, "path_with_namespace": project.path})).collect()))
}

/// Returns the project of a request whose token may read it, or the answer to one whose token may not.
pub(crate) fn readable_project<'a>(state: &'a State, request: &KasRequest) -> Result<&'a Project, Answer> {
    match state.reader(&request.token) {
        None => return Err(unauthorized()),
        Some(false) => return Err((403, json!({"error": "insufficient_scope"}))),
        Some(true) => {}
    }
    let project = state.visible_project(&request.token, &request.id);
    project.ok_or_else(|| (404, message("404 Project Not Found")))
}

/// Returns the id of the project of a request whose token may write to it, or the answer to one whose token may not.
pub(crate) fn writable_project(state: &State, request: &KasRequest) -> Result<u64, Answer> {
    match state.writer(&request.token) {
        None => return Err(unauthorized()),
        Some(false) => return Err((403, json!({"error": "insufficient_scope"}))),
        Some(true) => {}
    }
    let project = state.visible_project(&request.token, &request.id).map(|project| project.id);
    project.ok_or_else(|| (404, message("404 Project Not Found")))
}

/// Answers `GET /projects/:id/repository/commits/:sha/statuses`.
pub(crate) fn commit_statuses(state: &State, request: &KasRequest) -> Result<Answer, Violation> {
    let project = match writable_project(state, request) {
        Ok(project) => project,
        Err(answer) => return Ok(answer),
    };
    let name = request.query.strip_prefix("name=").and_then(|rest| rest.strip_suffix("&per_page=1"));
    let name = name.ok_or_else(|| violation(400, format!("the query is {:?}", request.query)))?;
    let name = percent_decode_str(name).decode_utf8_lossy();
    let of_commit = |(of, commit, body): &&(u64, String, Value)| {
        *of == project && *commit == request.part && body["name"] == *name
    };
    let newest = state.commit_statuses.iter().rev().find(of_commit).map(
        |(_, _, body)| json!({"status": body["state"], "name": body["name"], "description": body["description"]}),
    );
    Ok((200, newest.into_iter().collect()))
}

/// Answers `POST /projects/:id/statuses/:sha`.
pub(crate) fn set_commit_status(state: &mut State, request: &KasRequest) -> Result<Answer, Violation> {
    let project = match writable_project(state, request) {
        Ok(project) => project,
        Err(answer) => return Ok(answer),
    };
    let body: Value = parse(&request.body)?;
    let length = |key: &str| body[key].as_str().unwrap_or_default().chars().count();
    if !["pending", "running", "success", "failed", "canceled"]
        .contains(&body["state"].as_str().unwrap_or(""))
    {
        return Err(violation(400, "state does not have a valid value"));
    }
    if length("name") == 0 || length("description") > 255 || length("target_url") > 255 {
        return Err(violation(400, "name, description or target_url has a wrong length"));
    }
    let sha = request.part.len() == 40 && request.part.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !sha {
        return Ok((404, message("404 Commit Not Found")));
    }
    let last =
        state.commit_statuses.iter().rev().find(|(of, commit, last)| {
            *of == project && *commit == request.part && last["name"] == body["name"]
        });
    // A status that has ended is replaced by a new one; a pending one cannot become pending.
    if last.is_some_and(|(_, _, last)| last["state"] == "pending" && body["state"] == "pending") {
        let text = "Cannot transition status via :enqueue from :pending (Reason(s): Status cannot transition via \"enqueue\")";
        return Ok((400, message(text)));
    }
    let answer = json!({"id": state.commit_statuses.len(), "status": body["state"], "name": body["name"]});
    state.commit_statuses.push((project, request.part.clone(), body));
    Ok((201, answer))
}

pub(crate) fn rest_environment(project: &Project, environment: &ProjectEnvironment) -> Value {
    let ProjectEnvironment { id, name, slug, tier, place } = environment;
    let mut value = json!({
        "id": id, "name": name, "slug": slug, "tier": tier, "state": "available", "project": {"id": project.id},
    });
    if let Some((agent, namespace)) = place {
        value["cluster_agent"] = json!({"id": agent});
        value["kubernetes_namespace"] = json!(namespace);
    }
    value
}
