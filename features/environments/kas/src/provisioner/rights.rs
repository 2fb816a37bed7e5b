//! Waits until the API server grants a job what a new RoleBinding says.
//!
//! The authorizer of the API server learns of a binding by a watch, shortly after the request that made it has succeeded. The first request of
//! the job could be refused until then.

use std::time::Duration;

use access::AccessAs;
use bytes::Bytes;
use http::{Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Limited};
use kas_core::{
    destination::Destination,
    forward::{ForwardedResponse, Forwarder},
    request_hooks::AuthorizedRequest,
};
use proto::{
    ServiceName, header,
    provision::{ObjectChange, Provisioned},
};
use router::RequestClass;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tunnel::Body;

/// The longest wait. After that the job gets the answer of the API server, whatever it is.
const LIMIT: Duration = Duration::from_secs(2);
/// The pause after the first review. It doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// The longest body of a review that is read, in bytes.
const MAX_REVIEW: usize = 1 << 20;

/// The part of a `SelfSubjectRulesReview` that is read.
#[derive(Debug, Deserialize)]
struct Review {
    status: Rules,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rules {
    resource_rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    #[serde(default)]
    api_groups: Vec<String>,
}

/// Waits until the caller has rights in the namespaces whose bindings have changed, but not for long. A review that fails ends the wait: the
/// policy of agentk may refuse it.
pub(super) async fn wait(request: AuthorizedRequest<'_>, forwarder: &Forwarder, done: &Provisioned) {
    let AccessAs::Impersonate { headers, .. } = &request.grant.caller.access_as else { return };
    let service = ServiceName::KUBERNETES.parse().expect("a constant that is a service name");
    let destination = Destination { service, class: RequestClass::Short, ..request.destination.clone() };
    let granted = async {
        for namespace in changed_bindings(done) {
            let mut pause = FIRST_PAUSE;
            loop {
                let mut post = review_request(namespace);
                post.headers_mut().insert(header::REQUEST_ID, request.id.clone());
                post.headers_mut().extend(headers.clone());
                match review(forwarder, &destination, post).await {
                    Some(review) if !review.has_rights() => sleep(pause).await,
                    _ => break,
                }
                pause *= 2;
            }
        }
    };
    if timeout(LIMIT, granted).await.is_err() {
        let agent = destination.label();
        tracing::info!(%agent, caller = request.grant.caller.name(), "the changed RoleBindings of an environment grant the job nothing so far");
    }
}

/// Returns the namespaces of the bindings that are new or have changed.
fn changed_bindings(done: &Provisioned) -> impl Iterator<Item = &str> {
    let changed = done.objects.iter().filter(|object| {
        object.change != ObjectChange::Unchanged
            && object.id.group == "rbac.authorization.k8s.io"
            && object.id.kind == "RoleBinding"
    });
    changed.map(|object| &*object.id.namespace)
}

/// Builds the request for the rights of its sender in a namespace, which each user may send.
fn review_request(namespace: &str) -> Request<Body> {
    let body: Value = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    });
    Request::post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews")
        .header(header::SERVICE, ServiceName::KUBERNETES)
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(Bytes::from(body.to_string())))
        .expect("a valid request")
}

/// Sends a review. Returns `None` if there is no answer that says what the rights are.
async fn review(forwarder: &Forwarder, destination: &Destination, request: Request<Body>) -> Option<Review> {
    // The permit counts the request in its tunnel until the body has ended.
    let ForwardedResponse { response, request_permit: _permit, .. } =
        forwarder.forward(destination, request).await.ok()?;
    let (head, body) = response.into_parts();
    if head.status != StatusCode::CREATED {
        return None;
    }
    let body = Limited::new(body, MAX_REVIEW).collect().await.ok()?.to_bytes();
    serde_json::from_slice(&body).ok()
}

impl Review {
    /// Returns whether there is a right beyond those of each user, who may ask who it is, and what it may do.
    fn has_rights(&self) -> bool {
        let of_each_user =
            |group: &String| matches!(&**group, "authorization.k8s.io" | "authentication.k8s.io");
        self.status.resource_rules.iter().any(|rule| !rule.api_groups.iter().all(of_each_user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_rights(rules: Value) -> bool {
        let review = json!({"kind": "SelfSubjectRulesReview", "status": {"resourceRules": rules}});
        serde_json::from_value::<Review>(review).unwrap().has_rights()
    }

    #[test]
    fn questions_about_oneself_are_no_rights() {
        let own = json!({"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectrulesreviews"]});
        let who = json!({"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]});
        assert!(!has_rights(json!([own, who])));
        assert!(!has_rights(json!([])));
        let core = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        assert!(has_rights(json!([own, core])));
        assert!(has_rights(json!([who, {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}])));
    }

    #[test]
    fn only_changed_bindings_are_waited_for() {
        let object = |kind: &str, namespace: &str, change: &str| json!({"group": "rbac.authorization.k8s.io", "kind": kind, "namespace": namespace, "name": "a", "change": change});
        let objects = [
            object("Role", "a", "created"),
            object("RoleBinding", "b", "unchanged"),
            object("RoleBinding", "c", "updated"),
        ];
        let done = serde_json::from_value(json!({"template": "default.yaml", "objects": objects})).unwrap();
        assert_eq!(changed_bindings(&done).collect::<Vec<_>>(), ["c"]);
    }
}
