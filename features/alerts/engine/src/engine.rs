//! Events of policy engines: Kyverno and Gatekeeper report violations as Events of Kubernetes.

use std::time::SystemTime;

use serde_json::Value;

use crate::{
    alert::{AlertKey, Destination, Peer, Verdict},
    flow::Ignored,
    policy::PolicyRef,
    text::clean,
};

/// The namespaces in which Events may be about objects of other ones: those of policy engines, and that of Events about objects of the
/// cluster. Whoever may write Events in another namespace must not report violations of others.
const ENGINE_NAMESPACES: [&str; 3] = ["gatekeeper-system", "kyverno", "default"];

/// An Event that is an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineAlert {
    /// The key.
    pub key: AlertKey,
    /// The message of the engine.
    pub sample: String,
    /// The time of the Event, if it has one.
    pub time: Option<SystemTime>,
}

/// Returns the alert of an Event of `v1` whose reason is one of `reasons`. `in_scope` gets the namespace of the object, which is empty
/// for an object that is in none.
///
/// # Errors
///
/// The Event is no alert.
pub fn alert_of_event(
    event: &Value,
    reasons: &[String],
    in_scope: impl FnOnce(&str) -> bool,
) -> Result<EngineAlert, Ignored> {
    let reason = text(event, "/reason");
    if !reasons.contains(&reason) {
        return Err(Ignored::OtherReason);
    }
    let message = text(event, "/message");
    let (mut source, policy) = subject(event, &message);
    let own = text(event, "/metadata/namespace");
    if source.kind.is_empty() || !ENGINE_NAMESPACES.contains(&&*own) {
        source.namespace = own;
    }
    let namespace = source.namespace.clone();
    if !in_scope(&namespace) {
        return Err(Ignored::OutOfScope);
    }
    let times = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    let time = times.iter().find_map(|pointer| event.pointer(pointer)?.as_str());
    let key = AlertKey {
        verdict: Verdict::Violation,
        direction: None,
        namespace,
        source,
        destination: Destination::default(),
        policy,
        reason,
    };
    let time = time.and_then(|time| humantime::parse_rfc3339_weak(time).ok());
    Ok(EngineAlert { key, sample: message, time })
}

/// Returns the object and the policy that it violates.
fn subject(event: &Value, message: &str) -> (Peer, PolicyRef) {
    // Gatekeeper: the object of the Event may be Gatekeeper itself.
    let annotation = |name: &str| text(event, &format!("/metadata/annotations/{name}"));
    let constraint = annotation("constraint_name");
    if !constraint.is_empty() {
        let name = clean(&format!("{}/{constraint}", annotation("constraint_kind")));
        let source = Peer {
            namespace: annotation("resource_namespace"),
            kind: annotation("resource_kind"),
            name: annotation("resource_name"),
        };
        return (source, PolicyRef { namespace: annotation("constraint_namespace"), name });
    }
    let object = |field: &str| Peer {
        namespace: text(event, &format!("/{field}/namespace")),
        kind: text(event, &format!("/{field}/kind")),
        name: text(event, &format!("/{field}/name")),
    };
    let involved = object("involvedObject");
    // Kyverno reports at the policy, with the object in `related`, and at the object, with the policy in the message.
    let group = text(event, "/involvedObject/apiVersion");
    if group.starts_with("kyverno.io/") || group.starts_with("policies.kyverno.io/") {
        let policy = PolicyRef { namespace: involved.namespace.clone(), name: involved.name.clone() };
        let related = object("related");
        return (if related.kind.is_empty() { involved } else { related }, policy);
    }
    let name = message.strip_prefix("policy ").and_then(|rest| rest.split([' ', '/', ':']).next());
    (involved, PolicyRef { namespace: String::new(), name: name.unwrap_or_default().to_owned() })
}

fn text(event: &Value, pointer: &str) -> String {
    event.pointer(pointer).and_then(Value::as_str).map(clean).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(event: &Value) -> Result<EngineAlert, Ignored> {
        let reasons = ["PolicyViolation", "FailedAdmission"].map(str::to_owned);
        alert_of_event(event, &reasons, |_| true)
    }

    fn names(event: &Value) -> (String, String, String) {
        let key = read(event).unwrap().key;
        (key.namespace, key.source.to_string(), key.policy.to_string())
    }

    fn expected(namespace: &str, source: &str, policy: &str) -> (String, String, String) {
        (namespace.to_owned(), source.to_owned(), policy.to_owned())
    }

    #[test]
    fn kyverno_reports_at_the_object_or_at_the_policy() {
        let at_object = json!({
            "metadata": {"namespace": "shop"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-1"},
            "reason": "PolicyViolation", "type": "Warning", "lastTimestamp": "2026-11-26T12:00:00Z",
            "message": "policy disallow-latest-tag/validate-image-tag fail: validation error: use a tag",
        });
        assert_eq!(names(&at_object), expected("shop", "shop/Pod/web-1", "disallow-latest-tag"));
        assert!(read(&at_object).unwrap().time.is_some());
        let at_policy = json!({
            "metadata": {"namespace": "default"},
            "involvedObject": {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "name": "require-labels"},
            "related": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "web"},
            "reason": "PolicyViolation", "message": "Deployment shop/web: [check] fail",
        });
        assert_eq!(names(&at_policy), expected("shop", "shop/Deployment/web", "require-labels"));
    }

    #[test]
    fn gatekeeper_reports_in_annotations() {
        let event = json!({
            "metadata": {"namespace": "gatekeeper-system", "annotations": {
                "constraint_kind": "K8sRequiredLabels", "constraint_name": "must-have-owner",
                "resource_kind": "Namespace", "resource_name": "shop", "resource_namespace": "",
            }},
            "involvedObject": {"kind": "Pod", "namespace": "gatekeeper-system", "name": "gatekeeper-0"},
            "reason": "FailedAdmission", "message": "Admission webhook denied request",
        });
        assert_eq!(names(&event), expected("", "Namespace/shop", "K8sRequiredLabels/must-have-owner"));
    }

    #[test]
    fn event_of_a_tenant_is_about_its_own_namespace() {
        let annotated = |namespace: &str| {
            json!({
                "metadata": {"namespace": namespace, "annotations": {
                    "constraint_kind": "K8sRequiredLabels", "constraint_name": "owner",
                    "resource_kind": "Pod", "resource_name": "db-0", "resource_namespace": "bank",
                }},
                "reason": "FailedAdmission", "message": "denied",
            })
        };
        let related = json!({
            "metadata": {"namespace": "shop"},
            "involvedObject": {"apiVersion": "kyverno.io/v1", "kind": "Policy", "namespace": "shop", "name": "labels"},
            "related": {"kind": "Node", "name": "node-1"},
            "reason": "PolicyViolation", "message": "fail",
        });
        assert_eq!(
            names(&annotated("gatekeeper-system")),
            expected("bank", "bank/Pod/db-0", "K8sRequiredLabels/owner")
        );
        assert_eq!(
            names(&annotated("shop")),
            expected("shop", "shop/Pod/db-0", "K8sRequiredLabels/owner"),
            "the owner of shop has no access to bank"
        );
        assert_eq!(names(&related), expected("shop", "shop/Node/node-1", "shop/labels"));
    }

    #[test]
    fn other_events_and_wrong_types_are_ignored() {
        for event in [json!({"reason": "BackOff"}), json!({"reason": 7}), json!(null), json!([1])] {
            assert_eq!(read(&event), Err(Ignored::OtherReason), "{event}");
        }
        let odd = json!({"reason": "PolicyViolation", "message": {"a": 1}, "involvedObject": "x", "eventTime": "soon"});
        assert_eq!(read(&odd).unwrap().time, None);
        let out = alert_of_event(&odd, &["PolicyViolation".to_owned()], |_| false);
        assert_eq!(out, Err(Ignored::OutOfScope));
    }
}
