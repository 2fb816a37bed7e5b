//! Whether an event of a cluster is that of a request of kas, and whether it is of a user.

use http::{Method, Uri};
use proto::audit::{ClusterEvent, EventObject, JoinedEvent};
use request_info::{DecodedPath, RequestInfo, RequestTarget, ResourceTarget};

use crate::recent::AccessView;

/// The shortest text that agentk may have cut.
const CUT: usize = 200;

/// Returns whether an event with the audit id of a request is that of the request. agentk and the cluster are not trusted, and other
/// clients of the cluster may send any id.
pub(super) fn is_event_of(event: &ClusterEvent, access: &AccessView) -> bool {
    let impersonated = event.impersonated_user.as_ref().map_or("", |user| &user.name);
    // Without a user, the kubeconfig of agentk may have one.
    let is_user = access.impersonated_user.as_deref().is_none_or(|user| is_same(user, impersonated));
    is_user && is_operation_of(event, access).unwrap_or_default()
}

/// Returns `None` if the request cannot be interpreted. The API server does not execute such a request either.
fn is_operation_of(event: &ClusterEvent, access: &AccessView) -> Option<bool> {
    let method: Method = access.method.parse().ok()?;
    let uri: Uri = access.path.parse().ok()?;
    let path = DecodedPath::new(&uri).ok();
    let info = path.as_ref().and_then(|path| RequestInfo::new(&method, path, None).ok());
    let Some(info) = info else {
        // The path of an application behind `…/proxy/` may have any form.
        return Some(event.object.as_ref().is_some_and(|object| object.subresource == "proxy"));
    };
    // The query decides which of them it is, and kas has not kept it.
    let reads = |verb: &str| matches!(verb, "get" | "list" | "watch");
    let is_verb = info.verb == event.verb || (reads(info.verb) && reads(&event.verb));
    let is_target = match (&info.target, &event.object, &event.path) {
        (RequestTarget::Resource(target), Some(object), _) => is_object(target, object),
        // The path of the cluster may have a prefix.
        (RequestTarget::Path(_), None, Some(path)) => path.ends_with(uri.path()) || is_same(uri.path(), path),
        _ => false,
    };
    Some(is_verb && is_target)
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

/// Returns whether agentk has kept a text, or its beginning.
fn is_same(text: &str, kept: &str) -> bool {
    text == kept || (kept.len() > CUT && text.starts_with(kept))
}

/// Returns whether an event is of a user, as kas or the cluster knows it.
pub(super) fn is_of_user(event: &JoinedEvent, user: &str) -> bool {
    let request = event.request.as_ref();
    let job = request.and_then(|request| request.job.as_ref());
    let names = [
        request.map(|request| &*request.caller),
        request.and_then(|request| request.caller.strip_prefix("gitlab:user:")),
        request.and_then(|request| request.user.as_deref()),
        job.and_then(|job| job.user.as_deref()),
        Some(&*event.event.cluster_user.name),
        event.event.impersonated_user.as_ref().map(|user| &*user.name),
    ];
    names.contains(&Some(user))
}

#[cfg(test)]
mod tests {
    use proto::audit::{CiJob, ClusterUser, KasRequest, Through};

    use super::*;

    fn access(method: &str, path: &str, user: Option<&str>) -> AccessView {
        AccessView {
            audit_id: "kas-1".to_owned(),
            request: KasRequest::default(),
            method: method.to_owned(),
            path: path.to_owned(),
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
            ("GET", "/api/v1/namespaces//pods", "list", ",pods,,,", false),
            ("GET", "/version", "get", "/version", true),
            ("GET", "/version", "get", "/k8s/clusters/c-1/version", true),
            ("GET", "/version", "get", "/metrics", false),
            ("BREW", "/version", "brew", "/version", false),
            ("GET", &format!("/api/v1/nodes/{long}"), "get", &format!(",nodes,,,{}", &long[..250]), true),
        ] {
            let (event, access) = (event(verb, target, None), access(method, path, None));
            assert_eq!(is_event_of(&event, &access), expected, "{method} {path} {verb} {target}");
        }
    }

    #[test]
    fn event_has_the_user_of_its_request() {
        for (sent, found, expected) in [
            (Some("ci"), Some("ci"), true),
            (Some("ci"), Some("admin"), false),
            (Some("ci"), None, false),
            (None, None, true),
            // Of the kubeconfig of agentk.
            (None, Some("agentk"), true),
        ] {
            let (event, access) = (event("get", "/version", found), access("GET", "/version", sent));
            assert_eq!(is_event_of(&event, &access), expected, "{sent:?} {found:?}");
        }
    }

    #[test]
    fn user_is_the_caller_its_user_that_of_its_job_or_one_of_the_cluster() {
        let job = CiJob { user: Some("alice".to_owned()), ..CiJob::default() };
        let request = KasRequest {
            caller: "gitlab:user:carol".to_owned(),
            user: Some("oidc:bob".to_owned()),
            job: Some(job),
            ..KasRequest::default()
        };
        let mut event = event("get", "/version", Some("impersonated"));
        event.cluster_user.name = "agentk".to_owned();
        let joined = JoinedEvent {
            agent: "prod".to_owned(),
            through: Through::Kas,
            request: Some(request),
            sync: None,
            event,
        };
        for user in ["gitlab:user:carol", "carol", "oidc:bob", "alice", "agentk", "impersonated"] {
            assert!(is_of_user(&joined, user), "{user}");
        }
        for user in ["", "bob", "gitlab:user:", "admin"] {
            assert!(!is_of_user(&joined, user), "{user}");
        }
    }
}
