//! The service `alerts`: callers read the open alerts.
//!
//! The identity of a caller needs the right to list Events in the namespace, or in all of them without one. The policy of the cluster's
//! owner decides by the same request, as the service `alerts`.

use std::{sync::Arc, time::Duration};

use agentk_core::services::{
    RequestHandler, ServiceError,
    response::{bad_request, json_response, wrong_method},
};
use cluster_alerts::Alert;
use http::{HeaderMap, Method, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Limited};
use proto::{Reason, ServiceName, events::Severity, impersonation, percent};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tunnel::Body;

use super::Alerts;

/// The path of the request. Its method is GET.
const ALERTS_PATH: &str = "/v1/alerts";
/// The alerts of a response, unless the caller sets `limit`, and the most of them.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;
/// The time for the question whether the caller may see alerts, and the largest answer in bytes.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REVIEW: usize = 64 << 10;

/// Serves callers. Clones share the alerts.
#[derive(Clone, Debug)]
pub(crate) struct AlertsHandler(pub(crate) Arc<Alerts>);

#[derive(Serialize)]
struct AlertList {
    /// The last ones first.
    alerts: Vec<Alert>,
    /// The number without the limit.
    total: usize,
    sources: Sources,
}

#[derive(Serialize)]
struct Sources {
    /// `connected` or `disconnected`; absent if agentk has no address of Hubble.
    #[serde(skip_serializing_if = "Option::is_none")]
    hubble: Option<&'static str>,
    policy_engines: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Parameters {
    namespace: Option<String>,
    severity: Option<Severity>,
    limit: usize,
}

impl RequestHandler for AlertsHandler {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let path = request.uri().path();
        if path != ALERTS_PATH {
            let what = format!("agentk has no path {path} for alerts; it has {ALERTS_PATH}");
            return Err(ServiceError::new(Reason::UnknownPath, what));
        }
        if request.method() != Method::GET {
            return Err(wrong_method(path, "GET, HEAD"));
        }
        let parameters = Parameters::parse(request.uri().query().unwrap_or_default())?;
        let namespace = parameters.namespace.as_deref();
        self.check_policy(request.headers(), namespace)?;
        self.check_rights(request.headers(), namespace).await?;
        // The scope may have changed since the alerts were counted.
        let filter = self.0.current_filter();
        let mut alerts = self.0.table.lock().open();
        alerts.retain(|alert| {
            filter.contains(&alert.namespace)
                && namespace.is_none_or(|namespace| namespace == alert.namespace)
                && parameters.severity.is_none_or(|severity| severity == alert.severity)
        });
        let total = alerts.len();
        alerts.truncate(parameters.limit);
        let connected = if self.0.metrics.is_connected() { "connected" } else { "disconnected" };
        let sources = Sources {
            hubble: self.0.sources.hubble.is_some().then_some(connected),
            policy_engines: self.0.sources.policy_engines,
        };
        Ok(json_response(&AlertList { alerts, total, sources }))
    }
}

impl AlertsHandler {
    fn check_policy(&self, headers: &HeaderMap, namespace: Option<&str>) -> Result<(), ServiceError> {
        let Some(policy) = &self.0.restrictions.policy else { return Ok(()) };
        let path = match namespace {
            Some(namespace) => format!("/api/v1/namespaces/{namespace}/events"),
            None => "/api/v1/events".to_owned(),
        };
        let mut question = Request::get(path).body(()).expect("a namespace is a part of a path");
        *question.headers_mut() = identity(headers);
        if policy.permits(ServiceName::ALERTS, &question) {
            return Ok(());
        }
        let what = format!(
            "the policy of this cluster does not allow this: alerts: list events {}; read one namespace with ?namespace=",
            place(namespace)
        );
        Err(ServiceError::new(Reason::RefusedByPolicy, what))
    }

    /// Asks the API server whether the identity of the caller may list Events. A caller without an identity acts as agentk.
    async fn check_rights(&self, headers: &HeaderMap, namespace: Option<&str>) -> Result<(), ServiceError> {
        let mut identity = identity(headers);
        if identity.is_empty() {
            return Ok(());
        }
        identity.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "list", "version": "v1", "resource": "events", "namespace": namespace}},
        });
        let review = review.to_string();
        let mut question = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header(http::header::CONTENT_LENGTH, review.len())
            .body(Body::from(review))
            .expect("constants");
        question.headers_mut().extend(identity);
        let answer = async {
            let response = self.0.kubernetes.handle(question).await?;
            let body = Limited::new(response.into_body(), MAX_REVIEW).collect().await;
            let body = body.map_err(|error| unclear(&error.to_string()))?.to_bytes();
            Ok::<Value, ServiceError>(serde_json::from_slice(&body).unwrap_or_default())
        };
        let answer =
            timeout(REVIEW_TIMEOUT, answer).await.unwrap_or_else(|_| Err(unclear("no response in time")))?;
        match answer.pointer("/status/allowed").and_then(Value::as_bool) {
            Some(true) => Ok(()),
            Some(false) => Err(ServiceError::new(
                Reason::Forbidden,
                format!("the caller may not list Events {}, which the alerts need", place(namespace)),
            )),
            None => Err(unclear(answer["message"].as_str().unwrap_or("an unknown response"))),
        }
    }
}

impl Parameters {
    fn parse(query: &str) -> Result<Self, ServiceError> {
        let mut parameters = Self { limit: DEFAULT_LIMIT, ..Self::default() };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = percent::decode_value(value)
                .map_err(|_| bad_request("the value of a parameter is no UTF-8"))?;
            match name {
                "namespace" | "severity" | "limit" if value.is_empty() => {}
                "namespace" if is_label(&value) => parameters.namespace = Some(value),
                "namespace" => return Err(bad_request("namespace: write the exact name of a namespace")),
                "severity" => parameters.severity = Some(severity(&value)?),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    let wrong = || bad_request(&format!("limit: write a number from 1 to {MAX_LIMIT}"));
                    parameters.limit = limit.ok_or_else(wrong)?;
                }
                _ => return Err(bad_request("the parameters of alerts are namespace, severity and limit")),
            }
        }
        Ok(parameters)
    }
}

/// Returns the headers of the caller's identity.
fn identity(headers: &HeaderMap) -> HeaderMap {
    let named = headers.iter().filter(|(name, _)| name.as_str().starts_with(impersonation::PREFIX));
    let mut identity = HeaderMap::new();
    named.for_each(|(name, value)| {
        identity.append(name, value.clone());
    });
    identity
}

fn severity(value: &str) -> Result<Severity, ServiceError> {
    let all = [Severity::Info, Severity::Warning, Severity::Error];
    let found = all.into_iter().find(|severity| severity.as_str() == value);
    found.ok_or_else(|| bad_request("severity: write info, warning or error"))
}

/// Returns whether a text is a label of RFC 1123, as the names of namespaces are.
fn is_label(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(plain)
}

fn place(namespace: Option<&str>) -> String {
    namespace.map_or_else(|| "in all namespaces".to_owned(), |name| format!("in the namespace {name}"))
}

fn unclear(what: &str) -> ServiceError {
    let what: String = what.chars().take(300).collect();
    let what = format!("the API server does not say whether the caller may list Events: {what}");
    ServiceError::new(Reason::ClusterMisbehaved, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_checked() {
        let parsed = Parameters::parse("namespace=shop&severity=warning&limit=7").unwrap();
        assert_eq!(
            (parsed.namespace.as_deref(), parsed.severity, parsed.limit),
            (Some("shop"), Some(Severity::Warning), 7)
        );
        assert_eq!(Parameters::parse("").unwrap().limit, DEFAULT_LIMIT);
        assert_eq!(Parameters::parse("namespace=&severity=&limit=").unwrap(), Parameters::parse("").unwrap());
        assert_eq!(Parameters::parse("namespace=a%2Db").unwrap().namespace.as_deref(), Some("a-b"));
        for bad in
            ["limit=0", "limit=1001", "limit=-1", "severity=loud", "namespace=a/b", "namespace=%2e", "x=1"]
        {
            assert_eq!(Parameters::parse(bad).unwrap_err().reason, Reason::BadRequest, "{bad}");
        }
    }
}
