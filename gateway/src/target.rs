//! The agent, the service and the path of a request, as its URL names them.
//!
//! Paths are split as raw bytes. Nothing is decoded, so that authorization, the agent and the cluster see the same bytes.

use http::uri::PathAndQuery;
use percent_encoding::percent_decode_str;
use proto::{Reason, ServiceName};
use router::RequestClass;

use crate::error::{ErrorDialect, RequestError};

/// The path of GitLab's kas: the credential names the agent.
const GITLAB_PREFIX: &str = "/k8s-proxy/";
/// The path for other clients: it names the agent and the service.
const AGENTS_PREFIX: &str = "/agents/";

/// The first segments of an API server's paths. No path of kas begins with one of them.
const API_SERVER: [&str; 9] =
    ["api", "apis", "healthz", "livez", "logs", "metrics", "openapi", "readyz", "version"];

/// The parts of a request's path and query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The id or name of the agent, if the path names it.
    pub agent: Option<&'a str>,
    /// The service of the agent.
    pub service: ServiceName,
    /// Path and query as the service receives them, with the leading `/`.
    pub path: &'a str,
}

impl<'a> Target<'a> {
    /// Splits a request's path and query.
    ///
    /// # Errors
    ///
    /// The reason is `unknown-path`.
    pub fn parse(path: &'a PathAndQuery) -> Result<Self, RequestError> {
        let whole = path.as_str();
        if whole.starts_with(GITLAB_PREFIX) {
            let service = ServiceName::KUBERNETES.parse().expect("it is a service name");
            return Ok(Self { agent: None, service, path: &whole[GITLAB_PREFIX.len() - 1..] });
        }

        let (agent, rest) = whole
            .strip_prefix(AGENTS_PREFIX)
            .and_then(|rest| rest.split_once('/'))
            .filter(|(agent, _)| !agent.contains('?'))
            .ok_or_else(|| unknown_path(whole))?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let service = rest[..end].parse::<ServiceName>().map_err(|_| unknown_path(whole))?;
        if service.is_internal() {
            return Err(unknown_path(whole));
        }
        // `/agents/a/prometheus` means `/agents/a/prometheus/`. With a query, the slash is required.
        let path = match rest.as_bytes().get(end) {
            Some(b'/') => &rest[end..],
            Some(_) => return Err(unknown_path(whole)),
            None => "/",
        };

        Ok(Self { agent: Some(agent), service, path })
    }

    /// Returns the query, if there is one.
    pub fn query(&self) -> Option<&'a str> {
        self.path.split_once('?').map(|(_, query)| query)
    }

    /// Returns the dialect of errors for a path, which kas needs before the path is parsed.
    pub fn dialect(path: &str) -> ErrorDialect {
        let service = path.strip_prefix(AGENTS_PREFIX).and_then(|rest| rest.split('/').nth(1));
        match service {
            None if path.starts_with(GITLAB_PREFIX) => ErrorDialect::Kubernetes,
            Some(ServiceName::KUBERNETES) => ErrorDialect::Kubernetes,
            Some(service) if is_prometheus(service) => ErrorDialect::Prometheus,
            None if is_api_server_path(path) => ErrorDialect::Kubernetes,
            Some(_) | None => ErrorDialect::Plain,
        }
    }

    /// Returns whether this is the path of `/api` or `/apis` of a cluster, which kubectl requests for its discovery.
    pub fn is_discovery(path: &str) -> bool {
        let Some(root) = path.strip_suffix("/apis").or_else(|| path.strip_suffix("/api")) else {
            return false;
        };
        let service = root.strip_prefix(AGENTS_PREFIX).and_then(|rest| rest.split_once('/'));
        root == GITLAB_PREFIX.trim_end_matches('/')
            || service.is_some_and(|(_, service)| service == ServiceName::KUBERNETES)
    }

    /// Returns [`RequestClass::Long`] if the response is a stream that stays open.
    pub fn class(&self, upgrading: bool) -> RequestClass {
        let (path, query) = self.path.split_once('?').unwrap_or((self.path, ""));
        // The notifications of Prometheus are server-sent events.
        let long_path = path.starts_with("/api/v1/watch/") || path == "/api/v1/notifications/live";
        if upgrading || long_path || query.split('&').any(is_long) {
            RequestClass::Long
        } else {
            RequestClass::Short
        }
    }
}

/// Returns whether a parameter makes the response of an API server a stream. The server treats every value except `false` and
/// `0` as true, even a missing one (`Convert_Slice_string_To_bool` of apimachinery).
fn is_long(parameter: &str) -> bool {
    let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    let name = percent_decode_str(name);
    (name.clone().eq(*b"watch") || name.eq(*b"follow"))
        && value != "0"
        && !value.eq_ignore_ascii_case("false")
}

/// Returns whether `service` is `prometheus` or `prometheus.<name>`.
fn is_prometheus(service: &str) -> bool {
    service.strip_prefix(ServiceName::PROMETHEUS).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns whether a path is one of an API server. `kubectl get --raw` before 1.34 sends it without the prefix of the agent.
fn is_api_server_path(path: &str) -> bool {
    let first = path.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default();
    API_SERVER.contains(&first)
}

fn unknown_path(path: &str) -> RequestError {
    let known = "there is nothing at this path; use /agents/<id or name>/kubernetes/…, /agents/<id or name>/prometheus/… \
                 or, with a credential that names the agent, /k8s-proxy/…";
    if !is_api_server_path(path) {
        return RequestError::new(Reason::UnknownPath, known);
    }

    // `Request.RequestURI` of client-go before 0.34 replaces the path of the server.
    let raw = "`kubectl get --raw` before 1.34 leaves out the path of the kubeconfig's server: give it the whole path, like \
               /agents/<id or name>/kubernetes/version";
    RequestError::new(Reason::UnknownPath, format!("{known}; {raw}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Option<(Option<String>, String, String)> {
        let path: PathAndQuery = path.parse().unwrap();
        let target = Target::parse(&path).ok()?;
        Some((target.agent.map(str::to_owned), target.service.to_string(), target.path.to_owned()))
    }

    fn some(agent: Option<&str>, service: &str, path: &str) -> Option<(Option<String>, String, String)> {
        Some((agent.map(str::to_owned), service.to_owned(), path.to_owned()))
    }

    #[test]
    fn path_is_kept_byte_for_byte() {
        assert_eq!(
            parse("/k8s-proxy/api/v1/a%2Fb//c?x=%20&y"),
            some(None, "kubernetes", "/api/v1/a%2Fb//c?x=%20&y")
        );
        assert_eq!(
            parse("/agents/prod/prometheus/api/v1/query?query=up"),
            some(Some("prod"), "prometheus", "/api/v1/query?query=up")
        );
        assert_eq!(parse("/agents/7/kubernetes"), some(Some("7"), "kubernetes", "/"));
        assert_eq!(parse("/agents/7/kubernetes/../x"), some(Some("7"), "kubernetes", "/../x"));
    }

    #[test]
    fn other_paths_are_refused() {
        for path in [
            "/",
            "/k8s-proxy",
            "/agents/",
            "/agents/a",
            "/agents/a/",
            "/agents/a/UP/x",
            "/agents/a?/kubernetes/x",
            "/agents/a/control/drain",
            "/agents/a/kube%72netes/x",
            "/agents/a/prometheus?query=up",
            "//agents/a/kubernetes/",
        ] {
            assert_eq!(parse(path), None, "{path}");
        }
    }

    #[test]
    fn long_requests_are_recognized() {
        for (path, class) in [
            ("/k8s-proxy/api/v1/pods?watch=true&x=1", RequestClass::Long),
            ("/k8s-proxy/api/v1/pods?x=1&watch=1", RequestClass::Long),
            ("/k8s-proxy/api/v1/namespaces/a/pods/b/log?follow=true", RequestClass::Long),
            ("/agents/a/prometheus/api/v1/notifications/live", RequestClass::Long),
            ("/agents/a/prometheus/api/v1/notifications", RequestClass::Short),
            ("/k8s-proxy/api/v1/pods?watch", RequestClass::Long),
            ("/k8s-proxy/api/v1/pods?watch=yes", RequestClass::Long),
            ("/k8s-proxy/api/v1/pods?w%61tch=1", RequestClass::Long),
            ("/k8s-proxy/api/v1/pods?watch=false", RequestClass::Short),
            ("/k8s-proxy/api/v1/pods?watch=0&x=1", RequestClass::Short),
            ("/k8s-proxy/api/v1/pods?watched=1", RequestClass::Short),
            ("/k8s-proxy/api/v1/pods", RequestClass::Short),
        ] {
            let path: PathAndQuery = path.parse().unwrap();
            assert_eq!(Target::parse(&path).unwrap().class(false), class, "{path}");
        }
    }

    #[test]
    fn dialect_follows_the_service() {
        assert_eq!(Target::dialect("/k8s-proxy/api"), ErrorDialect::Kubernetes);
        assert_eq!(Target::dialect("/agents/a/kubernetes/api"), ErrorDialect::Kubernetes);
        assert_eq!(Target::dialect("/agents/a/prometheus.thanos/api"), ErrorDialect::Prometheus);
        assert_eq!(Target::dialect("/agents/a/prometheus"), ErrorDialect::Prometheus);
        for service in ["resources", "prometheusx", "kubernetesx", "kubernetes.x"] {
            assert_eq!(Target::dialect(&format!("/agents/a/{service}/x")), ErrorDialect::Plain, "{service}");
        }
        assert_eq!(Target::dialect("/"), ErrorDialect::Plain);
        for path in ["/version", "/api/v1/namespaces", "/apis", "/readyz"] {
            assert_eq!(Target::dialect(path), ErrorDialect::Kubernetes, "{path}");
        }
    }

    #[test]
    fn api_server_path_without_agent_explains_kubectl_raw() {
        for (path, explained) in [("/version?x=1", true), ("/api", true), ("/versions", false), ("/", false)]
        {
            let error = Target::parse(&path.parse().unwrap()).unwrap_err();
            assert_eq!(error.message.contains("kubectl get --raw"), explained, "{path}");
        }
    }

    #[test]
    fn discovery_is_recognized_by_its_path() {
        for path in
            ["/k8s-proxy/api", "/k8s-proxy/apis", "/agents/a/kubernetes/api", "/agents/7/kubernetes/apis"]
        {
            assert!(Target::is_discovery(path), "{path}");
        }
        for path in [
            "/api",
            "/k8s-proxy/api/v1",
            "/k8s-proxy/api/v1/namespaces/a/pods/api",
            "/agents/kubernetes/api",
            "/agents/a/kubernetes/api/v1/namespaces/a/pods/apis",
            "/agents/a/prometheus/api",
        ] {
            assert!(!Target::is_discovery(path), "{path}");
        }
    }
}
