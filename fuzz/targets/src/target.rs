//! `Target::parse` with any path and query that HTTP allows, with GitLab's prefix and with `/`.
//!
//! * The service's path is the end of the request's path, unchanged, or `/` if the request's path ends with the service.
//! * Prefix, agent, service and path together are the request's path: no byte is decoded, dropped or added.
//! * The service is never `control`. The agent contains neither `/` nor `?`.
//! * The dialect of errors is that of the service. The path is valid in a request.

use gateway::internals::{ErrorDialect, Target, UrlPathPrefix};
use http::uri::PathAndQuery;
use proto::{AgentName, Reason};

/// Checks one input.
pub fn run(data: &[u8]) {
    let Ok(input) = PathAndQuery::try_from(data) else { return };
    for prefix in ["/k8s-proxy", ""] {
        check(&input, prefix);
    }
}

/// Checks one input with a prefix, which has no `/` at its end here.
fn check(input: &PathAndQuery, prefix: &str) {
    let whole = input.as_str();
    let configured: UrlPathPrefix = format!("{prefix}/").parse().expect("it is a prefix");
    let dialect = Target::dialect(input.path(), &configured);
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
    match target.agent {
        Some(agent) => {
            let reachable = agent.parse::<AgentName>().is_ok() || agent.parse::<u64>().is_ok();
            assert!(!agent.contains(['/', '?']), "{target:?}");
            let front = format!("/agents/{agent}/{service}");
            let rest = whole.strip_prefix(&front).expect("agent and service are what came");
            assert!(rest == target.path || rest.is_empty() && target.path == "/", "{target:?}");
            if reachable {
                let expected = if service == "kubernetes" {
                    ErrorDialect::Kubernetes
                } else if service == "prometheus" || service.starts_with("prometheus.") {
                    ErrorDialect::Prometheus
                } else {
                    ErrorDialect::Plain
                };
                assert_eq!(dialect, expected, "{whole}");
            }
        }
        None => {
            assert_eq!(service, "kubernetes");
            assert_eq!(whole, format!("{prefix}{}", target.path));
            assert!(!whole.starts_with("/agents/"), "{whole}");
            assert_eq!(dialect, ErrorDialect::Kubernetes, "{whole}");
        }
    }
    let sent = PathAndQuery::try_from(target.path).expect("the path can be sent on");
    assert_eq!(sent.as_str(), target.path);
    let _ = (target.class(false), target.class(true));
}
