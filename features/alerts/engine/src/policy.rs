//! The network policies that ask for alerts, and which of them dropped a flow.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    messages::{Endpoint, Policy},
    text::clean,
};

/// The annotation with which a policy asks for alerts. Its value is `true`.
pub const ALERT_ANNOTATION: &str = "app.gitlab.com/alert";

/// The most policies that are kept, and those of one namespace: a flow is compared with those of its namespace, which its owner writes.
const MAX_POLICIES: usize = 5000;
const MAX_PER_NAMESPACE: usize = 200;
/// The most rules of a policy.
const MAX_RULES: usize = 64;
/// The most labels, expressions and values in the selectors of a policy, and the bytes of all of them.
const MAX_TERMS: usize = 64;
const MAX_POLICY_TEXT: usize = 8 << 10;
/// The most labels of an endpoint that are compared.
const MAX_LABELS: usize = 256;

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

/// The policies of a cluster that ask for alerts. Clones share the policies.
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    /// The policies by name, of each namespace. No namespace is empty.
    namespaces: BTreeMap<String, BTreeMap<String, Arc<NetworkPolicy>>>,
    /// The number of policies.
    len: usize,
}

/// The effect of an object on a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The set has changed.
    pub changed: bool,
    /// The reason why the policy is not in the set, although it asks for alerts.
    pub refused: Option<RefusedPolicy>,
}

/// The reason why a policy is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedPolicy {
    /// There are too many, in its namespace or in all.
    TooMany,
    /// Its selectors are too large.
    TooLarge,
}

/// The end of a flow whose policy decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
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
    /// Reads a policy that asks for alerts. Returns `None` for other policies. Rules whose selectors cannot be read select nothing.
    ///
    /// # Errors
    ///
    /// The policy is too large.
    pub fn asking_for_alerts(object: &Value) -> Result<Option<Self>, RefusedPolicy> {
        let asks = object.pointer("/metadata/annotations/app.gitlab.com~1alert").and_then(Value::as_str);
        if asks != Some("true") {
            return Ok(None);
        }
        let specs = object["specs"].as_array().into_iter().flatten();
        let specs = specs.chain([&object["spec"]]).filter(|spec| spec.is_object());
        let (mut rules, mut terms, mut bytes) = (Vec::new(), 0, 0);
        for spec in specs {
            let Some(rule) = Rule::read(spec) else { continue };
            let size = rule.endpoints.size();
            (terms, bytes) = (terms + size.0, bytes + size.1);
            if rules.len() == MAX_RULES || terms > MAX_TERMS || bytes > MAX_POLICY_TEXT {
                return Err(RefusedPolicy::TooLarge);
            }
            rules.push(rule);
        }
        Ok(Some(Self { name: name_of(object), rules }))
    }

    /// Returns whether an endpoint of the policy's namespace with these labels is denied what no policy allows, because of this policy.
    fn isolates(&self, labels: &[String], direction: Direction) -> bool {
        self.rules.iter().any(|rule| {
            let denies = match direction {
                Direction::Ingress => rule.ingress,
                Direction::Egress => rule.egress,
            };
            denies && rule.endpoints.matches(labels)
        })
    }
}

fn name_of(object: &Value) -> PolicyRef {
    let text = |key: &str| object["metadata"][key].as_str().map(clean).unwrap_or_default();
    PolicyRef { namespace: text("namespace"), name: text("name") }
}

impl Rule {
    fn read(spec: &Value) -> Option<Self> {
        // A nodeSelector is for the firewall of hosts, whose endpoints have no namespace.
        let selector = spec.get("endpointSelector").or_else(|| spec.get("nodeSelector"))?;
        let endpoints = Selector::deserialize(selector).ok()?;
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
    /// Returns the number of labels, expressions and values, and the bytes of their texts.
    fn size(&self) -> (usize, usize) {
        let labels = self.match_labels.iter().map(|(key, value)| key.len() + value.len());
        let expressions = self.match_expressions.iter().flat_map(|Requirement { key, operator, values }| {
            let values = values.iter().map(String::len);
            values.chain([key.len() + operator.len()])
        });
        labels.chain(expressions).fold((0, 0), |(terms, bytes), length| (terms + 1, bytes + length))
    }

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

impl RefusedPolicy {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::TooMany, Self::TooLarge];

    /// Returns the word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TooMany => "too-many-policies",
            Self::TooLarge => "too-large-policies",
        }
    }
}

impl PolicySet {
    /// Adds or replaces a policy, or removes one that does not ask for alerts any more, or that is too large now.
    pub fn apply(&mut self, object: &Value) -> Applied {
        let policy = match NetworkPolicy::asking_for_alerts(object) {
            Ok(Some(policy)) => policy,
            Ok(None) => return Applied { changed: self.remove(object), refused: None },
            Err(refused) => return Applied { changed: self.remove(object), refused: Some(refused) },
        };
        if self.get(&policy.name).is_some_and(|known| **known == policy) {
            return Applied { changed: false, refused: None };
        }
        let changed = self.insert(Arc::new(policy));
        Applied { changed, refused: (!changed).then_some(RefusedPolicy::TooMany) }
    }

    /// Removes a policy. Returns whether there was one.
    pub fn remove(&mut self, object: &Value) -> bool {
        let PolicyRef { namespace, name } = name_of(object);
        let Some(policies) = self.namespaces.get_mut(&namespace) else { return false };
        let removed = policies.remove(&name).is_some();
        if policies.is_empty() {
            self.namespaces.remove(&namespace);
        }
        self.len -= usize::from(removed);
        removed
    }

    /// Adds the policies of another set, as far as there is room.
    pub fn extend(&mut self, other: &Self) {
        for policy in other.namespaces.values().flat_map(BTreeMap::values) {
            self.insert(Arc::clone(policy));
        }
    }

    /// Adds or replaces a policy. Returns false if there is no room.
    fn insert(&mut self, policy: Arc<NetworkPolicy>) -> bool {
        let PolicyRef { namespace, name } = &policy.name;
        let of_namespace = self.namespaces.get(namespace);
        let is_known = of_namespace.is_some_and(|policies| policies.contains_key(name));
        let is_full = of_namespace.is_some_and(|policies| policies.len() >= MAX_PER_NAMESPACE);
        if !is_known && (is_full || self.len >= MAX_POLICIES) {
            return false;
        }
        self.len += usize::from(!is_known);
        self.namespaces.entry(namespace.clone()).or_default().insert(name.clone(), policy);
        true
    }

    fn get(&self, PolicyRef { namespace, name }: &PolicyRef) -> Option<&Arc<NetworkPolicy>> {
        self.namespaces.get(namespace)?.get(name)
    }

    /// Returns the number of policies.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no policy.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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
            // A hostile pod has any number of labels.
            let labels = &endpoint.labels[..endpoint.labels.len().min(MAX_LABELS)];
            let of = |namespace: &str| self.namespaces.get(namespace).into_iter().flat_map(BTreeMap::values);
            let mut candidates = of(&endpoint.namespace).chain(of(""));
            return candidates.find(|policy| policy.isolates(labels, direction)).map(|policy| &policy.name);
        }
        denied_by.iter().find_map(|Policy { name, namespace, .. }| {
            self.namespaces.get(namespace)?.get(name).map(|policy| &policy.name)
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
        assert!(objects.iter().all(|object| set.apply(object).refused.is_none()));
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
        let applied = |changed| Applied { changed, refused: None };
        assert_eq!(set.apply(&object("a", "p", "true", &spec)), applied(false), "it is the same");
        assert_eq!(set.apply(&object("a", "p", "no", &spec)), applied(true));
        assert_eq!(set.apply(&object("a", "p", "no", &spec)), applied(false));
        assert!(set.is_empty() && set.namespaces.is_empty() && !set.remove(&object("a", "p", "no", &spec)));
    }

    #[test]
    fn hostile_policies_are_bounded() {
        let labels = |number: usize, length: usize| -> BTreeMap<String, String> {
            (0..number).map(|number| (number.to_string(), "x".repeat(length))).collect()
        };
        let with_labels = |number, length| json!({"endpointSelector": {"matchLabels": labels(number, length)}, "ingress": [{}]});
        let with_values = |number: usize, length: usize| {
            let values = vec!["x".repeat(length); number];
            let expressions = json!([{"key": "app", "operator": "In", "values": values}]);
            json!({"endpointSelector": {"matchExpressions": expressions}, "ingress": [{}]})
        };
        let read = |spec: &Value| NetworkPolicy::asking_for_alerts(&object("a", "p", "true", spec));
        for (spec, fits) in [
            (with_labels(MAX_TERMS, 60), true),
            (with_labels(MAX_TERMS + 1, 1), false),
            (with_labels(1, MAX_POLICY_TEXT), false),
            (with_values(MAX_TERMS - 1, 60), true),
            (with_values(MAX_TERMS, 1), false),
            (with_values(100_000, 1), false),
            (with_values(1, 1 << 20), false),
        ] {
            assert_eq!(read(&spec).is_ok(), fits, "{:.100}", spec.to_string());
        }
        let specs = |number: usize, spec: Value| {
            let mut object = object("a", "p", "true", &json!(null));
            object["specs"] = vec![spec; number].into();
            object
        };
        let any = json!({"endpointSelector": {}, "ingress": [{}]});
        assert!(NetworkPolicy::asking_for_alerts(&specs(MAX_RULES, any.clone())).is_ok());
        for many in [specs(MAX_RULES + 1, any.clone()), specs(9, with_labels(8, 1))] {
            assert_eq!(NetworkPolicy::asking_for_alerts(&many), Err(RefusedPolicy::TooLarge));
        }
        for wrong in [
            json!(null),
            json!(7),
            json!({"endpointSelector": 7}),
            json!({"endpointSelector": {"matchLabels": {"a": 1}}}),
        ] {
            assert!(read(&wrong).unwrap().unwrap().rules.is_empty());
        }

        let mut set = set(&[object("a", "p", "true", &any)]);
        let large = set.apply(&object("a", "p", "true", &with_values(1000, 1)));
        assert_eq!(large, Applied { changed: true, refused: Some(RefusedPolicy::TooLarge) });
        assert!(set.is_empty(), "it is another policy now");
        let mut fill = |namespaces: usize, policies: usize| {
            let names = (0..namespaces * policies).map(|n| (n / policies, n % policies));
            let added = names.filter(|(namespace, n)| {
                let object = object(&namespace.to_string(), &n.to_string(), "true", &any);
                set.apply(&object).refused.is_none()
            });
            (added.count(), set.len())
        };
        assert_eq!(fill(1, MAX_PER_NAMESPACE + 10), (MAX_PER_NAMESPACE, MAX_PER_NAMESPACE));
        assert_eq!(fill(100, MAX_PER_NAMESPACE), (MAX_POLICIES, MAX_POLICIES));
        let (mut merged, shared) = (set.clone(), &set.namespaces["0"]["0"]);
        merged.extend(&set);
        assert_eq!(merged.len(), MAX_POLICIES);
        assert!(Arc::ptr_eq(&merged.namespaces["0"]["0"], shared), "policies are not copied");
    }

    #[test]
    fn endpoint_with_many_labels_is_compared_by_the_first_ones() {
        let web = json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [{}]});
        let set = set(&[object("shop", "web", "true", &web)]);
        let mut labels = vec!["k8s:other=1"; MAX_LABELS - 1];
        labels.push("k8s:app=web");
        assert!(responsible(&set, &endpoint("shop", &labels), Direction::Ingress).is_some());
        labels.insert(0, "k8s:more=1");
        assert!(responsible(&set, &endpoint("shop", &labels), Direction::Ingress).is_none());
    }
}
