//! The capacity of a cluster, and the environments that objects name, as different callers see them.

use std::collections::BTreeSet;

use proto::graph::{Amounts, Capacity};
use serde_json::json;

use super::{World, object};
use crate::{
    access::{Access, VisibleNamespaces},
    query::Query,
};

fn world() -> World {
    let mut world = World::new();
    for (name, ready, cpu) in [("n1", "True", "4"), ("n2", "False", "3500m")] {
        let status = json!({"conditions": [{"type": "Ready", "status": ready}],
            "allocatable": {"cpu": cpu, "memory": "8Gi"}, "nodeInfo": {"kubeletVersion": "v1.34.1"}});
        world.apply(object("v1", "Node", name, &json!({"status": status})));
    }
    let labels = json!({"app.gitlab.com/project_id": "30", "app.gitlab.com/environment_slug": "live"});
    let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}]);
    let spec = json!({"nodeName": "n1", "containers": containers});
    world.apply(object("v1", "Pod", "web", &json!({"spec": spec, "metadata": {"labels": labels}})));
    let annotations = json!({"app.gitlab.com/app": "shop-web", "app.gitlab.com/env": "dev"});
    let metadata = json!({"namespace": "b", "annotations": annotations});
    world.apply(object("v1", "Pod", "api", &json!({"spec": spec, "metadata": metadata})));
    world
}

fn limited(world: &mut World, nodes: Option<VisibleNamespaces>, pods: VisibleNamespaces) -> Access {
    let mut access = Access::default();
    if let Some(nodes) = nodes {
        access.allow(world.resource("v1", "Node"), nodes);
    }
    access.allow(world.resource("v1", "Pod"), pods);
    access
}

#[test]
fn capacity_is_the_sum_of_nodes_and_of_pods() {
    let Capacity { nodes, allocatable, requested, kubelet_versions, partial } =
        world().graph.capacity(&Query::of_capacity(), &Access::of_agent());
    assert_eq!(nodes.map(|nodes| (nodes.all, nodes.ready)), Some((2, 1)));
    assert_eq!(allocatable, Some(Amounts { cpu_millicores: 7500, memory_bytes: 16 << 30 }));
    assert_eq!(requested, Some(Amounts { cpu_millicores: 500, memory_bytes: 128 << 20 }));
    assert_eq!((kubelet_versions[0].nodes, partial), (2, vec![]));
}

#[test]
fn part_that_a_caller_does_not_see_as_a_whole_is_not_counted() {
    let mut world = world();
    let access = limited(&mut world, None, VisibleNamespaces::Some(BTreeSet::from(["a".to_owned()])));
    let capacity = world.graph.capacity(&Query::of_capacity(), &access);
    assert_eq!((capacity.nodes, capacity.allocatable, capacity.requested), (None, None, None));
    assert!(capacity.kubelet_versions.is_empty());
    assert_eq!(capacity.partial, ["you may not list and watch all objects of Node, Pod"]);
    let access = limited(&mut world, Some(VisibleNamespaces::All), VisibleNamespaces::Some(BTreeSet::new()));
    let capacity = world.graph.capacity(&Query::of_capacity(), &access);
    assert_eq!((capacity.nodes.map(|nodes| nodes.all), capacity.requested), (Some(2), None));
}

#[test]
fn environments_are_those_of_visible_objects() {
    let mut world = world();
    let found = |access: &Access, world: &World| -> Vec<String> {
        let list = world.graph.found_environments(access).environments;
        list.iter()
            .map(|it| {
                format!("{}/{} {:?} {:?} {}", it.namespace, it.slug, it.project_id, it.app, it.labels.len())
            })
            .collect()
    };
    let all = [r#"a/live Some(30) None 2"#, r#"b/dev None Some("shop-web") 0"#];
    assert_eq!(found(&Access::of_agent(), &world), all);
    let access = limited(&mut world, None, VisibleNamespaces::Some(BTreeSet::from(["b".to_owned()])));
    assert_eq!(found(&access, &world), all[1..]);
}
