//! What the internal API answers.

use std::time::SystemTime;

use axum::response::{IntoResponse, Response};
use http::{
    HeaderValue, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use proto::{AgentId, AgentName, ReplicaId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{BadQuery, Denied};
use crate::whereabouts::{Holder, Presence, rfc3339};

/// Some of the connected agents.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Page {
    /// Who says so.
    pub(super) replica: ReplicaId,
    /// When, by its clock.
    #[serde(with = "rfc3339")]
    pub(super) time: SystemTime,
    /// Why agents that other replicas hold are missing, if they are.
    pub(super) missing: Option<String>,
    /// In order of their ids.
    pub(super) agents: Vec<Agent>,
    /// What `continue` is to be for the next page, if there is one.
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// One agent, connected or not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct One {
    pub(super) replica: ReplicaId,
    #[serde(with = "rfc3339")]
    pub(super) time: SystemTime,
    pub(super) missing: Option<String>,
    pub(super) agent: Agent,
}

/// An agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Agent {
    pub(super) id: AgentId,
    pub(super) name: AgentName,
    pub(super) project_id: Option<u64>,
    #[serde(flatten)]
    pub(super) presence: Presence,
    /// Who holds it.
    pub(super) replicas: Vec<Holder>,
}

/// Why a request is not answered. Its response carries it as an extension, for metrics and logs.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    Query(#[from] BadQuery),
    #[error("{0}")]
    NotFound(String),
    #[error("this path is read with GET")]
    Method,
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        json(StatusCode::OK, &self)
    }
}

impl IntoResponse for One {
    fn into_response(self) -> Response {
        json(StatusCode::OK, &self)
    }
}

impl Refusal {
    pub(super) fn no_path(path: &str) -> Self {
        let path: String = path.chars().take(100).collect();
        Self::NotFound(format!(
            "there is no {path}: there are /api/v1/agents and /api/v1/agents/<id or name>"
        ))
    }

    pub(super) fn no_agent(name: &str) -> Self {
        let name: String = name.chars().take(100).collect();
        Self::NotFound(format!("the identity file of kas has no agent {name:?}"))
    }

    /// For programs.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Denied(_) => "unauthorized",
            Self::Query(_) => "bad-request",
            Self::NotFound(_) => "not-found",
            Self::Method => "method-not-allowed",
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Denied(_) => StatusCode::UNAUTHORIZED,
            Self::Query(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
        };
        let mut response = json(status, &json!({"error": self.as_str(), "message": self.to_string()}));
        let headers = response.headers_mut();
        match &self {
            Self::Denied(denied) => {
                // RFC 6750 section 3.1: who showed nothing is told nothing of errors.
                let challenge = match denied {
                    Denied::NoToken => "Bearer realm=\"kas\"",
                    Denied::Bad(_) => "Bearer realm=\"kas\", error=\"invalid_token\"",
                };
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
            Self::Method => drop(headers.insert(ALLOW, HeaderValue::from_static("GET"))),
            Self::Query(_) | Self::NotFound(_) => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).expect("it is plain data") + "\n";
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    (status, headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    fn reads_back<T: Serialize + DeserializeOwned>(example: &str) {
        let documented: serde_json::Value = serde_json::from_str(example).unwrap();
        let read: T = serde_json::from_str(example).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), documented);
    }

    #[test]
    fn the_documented_shapes_are_these() {
        let text = include_str!("../../../docs/api.md");
        let mut examples = text.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        reads_back::<Page>(examples.next().unwrap());
        reads_back::<One>(examples.next().unwrap());
    }
}
