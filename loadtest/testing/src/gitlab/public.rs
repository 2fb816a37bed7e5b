//! The public API: the environments of a project.

use http::{HeaderMap, header::AUTHORIZATION};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::gitlab::{
    handlers::{Answer, message, unauthorized},
    request::{KasRequest, Violation, single, violation},
    state::{Project, ProjectEnvironment, State},
};

/// The environments of one page.
const PAGE: usize = 100;

/// Returns the token of a user, or that of a job with the prefix `job:`. Other credentials are a violation.
pub(crate) fn token(headers: &HeaderMap) -> Result<String, String> {
    for name in ["gitlab-kas-api-request", "gitlab-agentk-api-request", "private-token", "cookie"] {
        if headers.contains_key(name) {
            return Err(format!("the public API needs no {name}"));
        }
    }
    let user = single(headers, AUTHORIZATION.as_str())?;
    let job = single(headers, "job-token")?;
    let token = match (user, job) {
        (Some(user), None) => match user.strip_prefix("Bearer ") {
            Some(token) => token.to_owned(),
            None => return Err("Authorization is not Bearer".to_owned()),
        },
        (None, Some(job)) => format!("job:{job}"),
        _ => return Err("there is no token, or more than one".to_owned()),
    };
    Ok(token)
}

/// Answers `GET /projects/:id/environments`.
pub(crate) fn environments(state: &State, request: &KasRequest) -> Result<Answer, Violation> {
    let wrong = || violation(400, format!("the query is {:?}", request.query));
    let page = match request.query.strip_prefix("name=") {
        Some(_) => None,
        None => {
            let page = request.query.strip_prefix("states=available&per_page=100&page=").ok_or_else(wrong)?;
            Some(page.parse::<usize>().ok().filter(|page| *page > 0).ok_or_else(wrong)?)
        }
    };
    match state.reader(&request.token) {
        None => return Ok(unauthorized()),
        Some(false) => return Ok((403, json!({"error": "insufficient_scope"}))),
        Some(true) => {}
    }
    let Some(project) = state.visible_project(&request.token, &request.id) else {
        return Ok((404, message("404 Project Not Found")));
    };
    let found: Vec<_> = match (page, request.query.strip_prefix("name=")) {
        (Some(page), _) => project.environments.iter().skip((page - 1) * PAGE).take(PAGE).collect(),
        (None, name) => {
            let name = percent_decode_str(name.unwrap_or_default()).decode_utf8_lossy();
            project.environments.iter().filter(|environment| environment.name == name).collect()
        }
    };
    let found = found.into_iter().map(|environment| rest_environment(project, environment));
    Ok((200, found.collect()))
}

fn rest_environment(project: &Project, environment: &ProjectEnvironment) -> Value {
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
