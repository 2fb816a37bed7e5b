//! What a URL asks for.
//!
//! Paths are taken apart as the raw bytes that they are: nothing is decoded, so that authorization, the agent and the
//! cluster all look at the same bytes.

use http::uri::PathAndQuery;
use percent_encoding::percent_decode_str;
use proto::{Reason, ServiceName};
use router::Class;

use crate::failure::{Dialect, Failure};

/// GitLab's path: the agent is named by the credential.
const GITLAB_PREFIX: &str = "/k8s-proxy/";
/// Everybody else's: the agent and the service are named by the path.
const AGENTS_PREFIX: &str = "/agents/";

/// A request's destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Id or name of the agent, where the path names it.
    pub agent: Option<&'a str>,
    /// The request type.
    pub service: ServiceName,
    /// Path and query as the service shall see them, from the `/` on.
    pub path: &'a str,
}

impl<'a> Target<'a> {
    /// Takes a request's path and query apart.
    pub fn parse(path: &'a PathAndQuery) -> Result<Self, Failure> {
        let whole = path.as_str();
        if whole.starts_with(GITLAB_PREFIX) {
            let service = ServiceName::KUBERNETES.parse().expect("it is a service name");
            return Ok(Self { agent: None, service, path: &whole[GITLAB_PREFIX.len() - 1..] });
        }

        let (agent, rest) = whole
            .strip_prefix(AGENTS_PREFIX)
            .and_then(|rest| rest.split_once('/'))
            .filter(|(agent, _)| !agent.contains('?'))
            .ok_or_else(unknown_path)?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let service = rest[..end].parse::<ServiceName>().map_err(|_| unknown_path())?;
        if service.as_str() == ServiceName::CONTROL {
            return Err(unknown_path());
        }
        // `/agents/a/prometheus` means `/agents/a/prometheus/`; before a query the slash is missing for good.
        let path = match rest.as_bytes().get(end) {
            Some(b'/') => &rest[end..],
            Some(_) => return Err(unknown_path()),
            None => "/",
        };

        Ok(Self { agent: Some(agent), service, path })
    }

    /// The language of answers under this path, known before anything else is.
    pub fn dialect(path: &str) -> Dialect {
        let service = path.strip_prefix(AGENTS_PREFIX).and_then(|rest| rest.split('/').nth(1));
        match service {
            None if path.starts_with(GITLAB_PREFIX) => Dialect::Kubernetes,
            Some(service) if service.starts_with(ServiceName::KUBERNETES) => Dialect::Kubernetes,
            Some(service) if service.starts_with(ServiceName::PROMETHEUS) => Dialect::Prometheus,
            Some(_) | None => Dialect::Plain,
        }
    }

    /// Returns whether this is the path of `/api` or `/apis` of a cluster: kubectl's discovery.
    pub fn is_discovery(path: &str) -> bool {
        let Some(root) = path.strip_suffix("/apis").or_else(|| path.strip_suffix("/api")) else {
            return false;
        };
        let service = root.strip_prefix(AGENTS_PREFIX).and_then(|rest| rest.split_once('/'));
        root == GITLAB_PREFIX.trim_end_matches('/')
            || service.is_some_and(|(_, service)| service == ServiceName::KUBERNETES)
    }

    /// Whether the answer is a stream that stays.
    pub fn class(&self, upgrading: bool) -> Class {
        let (path, query) = self.path.split_once('?').unwrap_or((self.path, ""));
        // Prometheus' notifications are server-sent events.
        let stays_by_path = path.starts_with("/api/v1/watch/") || path == "/api/v1/notifications/live";
        if upgrading || stays_by_path || query.split('&').any(stays) { Class::Long } else { Class::Short }
    }
}

/// Whether a parameter makes an API server's answer one that stays. To it, everything but `false` and `0` is true, also
/// no value at all (`Convert_Slice_string_To_bool` of apimachinery).
fn stays(parameter: &str) -> bool {
    let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    let name = percent_decode_str(name);
    (name.clone().eq(*b"watch") || name.eq(*b"follow"))
        && value != "0"
        && !value.eq_ignore_ascii_case("false")
}

fn unknown_path() -> Failure {
    Failure::new(
        Reason::UnknownPath,
        "there is nothing at this path; use /agents/<id or name>/kubernetes/…, /agents/<id or name>/prometheus/… or, \
         with a credential that names the agent, /k8s-proxy/…",
    )
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
    fn both_forms_keep_the_raw_path() {
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
    fn everything_else_is_nothing() {
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
    fn streams_that_stay_are_known_by_their_request() {
        for (path, class) in [
            ("/k8s-proxy/api/v1/pods?watch=true&x=1", Class::Long),
            ("/k8s-proxy/api/v1/pods?x=1&watch=1", Class::Long),
            ("/k8s-proxy/api/v1/namespaces/a/pods/b/log?follow=true", Class::Long),
            ("/agents/a/prometheus/api/v1/notifications/live", Class::Long),
            ("/agents/a/prometheus/api/v1/notifications", Class::Short),
            ("/k8s-proxy/api/v1/pods?watch", Class::Long),
            ("/k8s-proxy/api/v1/pods?watch=yes", Class::Long),
            ("/k8s-proxy/api/v1/pods?w%61tch=1", Class::Long),
            ("/k8s-proxy/api/v1/pods?watch=false", Class::Short),
            ("/k8s-proxy/api/v1/pods?watch=0&x=1", Class::Short),
            ("/k8s-proxy/api/v1/pods?watched=1", Class::Short),
            ("/k8s-proxy/api/v1/pods", Class::Short),
        ] {
            let path: PathAndQuery = path.parse().unwrap();
            assert_eq!(Target::parse(&path).unwrap().class(false), class, "{path}");
        }
    }

    #[test]
    fn answers_are_in_the_language_of_their_path() {
        assert_eq!(Target::dialect("/k8s-proxy/api"), Dialect::Kubernetes);
        assert_eq!(Target::dialect("/agents/a/kubernetes/api"), Dialect::Kubernetes);
        assert_eq!(Target::dialect("/agents/a/prometheus.thanos/api"), Dialect::Prometheus);
        assert_eq!(Target::dialect("/agents/a/resources/x"), Dialect::Plain);
        assert_eq!(Target::dialect("/"), Dialect::Plain);
    }

    #[test]
    fn discovery_is_known_by_its_path() {
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
