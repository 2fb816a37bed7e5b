//! The public API: a query of GraphQL, and the environments of a project by REST.

use http::{HeaderMap, header::AUTHORIZATION};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    endpoint::Endpoint,
    handlers::{Answer, message, unauthorized},
    request::{KasRequest, Violation, parse, single, violation},
    state::{Project, ProjectEnvironment, State},
};

/// The only queries that kas sends.
const ENVIRONMENT: &str = "query($project: ID!, $name: String!) { project(fullPath: $project) { id environment(name: $name) { id slug tier lastDeployment(status: SUCCESS) { agent { id kubernetesNamespace } } } } }";
const ENVIRONMENTS: &str = "query($project: ID!, $after: String) { project(fullPath: $project) { id environments(states: [\"available\"], first: 100, after: $after) { nodes { id slug tier lastDeployment(status: SUCCESS) { agent { id kubernetesNamespace } } } pageInfo { hasNextPage endCursor } } } }";
/// The environments of one page.
const PAGE: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryBody {
    query: String,
    variables: Variables,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variables {
    project: String,
    name: Option<String>,
    after: Option<String>,
}

/// Returns the token of a user, or that of a job with the prefix `job:`. Other credentials are a violation.
pub(crate) fn token(endpoint: Endpoint, headers: &HeaderMap) -> Result<String, String> {
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
        (None, Some(_)) if endpoint == Endpoint::GraphQl => {
            return Err("GraphQL accepts no token of a job".to_owned());
        }
        (None, Some(job)) => format!("job:{job}"),
        _ => return Err("there is no token, or more than one".to_owned()),
    };
    Ok(token)
}

/// Answers a query of GraphQL.
pub(crate) fn graphql(state: &State, request: &KasRequest) -> Result<Answer, Violation> {
    let QueryBody { query, variables } = parse(&request.body)?;
    let Variables { project, name, after } = variables;
    let is_list = match (&*query, &name, &after) {
        (ENVIRONMENT, Some(_), None) => false,
        (ENVIRONMENTS, None, _) => true,
        _ => return Err(violation(400, format!("the query is {query}, name {name:?}, after {after:?}"))),
    };
    match state.reader(&request.token) {
        None => return Ok(unauthorized()),
        Some(false) => return Ok((403, json!({"error": "insufficient_scope"}))),
        Some(true) => {}
    }
    if state.deployments_without_agent {
        let error = "Field 'agent' doesn't exist on type 'Deployment'";
        return Ok((200, json!({"errors": [{"message": error}]})));
    }
    let Some(project) = state.visible_project(&request.token, &project) else {
        return Ok((200, json!({"data": {"project": null}})));
    };
    let mut data = json!({"id": format!("gid://gitlab/Project/{}", project.id)});
    if is_list {
        let first = after.as_deref().unwrap_or("0").parse::<usize>();
        let first = first.map_err(|_| violation(400, format!("after is {after:?}")))?;
        let page = project.environments.iter().skip(first).take(PAGE);
        let next = first + PAGE;
        data["environments"] = json!({
            "nodes": page.map(node).collect::<Vec<_>>(),
            "pageInfo": {"hasNextPage": next < project.environments.len(), "endCursor": next.to_string()},
        });
    } else {
        let environment =
            project.environments.iter().find(|environment| Some(&environment.name) == name.as_ref());
        data["environment"] = environment.map(node).unwrap_or_default();
    }
    Ok((200, json!({"data": {"project": data}})))
}

fn node(environment: &ProjectEnvironment) -> Value {
    let agent = environment.place.as_ref().map(|(agent, namespace)| {
        json!({"id": format!("gid://gitlab/Clusters::Agent/{agent}"), "kubernetesNamespace": namespace})
    });
    json!({
        "id": format!("gid://gitlab/Environment/{}", environment.id),
        "slug": environment.slug,
        "tier": environment.tier.to_uppercase(),
        "lastDeployment": {"agent": agent},
    })
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
