//! The agent, the service and the path of a request, as its URL names them.
//!
//! Paths are split as raw bytes. Nothing is decoded but the name of the agent, so that authorization, the agent and the cluster see the
//! same bytes.

use std::{borrow::Cow, str::FromStr};

use http::uri::PathAndQuery;
use proto::{Reason, ServiceName, Verb, percent};
use serde::Deserialize;

use crate::error::RequestError;

/// The path for other clients: it names the agent and the service.
const AGENTS_PREFIX: &str = "/agents/";

/// The first segments of an API server's paths. No path of kas begins with one of them.
const API_SERVER: [&str; 9] =
    ["api", "apis", "healthz", "livez", "logs", "metrics", "openapi", "readyz", "version"];

/// The parts of a request's path and query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The id or name of the agent, if the path names it. Its unreserved characters are decoded.
    pub agent: Option<Cow<'a, str>>,
    /// The service of the agent.
    pub service: ServiceName,
    /// Path and query as the service receives them, with the leading `/`.
    pub path: &'a str,
}

/// The beginning of the paths of GitLab's kas, with `/` at both ends: the credential names the agent.
///
/// It may be `/`. Paths that begin with `/agents/` never belong to it: they name the agent, and no path of an API server begins so.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct UrlPathPrefix(Cow<'static, str>);

/// The error of a text that is no prefix.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not a prefix such as /, /k8s-proxy/ or /-/kubernetes-agent/k8s-proxy/; /agents/ is for paths that name the agent"
)]
pub struct UrlPathPrefixError(String);

impl UrlPathPrefix {
    /// Returns the path and query of the service, if the credential names the agent.
    fn strip<'a>(&self, path: &'a str) -> Option<&'a str> {
        let of_gitlab = path.starts_with(&*self.0) && !path.starts_with(AGENTS_PREFIX);
        of_gitlab.then(|| &path[self.0.len() - 1..])
    }
}

impl Default for UrlPathPrefix {
    fn default() -> Self {
        Self("/k8s-proxy/".into())
    }
}

impl FromStr for UrlPathPrefix {
    type Err = UrlPathPrefixError;

    fn from_str(text: &str) -> Result<Self, UrlPathPrefixError> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let valid = |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(known);
        if text == "/" {
            return Ok(Self("/".into()));
        }
        match text.strip_prefix('/').map(|inner| inner.strip_suffix('/').unwrap_or(inner)) {
            Some(inner)
                if inner.split('/').all(valid) && !format!("/{inner}/").starts_with(AGENTS_PREFIX) =>
            {
                Ok(Self(format!("/{inner}/").into()))
            }
            _ => Err(UrlPathPrefixError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for UrlPathPrefix {
    type Error = UrlPathPrefixError;

    fn try_from(text: String) -> Result<Self, UrlPathPrefixError> {
        text.parse()
    }
}

impl<'a> Target<'a> {
    /// Splits a request's path and query.
    ///
    /// # Errors
    ///
    /// The reason is `unknown-path`.
    pub fn parse(path: &'a PathAndQuery, prefix: &UrlPathPrefix) -> Result<Self, RequestError> {
        let whole = path.as_str();
        if let Some(path) = prefix.strip(whole) {
            let service = ServiceName::KUBERNETES.parse().expect("it is a service name");
            return Ok(Self { agent: None, service, path });
        }

        let unknown_path = |path| unknown_path(path, prefix);
        let (agent, rest) = whole
            .strip_prefix(AGENTS_PREFIX)
            .and_then(|rest| rest.split_once('/'))
            .filter(|(agent, _)| !agent.contains('?'))
            .ok_or_else(|| unknown_path(whole))?;
        let end = rest.bytes().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
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

        Ok(Self { agent: Some(percent::decode_unreserved(agent)), service, path })
    }

    /// Returns the target of a request to the host of an agent: the Kubernetes API, with the whole path.
    ///
    /// # Errors
    ///
    /// The reason is `unknown-path` for `*`, which is no path.
    pub fn of_host(agent: &'a str, path: &'a PathAndQuery) -> Result<Self, RequestError> {
        let path = path.as_str();
        if !path.starts_with('/') {
            return Err(RequestError::new(Reason::UnknownPath, "the target of the request is no path"));
        }
        let service = ServiceName::KUBERNETES.parse().expect("it is a service name");
        Ok(Self { agent: Some(agent.into()), service, path })
    }

    /// Returns what the request does.
    pub fn verb(&self) -> Verb {
        Verb::of_request(&self.service, self.path)
    }

    /// Returns the query, if there is one.
    pub fn query(&self) -> Option<&'a str> {
        self.path.split_once('?').map(|(_, query)| query)
    }

    /// Returns the service that a path names, also if kas refuses the path.
    pub fn service_of<'p>(path: &'p str, prefix: &UrlPathPrefix) -> Option<&'p str> {
        let service = path.strip_prefix(AGENTS_PREFIX).and_then(|rest| rest.split('/').nth(1));
        let of_cluster = || prefix.strip(path).is_some() || is_api_server_path(path);
        service.or_else(|| of_cluster().then_some(ServiceName::KUBERNETES))
    }

    /// Returns whether this is the path of `/api` or `/apis` of a cluster, which kubectl requests for its discovery.
    pub fn is_discovery(path: &str, prefix: &UrlPathPrefix) -> bool {
        if let Some(path) = prefix.strip(path) {
            return matches!(path, "/api" | "/apis");
        }
        let Some(root) = path.strip_suffix("/apis").or_else(|| path.strip_suffix("/api")) else {
            return false;
        };
        let service = root.strip_prefix(AGENTS_PREFIX).and_then(|rest| rest.split_once('/'));
        service.is_some_and(|(_, service)| service == ServiceName::KUBERNETES)
    }
}

/// Returns whether a path is one of an API server. `kubectl get --raw` before 1.34 sends it without the prefix of the agent.
fn is_api_server_path(path: &str) -> bool {
    let first = path.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default();
    API_SERVER.contains(&first)
}

fn unknown_path(path: &str, UrlPathPrefix(prefix): &UrlPathPrefix) -> RequestError {
    let known = format!(
        "there is nothing at this path; use /agents/<id or name>/kubernetes/…, /agents/<id or name>/prometheus/… or, with a \
         credential that names the agent, {prefix}…"
    );
    if !is_api_server_path(path) {
        return RequestError::new(Reason::UnknownPath, known);
    }

    // `Request.RequestURI` of client-go replaces the path of the server.
    let raw = "some clients leave out the path of the kubeconfig's server, such as `kubectl proxy`, and `kubectl get --raw` before 1.34: \
               give them the whole path, like /agents/<id or name>/kubernetes/version, or a host of the agent \
               (agent.kubernetes_api.hosts)";
    RequestError::new(Reason::UnknownPath, format!("{known}; {raw}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Option<(Option<String>, String, String)> {
        let path: PathAndQuery = path.parse().unwrap();
        let prefix = UrlPathPrefix::default();
        let target = Target::parse(&path, &prefix).ok()?;
        Some((target.agent.map(Cow::into_owned), target.service.to_string(), target.path.to_owned()))
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
    fn unreserved_characters_of_the_agent_are_decoded() {
        for (name, expected) in [
            ("edge-berlin", "edge-berlin"),
            ("edge%2Dberlin", "edge-berlin"),
            ("edge%2Fberlin", "edge%2Fberlin"),
        ] {
            let path = format!("/agents/{name}/kubernetes/api/v1/a%2Db");
            assert_eq!(parse(&path), some(Some(expected), "kubernetes", "/api/v1/a%2Db"));
        }
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
    fn api_server_path_without_agent_explains_kubectl_raw() {
        for (path, explained) in [("/version?x=1", true), ("/api", true), ("/versions", false), ("/", false)]
        {
            let error = Target::parse(&path.parse().unwrap(), &UrlPathPrefix::default()).unwrap_err();
            assert_eq!(error.message.contains("kubectl get --raw"), explained, "{path}");
        }
    }

    #[test]
    fn discovery_is_recognized_by_its_path() {
        for path in
            ["/k8s-proxy/api", "/k8s-proxy/apis", "/agents/a/kubernetes/api", "/agents/7/kubernetes/apis"]
        {
            assert!(Target::is_discovery(path, &UrlPathPrefix::default()), "{path}");
        }
        for path in [
            "/api",
            "/k8s-proxy/api/v1",
            "/k8s-proxy/api/v1/namespaces/a/pods/api",
            "/agents/kubernetes/api",
            "/agents/a/kubernetes/api/v1/namespaces/a/pods/apis",
            "/agents/a/prometheus/api",
        ] {
            assert!(!Target::is_discovery(path, &UrlPathPrefix::default()), "{path}");
        }
    }

    #[test]
    fn prefix_has_a_slash_at_both_ends() {
        for (text, expected) in [
            ("/", "/"),
            ("/k8s-proxy", "/k8s-proxy/"),
            ("/k8s-proxy/", "/k8s-proxy/"),
            ("/-/kubernetes-agent/k8s-proxy/", "/-/kubernetes-agent/k8s-proxy/"),
            ("/agentsx", "/agentsx/"),
        ] {
            assert_eq!(*text.parse::<UrlPathPrefix>().unwrap().0, *expected);
        }
        for text in [
            "",
            "k8s-proxy/",
            "//",
            "/a//b",
            "/a/../b",
            "/./",
            "/a?b",
            "/a b",
            "/%61",
            "/agents",
            "/agents/a/",
        ] {
            assert!(text.parse::<UrlPathPrefix>().is_err(), "{text}");
        }
    }

    /// A proxy in front of kas has removed the prefix of GitLab.
    #[test]
    fn every_path_without_an_agent_belongs_to_the_prefix_of_one_slash() {
        let prefix: UrlPathPrefix = "/".parse().unwrap();
        for whole in [
            "/",
            "/version?a=%20&b",
            "/api/v1/a%2Fb//c",
            "/agents",
            "/agents?a",
            "//agents/a/kubernetes/",
            "/k8s-proxy/api",
        ] {
            let path: PathAndQuery = whole.parse().unwrap();
            let target = Target::parse(&path, &prefix).unwrap();
            assert_eq!((target.agent, target.path), (None, whole));
            assert_eq!(target.service.to_string(), "kubernetes");
            assert_eq!(Target::service_of(path.path(), &prefix), Some("kubernetes"), "{whole}");
        }
        for (whole, service, path) in [
            ("/agents/7/kubernetes/api", "kubernetes", "/api"),
            ("/agents/prod/prometheus/api/v1/query?query=up", "prometheus", "/api/v1/query?query=up"),
        ] {
            let whole: PathAndQuery = whole.parse().unwrap();
            let target = Target::parse(&whole, &prefix).unwrap();
            assert_eq!(
                (target.agent.is_some(), target.service.to_string().as_str(), target.path),
                (true, service, path)
            );
        }
        for whole in ["/agents/", "/agents/a", "/agents/a/control/drain", "*"] {
            assert!(Target::parse(&whole.parse().unwrap(), &prefix).is_err(), "{whole}");
        }
        for (path, is_discovery) in
            [("/api", true), ("/apis", true), ("/agents/a/kubernetes/api", true), ("/a/api", false)]
        {
            assert_eq!(Target::is_discovery(path, &prefix), is_discovery, "{path}");
        }
    }
}
