//! The network policies that ask for alerts, and which of them dropped a flow.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    messages::{Endpoint, Policy},
    text::clean,
};

/// The annotation with which a policy asks for alerts. Its value is `true`.
pub const ALERT_ANNOTATION: &str = "app.gitlab.com/alert";

/// The most policies that are kept.
const MAX_POLICIES: usize = 5000;
/// The most rules of a policy, and requirements of a selector.
const MAX_RULES: usize = 64;

/// The name of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PolicyRef {
    /// The namespace, which is empty for a policy of the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// A `CiliumNetworkPolicy` or `CiliumClusterwideNetworkPolicy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Its name.
    pub name: PolicyRef,
    rules: Vec<Rule>,
}

/// The policies of a cluster that ask for alerts.
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    policies: BTreeMap<PolicyRef, NetworkPolicy>,
}

/// The end of a flow whose policy decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The policy of the destination.
    Ingress,
    /// The policy of the source.
    Egress,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    endpoints: Selector,
    ingress: bool,
    egress: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Selector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Requirement {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl NetworkPolicy {
    /// Reads a policy that asks for alerts. Returns `None` for other policies, and for those whose selectors cannot be read.
    pub fn asking_for_alerts(object: &Value) -> Option<Self> {
        let asks = object.pointer("/metadata/annotations/app.gitlab.com~1alert").and_then(Value::as_str);
        if asks != Some("true") {
            return None;
        }
        let text = |key: &str| object["metadata"][key].as_str().map(clean).unwrap_or_default();
        let name = PolicyRef { namespace: text("namespace"), name: text("name") };
        let specs = object["specs"].as_array().into_iter().flatten();
        let specs = specs.chain([&object["spec"]]).filter(|spec| spec.is_object());
        let rules = specs.take(MAX_RULES).filter_map(Rule::read).collect();
        Some(Self { name, rules })
    }

    /// Returns whether the endpoint is denied what no policy allows, because of this policy.
    fn isolates(&self, endpoint: &Endpoint, direction: Direction) -> bool {
        let applies = self.name.namespace.is_empty() || self.name.namespace == endpoint.namespace;
        applies
            && self.rules.iter().any(|rule| {
                let denies = match direction {
                    Direction::Ingress => rule.ingress,
                    Direction::Egress => rule.egress,
                };
                denies && rule.endpoints.matches(&endpoint.labels)
            })
    }
}

impl Rule {
    fn read(spec: &Value) -> Option<Self> {
        // A nodeSelector is for the firewall of hosts, whose endpoints have no namespace.
        let selector = spec.get("endpointSelector").or_else(|| spec.get("nodeSelector"))?;
        let endpoints = Selector::deserialize(selector).ok()?;
        if endpoints.match_labels.len() + endpoints.match_expressions.len() > MAX_RULES {
            return None;
        }
        let has_rules =
            |key: &str| spec.get(key).and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
        let denies = |direction: &str| {
            let explicit = spec.pointer(&format!("/enableDefaultDeny/{direction}")).and_then(Value::as_bool);
            explicit.unwrap_or_else(|| has_rules(direction) || has_rules(&format!("{direction}Deny")))
        };
        Some(Self { endpoints, ingress: denies("ingress"), egress: denies("egress") })
    }
}

impl Selector {
    fn matches(&self, labels: &[String]) -> bool {
        self.match_labels.iter().all(|(key, value)| value_of(labels, key) == Some(value))
            && self.match_expressions.iter().all(|requirement| {
                let value = value_of(labels, &requirement.key);
                let listed = value.is_some_and(|value| requirement.values.iter().any(|each| each == value));
                match &*requirement.operator {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
    }
}

/// Returns the value of a label, of which `labels` have the form `source:key=value`. A key without a source, or with `any`, is that of
/// any source.
fn value_of<'a>(labels: &'a [String], key: &str) -> Option<&'a str> {
    let (source, key) = match key.split_once(':') {
        Some(("any", key)) => (None, key),
        Some((source, key)) => (Some(source), key),
        None => (None, key),
    };
    labels.iter().find_map(|label| {
        let (name, value) = label.split_once('=').unwrap_or((label, ""));
        let (of, name) = name.split_once(':').unwrap_or(("", name));
        (name == key && source.is_none_or(|source| source == of)).then_some(value)
    })
}

impl PolicySet {
    /// Adds or replaces a policy, or removes one that does not ask for alerts any more. Returns false if there are too many.
    pub fn apply(&mut self, object: &Value) -> bool {
        let Some(policy) = NetworkPolicy::asking_for_alerts(object) else {
            self.remove(object);
            return true;
        };
        if self.policies.len() >= MAX_POLICIES && !self.policies.contains_key(&policy.name) {
            return false;
        }
        self.policies.insert(policy.name.clone(), policy);
        true
    }

    /// Removes a policy.
    pub fn remove(&mut self, object: &Value) {
        let text = |key: &str| object["metadata"][key].as_str().map(clean).unwrap_or_default();
        self.policies.remove(&PolicyRef { namespace: text("namespace"), name: text("name") });
    }

    /// Adds the policies of another set, as far as there is room.
    pub fn extend(&mut self, other: &Self) {
        let room = MAX_POLICIES.saturating_sub(self.policies.len());
        let new = other.policies.iter().take(room);
        self.policies.extend(new.map(|(name, policy)| (name.clone(), policy.clone())));
    }

    /// Returns the number of policies.
    pub fn len(&self) -> usize {
        self.policies.len()
    }

    /// Returns whether there is no policy.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// Returns the policy that asks for an alert about a flow that `endpoint` was denied: one that `denied_by` names, or, if there is
    /// none, one by which everything is denied that no policy allows.
    pub(crate) fn responsible(
        &self,
        endpoint: &Endpoint,
        direction: Direction,
        denied_by: &[Policy],
    ) -> Option<&PolicyRef> {
        if denied_by.is_empty() {
            let namespaces = ["", &*endpoint.namespace];
            let of = |namespace: &str| {
                let first = PolicyRef { namespace: namespace.to_owned(), name: String::new() };
                let namespace = namespace.to_owned();
                self.policies.range(first..).take_while(move |(name, _)| name.namespace == namespace)
            };
            let mut candidates = namespaces.into_iter().rev().flat_map(of);
            return candidates.find(|(_, policy)| policy.isolates(endpoint, direction)).map(|(name, _)| name);
        }
        denied_by.iter().find_map(|policy| {
            let name = PolicyRef { namespace: policy.namespace.clone(), name: policy.name.clone() };
            self.policies.get_key_value(&name).map(|(name, _)| name)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(namespace: &str, name: &str, asks: &str, spec: &Value) -> Value {
        json!({
            "metadata": {"namespace": namespace, "name": name, "annotations": {ALERT_ANNOTATION: asks}},
            "spec": spec,
        })
    }

    fn endpoint(namespace: &str, labels: &[&str]) -> Endpoint {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        Endpoint { namespace: namespace.to_owned(), labels, ..Endpoint::default() }
    }

    fn set(objects: &[Value]) -> PolicySet {
        let mut set = PolicySet::default();
        assert!(objects.iter().all(|object| set.apply(object)));
        set
    }

    fn responsible(set: &PolicySet, endpoint: &Endpoint, direction: Direction) -> Option<String> {
        set.responsible(endpoint, direction, &[]).map(|name| format!("{}/{}", name.namespace, name.name))
    }

    #[test]
    fn default_deny_belongs_to_the_policy_that_selects_the_endpoint() {
        let web = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [{}]});
        let any = json!({"endpointSelector": {}, "egress": [{}]});
        let set = set(&[
            object("shop", "web", "true", &web),
            object("shop", "silent", "false", &any),
            object("other", "all", "true", &any),
        ]);
        assert_eq!(set.len(), 2, "one does not ask for alerts");
        let pod = endpoint("shop", &["k8s:app=web", "k8s:io.kubernetes.pod.namespace=shop"]);
        assert_eq!(responsible(&set, &pod, Direction::Ingress).as_deref(), Some("shop/web"));
        assert_eq!(responsible(&set, &pod, Direction::Egress), None, "it has rules for ingress only");
        assert_eq!(responsible(&set, &endpoint("shop", &["k8s:app=db"]), Direction::Ingress), None);
        assert_eq!(
            responsible(&set, &endpoint("other", &["k8s:app=web"]), Direction::Ingress),
            None,
            "a policy is for its namespace"
        );
    }

    #[test]
    fn named_policies_decide_alone() {
        let any = json!({"endpointSelector": {}, "ingress": [{}]});
        let set = set(&[object("shop", "asks", "true", &any), object("", "cluster", "true", &any)]);
        let denied_by = |name: &str, namespace: &str| {
            let policy =
                Policy { name: name.to_owned(), namespace: namespace.to_owned(), ..Policy::default() };
            let pod = endpoint("shop", &[]);
            set.responsible(&pod, Direction::Ingress, &[policy]).map(|found| found.name.clone())
        };
        assert_eq!(denied_by("silent", "shop"), None, "the policy that denied it does not ask");
        assert_eq!(denied_by("asks", "shop").as_deref(), Some("asks"));
        assert_eq!(denied_by("cluster", "").as_deref(), Some("cluster"));
        let elsewhere = responsible(&set, &endpoint("else", &[]), Direction::Ingress);
        assert_eq!(elsewhere.as_deref(), Some("/cluster"));
    }

    #[test]
    fn selectors_have_sources_and_expressions() {
        let labels = ["k8s:app=web", "k8s:tier=front", "reserved:host"].map(str::to_owned);
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"k8s:app": "web", "any:tier": "front"}}), true),
            (json!({"matchLabels": {"reserved:host": ""}}), true),
            (json!({"matchLabels": {"cni:app": "web"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "Near", "values": ["web"]}]}), false),
        ] {
            let read = Selector::deserialize(&selector).unwrap();
            assert_eq!(read.matches(&labels), expected, "{selector}");
        }
    }

    #[test]
    fn policy_that_stops_asking_is_removed_and_default_deny_may_be_off() {
        let spec = json!({
            "endpointSelector": {}, "ingress": [{}], "egressDeny": [{}],
            "enableDefaultDeny": {"ingress": false},
        });
        let mut set = set(&[object("a", "p", "true", &spec)]);
        let pod = endpoint("a", &[]);
        assert_eq!(responsible(&set, &pod, Direction::Ingress), None);
        assert_eq!(responsible(&set, &pod, Direction::Egress).as_deref(), Some("a/p"));
        set.apply(&object("a", "p", "no", &spec));
        assert!(set.is_empty());
    }

    #[test]
    fn hostile_policies_are_bounded() {
        let labels: BTreeMap<String, String> =
            (0..1000).map(|number| (number.to_string(), String::new())).collect();
        let spec = json!({"endpointSelector": {"matchLabels": labels}, "ingress": [{}]});
        let read = NetworkPolicy::asking_for_alerts(&object("a", "p", "true", &spec)).unwrap();
        assert!(read.rules.is_empty());
        for wrong in [
            json!(null),
            json!(7),
            json!({"endpointSelector": 7}),
            json!({"endpointSelector": {"matchLabels": {"a": 1}}}),
        ] {
            assert!(NetworkPolicy::asking_for_alerts(&object("a", "p", "true", &wrong)).is_some());
        }
        let mut set = PolicySet::default();
        let spec = json!({"endpointSelector": {}});
        let added = (0..MAX_POLICIES + 10).filter(|n| set.apply(&object("a", &n.to_string(), "true", &spec)));
        assert_eq!(added.count(), MAX_POLICIES);
    }
}
