//! The events for which a request is in the audit log, and its verb.

use http::{Method, Uri};
use proto::{Reason, ServiceName};
use request_info::{DecodedPath, RequestInfo, RequestTarget};

/// The verb of a request, and the events that its head shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    /// For Kubernetes the verb as in RBAC; otherwise the method in lower case.
    pub(super) verb: String,
    /// The events.
    pub(super) events: Vec<AuditEvent>,
}

/// The reason for which a request is in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AuditEvent {
    /// The method may change something.
    Change,
    /// The request asks for an upgrade: exec, attach, port-forward.
    Upgrade,
    /// The request reads secrets, or creates a token.
    SecretRead,
    /// The request reads a path that servers could interpret differently, so that it may be one of secrets.
    UnclearPath,
    /// GitLab or an issuer was asked for the caller.
    Login,
    /// The credential or the request was refused.
    Refusal,
    /// Refusals of strangers have no lines, and are counted.
    LeftOut,
}

impl Operation {
    /// Interprets a request. `uri` is the path with the query as the service receives it.
    pub(super) fn new(method: &Method, service: &ServiceName, uri: &Uri, upgrade: bool) -> Self {
        let mut events = Vec::new();
        if changes(method, service, uri) {
            events.push(AuditEvent::Change);
        }
        if upgrade {
            events.push(AuditEvent::Upgrade);
        }
        if service.as_str() != ServiceName::KUBERNETES {
            return Self { verb: method.as_str().to_ascii_lowercase(), events };
        }
        let decoded = DecodedPath::new(uri);
        let info = decoded.as_ref().map_err(|error| *error);
        let verb = match info.and_then(|path| RequestInfo::new(method, path, uri.query())) {
            Ok(info) => {
                if reads_secret(&info) {
                    events.push(AuditEvent::SecretRead);
                }
                info.verb.to_owned()
            }
            Err(_) => {
                // Every other method is a change already, or reads nothing.
                if matches!(*method, Method::GET | Method::HEAD) {
                    events.push(AuditEvent::UnclearPath);
                }
                method.as_str().to_ascii_lowercase()
            }
        };
        Self { verb, events }
    }
}

/// Returns whether a request may change something. PromQL in a form is a read, which Grafana sends as POST.
fn changes(method: &Method, service: &ServiceName, uri: &Uri) -> bool {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return false;
    }
    let rest = service.as_str().strip_prefix(ServiceName::PROMETHEUS);
    let prometheus = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    !(prometheus && promql::is_query(method, uri.path()))
}

fn reads_secret(info: &RequestInfo<'_>) -> bool {
    let RequestTarget::Resource(target) = &info.target else { return false };
    let secrets = target.group.is_empty()
        && target.resource == "secrets"
        && matches!(info.verb, "get" | "list" | "watch");
    secrets || target.subresource == Some("token")
}

/// Returns whether an error refuses the caller or its request. An agent that the caller may not use is reported as missing.
pub(super) fn is_refusal(status: u16, reason: Option<Reason>) -> bool {
    let by_reason =
        matches!(reason, Some(Reason::Disabled | Reason::UnknownAgent | Reason::NestedImpersonation));
    matches!(status, 401 | 403) || by_reason
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(method: &str, service: &str, uri: &str) -> String {
        let (method, service) = (method.parse().unwrap(), service.parse().unwrap());
        let Operation { verb, events } = Operation::new(&method, &service, &uri.parse().unwrap(), false);
        let events: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
        format!("{verb} {}", events.join(",")).trim().to_owned()
    }

    #[test]
    fn events_follow_from_method_service_and_path() {
        for (method, service, uri, expected) in [
            ("GET", "kubernetes", "/api/v1/pods", "list"),
            ("HEAD", "kubernetes", "/version", "head"),
            ("OPTIONS", "kubernetes", "/version", "options"),
            ("POST", "kubernetes", "/api/v1/namespaces/a/pods", "create Change"),
            ("DELETE", "kubernetes", "/api/v1/namespaces/a/pods", "deletecollection Change"),
            ("GET", "kubernetes", "/api/v1/namespaces/a/secrets/b", "get SecretRead"),
            ("HEAD", "kubernetes", "/api/v1/namespaces/a/secrets/b", "get SecretRead"),
            ("GET", "kubernetes", "/api/v1/secrets", "list SecretRead"),
            ("GET", "kubernetes", "/api/v1/secrets?watch=1", "watch SecretRead"),
            ("GET", "kubernetes", "/api/v1/watch/secrets", "watch SecretRead"),
            ("GET", "kubernetes", "/api/v1/secret%73", "list SecretRead"),
            ("GET", "kubernetes", "/apis/example.com/v1/secrets", "list"),
            ("POST", "kubernetes", "/api/v1/namespaces/a/secrets", "create Change"),
            (
                "POST",
                "kubernetes",
                "/api/v1/namespaces/a/serviceaccounts/b/token",
                "create Change,SecretRead",
            ),
            ("GET", "kubernetes", "/api/v1//secrets", "get UnclearPath"),
            ("GET", "kubernetes", "/api/v1/x/../secrets", "get UnclearPath"),
            ("BREW", "kubernetes", "/api/v1/pods", "brew Change"),
            ("OPTIONS", "kubernetes", "/api/v1/secrets", "options"),
            ("PUT", "kubernetes", "/api/v1//secrets/a", "put Change"),
            ("GET", "prometheus", "/api/v1/query?query=up", "get"),
            ("POST", "prometheus", "/api/v1/query", "post"),
            ("POST", "prometheus.thanos", "/api/v1/query_range", "post"),
            ("POST", "prometheus", "/api/v1/admin/tsdb/delete_series", "post Change"),
            ("PUT", "prometheus", "/api/v1/query", "put Change"),
            ("POST", "other", "/api/v1/query", "post Change"),
            ("GET", "other", "/api/v1/secrets", "get"),
        ] {
            assert_eq!(operation(method, service, uri), expected, "{method} {service} {uri}");
        }
    }

    #[test]
    fn refusals_are_statuses_and_reasons() {
        for reason in Reason::ALL {
            let refusal = is_refusal(reason.status().as_u16(), Some(*reason));
            let expected = matches!(
                reason,
                Reason::Unauthorized
                    | Reason::Forbidden
                    | Reason::AddressNotAllowed
                    | Reason::OriginNotAllowed
                    | Reason::NestedImpersonation
                    | Reason::UnknownAgent
                    | Reason::NotProxied
                    | Reason::NotEnforceable
                    | Reason::RefusedByPolicy
                    | Reason::Disabled
            );
            assert_eq!(refusal, expected, "{reason}");
        }
        assert!(is_refusal(403, None), "the cluster refuses, too");
        assert!(!is_refusal(404, None));
    }
}
