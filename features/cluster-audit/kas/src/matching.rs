//! The relation of an event of a cluster to the request of kas whose audit id it has.

use http::{Method, Uri};
use proto::audit::{ClusterEvent, EventObject};
use request_info::{DecodedPath, RequestInfo, RequestTarget, ResourceTarget};

use super::accesses::AccessView;

/// The shortest text that agentk may have cut.
const CUT: usize = 200;

/// The relation of an event to the request whose audit id it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// The event is that of the request.
    Same,
    /// Another client of the cluster has sent the id.
    Other,
    /// The request is not clear enough to be compared.
    Unclear,
}

/// Compares an event with the request whose audit id it has. agentk and the cluster are not trusted, and other clients of the cluster may
/// send any id.
pub(super) fn relation(event: &ClusterEvent, access: &AccessView) -> Relation {
    // agentk sends all requests of kas with its own credential.
    if event.of_agentk == Some(false) {
        return Relation::Other;
    }
    let checks = [is_user_of(event, access), is_operation_of(event, access)];
    if checks.contains(&Some(false)) {
        return Relation::Other;
    }
    // kas replaces the id of each request: one with the credential of agentk has the id that kas gave to it. A caller must not be able to
    // hide by a path that only the API server understands.
    if checks.contains(&None) && event.of_agentk != Some(true) { Relation::Unclear } else { Relation::Same }
}

/// Returns whether an event has the user of a request, or `None` if the name is not clear.
fn is_user_of(event: &ClusterEvent, access: &AccessView) -> Option<bool> {
    // Without a user, the kubeconfig of agentk may have one.
    let Some(user) = &access.impersonated_user else { return Some(true) };
    let found = event.impersonated_user.as_ref().map_or("", |user| &user.name);
    // The API server may replace invalid UTF-8 by another number of characters.
    let is_unclear = user.contains('\u{fffd}') && !found.is_empty();
    (!is_unclear || is_same(user, found)).then(|| is_same(user, found))
}

/// Returns whether an event has the operation of a request, or `None` if the request is not clear.
fn is_operation_of(event: &ClusterEvent, access: &AccessView) -> Option<bool> {
    let method: Method = access.method.parse().ok()?;
    let has_operation = |path: &DecodedPath<'_>| {
        RequestInfo::new(&method, path, None).ok().map(|info| is_operation(event, &info, &access.path))
    };
    let uri: Option<Uri> = access.path.parse().ok().filter(|_| !access.is_path_cut);
    let path = uri.as_ref().and_then(|uri| DecodedPath::new(uri).ok());
    if let Some(is_operation) = path.as_ref().and_then(has_operation) {
        return Some(is_operation);
    }
    // Servers interpret it differently, but the API server executes it.
    let is_one = [false, true].into_iter().any(|merges_slashes| {
        has_operation(&DecodedPath::lenient(&access.path, merges_slashes)) == Some(true)
    });
    is_one.then_some(true)
}

fn is_operation(event: &ClusterEvent, info: &RequestInfo<'_>, sent: &str) -> bool {
    // The query decides which of them it is, and kas has not kept it.
    let reads = |verb: &str| matches!(verb, "get" | "list" | "watch");
    let is_verb = info.verb == event.verb || (reads(info.verb) && reads(&event.verb));
    let is_target = match (&info.target, &event.object, &event.path) {
        (RequestTarget::Resource(target), Some(object), _) => is_object(target, object),
        // The path of the cluster may have a prefix.
        (RequestTarget::Path(_), None, Some(path)) => path.ends_with(sent) || is_same(sent, path),
        _ => false,
    };
    is_verb && is_target
}

fn is_object(target: &ResourceTarget<'_>, object: &EventObject) -> bool {
    let name = target.name.as_deref();
    is_same(target.group, &object.group)
        && is_same(target.resource, &object.resource)
        && is_same(target.subresource.unwrap_or_default(), &object.subresource)
        && target.namespace.is_none_or(|namespace| is_same(namespace, &object.namespace))
        // The API server adds the name of an object that it has created.
        && name.is_none_or(|name| is_same(name, &object.name))
}

/// Returns whether agentk has kept a text, or its beginning. It replaces control characters.
fn is_same(text: &str, kept: &str) -> bool {
    let mut sent = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let is_beginning = kept.chars().all(|c| sent.next() == Some(c));
    is_beginning && (kept.len() > CUT || sent.next().is_none())
}

#[cfg(test)]
mod tests {
    use proto::audit::{ClusterUser, KasRequest};

    use super::*;

    fn access(method: &str, path: &str, user: Option<&str>) -> AccessView {
        AccessView {
            audit_id: "kas-1".to_owned(),
            request: KasRequest::default(),
            method: method.to_owned(),
            path: path.to_owned(),
            is_path_cut: false,
            impersonated_user: user.map(str::to_owned),
        }
    }

    /// An event; the object is `group,resource,subresource,namespace,name`, or a path.
    fn event(verb: &str, target: &str, user: Option<&str>) -> ClusterEvent {
        let parts: Vec<&str> = target.split(',').collect();
        let object = match parts[..] {
            [group, resource, subresource, namespace, name] => {
                let [group, resource, subresource, namespace, name] =
                    [group, resource, subresource, namespace, name].map(str::to_owned);
                Some(EventObject { group, resource, subresource, namespace, name })
            }
            _ => None,
        };
        ClusterEvent {
            verb: verb.to_owned(),
            path: object.is_none().then(|| target.to_owned()),
            object,
            impersonated_user: user
                .map(|name| ClusterUser { name: name.to_owned(), ..ClusterUser::default() }),
            ..ClusterEvent::default()
        }
    }

    #[test]
    fn event_has_the_verb_and_the_object_of_its_request() {
        let long = "x".repeat(253);
        for (method, path, verb, target, expected) in [
            ("DELETE", "/api/v1/namespaces/shop/configmaps/a", "delete", ",configmaps,,shop,a", true),
            ("DELETE", "/api/v1/namespaces/shop/configmaps/a", "delete", ",configmaps,,shop,b", false),
            ("DELETE", "/api/v1/namespaces/shop/configmaps/a", "delete", ",configmaps,,other,a", false),
            ("DELETE", "/api/v1/namespaces/shop/configmaps/a", "delete", ",secrets,,shop,a", false),
            ("DELETE", "/api/v1/namespaces/shop/configmaps/a", "update", ",configmaps,,shop,a", false),
            ("DELETE", "/api/v1/namespaces/shop/configmaps/a", "delete", "/api", false),
            ("DELETE", "/api/v1/namespaces/shop/configmaps", "deletecollection", ",configmaps,,shop,", true),
            ("GET", "/api/v1/namespaces/shop/pods", "watch", ",pods,,shop,", true),
            ("GET", "/api/v1/namespaces/shop/pods", "delete", ",pods,,shop,", false),
            (
                "POST",
                "/apis/apps/v1/namespaces/shop/deployments",
                "create",
                "apps,deployments,,shop,web",
                true,
            ),
            ("POST", "/apis/apps/v1/namespaces/shop/deployments", "create", ",deployments,,shop,web", false),
            ("GET", "/api/v1/namespaces/shop/pods/p/exec", "get", ",pods,exec,shop,p", true),
            ("GET", "/api/v1/namespaces/shop/pods/p/exec", "get", ",pods,,shop,p", false),
            ("GET", "/api/v1/namespaces/a/services/s/proxy/x//y", "get", ",services,proxy,a,s", true),
            ("GET", "/api/v1/namespaces/sh%6fp/pods/p", "get", ",pods,,shop,p", true),
            // Paths that servers interpret differently. The API server executes them; here the namespace is empty.
            ("GET", "/api/v1/namespaces//pods", "list", ",pods,,,", true),
            (
                "DELETE",
                "/api/v1/namespaces/shop/configmaps/app%2econfig",
                "delete",
                ",configmaps,,shop,app.config",
                true,
            ),
            ("DELETE", "/api/v1/namespaces/shop/configmaps/a/", "delete", ",configmaps,,shop,a", true),
            ("DELETE", "//api/v1/namespaces/shop/configmaps/a", "delete", ",configmaps,,shop,a", true),
            ("DELETE", "/api/v1/namespaces/shop//configmaps/a", "delete", ",configmaps,,shop,a", true),
            ("DELETE", "/api/v1/namespaces/shop/configmaps/a;b", "delete", ",configmaps,,shop,a;b", true),
            ("DELETE", "/api/v1/namespaces/shop/configmaps/a/", "delete", ",configmaps,,shop,b", false),
            ("DELETE", "/api/v1/nodes/a%C2%85b", "delete", ",nodes,,,a\u{fffd}b", true),
            ("GET", "/version", "get", "/version", true),
            ("GET", "/version", "get", "/k8s/clusters/c-1/version", true),
            ("GET", "/version", "get", "/metrics", false),
            ("BREW", "/version", "brew", "/version", false),
            ("GET", &format!("/api/v1/nodes/{long}"), "get", &format!(",nodes,,,{}", &long[..250]), true),
        ] {
            let (event, access) = (event(verb, target, None), access(method, path, None));
            let same = relation(&event, &access) == Relation::Same;
            assert_eq!(same, expected, "{method} {path} {verb} {target}");
        }
    }

    #[test]
    fn request_that_is_not_clear_is_that_of_the_credential_of_agentk() {
        let long = format!("/api/v1/namespaces/shop/configmaps/{}", "%61".repeat(330));
        for (path, is_path_cut, target) in [
            ("/api/v1/namespaces/shop/configmaps//a", false, ",configmaps,a,shop,"),
            (&*long, true, ",configmaps,,shop,a"),
            ("/api/v1/namespaces/shop/configmaps/%zz", false, ",configmaps,,shop,a"),
        ] {
            let access = AccessView { is_path_cut, ..access("DELETE", path, None) };
            for (of_agentk, expected) in
                [(Some(true), Relation::Same), (Some(false), Relation::Other), (None, Relation::Unclear)]
            {
                let event = ClusterEvent { of_agentk, ..event("update", target, None) };
                assert_eq!(relation(&event, &access), expected, "{path} {of_agentk:?}");
            }
        }
        // A clear request is compared in any case.
        let clear = access("DELETE", "/api/v1/namespaces/shop/configmaps/a", None);
        for (of_agentk, expected) in
            [(Some(true), Relation::Same), (Some(false), Relation::Other), (None, Relation::Same)]
        {
            let same = ClusterEvent { of_agentk, ..event("delete", ",configmaps,,shop,a", None) };
            assert_eq!(relation(&same, &clear), expected, "{of_agentk:?}");
            let other = ClusterEvent { of_agentk, ..event("delete", ",configmaps,,shop,b", None) };
            assert_eq!(relation(&other, &clear), Relation::Other, "{of_agentk:?}");
        }
    }

    #[test]
    fn event_has_the_user_of_its_request() {
        for (sent, found, expected) in [
            (Some("ci"), Some("ci"), true),
            (Some("ci"), Some("admin"), false),
            (Some("ci"), None, false),
            (Some("c\ti"), Some("c\u{fffd}i"), true),
            (Some("c\u{fffd}i"), Some("c\u{fffd}\u{fffd}i"), false),
            (None, None, true),
            // Of the kubeconfig of agentk.
            (None, Some("agentk"), true),
        ] {
            let (event, access) = (event("get", "/version", found), access("GET", "/version", sent));
            assert_eq!(relation(&event, &access) == Relation::Same, expected, "{sent:?} {found:?}");
        }
    }
}
