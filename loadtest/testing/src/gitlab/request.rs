//! The rules for requests of kas that do not depend on the state.

use std::{collections::BTreeMap, time::SystemTime};

use axum::body::Bytes;
use http::{
    HeaderMap, Method, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT},
};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::gitlab::{
    endpoint::{Endpoint, Subject},
    jwt,
};

/// The headers with a token of an agent in newer versions of GitLab.
const AGENT_HEADERS: [&str; 2] = ["gitlab-agent-api-request", "gitlab-agentk-api-request"];

/// The reason why a request is refused, with the status of GitLab.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) status: u16,
    pub(crate) rule: String,
    /// The JWT is refused. kas recognizes this by the message.
    pub(crate) jwt: bool,
}

/// A request that keeps the rules.
#[derive(Debug)]
pub(crate) struct KasRequest {
    pub(crate) endpoint: Endpoint,
    pub(crate) method: Method,
    /// The token of the agent or of the job; empty if the body names the subject.
    pub(crate) token: String,
    /// The query parameter `id`, or the id of the path, decoded.
    pub(crate) id: String,
    /// The commit, the merge request, the agent or the file in the path of the public API.
    pub(crate) part: String,
    /// The token of an agent, or the note, in the path of the public API.
    pub(crate) token_id: String,
    /// The query of the public API.
    pub(crate) query: String,
    pub(crate) body: Bytes,
}

/// The body of `agent_configuration`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigurationBody {
    pub(crate) agent_id: u64,
    pub(crate) agent_config: Value,
}

/// The body of `authorize_proxy_user`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuthorizeBody {
    pub(crate) agent_id: u64,
    pub(crate) access_type: AccessType,
    pub(crate) access_key: String,
    pub(crate) csrf_token: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AccessType {
    SessionCookie,
    PersonalAccessToken,
}

/// The body of `usage_metrics`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageBody {
    #[serde(default)]
    pub(crate) counters: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) unique_counters: BTreeMap<String, Vec<u64>>,
}

/// The body of `agent_events`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsBody {
    pub(crate) events: BTreeMap<String, Vec<BTreeMap<String, Value>>>,
}

/// Checks a request of kas.
pub(crate) fn check(
    (method, uri, headers): (&Method, &Uri, &HeaderMap),
    body: Bytes,
    secret: &[u8],
) -> Result<KasRequest, Violation> {
    let endpoint = Endpoint::at(uri.path()).ok_or_else(|| violation(404, "there is nothing at this path"))?;
    let is_public = matches!(endpoint.subject(), Subject::Caller | Subject::User);
    if !is_public {
        let token = single(headers, "gitlab-kas-api-request")
            .map_err(jwt_violation)?
            .ok_or_else(|| jwt_violation("Gitlab-Kas-Api-Request is missing"))?;
        jwt::check(&token, secret, SystemTime::now()).map_err(jwt_violation)?;
    }
    if !endpoint.allows(method) {
        return Err(violation(405, "the method is wrong"));
    }

    let check_headers = || -> Result<(), String> {
        if is_of_curl(endpoint, headers) {
            return Ok(());
        }
        let agent = single(headers, USER_AGENT.as_str())?.unwrap_or_default();
        if endpoint.subject() == Subject::User {
            if !agent.starts_with("kas/") {
                return Err(format!("User-Agent {agent:?} is not kas/<version>"));
            }
        } else if !agent.starts_with("gitlab-kas/") || agent.matches('/').count() < 2 {
            return Err(format!("User-Agent {agent:?} is not gitlab-kas/<version>/<commit>"));
        }
        // The module chooses the form of its request.
        if endpoint == Endpoint::Module {
            return Ok(());
        }
        if single(headers, ACCEPT.as_str())?.as_deref() != Some("application/json") {
            return Err("Accept is not application/json".to_owned());
        }
        let content_type = single(headers, CONTENT_TYPE.as_str())?;
        let expected = match endpoint {
            Endpoint::OauthToken | Endpoint::OauthRevoke => Some("application/x-www-form-urlencoded"),
            Endpoint::GraphQl | Endpoint::Note => Some("application/json"),
            Endpoint::Notes if *method == Method::POST => Some("application/json"),
            _ => None,
        };
        if expected.is_some() && content_type.as_deref() != expected {
            return Err(format!("Content-Type is {content_type:?}"));
        }
        match endpoint.subject() {
            Subject::Body if content_type.as_deref() != Some("application/json") => {
                Err("Content-Type is not application/json".to_owned())
            }
            Subject::User
                if *method == Method::POST && content_type.as_deref() != Some("application/json") =>
            {
                Err("Content-Type is not application/json".to_owned())
            }
            _ if *method == Method::GET && !body.is_empty() => Err("a GET has a body".to_owned()),
            _ => Ok(()),
        }
    };
    check_headers().map_err(|rule| violation(400, rule))?;
    let token = subject_token(endpoint, headers).map_err(|rule| violation(401, rule))?;
    let (id, part, token_id) = if endpoint.has_form() || endpoint == Endpoint::GraphQl {
        Default::default()
    } else if is_public {
        path_ids(uri.path()).map_err(|rule| violation(400, rule))?
    } else if endpoint == Endpoint::Module {
        let target = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        (String::new(), target, String::new())
    } else {
        let id = query_id(endpoint, uri.query()).map_err(|rule| violation(400, rule))?;
        (id, String::new(), String::new())
    };
    let query = uri.query().filter(|_| is_public).unwrap_or_default().to_owned();
    Ok(KasRequest { endpoint, method: method.clone(), token, id, part, token_id, query, body })
}

/// Returns whether curl in a job has sent a request. kas sends no header of this name.
fn is_of_curl(endpoint: Endpoint, headers: &HeaderMap) -> bool {
    endpoint == Endpoint::Notes && headers.contains_key("private-token")
}

/// Returns the token of the agent or the job. Headers of another subject are a violation.
fn subject_token(endpoint: Endpoint, headers: &HeaderMap) -> Result<String, String> {
    if endpoint.has_form() {
        return if headers.contains_key(AUTHORIZATION) {
            Err("a form has the credential of its client".to_owned())
        } else {
            Ok(String::new())
        };
    }
    if is_of_curl(endpoint, headers) {
        return single(headers, "private-token")?.ok_or_else(|| "PRIVATE-TOKEN is missing".to_owned());
    }
    if matches!(endpoint.subject(), Subject::Caller | Subject::User) {
        return public_token(headers);
    }
    let job = single(headers, "job-token")?;
    let mut agent = single(headers, AUTHORIZATION.as_str())?
        .map(|value| match value.strip_prefix("Bearer ") {
            Some(token) => Ok(token.to_owned()),
            None => Err("Authorization is not Bearer".to_owned()),
        })
        .transpose()?;
    for name in AGENT_HEADERS {
        let value = single(headers, name)?;
        if agent.is_some() && value.is_some() && agent != value {
            return Err("the headers have different tokens of an agent".to_owned());
        }
        agent = agent.or(value);
    }
    let token = match (endpoint.subject(), agent, job) {
        (Subject::Agent, Some(token), None) | (Subject::Job, None, Some(token)) => token,
        (Subject::Body | Subject::None, None, None) => return Ok(String::new()),
        (Subject::Agent, None, _) => return Err("the token of the agent is missing".to_owned()),
        (Subject::Job, _, None) => return Err("Job-Token is missing".to_owned()),
        (
            Subject::Agent | Subject::Job | Subject::None | Subject::Body | Subject::Caller | Subject::User,
            _,
            _,
        ) => {
            return Err("there is a token of another subject".to_owned());
        }
    };
    if token.is_empty() { Err("the token is empty".to_owned()) } else { Ok(token) }
}

/// Returns the token of a user, or that of a job with the prefix `job:`. Other credentials are a violation.
fn public_token(headers: &HeaderMap) -> Result<String, String> {
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

fn query_id(endpoint: Endpoint, query: Option<&str>) -> Result<String, String> {
    match (endpoint.has_id(), query.map(|query| query.strip_prefix("id="))) {
        (false, None) => Ok(String::new()),
        (true, Some(Some(id))) if !id.is_empty() && !id.contains(['&', '/']) => {
            percent_decode_str(id).decode_utf8().map(Into::into).map_err(|error| error.to_string())
        }
        _ => Err(format!("the query is {query:?}")),
    }
}

/// Returns the id of the project in a path of the public API, the object in it, and the token of an agent.
fn path_ids(path: &str) -> Result<(String, String, String), String> {
    let decode = |id: &str| match percent_decode_str(id).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(error) => Err(error.to_string()),
    };
    let path = path.trim_start_matches("/api/v4/projects/").trim_start_matches("/api/v4/groups/");
    let ids = match *path.split('/').collect::<Vec<_>>() {
        [id, "repository", "commits", part, _] | [id, "repository", "files", part] => [id, part, ""],
        [id, "cluster_agents", agent, "tokens", token] => [id, agent, token],
        [id, "merge_requests", number, "notes", note] => [id, number, note],
        [id, "statuses" | "merge_requests" | "cluster_agents" | "environments" | "jobs", part, ..] => {
            [id, part, ""]
        }
        [id, ..] => [id, "", ""],
        [] => return Err("there is no id".to_owned()),
    };
    let [id, part, token] = ids.map(decode);
    Ok((id?, part?, token?))
}

/// Parses a body.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Violation> {
    serde_json::from_slice(body).map_err(|error| violation(400, format!("body: {error}")))
}

/// Returns the only value of a header.
pub(crate) fn single(headers: &HeaderMap, name: &str) -> Result<Option<String>, String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            value.to_str().map(|text| Some(text.to_owned())).map_err(|_| format!("{name} is not text"))
        }
        (Some(_), Some(_)) => Err(format!("there is more than one {name}")),
    }
}

pub(crate) fn violation(status: u16, rule: impl Into<String>) -> Violation {
    Violation { status, rule: rule.into(), jwt: false }
}

fn jwt_violation(rule: impl Into<String>) -> Violation {
    Violation { status: 401, rule: rule.into(), jwt: true }
}
