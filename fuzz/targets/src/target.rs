//! `Target::parse` with any path and query that HTTP allows, with GitLab's prefix and with `/`, and `AgentHosts::route` with any `Host` and
//! name of TLS.
//!
//! Input: path and query, then a line with `Host`, then a line with the name in the TLS handshake.
//!
//! * The service's path is the end of the request's path, unchanged, or `/` if the request's path ends with the service.
//! * Prefix, agent, service and path together are the request's path: no byte is dropped or added, and none but unreserved characters of
//!   the agent's name are decoded.
//! * The service is never `control`. The agent contains neither `/` nor `?`.
//! * The dialect of errors is that of the service. The path is valid in a request.
//! * A host names an agent only if it is one label before the domain, `Host` and the name in the handshake are equal, and the whole path is
//!   that of the service. Without a name within the domain, the path decides.

use std::sync::LazyLock;

use access::{ErrorDialect, Target, UrlPathPrefix};
use gateway::test_support::{AgentHosts, RequestTypes, Route, TlsName, request_types};
use http::{HeaderValue, Request, header::HOST, uri::PathAndQuery};
use proto::{AgentName, Reason, percent};

/// The domain of the hosts.
const DOMAIN: &str = "k8s.test";
static TYPES: LazyLock<RequestTypes> = LazyLock::new(request_types);

/// Checks one input.
pub fn run(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let Some(Ok(input)) = lines.next().map(PathAndQuery::try_from) else { return };
    let mut texts = lines.map(|line| HeaderValue::from_bytes(line).ok());
    if let Some(Some(host)) = texts.next() {
        let name = texts.next().flatten();
        check_route(&input, &host, name.as_ref().and_then(|name| name.to_str().ok()));
    }
    for prefix in ["/k8s-proxy", ""] {
        check(&input, prefix);
    }
}

/// Checks one input with a prefix, which has no `/` at its end here.
fn check(input: &PathAndQuery, prefix: &str) {
    let whole = input.as_str();
    let configured: UrlPathPrefix = format!("{prefix}/").parse().expect("it is a prefix");
    let types = &*TYPES;
    let found = types.dialect(input.path(), &configured);
    let target = match Target::parse(input, &configured) {
        Ok(target) => target,
        Err(failure) => {
            assert_eq!(failure.reason, Reason::UnknownPath);
            return;
        }
    };

    let service = target.service.as_str();
    assert_ne!(service, "control");
    assert!(target.path.starts_with('/'), "{target:?}");
    match &target.agent {
        Some(agent) => {
            let reachable = agent.parse::<AgentName>().is_ok() || agent.parse::<u64>().is_ok();
            assert!(!agent.contains(['/', '?']), "{target:?}");
            let (sent, rest) = whole["/agents/".len()..].split_once('/').expect("a service follows");
            assert_eq!(*agent, percent::decode_unreserved(sent), "{target:?}");
            let rest = rest.strip_prefix(service).expect("the service is what came");
            assert!(rest == target.path || rest.is_empty() && target.path == "/", "{target:?}");
            if reachable {
                let expected = if service == "kubernetes" {
                    ErrorDialect::Kubernetes
                } else if service == "prometheus" || service.starts_with("prometheus.") {
                    ErrorDialect::Prometheus
                } else {
                    ErrorDialect::Plain
                };
                assert_eq!(found, expected, "{whole}");
            }
        }
        None => {
            assert_eq!(service, "kubernetes");
            assert_eq!(whole, format!("{prefix}{}", target.path));
            assert!(!whole.starts_with("/agents/"), "{whole}");
            assert_eq!(found, ErrorDialect::Kubernetes, "{whole}");
        }
    }
    let sent = PathAndQuery::try_from(target.path).expect("the path can be sent on");
    assert_eq!(sent.as_str(), target.path);
    let _ = (types.class(&target, false), types.class(&target, true));
}

/// Compares the route with a second implementation, which follows the documentation.
fn check_route(input: &PathAndQuery, host: &HeaderValue, name: Option<&str>) {
    let hosts = AgentHosts::new(vec![format!("{{agent}}.{DOMAIN}").parse().expect("it is a pattern")]);
    let request = Request::get(input.clone()).header(HOST, host).body(()).expect("a path and a header");
    let tls = name.map_or(TlsName::Irrelevant, |name| TlsName::Sent(Some(name.into())));
    let route = hosts.route(&request, &tls);
    let domain = format!(".{DOMAIN}");
    let text = host.to_str().unwrap_or_default().to_ascii_lowercase();
    match &route {
        Route::Host(host) => {
            let agent = host.agent();
            assert!(!agent.is_empty() && !agent.contains('.'), "{agent}");
            let expected = format!("{agent}{domain}");
            assert_eq!(route.host(), Some(&*expected));
            let rest =
                text.strip_prefix(&expected).or_else(|| text.rsplit_once('@')?.1.strip_prefix(&expected));
            assert!(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':')), "{text:?}");
            assert!(name.is_none_or(|name| name.eq_ignore_ascii_case(&expected)), "{name:?}");
            match route.target(input, &UrlPathPrefix::default()) {
                Ok(target) => {
                    assert_eq!(
                        (target.agent.as_deref(), target.service.as_str()),
                        (Some(agent), "kubernetes")
                    );
                    assert_eq!(target.path, input.as_str());
                }
                Err(failure) => assert_eq!((failure.reason, input.as_str()), (Reason::UnknownPath, "*")),
            }
        }
        Route::Path => {
            let host = text.rsplit('@').next().and_then(|host| host.split(':').next()).unwrap_or_default();
            assert!(!host.ends_with(&domain), "{text:?}");
            assert!(!name.is_some_and(|name| name.to_ascii_lowercase().ends_with(&domain)), "{name:?}");
        }
        Route::Misdirected(_) => {
            let failure = route.target(input, &UrlPathPrefix::default()).expect_err("it has no target");
            assert_eq!(failure.reason, Reason::MisdirectedRequest);
        }
    }
}
