//! The relations of an object to others, from the object alone: by name, or by a selector of labels.
//!
//! Owners are no relations here: a node has them by itself.

use proto::graph::Relation;
use serde_json::Value;

use crate::selector::LabelSelector;

/// The most references of one object.
const MAX_REFERENCES: usize = 128;

/// A relation to an object with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) relation: Relation,
    pub(crate) target: ObjectKey,
}

/// The name of an object in its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    pub(crate) namespace: String,
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// A relation to all Pods of the namespace whose labels match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodSelector {
    pub(crate) relation: Relation,
    pub(crate) labels: LabelSelector,
}

/// Returns the objects that an object names, without duplicates, at most 128.
pub(crate) fn references(group: &str, kind: &str, object: &Value) -> Vec<Reference> {
    let namespace = text(object, "/metadata/namespace");
    let mut found = References { namespace, all: Vec::new() };
    match (group, kind) {
        ("", "Pod") => pod(object, &mut found),
        ("networking.k8s.io" | "extensions", "Ingress") => {
            let services = ["/spec/defaultBackend/service/name", "/spec/backend/serviceName"];
            services
                .into_iter()
                .for_each(|place| found.add(Relation::Routes, "", "Service", text(object, place)));
            for path in list(object, "/spec/rules").flat_map(|rule| list(rule, "/http/paths")) {
                found.add(Relation::Routes, "", "Service", text(path, "/backend/service/name"));
                found.add(Relation::Routes, "", "Service", text(path, "/backend/serviceName"));
            }
            for tls in list(object, "/spec/tls") {
                found.add(Relation::Uses, "", "Secret", text(tls, "/secretName"));
            }
        }
        ("gateway.networking.k8s.io", "Gateway") => {
            found.add_to("", Relation::Uses, group, "GatewayClass", text(object, "/spec/gatewayClassName"));
        }
        ("gateway.networking.k8s.io", _) => {
            for parent in list(object, "/spec/parentRefs") {
                found.add_ref(Relation::Binds, parent, group, "Gateway");
            }
            for backend in list(object, "/spec/rules").flat_map(|rule| list(rule, "/backendRefs")) {
                found.add_ref(Relation::Routes, backend, "", "Service");
            }
        }
        ("autoscaling", "HorizontalPodAutoscaler") | ("keda.sh", "ScaledObject") => {
            let target = &object["spec"]["scaleTargetRef"];
            let api = target["apiVersion"].as_str().unwrap_or("apps/v1");
            let group = api.split_once('/').map_or("", |(group, _)| group);
            let kind = target["kind"].as_str().unwrap_or("Deployment");
            found.add(Relation::Scales, group, kind, text(target, "/name"));
        }
        ("", "PersistentVolumeClaim") => {
            found.add_to("", Relation::Binds, "", "PersistentVolume", text(object, "/spec/volumeName"));
            storage_class(object, &mut found);
        }
        ("", "PersistentVolume") => storage_class(object, &mut found),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            let role = &object["roleRef"];
            let place = if role["kind"] == "Role" { namespace } else { "" };
            found.add_to(place, Relation::Binds, group, text(role, "/kind"), text(role, "/name"));
            for subject in list(object, "/subjects").filter(|subject| subject["kind"] == "ServiceAccount") {
                let place = subject["namespace"].as_str().unwrap_or(namespace);
                found.add_to(place, Relation::Binds, "", "ServiceAccount", text(subject, "/name"));
            }
        }
        ("apiregistration.k8s.io", "APIService") => {
            let service = &object["spec"]["service"];
            found.add_to(
                text(service, "/namespace"),
                Relation::Routes,
                "",
                "Service",
                text(service, "/name"),
            );
        }
        ("cert-manager.io", "Certificate") => {
            found.add(Relation::Uses, "", "Secret", text(object, "/spec/secretName"));
            found.add_ref(Relation::Uses, &object["spec"]["issuerRef"], group, "Issuer");
        }
        (group, "Kustomization" | "HelmRelease") if group.ends_with(".toolkit.fluxcd.io") => {
            let source = &object["spec"]["sourceRef"];
            let source =
                if source.is_null() { &object["spec"]["chart"]["spec"]["sourceRef"] } else { source };
            found.add_ref(Relation::Uses, source, "source.toolkit.fluxcd.io", "GitRepository");
        }
        _ => {}
    }
    found.all
}

/// Returns the selector of Pods of an object.
pub(crate) fn pod_selector(group: &str, kind: &str, object: &Value) -> Option<PodSelector> {
    let (relation, selector) = match (group, kind) {
        ("", "Service") => {
            let labels = object.pointer("/spec/selector")?.as_object().filter(|labels| !labels.is_empty())?;
            return Some(PodSelector {
                relation: Relation::Selects,
                labels: LabelSelector::of_match_labels(labels),
            });
        }
        ("policy", "PodDisruptionBudget") => (Relation::Protects, object.pointer("/spec/selector")?),
        ("networking.k8s.io", "NetworkPolicy") => (Relation::Protects, object.pointer("/spec/podSelector")?),
        ("monitoring.coreos.com", "PodMonitor") => (Relation::Selects, object.pointer("/spec/selector")?),
        _ => return None,
    };
    Some(PodSelector { relation, labels: LabelSelector::of_json(selector) })
}

/// Returns the Service to which an EndpointSlice without owners belongs, by its label.
pub(crate) fn service_of_slice(object: &Value) -> Option<ObjectKey> {
    let name = object["metadata"]["labels"]["kubernetes.io/service-name"].as_str()?;
    Some(ObjectKey {
        namespace: text(object, "/metadata/namespace").to_owned(),
        group: String::new(),
        kind: "Service".to_owned(),
        name: name.to_owned(),
    })
}

/// Returns the StatefulSets whose template may have made a claim, as pairs of template and name: a claim is
/// `<template>-<StatefulSet>-<ordinal>`, and both may contain dashes.
pub(crate) fn templates_of_claim(claim: &str) -> impl Iterator<Item = (&str, &str)> {
    let set = claim.rsplit_once('-').filter(|(_, ordinal)| {
        let canonical = *ordinal == "0" || !ordinal.starts_with('0');
        canonical && !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit())
    });
    let set = set.map_or("", |(set, _)| set);
    set.match_indices('-')
        .map(|(place, _)| (&set[..place], &set[place + 1..]))
        .filter(|(template, name)| !template.is_empty() && !name.is_empty())
}

/// Returns the names of the templates of claims of a StatefulSet.
pub(crate) fn claim_templates(object: &Value) -> Vec<String> {
    let templates = list(object, "/spec/volumeClaimTemplates");
    templates
        .filter_map(|template| template["metadata"]["name"].as_str())
        .map(str::to_owned)
        .take(16)
        .collect()
}

struct References<'a> {
    namespace: &'a str,
    all: Vec<Reference>,
}

impl References<'_> {
    /// Adds an object of the same namespace, unless the name is empty.
    fn add(&mut self, relation: Relation, group: &str, kind: &str, name: &str) {
        self.add_to(self.namespace, relation, group, kind, name);
    }

    fn add_to(&mut self, namespace: &str, relation: Relation, group: &str, kind: &str, name: &str) {
        if name.is_empty() || kind.is_empty() || self.all.len() == MAX_REFERENCES {
            return;
        }
        let own = str::to_owned;
        let target =
            ObjectKey { namespace: own(namespace), group: own(group), kind: own(kind), name: own(name) };
        let reference = Reference { relation, target };
        if !self.all.contains(&reference) {
            self.all.push(reference);
        }
    }

    /// Adds an object that fields such as `kind` and `namespace` describe.
    fn add_ref(&mut self, relation: Relation, reference: &Value, group: &str, kind: &str) {
        let group = reference["group"].as_str().unwrap_or(group);
        let kind = reference["kind"].as_str().unwrap_or(kind);
        let cluster_scoped = kind.starts_with("Cluster");
        let namespace = reference["namespace"].as_str().unwrap_or(self.namespace);
        let namespace = if cluster_scoped { "" } else { namespace };
        self.add_to(namespace, relation, group, kind, text(reference, "/name"));
    }
}

fn pod(object: &Value, found: &mut References<'_>) {
    found.add_to("", Relation::RunsOn, "", "Node", text(object, "/spec/nodeName"));
    found.add(Relation::Uses, "", "ServiceAccount", text(object, "/spec/serviceAccountName"));
    for volume in list(object, "/spec/volumes") {
        found.add(Relation::Uses, "", "ConfigMap", text(volume, "/configMap/name"));
        found.add(Relation::Uses, "", "Secret", text(volume, "/secret/secretName"));
        found.add(
            Relation::Uses,
            "",
            "PersistentVolumeClaim",
            text(volume, "/persistentVolumeClaim/claimName"),
        );
        for source in list(volume, "/projected/sources") {
            found.add(Relation::Uses, "", "ConfigMap", text(source, "/configMap/name"));
            found.add(Relation::Uses, "", "Secret", text(source, "/secret/name"));
        }
    }
    for secret in list(object, "/spec/imagePullSecrets") {
        found.add(Relation::Uses, "", "Secret", text(secret, "/name"));
    }
    let containers = list(object, "/spec/containers").chain(list(object, "/spec/initContainers"));
    for container in containers {
        for source in list(container, "/envFrom") {
            found.add(Relation::Uses, "", "ConfigMap", text(source, "/configMapRef/name"));
            found.add(Relation::Uses, "", "Secret", text(source, "/secretRef/name"));
        }
        for source in list(container, "/env") {
            found.add(Relation::Uses, "", "ConfigMap", text(source, "/valueFrom/configMapKeyRef/name"));
            found.add(Relation::Uses, "", "Secret", text(source, "/valueFrom/secretKeyRef/name"));
        }
    }
}

fn storage_class(object: &Value, found: &mut References<'_>) {
    let class = text(object, "/spec/storageClassName");
    found.add_to("", Relation::Uses, "storage.k8s.io", "StorageClass", class);
}

fn list<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The references of an object, as `relation kind.group namespace/name`.
    fn named(object: &Value) -> Vec<String> {
        let api = object["apiVersion"].as_str().unwrap();
        let group = api.split_once('/').map_or("", |(group, _)| group);
        let references = references(group, object["kind"].as_str().unwrap(), object);
        let name = |Reference { relation, target }: Reference| {
            let relation = serde_json::to_value(relation).unwrap();
            let kind = format!("{}.{}", target.kind, target.group);
            let kind = kind.trim_end_matches('.');
            format!("{} {kind} {}/{}", relation.as_str().unwrap(), target.namespace, target.name)
        };
        references.into_iter().map(name).collect()
    }

    #[test]
    fn pod_refers_to_what_it_uses() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a"},
            "spec": {
                "nodeName": "n1", "serviceAccountName": "sa",
                "volumes": [
                    {"configMap": {"name": "c1"}}, {"secret": {"secretName": "s1"}}, {"persistentVolumeClaim": {"claimName": "p1"}},
                    {"projected": {"sources": [{"configMap": {"name": "c1"}}, {"secret": {"name": "s2"}}]}},
                ],
                "imagePullSecrets": [{"name": "pull"}],
                "containers": [{"envFrom": [{"secretRef": {"name": "s3"}}], "env": [{"valueFrom": {"configMapKeyRef": {"name": "c2"}}}]}],
                "initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s4"}}}]}],
            },
        });
        assert_eq!(
            named(&pod),
            [
                "runs-on Node /n1",
                "uses ServiceAccount a/sa",
                "uses ConfigMap a/c1",
                "uses Secret a/s1",
                "uses PersistentVolumeClaim a/p1",
                "uses Secret a/s2",
                "uses Secret a/pull",
                "uses Secret a/s3",
                "uses ConfigMap a/c2",
                "uses Secret a/s4",
            ]
        );
    }

    #[test]
    fn routes_and_autoscalers_refer_to_their_targets() {
        let object = |api: &str, kind: &str, spec: Value| {
            named(&json!({"apiVersion": api, "kind": kind, "metadata": {"namespace": "a"}, "spec": spec}))
        };
        assert_eq!(
            object(
                "networking.k8s.io/v1",
                "Ingress",
                json!({
                    "rules": [{"http": {"paths": [{"backend": {"service": {"name": "web"}}}, {"backend": {"service": {"name": "web"}}}]}}],
                    "defaultBackend": {"service": {"name": "default"}}, "tls": [{"secretName": "cert"}],
                })
            ),
            ["routes Service a/default", "routes Service a/web", "uses Secret a/cert"]
        );
        assert_eq!(
            object(
                "gateway.networking.k8s.io/v1",
                "HTTPRoute",
                json!({
                    "parentRefs": [{"name": "gw", "namespace": "infra"}], "rules": [{"backendRefs": [{"name": "web"}]}],
                })
            ),
            ["binds Gateway.gateway.networking.k8s.io infra/gw", "routes Service a/web"]
        );
        assert_eq!(
            object(
                "autoscaling/v2",
                "HorizontalPodAutoscaler",
                json!({
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"},
                })
            ),
            ["scales StatefulSet.apps a/db"]
        );
        assert_eq!(
            object("v1", "PersistentVolumeClaim", json!({"volumeName": "pv", "storageClassName": "fast"})),
            ["binds PersistentVolume /pv", "uses StorageClass.storage.k8s.io /fast"]
        );
        assert_eq!(
            object(
                "cert-manager.io/v1",
                "Certificate",
                json!({"secretName": "tls", "issuerRef": {"kind": "ClusterIssuer", "name": "le"}})
            ),
            ["uses Secret a/tls", "uses ClusterIssuer.cert-manager.io /le"]
        );
        assert_eq!(
            object(
                "kustomize.toolkit.fluxcd.io/v1",
                "Kustomization",
                json!({"sourceRef": {"kind": "OCIRepository", "name": "app", "namespace": "flux"}})
            ),
            ["uses OCIRepository.source.toolkit.fluxcd.io flux/app"]
        );
    }

    #[test]
    fn services_and_policies_select_pods() {
        let selects = |group: &str, kind: &str, spec: Value| {
            let selector = pod_selector(group, kind, &json!({"spec": spec}))?;
            selector.labels.matches(|key| (key == "app").then_some("web")).then_some(selector.relation)
        };
        assert_eq!(selects("", "Service", json!({"selector": {"app": "web"}})), Some(Relation::Selects));
        assert_eq!(
            selects("", "Service", json!({"selector": {}})),
            None,
            "a Service without a selector selects nothing"
        );
        assert_eq!(
            selects("policy", "PodDisruptionBudget", json!({"selector": {}})),
            Some(Relation::Protects)
        );
        let policy = json!({"podSelector": {"matchLabels": {"app": "db"}}});
        assert_eq!(selects("networking.k8s.io", "NetworkPolicy", policy), None);
    }

    #[test]
    fn claim_has_the_templates_that_may_have_made_it() {
        let templates = |claim| templates_of_claim(claim).collect::<Vec<_>>();
        assert_eq!(templates("data-web-0"), [("data", "web")]);
        assert_eq!(templates("my-data-web-12"), [("my", "data-web"), ("my-data", "web")]);
        for other in
            ["data", "data-web", "data-web-", "data-web-x", "data-web-01", "-web-0", "data-web-0-x", ""]
        {
            let found = templates(other);
            assert!(found.is_empty(), "{other}: {found:?}");
        }
    }

    #[test]
    fn hostile_objects_have_bounded_references() {
        let volumes: Vec<Value> =
            (0..100_000).map(|n| json!({"configMap": {"name": n.to_string()}})).collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"volumes": volumes}});
        assert_eq!(references("", "Pod", &pod).len(), MAX_REFERENCES);
        for spec in
            [json!(1), json!([]), json!({"volumes": {}}), json!({"containers": [1, null, {"env": 3}]})]
        {
            references("", "Pod", &json!({"spec": spec}));
        }
    }
}
