//! The effects of the agent's configuration: rules of health, and views.

use std::sync::Arc;

use kube::core::{ApiResource, GroupVersionKind};
use proto::{
    InstanceId,
    agent_configuration::graph::GraphSection,
    graph::{GraphEvent, ResourceState, Token, View},
};
use serde_json::{Value, json};

use super::{NOW, World, object, query_of};
use crate::{
    access::{Access, VisibleNamespaces},
    resources::ResourceKind,
    viewer::{Shown, Viewer},
};

fn section(section: &Value) -> GraphSection {
    serde_json::from_value(section.clone()).unwrap()
}

fn views(world: &World, definitions: &Value, access: &Access) -> Vec<View> {
    world.graph.views(&section(&json!({"views": definitions})).views, access)
}

/// A world with Pods in two namespaces.
fn pods() -> World {
    let mut world = World::new();
    for (namespace, name, phase) in
        [("a", "one", "Succeeded"), ("a", "two", "Failed"), ("b", "three", "Succeeded")]
    {
        let uid = format!("Pod/{name}");
        let metadata = json!({"uid": uid, "namespace": namespace, "labels": {"app": name}});
        world.apply(object("v1", "Pod", name, &json!({"metadata": metadata, "status": {"phase": phase}})));
    }
    world
}

#[test]
fn rule_decides_on_the_health_of_its_kind() {
    let rules = section(&json!({"health_rules": [{
        "kind": "Database.example.com",
        "health": "object.status.ok ? 'healthy' : object.status.level",
        "message": "object.status.text + '!'",
    }]}));
    let mut world = World::new();
    let api = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Database"));
    let (kind, _) = ResourceKind::new(api, true, &rules).unwrap();
    let resource = world.graph.add_resource(kind);
    world.graph.set_state(resource, ResourceState::Synced, "");
    for (name, more, expected) in [
        ("good", json!({"status": {"ok": true, "text": "fine"}}), "healthy: "),
        (
            "bad",
            json!({"status": {"ok": false, "level": "degraded", "text": "no disk"}}),
            "degraded: no disk!",
        ),
        ("silent", json!({"status": {"ok": false, "level": "progressing"}}), "progressing: "),
        ("new", json!({}), "unknown: graph.health_rules: the rule of Database.example.com fails: "),
        (
            "odd",
            json!({"status": {"ok": false, "level": "red"}}),
            "unknown: graph.health_rules: the rule of Database.example.com has the value \"red\"",
        ),
        (
            "ends",
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            "progressing: it is being",
        ),
    ] {
        let mut more = more;
        more["metadata"]["uid"] = name.into();
        let mut object = object("example.com/v1", "Database", name, &more);
        world.graph.apply(resource, &mut object, NOW).unwrap();
        let page = world.graph.objects(&query_of(&format!("name={name}")), &Access::of_agent(), 1, None);
        let node = &page.objects[0];
        let found = format!("{}: {}", node.health, node.message);
        assert!(found.starts_with(expected), "{name}: {found}");
        assert!(found.len() <= 530, "{found}");
    }
}

#[test]
fn views_count_and_list() {
    let world = pods();
    let definitions = json!([
        {"name": "pods", "count": "v1/pods"},
        {"name": "by-namespace", "count": "Pod", "columns": ["namespace"]},
        {"name": "failed", "table": "pods", "columns": ["namespace", "name", "status", "label:app", "detail:x"], "health": ["degraded"]},
        {"name": "of-b", "count": "pods", "namespaces": ["b"], "labels": {"app": "three"}},
        {"name": "nothing", "count": "widgets.example.com"},
    ]);
    let found = views(&world, &definitions, &Access::of_agent());
    let rows: Vec<(u64, String)> = found
        .iter()
        .map(|view| (view.count, view.rows.iter().map(|row| row.join(",")).collect::<Vec<_>>().join(";")))
        .collect();
    let row = |count: u64, text: &str| (count, text.to_owned());
    assert_eq!(rows, [row(3, ""), row(3, "a,2;b,1"), row(1, "a,two,Failed,two,"), row(1, ""), row(0, "")]);
    assert_eq!(found[1].columns, ["namespace", "count"]);
    assert_eq!(found[4].partial, ["widgets.example.com: the API server has no such kind"]);

    // A caller gets what the caller may see.
    let mut access = Access::default();
    access.allow(0, VisibleNamespaces::Some(["b".to_owned()].into()));
    let found = views(&world, &definitions, &access);
    assert_eq!((found[0].count, found[2].count), (1, 0));
    assert_eq!(found[0].partial, ["you may not list and watch all objects of Pod"]);
}

#[test]
fn views_are_bounded() {
    let mut world = World::new();
    for number in 0..150 {
        let name = format!("{}-{number}", "x".repeat(200));
        world.apply(object("v1", "Pod", &name, &json!({})));
    }
    let definition =
        |name: &str| json!({"name": name, "table": "pods", "columns": ["name", "name", "name", "name"]});
    let definitions = json!(["a", "b", "c", "d", "e"].map(definition));
    let found = views(&world, &definitions, &Access::of_agent());
    assert_eq!((found[0].rows.len(), found[0].omitted), (100, 50));
    assert!(found[0].rows[0][0].len() <= 128);
    assert_eq!((found[4].rows.len(), found[4].omitted, found[4].count), (0, 150, 150));
    assert!(serde_json::to_string(&found).unwrap().len() < 160 << 10);
}

#[test]
fn watch_sends_views_when_they_change() {
    let mut world = pods();
    let shown = Shown::Views(Arc::new(section(&json!({"views": [{"name": "pods", "count": "pods"}]}))));
    let (mut viewer, _) = Viewer::new(&world.graph, query_of(""), shown, Access::of_agent(), None);
    let mut next = |world: &World| {
        let token = |sequence| Token { instance: InstanceId::from_bytes([1; 16]), generation: 1, sequence };
        let events = viewer.next(&world.graph, token, NOW);
        let mut counts = Vec::new();
        for event in events {
            match event {
                GraphEvent::Views { views } => counts.extend(views.iter().map(|view| view.count)),
                GraphEvent::Commit { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        counts
    };
    assert_eq!((next(&world), next(&world)), (vec![3], vec![]));
    world.apply(object("v1", "ConfigMap", "other", &json!({})));
    assert_eq!(next(&world), [0_u64; 0]);
    world.delete("v1", "Pod", "one");
    assert_eq!(next(&world), [2]);
}
