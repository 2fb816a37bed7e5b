//! Agents by host name: `agent.kubernetes_api.hosts`.
//!
//! The whole path of a request to the host of an agent is a path of its Kubernetes API. So clients work that drop the path of a
//! server's URL, and web applications that expect to be at the root.
//!
//! A request has up to three names of its server: the authority of its target, its `Host`, and the name in the TLS handshake of
//! its connection. If one of them belongs to an agent, all of them have to be the same: HTTP clients use a connection again for
//! another host of a wildcard certificate (RFC 9113 section 9.1.1), and load balancers choose by the name in the handshake.

use std::{fmt::Display, str::FromStr};

use http::{
    Request,
    header::HOST,
    uri::{Authority, PathAndQuery},
};
use proto::Reason;
use serde::Deserialize;

use crate::request_types::RequestTypes;
use access::{ErrorDialect, RequestError, Target, UrlPathPrefix};

/// The place of the agent in a pattern.
const PLACEHOLDER: &str = "{agent}.";
/// Longest label of a host name (RFC 1035 section 2.3.4).
const MAX_LABEL: usize = 63;
/// Longest host name in text form.
const MAX_HOST: usize = 253;

/// A pattern of host names: `{agent}` and a domain, like `{agent}.k8s.example.com`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HostPattern {
    /// The domain in lower case, with a dot in front.
    suffix: String,
}

/// A text that is not a pattern of host names.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not a pattern of host names: write {{agent}} in place of the first label, and a domain without port and final \
     dot, as in {{agent}}.k8s.example.com"
)]
pub struct HostPatternError(String);

/// The host names of agents.
#[derive(Clone, Debug, Default)]
pub struct AgentHosts(Vec<HostPattern>);

/// The name of the server in the TLS handshake of a connection (RFC 6066 section 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsName {
    /// The connection has no TLS, or its TLS is that of a trusted proxy.
    Irrelevant,
    /// The client sent this name, or none.
    Sent(Option<Box<str>>),
}

/// The way in which a request names its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The path or the credential names the agent.
    Path,
    /// The host names the agent.
    Host(AgentHost),
    /// The host belongs to no agent, or the names of the server contradict each other.
    Misdirected(&'static str),
}

/// The host of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentHost {
    /// The host in lower case, without a port.
    host: Box<str>,
    /// The length of its first label.
    label: usize,
}

impl HostPattern {
    /// Returns the host of an agent.
    pub fn host_of(&self, agent: &dyn Display) -> String {
        format!("{agent}{}", self.suffix)
    }

    /// Returns the part of a host in front of the domain, if the host is within the domain.
    fn prefix<'a>(&self, host: &'a str) -> Option<&'a str> {
        host.strip_suffix('.').unwrap_or(host).strip_suffix(&*self.suffix)
    }
}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<Self, HostPatternError> {
        let domain = text.strip_prefix(PLACEHOLDER).filter(|domain| {
            // A host whose last label is a number is an IPv4 address (URL standard, "ends in a number").
            let last = domain.rsplit('.').next().unwrap_or_default();
            domain.split('.').all(|label| is_label(&label.to_ascii_lowercase()))
                && !last.bytes().all(|byte| byte.is_ascii_digit())
                && domain.len() < MAX_HOST - MAX_LABEL
        });
        let domain = domain.ok_or_else(|| HostPatternError(text.to_owned()))?;
        Ok(Self { suffix: format!(".{}", domain.to_ascii_lowercase()) })
    }
}

impl TryFrom<String> for HostPattern {
    type Error = HostPatternError;

    fn try_from(text: String) -> Result<Self, HostPatternError> {
        text.parse()
    }
}

impl AgentHosts {
    /// Serves agents at the hosts of these patterns.
    pub fn new(patterns: Vec<HostPattern>) -> Self {
        Self(patterns)
    }

    /// Returns the way in which a request names its agent. `tls` is the name in the handshake of its connection.
    ///
    /// `X-Forwarded-Host` and `Forwarded` are not read: a proxy in front of kas has to forward `Host`.
    pub fn route<B>(&self, request: &Request<B>, tls: &TlsName) -> Route {
        if self.0.is_empty() {
            return Route::Path;
        }
        let authority = request.uri().authority().map(|authority| authority.host().to_ascii_lowercase());
        // Requests with several `Host` are refused later.
        let header = match request.headers().get(HOST).filter(|host| !host.is_empty()) {
            Some(host) => match Authority::try_from(host.as_bytes()) {
                Ok(host) => Some(host.host().to_ascii_lowercase()),
                Err(_) => return Route::Misdirected("Host is not a host and a port"),
            },
            None => None,
        };
        let sent = match tls {
            TlsName::Irrelevant => None,
            TlsName::Sent(name) => Some(name.as_deref().unwrap_or_default().to_ascii_lowercase()),
        };
        let names = || [&authority, &header, &sent].into_iter().flatten();
        if !names().any(|name| self.is_within(name)) {
            return Route::Path;
        }
        let Some(host) = authority.as_ref().or(header.as_ref()) else {
            return Route::Misdirected(
                "the request has no Host, and the name in the TLS handshake is that of an agent",
            );
        };
        if sent.as_ref().is_some_and(|sent| sent != host) {
            return Route::Misdirected(
                "the name in the TLS handshake (SNI) is not the host of the request: open a connection for this host",
            );
        }
        if names().any(|name| name != host) {
            return Route::Misdirected("Host is not the host of the request's target");
        }
        let label = self.0.iter().find_map(|pattern| pattern.prefix(host)).filter(|label| is_label(label));
        match label {
            Some(label) if !host.ends_with('.') => {
                let label = label.len();
                Route::Host(AgentHost { host: host.as_str().into(), label })
            }
            _ => Route::Misdirected(
                "the host is that of no agent: write <id or name of the agent> in place of {agent} in a pattern of \
                 agent.kubernetes_api.hosts, without a final dot",
            ),
        }
    }

    /// Returns whether a host is within one of the domains.
    fn is_within(&self, host: &str) -> bool {
        self.0.iter().any(|pattern| pattern.prefix(host).is_some())
    }
}

impl Route {
    /// Returns the agent, the service and the path of a request. `prefix` is the beginning of the paths of GitLab's kas.
    ///
    /// # Errors
    ///
    /// The reason is `unknown-path` or `misdirected-request`.
    pub fn target<'a>(
        &'a self,
        path: &'a PathAndQuery,
        prefix: &UrlPathPrefix,
    ) -> Result<Target<'a>, RequestError> {
        match self {
            Self::Path => Target::parse(path, prefix),
            Self::Host(host) => Target::of_host(host.agent(), path),
            Self::Misdirected(cause) => Err(RequestError::new(Reason::MisdirectedRequest, *cause)),
        }
    }

    /// Returns the dialect of errors.
    pub fn dialect(&self, types: &RequestTypes, path: &str, prefix: &UrlPathPrefix) -> ErrorDialect {
        match self {
            Self::Path => types.dialect(path, prefix),
            Self::Host(_) | Self::Misdirected(_) => ErrorDialect::Kubernetes,
        }
    }

    /// Returns whether kubectl requests this path for its discovery.
    pub fn is_discovery(&self, path: &str, prefix: &UrlPathPrefix) -> bool {
        match self {
            Self::Path => Target::is_discovery(path, prefix),
            Self::Host(_) | Self::Misdirected(_) => matches!(path, "/api" | "/apis"),
        }
    }

    /// Returns the host that names the agent.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Host(AgentHost { host, .. }) => Some(host),
            Self::Path | Self::Misdirected(_) => None,
        }
    }
}

impl AgentHost {
    /// Returns the id or name of the agent.
    pub fn agent(&self) -> &str {
        &self.host[..self.label]
    }
}

/// Returns whether a text is one label of a host name (RFC 1123 section 2.1) in lower case. The id and the name of each agent are
/// labels.
fn is_label(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_LABEL).contains(&text.len())
        && text.bytes().all(known)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> AgentHosts {
        AgentHosts(["{agent}.k8s.example.com", "{agent}.K8S.test"].map(|text| text.parse().unwrap()).into())
    }

    /// Returns the agent, `path`, or `refused`.
    fn route(uri: &str, host: &str, tls: &TlsName) -> String {
        let request = Request::get(uri).header(HOST, host).body(()).unwrap();
        name_of(&hosts().route(&request, tls))
    }

    fn name_of(route: &Route) -> String {
        match route {
            Route::Path => "path".to_owned(),
            Route::Host(host) => format!("agent {}", host.agent()),
            Route::Misdirected(_) => "refused".to_owned(),
        }
    }

    fn sent(name: &str) -> TlsName {
        TlsName::Sent(Some(name.into()))
    }

    #[test]
    fn first_label_names_the_agent() {
        for (host, expected) in [
            ("prod.k8s.example.com", "agent prod"),
            ("PROD.K8s.Example.COM", "agent prod"),
            ("prod.k8s.example.com:8154", "agent prod"),
            ("7.k8s.test:443", "agent 7"),
            ("007.k8s.test", "agent 007"),
            ("xn--prd-sna.k8s.test", "agent xn--prd-sna"),
            ("kas.example.com", "path"),
            ("k8s.example.com", "path"),
            ("prod.k8s.example.com.evil.example", "path"),
            ("prodk8s.example.com", "path"),
            ("prod.k8s.example.comx", "path"),
            ("127.0.0.1:8154", "path"),
            ("[::1]:8154", "path"),
            ("", "path"),
            ("a:1:2", "refused"),
            (".k8s.test", "refused"),
            ("a.prod.k8s.test", "refused"),
            ("prod.k8s.test.", "refused"),
            ("prod.k8s.test.:443", "refused"),
            ("-prod.k8s.test", "refused"),
            ("pr_od.k8s.test", "refused"),
            ("pr%6fd.k8s.test", "refused"),
            (&format!("{}.k8s.test", "a".repeat(64)), "refused"),
        ] {
            assert_eq!(route("/", host, &TlsName::Irrelevant), expected, "{host}");
        }
        assert_eq!(
            AgentHosts::default()
                .route(&Request::get("https://prod.k8s.test/").body(()).unwrap(), &sent("a")),
            Route::Path
        );
    }

    #[test]
    fn all_names_of_the_server_are_the_same() {
        let (kas, prod, test) = ("kas.example.com", "prod.k8s.test", "test.k8s.test");
        for (target, host, tls, expected) in [
            (None, prod, Some(prod), "agent prod"),
            (None, prod, Some("PROD.k8s.test"), "agent prod"),
            (Some(prod), prod, Some(prod), "agent prod"),
            (Some(prod), "prod.k8s.test:443", None, "agent prod"),
            (None, kas, Some("other.example.com"), "path"),
            (Some(kas), "other", None, "path"),
            (None, prod, Some(test), "refused"),
            (None, prod, Some(kas), "refused"),
            (None, kas, Some(prod), "refused"),
            (Some(prod), test, None, "refused"),
            (Some(kas), prod, None, "refused"),
            (Some(prod), kas, Some(prod), "refused"),
            (None, "@", Some(prod), "refused"),
        ] {
            let uri = target.map_or_else(|| "/".to_owned(), |target| format!("https://{target}/"));
            let tls = tls.map_or(TlsName::Irrelevant, sent);
            assert_eq!(route(&uri, host, &tls), expected, "{target:?} {host} {tls:?}");
        }
        assert_eq!(route("/", prod, &TlsName::Sent(None)), "refused", "a handshake without a name");
        assert_eq!(route("/", kas, &TlsName::Sent(None)), "path");
        let absent = Request::get("/").body(()).unwrap();
        assert_eq!(name_of(&hosts().route(&absent, &sent(prod))), "refused");
        assert_eq!(name_of(&hosts().route(&absent, &TlsName::Irrelevant)), "path");
    }

    #[test]
    fn pattern_is_a_placeholder_and_a_domain() {
        let long = format!("{{agent}}.{}", "a.".repeat(95));
        for text in [
            "",
            "{agent}",
            "{agent}.",
            "{agent}..test",
            "{agent}.k8s.test.",
            "{agent}.k8s.test:443",
            "{agent}-k8s.test",
            "k8s.{agent}.test",
            "*.k8s.test",
            "prod.k8s.test",
            "{agent}.{agent}.test",
            "{agent}.10.0.0.1",
            "{agent}.k8s_test",
            "{agent}.ä.test",
            "https://{agent}.k8s.test",
            &format!("{long}test"),
        ] {
            assert!(text.parse::<HostPattern>().is_err(), "{text:?}");
        }
        let pattern: HostPattern = "{agent}.localhost".parse().unwrap();
        assert_eq!(pattern.host_of(&7), "7.localhost");
    }
}
