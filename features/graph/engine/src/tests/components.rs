//! The programs that are recognized, and the features that need one. `component_cases.yaml` has an object of each program.

use std::collections::{BTreeMap, BTreeSet};

use proto::graph::{ComponentList, FeatureState, ResourceState};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{World, object};
use crate::{
    access::{Access, VisibleNamespaces},
    components::{RULES, WORKLOADS},
};

/// A workload of a program, as its project installs it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ComponentCase {
    kind: String,
    image: String,
    /// The label `app.kubernetes.io/version`.
    label: Option<String>,
    version: Option<String>,
}

fn cases() -> BTreeMap<String, ComponentCase> {
    serde_saphyr::from_str(include_str!("../component_cases.yaml")).unwrap()
}

fn workload(kind: &str, name: &str, image: &str, labels: &Value) -> Value {
    let template = json!({"spec": {"containers": [{"name": "sidecar", "image": "example.com/proxy:9"}, {"name": "c", "image": image}]}});
    let spec = json!({"replicas": 1, "template": template});
    object("apps/v1", kind, name, &json!({"metadata": {"labels": labels}, "spec": spec}))
}

/// A world that knows all workloads.
fn loaded() -> World {
    let mut world = World::new();
    for kind in WORKLOADS {
        world.resource("apps/v1", kind);
    }
    world
}

fn states(list: &ComponentList) -> BTreeMap<&str, FeatureState> {
    list.features.iter().map(|feature| (&*feature.feature, feature.state)).collect()
}

fn state(world: &World, access: &Access, feature: &str) -> FeatureState {
    states(&world.graph.components(access))[feature]
}

#[test]
fn each_component_is_found_by_an_object_of_its_project() {
    let cases = cases();
    let with_images = RULES.iter().filter(|rule| !rule.images.is_empty());
    let ids: BTreeSet<&str> = with_images.map(|rule| &*rule.id).collect();
    assert_eq!(ids, cases.keys().map(|id| &**id).collect(), "each program with images has an object");
    for (id, ComponentCase { kind, image, label, version }) in cases {
        let mut world = World::new();
        let labels = label.map_or_else(|| json!({}), |label| json!({"app.kubernetes.io/version": label}));
        world.apply(workload(&kind, "x", &image, &labels));
        let found = world.graph.components(&Access::of_agent()).components;
        let [component] = &*found else { panic!("{id}: {found:?}") };
        assert_eq!((&*component.id, &component.version), (&*id, &version), "{image}");
        assert_eq!(
            (&*component.evidence, &*component.namespaces),
            (&[format!("{kind} a/x")][..], &["a".to_owned()][..])
        );
    }
}

#[test]
fn each_component_is_found_by_its_api_groups() {
    for rule in &*RULES {
        for group in &rule.groups {
            let mut world = World::new();
            world.resource(&format!("{group}/v1"), "Thing");
            let found = world.graph.components(&Access::of_agent()).components;
            let [component] = &*found else { panic!("{group}: {found:?}") };
            assert_eq!(
                (&*component.id, &*component.evidence),
                (&*rule.id, &[format!("API group {group}")][..])
            );
        }
    }
}

#[test]
fn feature_lacks_a_component_until_one_is_healthy() {
    let mut world = loaded();
    let agent = Access::of_agent();
    assert_eq!(state(&world, &agent, "prometheus"), FeatureState::Missing);
    let image = "quay.io/thanos/thanos:v0.36.1";
    world.apply(workload("Deployment", "thanos", image, &json!({})));
    assert_eq!(state(&world, &agent, "prometheus"), FeatureState::Unhealthy, "no replica is ready");
    let mut ready = workload("Deployment", "thanos", image, &json!({}));
    let counts = json!({"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
    ready["status"] = counts;
    world.apply(ready);
    assert_eq!(state(&world, &agent, "prometheus"), FeatureState::Present);
    let image = "quay.io/prometheus/prometheus:v2.55.1";
    world.apply(workload("StatefulSet", "old", image, &json!({})));
    assert_eq!(state(&world, &agent, "prometheus"), FeatureState::Present, "one of them is enough");
    assert_eq!(state(&world, &agent, "page-restarts"), FeatureState::Missing);
}

#[test]
fn feature_needs_the_essential_workload_of_a_program() {
    let mut world = loaded();
    for (name, expected) in
        [("kustomize-controller", FeatureState::Missing), ("source-controller", FeatureState::Present)]
    {
        let mut ready = workload("Deployment", name, &format!("ghcr.io/fluxcd/{name}:v1.4.0"), &json!({}));
        ready["status"] =
            json!({"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
        world.apply(ready);
        assert_eq!(state(&world, &Access::of_agent(), "project-events-flux"), expected, "{name}");
    }
}

#[test]
fn definitions_of_a_program_that_does_not_run_are_no_component() {
    let mut world = loaded();
    world.resource("kyverno.io/v1", "ClusterPolicy");
    assert_eq!(state(&world, &Access::of_agent(), "alerts-policy-engines"), FeatureState::Missing);
    assert_eq!(state(&world, &Access::of_agent(), "applications"), FeatureState::Missing);
    world.resource("app.k8s.io/v1beta1", "Application");
    assert_eq!(state(&world, &Access::of_agent(), "applications"), FeatureState::Present);
}

#[test]
fn state_is_unknown_if_workloads_may_be_hidden() {
    let all = |states: &BTreeMap<&str, FeatureState>| states.values().copied().collect::<Vec<_>>();
    let unknown = World::new().graph.components(&Access::of_agent());
    assert!(all(&states(&unknown)).iter().all(|state| *state == FeatureState::Unknown), "nothing is loaded");

    let mut world = loaded();
    let daemon_sets = world.resource("apps/v1", "DaemonSet");
    world.graph.set_state(daemon_sets, ResourceState::DeniedInSome, "agentk may list them in a");
    assert_eq!(state(&world, &Access::of_agent(), "prometheus"), FeatureState::Unknown, "agentk sees a part");
    world.graph.set_state(daemon_sets, ResourceState::Synced, "");

    let mut access = Access::default();
    for kind in WORKLOADS {
        let one = VisibleNamespaces::Some(BTreeSet::from(["a".to_owned()]));
        access.allow(world.resource("apps/v1", kind), one);
    }
    assert_eq!(state(&world, &access, "prometheus"), FeatureState::Unknown, "the caller sees a part");
    assert_eq!(
        state(&world, &access, "applications"),
        FeatureState::Missing,
        "the API server has no such kind"
    );
}

#[test]
fn image_with_another_name_is_no_component() {
    let mut world = World::new();
    let image = |image: &str| json!({"metadata": {"namespace": "cert-manager"}, "spec": {"template": {"spec": {"containers": [{"image": image}]}}}});
    world.apply(object(
        "apps/v1",
        "Deployment",
        "cert-manager",
        &image("quay.io/jetstack/cert-manager-controller:v1.15.0"),
    ));
    world.apply(object("apps/v1", "Deployment", "fake", &image("example.com/my-cert-manager-controller:v9")));
    let components = world.graph.components(&Access::of_agent()).components;
    let [found] = &*components else { panic!("{components:?}") };
    assert_eq!(
        (&*found.id, found.version.as_deref(), &*found.namespaces),
        ("cert-manager", Some("v1.15.0"), &["cert-manager".to_owned()][..])
    );
    assert_eq!(found.evidence, ["Deployment cert-manager/cert-manager"]);
}
