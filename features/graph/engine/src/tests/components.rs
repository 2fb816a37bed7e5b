//! The programs that are recognized. `component_cases.yaml` has an object of each program.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{World, object};
use crate::{access::Access, components::RULES};

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
