//! Checks the words of a policy file. Each function returns the problem of a word, if it has one: also a word that is well
//! formed, but matches no request, is a mistake.

use http::{Method, Uri};
use proto::ServiceName;

use request_info::{DecodedPath, RequestInfo, RequestTarget};

/// The verbs of requests for resources.
const VERBS: [&str; 10] =
    ["*", "create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
/// The verbs of requests for other paths: the methods in lower case.
const METHODS: [&str; 8] = ["*", "delete", "get", "head", "options", "patch", "post", "put"];

/// The requests that a rule can match, by its keys.
#[derive(Clone, Copy)]
pub(crate) enum TargetKind {
    Resources,
    Paths,
    Both,
}

/// Returns true if a group may have resources of Kubernetes itself.
pub(crate) fn is_built_in(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// Checks a service name.
pub(crate) fn service(word: &str) -> Option<&'static str> {
    match word {
        "*" => None,
        _ if ServiceName::OF_CALLERS.contains(&word) => None,
        ServiceName::AGENT_EVENTS => Some("only kas itself follows events, and no policy applies to them"),
        ServiceName::CONTROL => Some("the service 'control' is agentk's own, and no policy applies to it"),
        ServiceName::CONFIGURATION => {
            Some("only kas itself sends configurations, and no policy applies to them")
        }
        ServiceName::ENVIRONMENTS => {
            Some("the policy of what environments may have is that of the service provision")
        }
        ServiceName::MANIFESTS => {
            Some("the policy of what manifests may change is that of the service gitops")
        }
        // Callers cannot reach this service. Its requests to the cluster are judged like those of gitops.
        ServiceName::NOTIFY => None,
        _ if is_named_prometheus(word) => None,
        _ => Some(
            "not the name of a service: write kubernetes, alerts, audit, gitops, graph, notify, prometheus, prometheus.<name>, provision or '*'",
        ),
    }
}

fn is_named_prometheus(word: &str) -> bool {
    let name = word.strip_prefix(ServiceName::PROMETHEUS).and_then(|rest| rest.strip_prefix('.'));
    name.is_some_and(|name| !name.is_empty()) && word.parse::<ServiceName>().is_ok()
}

/// Checks a verb.
pub(crate) fn verb(word: &str, kind: TargetKind) -> Option<&'static str> {
    let (verb, method) = (VERBS.contains(&word), METHODS.contains(&word));
    match kind {
        _ if word == "connect" => Some(
            "exec, attach and port-forward are subresources, such as resources: [pods/exec], with the verbs get and create",
        ),
        _ if !verb && !method => Some(
            "not a verb: write get, list, watch, create, update, patch, delete, deletecollection or '*'; and for \
             nonResourceURLs the method in lower case",
        ),
        TargetKind::Resources if !verb => Some(
            "no request for resources has this verb: write get, list, watch, create, update, patch, delete, \
             deletecollection or '*'",
        ),
        TargetKind::Paths if !method => Some(
            "no request for nonResourceURLs has this verb: write get, head, post, put, patch, delete, options or '*'",
        ),
        _ => None,
    }
}

/// Checks an API group.
pub(crate) fn group(word: &str) -> Option<&'static str> {
    let plain = word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.');
    (word != "*" && !plain).then_some(
        "not an API group: write '' (the core group), a name such as apps, or '*'; without a version",
    )
}

/// Checks a resource.
pub(crate) fn resource(word: &str) -> Option<&'static str> {
    let plain = |part: &str| {
        let mut bytes = part.bytes();
        let plain = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        part == "*" || (!part.is_empty() && plain)
    };
    if word.contains('.') {
        return Some("not a resource: write deployments in resources, and the group apps in apiGroups");
    }
    let valid = match word.split_once('/') {
        Some((resource, sub)) => plain(resource) && plain(sub),
        None => plain(word),
    };
    (!valid).then_some(
        "not a resource: write it in the plural and lower case, like pods, pods/log, '*/scale' or '*'",
    )
}

/// Checks a resource of a rule about objects, which subresources do not have.
pub(crate) fn object_resource(word: &str) -> Option<&'static str> {
    if word.contains('/') {
        Some("a subresource has no names and labels of its own: write the resource, like pods")
    } else {
        resource(word)
    }
}

/// Checks a namespace, which may end in `*`.
pub(crate) fn namespace_pattern(word: &str) -> Option<&'static str> {
    let prefix = word.strip_suffix('*').unwrap_or(word);
    let plain = prefix.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    (word.is_empty() || !plain).then_some(
        "not a namespace: write its name, a prefix like 'review-*', or '*' for all namespaces and for cluster-scoped resources",
    )
}

/// Checks the name of an object.
pub(crate) fn resource_name(word: &str) -> Option<&'static str> {
    let valid = !word.is_empty() && !word.contains(['*', '/', '%']);
    (!valid).then_some("not an object's name: write it exactly; there are no patterns here")
}

/// Checks a path among `nonResourceURLs`.
pub(crate) fn path(word: &str) -> Option<&'static str> {
    let inner = word.strip_suffix('*').unwrap_or(word);
    let valid = word == "*" || (inner.starts_with('/') && !inner.contains(['*', '%']));
    if !valid {
        return Some("not a path: write it like /version, or like /healthz* for all paths with this prefix");
    }
    let matches = may_be_other_path(inner) || (word != inner && may_be_other_path(&format!("{inner}x")));
    (!matches)
        .then_some("a request for this path is a request for a resource, or is refused: write resources")
}

/// Returns true if a request for this path may have no resource.
fn may_be_other_path(path: &str) -> bool {
    // A path that must be encoded has no resource.
    let Ok(uri) = Uri::try_from(path) else { return true };
    DecodedPath::new(&uri).is_ok_and(|path| {
        let info = RequestInfo::new(&Method::GET, &path, None);
        info.is_ok_and(|info| matches!(info.target, RequestTarget::Path(_)))
    })
}

/// Checks a user or group name, which may end in `*`.
pub(crate) fn pattern(word: &str) -> Option<&'static str> {
    let inner = word.strip_suffix('*').unwrap_or(word);
    let valid = !word.is_empty() && !inner.contains('*') && word.trim() == word;
    (!valid)
        .then_some("not a name: write it exactly, or with a '*' at its end for all names with this prefix")
}
