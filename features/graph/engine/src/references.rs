//! The relations of an object to others, from the object alone: by name, or by a selector of labels.
//!
//! Owners are no relations here: a node has them by itself.

use proto::{LabelSelector, graph::Relation};
use serde_json::Value;

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
        ("", "Pod") => pod(&object["spec"], &mut found),
        ("", "ServiceAccount") => {
            for secret in list(object, "/imagePullSecrets").chain(list(object, "/secrets")) {
                found.add(Relation::Uses, "", "Secret", text(secret, "/name"));
            }
        }
        ("apps", "StatefulSet") => {
            found.add(Relation::Uses, "", "Service", text(object, "/spec/serviceName"));
        }
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
            for rule in list(object, "/spec/rules") {
                for backend in list(rule, "/backendRefs") {
                    found.add_ref(Relation::Routes, backend, "", "Service");
                    mirrors(backend, &mut found);
                }
                mirrors(rule, &mut found);
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
        ("", "PersistentVolume") => {
            let claim = &object["spec"]["claimRef"];
            let (namespace, name) = (text(claim, "/namespace"), text(claim, "/name"));
            found.add_to(namespace, Relation::Binds, "", "PersistentVolumeClaim", name);
            storage_class(object, &mut found);
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            let role = &object["roleRef"];
            let place = if role["kind"] == "Role" { namespace } else { "" };
            found.add_to(place, Relation::Binds, group, text(role, "/kind"), text(role, "/name"));
            for subject in list(object, "/subjects").filter(|subject| subject["kind"] == "ServiceAccount") {
                let place = subject["namespace"].as_str().unwrap_or(namespace);
                found.add_to(place, Relation::Binds, "", "ServiceAccount", text(subject, "/name"));
            }
        }
        ("apiregistration.k8s.io", "APIService") => service(&object["spec"]["service"], &mut found),
        (
            "admissionregistration.k8s.io",
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration",
        ) => {
            for webhook in list(object, "/webhooks") {
                service(&webhook["clientConfig"]["service"], &mut found);
            }
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            service(&object["spec"]["conversion"]["webhook"]["clientConfig"]["service"], &mut found);
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
    // Without Pods, only the template names what the next ones use.
    if let Some(template) = template_without_pods(group, kind, object) {
        pod(template, &mut found);
    }
    found.all
}

/// Returns the template of the Pods of a workload that has none, or has some from time to time.
fn template_without_pods<'a>(group: &str, kind: &str, object: &'a Value) -> Option<&'a Value> {
    let spec = &object["spec"];
    let template = match (group, kind) {
        ("apps", "Deployment" | "StatefulSet") | ("", "ReplicationController") if spec["replicas"] == 0 => {
            spec
        }
        ("batch", "Job") if spec["suspend"] == true => spec,
        ("batch", "CronJob") => &spec["jobTemplate"]["spec"],
        _ => return None,
    };
    Some(&template["template"]["spec"])
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

/// Adds the objects that requests of the API server reach.
fn service(service: &Value, found: &mut References<'_>) {
    let (namespace, name) = (text(service, "/namespace"), text(service, "/name"));
    found.add_to(namespace, Relation::Routes, "", "Service", name);
}

/// Adds the objects to which a rule of a route copies requests.
fn mirrors(rule: &Value, found: &mut References<'_>) {
    for filter in list(rule, "/filters") {
        found.add_ref(Relation::Routes, &filter["requestMirror"]["backendRef"], "", "Service");
    }
}

/// Adds the objects that the specification of a Pod names.
fn pod(spec: &Value, found: &mut References<'_>) {
    found.add_to("", Relation::RunsOn, "", "Node", text(spec, "/nodeName"));
    found.add(Relation::Uses, "", "ServiceAccount", text(spec, "/serviceAccountName"));
    for volume in list(spec, "/volumes") {
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
    for secret in list(spec, "/imagePullSecrets") {
        found.add(Relation::Uses, "", "Secret", text(secret, "/name"));
    }
    let containers = list(spec, "/containers").chain(list(spec, "/initContainers"));
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
mod tests;
