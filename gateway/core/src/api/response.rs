//! The responses of the internal API.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use access::{ApiTokenError, SourceUnavailable};
use axum::response::{IntoResponse, Response};
use http::{
    HeaderValue, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use proto::{AgentId, AgentName, ReplicaId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use settings::rfc3339;
use tonic::{Code, Status};

use super::QueryError;
use crate::{
    agent_locations::{AgentOwner, AgentState, UnreadableRecords},
    configuration::ConfigurationStatus,
};

/// A page of connected agents.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentPage {
    /// The replica that created the response.
    pub(super) replica: ReplicaId,
    /// The time at which the response was created.
    #[serde(with = "rfc3339")]
    pub(super) time: SystemTime,
    /// The error because of which agents of other replicas are missing.
    pub(super) missing: Option<String>,
    /// The agents, in order of their ids.
    pub(super) agents: Vec<AgentInfo>,
    /// The value of `continue` for the next page, if there is one.
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// One agent, connected or not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentResponse {
    pub(super) replica: ReplicaId,
    #[serde(with = "rfc3339")]
    pub(super) time: SystemTime,
    pub(super) missing: Option<String>,
    pub(super) agent: AgentInfo,
    /// The configuration of the agent, if it has a tunnel to the replica.
    pub(super) configuration: Option<ConfigurationStatus>,
}

/// One agent in a response.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentInfo {
    pub(super) id: AgentId,
    pub(super) name: AgentName,
    pub(super) project_id: Option<u64>,
    /// The path of the project of an agent of GitLab, if it is known.
    pub(super) project: Option<String>,
    #[serde(flatten)]
    pub(super) state: AgentState,
    /// The replicas that hold its tunnels.
    pub(super) replicas: Vec<AgentOwner>,
}

/// The error of a request. It is an extension of its response, for metrics and logs.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum InternalApiError {
    #[error(transparent)]
    Token(#[from] ApiTokenError),
    #[error(
        "requests from {0} are not allowed: it is in none of the networks of api.listen.allowed_networks"
    )]
    Address(IpAddr),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("{0}")]
    NotFound(String),
    #[error(transparent)]
    Unavailable(#[from] SourceUnavailable),
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("the methods of this path: {0}")]
    Method(&'static str),
    /// The error of an RPC, whose response has its status already.
    #[error("{:?}: {}", .0.code(), .0.message())]
    Rpc(#[from] Status),
}

impl IntoResponse for AgentPage {
    fn into_response(self) -> Response {
        ok(&self)
    }
}

impl IntoResponse for AgentResponse {
    fn into_response(self) -> Response {
        ok(&self)
    }
}

impl InternalApiError {
    /// Returns the error for a path that the API does not have.
    pub fn no_path(path: &str) -> Self {
        let path: String = path.chars().take(100).collect();
        Self::NotFound(format!(
            "there is nothing at {path}: the paths are /api/v1/agents, /api/v1/agents/<id or name>, \
             /api/v1/agents/<id or name>/views, /api/v1/fleet, /api/v1/applications, /api/v1/components, /api/v1/environments, \
             /api/v1/deployments and /api/v1/events"
        ))
    }

    /// Returns the error for an id or a name that no agent has.
    pub fn no_agent(name: &str) -> Self {
        let name: String = name.chars().take(100).collect();
        Self::NotFound(format!("the identity file of kas has no agent {name:?}"))
    }

    /// Returns the error for programs.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Token(_) => "unauthorized",
            Self::Address(_) => "address-not-allowed",
            Self::Forbidden(_) => "forbidden",
            Self::Query(_) | Self::BadRequest(_) => "bad-request",
            Self::NotFound(_) => "not-found",
            Self::Unavailable(_) => "unavailable",
            Self::Method(_) => "method-not-allowed",
            Self::Rpc(status) => match status.code() {
                Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => "bad-request",
                Code::NotFound | Code::Unimplemented => "not-found",
                Code::Unavailable => "unavailable",
                Code::DeadlineExceeded => "timeout",
                _ => "internal",
            },
        }
    }
}

impl IntoResponse for InternalApiError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Token(_) => StatusCode::UNAUTHORIZED,
            Self::Address(_) => StatusCode::FORBIDDEN,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Query(_) | Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Rpc(status) => return with_error(status.clone().into_http(), self),
        };
        let mut response = json(status, &json!({"error": self.as_str(), "message": self.to_string()}));
        let headers = response.headers_mut();
        match &self {
            Self::Token(error) => {
                // RFC 6750 section 3.1: without a token, the challenge has no error.
                let challenge = match error {
                    ApiTokenError::Missing => "Bearer realm=\"kas\"",
                    ApiTokenError::Invalid(_) => "Bearer realm=\"kas\", error=\"invalid_token\"",
                };
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
            Self::Method(allowed) => drop(headers.insert(ALLOW, HeaderValue::from_static(allowed))),
            Self::Unavailable(unavailable) => {
                headers.insert(RETRY_AFTER, unavailable.retry_after.as_secs().max(1).into());
            }
            Self::Address(_)
            | Self::Forbidden(_)
            | Self::BadRequest(_)
            | Self::Query(_)
            | Self::NotFound(_)
            | Self::Rpc(_) => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<UnreadableRecords> for InternalApiError {
    fn from(error: UnreadableRecords) -> Self {
        unavailable(error.to_string())
    }
}

/// Adds an error to its response, for metrics and logs.
pub(super) fn with_error(mut response: Response, error: impl Into<InternalApiError>) -> Response {
    response.extensions_mut().insert(error.into());
    response
}

/// Returns the error of a store that does not answer.
pub fn unavailable(message: String) -> InternalApiError {
    SourceUnavailable { message, retry_after: Duration::from_secs(1) }.into()
}

/// Returns the response to a request that succeeded.
pub fn ok(value: &impl Serialize) -> Response {
    json(StatusCode::OK, value)
}

/// Returns a response.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).expect("serializable") + "\n";
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    (status, headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;

    fn reads_back<T: Serialize + DeserializeOwned>(example: &str) {
        let documented: Value = serde_json::from_str(example).unwrap();
        let read: T = serde_json::from_str(example).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), documented);
    }

    #[test]
    fn responses_about_agents_have_the_documented_shapes() {
        let text = include_str!("../../../../docs/api.md");
        let mut examples = text.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        reads_back::<AgentPage>(examples.next().unwrap());
        reads_back::<AgentResponse>(examples.next().unwrap());
    }
}
