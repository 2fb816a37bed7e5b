//! The fields of objects that are read. All others are skipped while the bytes are parsed, so that they never take memory.

use std::{collections::HashMap, fmt, sync::LazyLock};

use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// The fields that nodes, their edges or their health are made of, for all kinds. An element of a list has no name here.
const FIELDS: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.generation",
    "metadata.creationTimestamp",
    "metadata.deletionTimestamp",
    "metadata.finalizers",
    "metadata.ownerReferences",
    "metadata.labels",
    // Annotations, such as those by which groups are recognized and those that change the health.
    "metadata.annotations.meta.helm.sh/release-name",
    "metadata.annotations.meta.helm.sh/release-namespace",
    "metadata.annotations.argocd.argoproj.io/tracking-id",
    "metadata.annotations.argocd.argoproj.io/ignore-healthcheck",
    "metadata.annotations.argocd.argoproj.io/ignore-restart-policy",
    "metadata.annotations.config.k8s.io/owning-inventory",
    "metadata.annotations.app.gitlab.com/agent-project",
    "metadata.annotations.app.gitlab.com/app",
    "metadata.annotations.app.gitlab.com/env",
    "metadata.annotations.agentk/project",
    "metadata.annotations.autoscaling.alpha.kubernetes.io/conditions",
    "metadata.annotations.deployment.kubernetes.io/revision",
    "metadata.annotations.kubernetes.io/service-account.name",
    "metadata.annotations.storageclass.kubernetes.io/is-default-class",
    // Workloads.
    "spec.replicas",
    "spec.parallelism",
    "spec.completions",
    "spec.paused",
    "spec.suspend",
    "spec.schedule",
    "spec.selector",
    "spec.podSelector",
    "spec.strategy.type",
    "spec.updateStrategy",
    "spec.volumeClaimTemplates.metadata.name",
    "spec.serviceName",
    // Pods.
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulingGates",
    "spec.readinessGates",
    "spec.containers.name",
    "spec.initContainers.name",
    "spec.initContainers.image",
    "spec.initContainers.restartPolicy",
    "spec.containers.resources.requests.cpu",
    "spec.containers.resources.requests.memory",
    "spec.initContainers.resources.requests.cpu",
    "spec.initContainers.resources.requests.memory",
    "spec.resources.requests.cpu",
    "spec.resources.requests.memory",
    "spec.overhead.cpu",
    "spec.overhead.memory",
    // Networks.
    "spec.type",
    "spec.clusterIP",
    "spec.ports",
    "spec.externalName",
    "spec.rules",
    "spec.defaultBackend.service.name",
    "spec.backend.serviceName",
    "spec.ingressClassName",
    "spec.tls",
    "spec.parentRefs",
    "spec.hostnames",
    "spec.gatewayClassName",
    "spec.hosts",
    "addressType",
    "endpoints.conditions.ready",
    // Storage.
    "spec.volumeName",
    "spec.storageClassName",
    "spec.claimRef",
    "spec.accessModes",
    "spec.resources.requests.storage",
    "spec.capacity.storage",
    "provisioner",
    // Autoscalers, budgets, definitions and what others depend on.
    "spec.scaleTargetRef",
    "spec.minReplicas",
    "spec.maxReplicas",
    "spec.minAvailable",
    "spec.maxUnavailable",
    "spec.group",
    "spec.names.kind",
    "spec.names.plural",
    "spec.versions.name",
    "spec.versions.served",
    "spec.service",
    "spec.secretName",
    "spec.issuerRef",
    "spec.sourceRef",
    "spec.chart.spec",
    "spec.unschedulable",
    "spec.descriptor",
    "spec.componentKinds",
    "roleRef",
    "subjects",
    "imagePullSecrets.name",
    "secrets.name",
    "webhooks.clientConfig.service.namespace",
    "webhooks.clientConfig.service.name",
    "spec.conversion.webhook.clientConfig.service.namespace",
    "spec.conversion.webhook.clientConfig.service.name",
    // Events.
    "type",
    "reason",
    "message",
    "count",
    "lastTimestamp",
    "eventTime",
    "series",
    "involvedObject",
    "regarding",
    "note",
    "deprecatedCount",
    "deprecatedLastTimestamp",
    // States.
    "status.observedGeneration",
    "status.conditions",
    "status.phase",
    "status.reason",
    "status.message",
    "status.replicas",
    "status.readyReplicas",
    "status.updatedReplicas",
    "status.availableReplicas",
    "status.currentReplicas",
    "status.desiredReplicas",
    "status.currentRevision",
    "status.updateRevision",
    "status.desiredNumberScheduled",
    "status.updatedNumberScheduled",
    "status.numberAvailable",
    "status.numberReady",
    "status.active",
    "status.succeeded",
    "status.failed",
    "status.lastScheduleTime",
    "status.lastSuccessfulTime",
    "status.containerStatuses.name",
    "status.containerStatuses.ready",
    "status.containerStatuses.started",
    "status.containerStatuses.restartCount",
    "status.containerStatuses.state",
    "status.containerStatuses.lastState",
    "status.initContainerStatuses.name",
    "status.initContainerStatuses.ready",
    "status.initContainerStatuses.started",
    "status.initContainerStatuses.restartCount",
    "status.initContainerStatuses.state",
    "status.initContainerStatuses.lastState",
    "status.podIP",
    "status.loadBalancer.ingress",
    "status.addresses",
    "status.listeners.conditions",
    "status.parents",
    "status.nodeInfo.kubeletVersion",
    "status.allocatable.cpu",
    "status.allocatable.memory",
    "status.currentHealthy",
    "status.desiredHealthy",
    "status.disruptionsAllowed",
    "status.capacity.storage",
    "status.acceptedNames.kind",
    "status.health",
    "status.sync.status",
    "status.lastAppliedRevision",
    "status.artifact.revision",
];

/// The specifications of Pods: those of Pods, and of the templates of workloads.
const POD_SPECS: [&str; 3] = ["spec", "spec.template.spec", "spec.jobTemplate.spec.template.spec"];

/// The fields of each of them.
const POD_FIELDS: &[&str] = &[
    "serviceAccountName",
    "imagePullSecrets",
    "containers.image",
    "containers.envFrom",
    "containers.env.valueFrom",
    "initContainers.envFrom",
    "initContainers.env.valueFrom",
    "volumes.configMap.name",
    "volumes.secret.secretName",
    "volumes.persistentVolumeClaim.claimName",
    "volumes.projected.sources.configMap.name",
    "volumes.projected.sources.secret.name",
];

/// The prefix of annotations, whose names contain dots.
const ANNOTATIONS: &str = "metadata.annotations.";

/// The fields of an object that are read, or all of them.
#[derive(Debug, Default)]
enum Mask {
    /// This field and all below it.
    #[default]
    All,
    /// The fields with these names.
    Fields(HashMap<&'static str, Self>),
}

static MASK: LazyLock<Mask> = LazyLock::new(|| {
    let mut root = Mask::Fields(HashMap::new());
    for field in FIELDS {
        match field.strip_prefix(ANNOTATIONS) {
            Some(name) => root.add(&["metadata", "annotations", name]),
            None => root.add(&field.split('.').collect::<Vec<_>>()),
        }
    }
    for spec in POD_SPECS {
        for field in POD_FIELDS {
            root.add(&spec.split('.').chain(field.split('.')).collect::<Vec<_>>());
        }
    }
    root
});

impl Mask {
    fn add(&mut self, path: &[&'static str]) {
        let Some((first, rest)) = path.split_first() else { return };
        if let Self::All = self {
            *self = Self::Fields(HashMap::new());
        }
        if let Self::Fields(fields) = self {
            fields.entry(first).or_default().add(rest);
        }
    }
}

/// Reads an object without the fields that nobody needs.
///
/// # Errors
///
/// It is no object, or the bytes are no JSON.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    MaskSeed(&MASK).deserialize(deserializer)
}

#[derive(Clone, Copy)]
struct MaskSeed(&'static Mask);

impl<'de> DeserializeSeed<'de> for MaskSeed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MaskSeed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let below = match self.0 {
                Mask::All => Some(self),
                Mask::Fields(known) => known.get(&*key).map(Self),
            };
            match below {
                Some(below) => drop(fields.insert(key, map.next_value_seed(below)?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use object_health::AssessmentContext;
    use serde_json::json;

    use super::*;

    fn masked(text: &str) -> Value {
        read(&mut serde_json::Deserializer::from_str(text)).unwrap()
    }

    #[test]
    fn only_known_fields_are_read() {
        let text = r#"{
            "kind": "Pod",
            "metadata": {
                "name": "a", "labels": {"app": "x"}, "managedFields": [{"manager": "kubectl"}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "meta.helm.sh/release-name": "web"}
            },
            "spec": {"containers": [{"name": "c", "image": "i", "env": [{"name": "PASSWORD", "value": "secret"}], "command": ["x"]}]},
            "data": {"password": "c2VjcmV0"}
        }"#;
        let expected = json!({
            "kind": "Pod",
            "metadata": {"name": "a", "labels": {"app": "x"}, "annotations": {"meta.helm.sh/release-name": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i", "env": [{}]}]},
        });
        assert_eq!(masked(text), expected);
    }

    #[test]
    fn health_does_not_depend_on_other_fields() {
        let context = AssessmentContext::now(true);
        let cases = [
            include_str!("../../../../common/object-health/src/pod_cases.yaml"),
            include_str!("../../../../common/object-health/src/workload_cases.yaml"),
            include_str!("../../../../common/object-health/src/resource_cases.yaml"),
        ];
        let cases: Vec<Value> =
            cases.iter().flat_map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap()).collect();
        assert!(cases.len() > 90);
        for case in cases {
            assert_eq!(
                object_health::assess(&masked(&case.to_string()), context),
                object_health::assess(&case, context),
                "{case}"
            );
        }
    }

    #[test]
    fn every_type_of_value_is_read() {
        assert_eq!(
            masked(r#"{"metadata": {"labels": [1, -1, 1.5, true, null, "x", {}]}}"#)["metadata"]["labels"],
            json!([1, -1, 1.5, true, null, "x", {}])
        );
    }
}
