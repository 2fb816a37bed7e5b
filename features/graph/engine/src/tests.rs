//! Scenarios of the graph without a cluster.

mod applications;
mod capacity;
mod components;
mod configured;
mod following;
mod groups;
mod loading;
mod reasons;

use kube::core::{ApiResource, GroupVersionKind};
use proto::graph::{Branch, Relation};
use serde_json::{Value, json};

use crate::{
    access::{Access, VisibleNamespaces},
    graph::{Graph, GraphLimits, Limit, LimitExceeded},
    query::Query,
    resources::{ResourceKind, tier},
};

/// The time of all changes.
const NOW: i64 = 1_800_000_000;

/// A graph whose objects tests change.
pub(crate) struct World {
    pub(crate) graph: Graph,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_limits(GraphLimits::default())
    }

    fn with_limits(limits: GraphLimits) -> Self {
        Self { graph: Graph::new(limits) }
    }

    fn resource(&mut self, api_version: &str, kind: &str) -> usize {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let api = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let namespaced = !["Node", "PersistentVolume", "Namespace", "StorageClass"].contains(&kind);
        let tier = tier(group, kind).map_or(crate::resources::Tier::Custom, |(tier, _)| tier);
        let number =
            self.graph.add_resource(ResourceKind { api, namespaced, tier, has_status: true, rule: None });
        self.graph.set_state(number, proto::graph::ResourceState::Synced, "");
        number
    }

    /// Adds or changes an object, whose UID is `<kind>/<name>` unless it has one.
    pub(crate) fn apply(&mut self, object: Value) {
        self.apply_at(object, NOW);
    }

    /// Adds or changes an object at a time.
    fn apply_at(&mut self, mut object: Value, now: i64) {
        let (api, kind) =
            (object["apiVersion"].as_str().unwrap().to_owned(), object["kind"].as_str().unwrap().to_owned());
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("{kind}/{}", metadata["name"].as_str().unwrap()).into();
        }
        let resource = self.resource(&api, &kind);
        self.graph.apply(resource, &mut object, now).unwrap();
    }

    pub(crate) fn delete(&mut self, api: &str, kind: &str, name: &str) {
        let resource = self.resource(api, kind);
        self.graph.delete(resource, &json!({"metadata": {"uid": format!("{kind}/{name}")}}));
    }

    /// Adds a Deployment with a ReplicaSet and a Pod, all in namespace `a`.
    pub(crate) fn add_deployment(&mut self, name: &str) {
        self.apply(object("apps/v1", "Deployment", name, &json!({})));
        let set = format!("{name}-1");
        self.apply(owned("apps/v1", "ReplicaSet", &set, ("apps/v1", "Deployment", name)));
        let mut pod = owned("v1", "Pod", &format!("{name}-1-x"), ("apps/v1", "ReplicaSet", &set));
        pod["status"] = json!({"phase": "Succeeded"});
        self.apply(pod);
    }

    fn tree(&self, query: &str) -> String {
        let tree = self.graph.tree(&query_of(query), &Access::of_agent());
        tree.roots.iter().map(show).collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn query_of(text: &str) -> Query {
    let mut query = Query::default();
    for (key, value) in text.split('&').filter_map(|pair| pair.split_once('=')) {
        assert!(query.set(key, value).unwrap(), "{key}");
    }
    query
}

/// An object in namespace `a`.
pub(crate) fn object(api: &str, kind: &str, name: &str, fields: &Value) -> Value {
    let mut object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "a"}});
    for (key, value) in fields.as_object().unwrap() {
        match key.as_str() {
            "metadata" => {
                object["metadata"].as_object_mut().unwrap().extend(value.as_object().unwrap().clone())
            }
            _ => object[key] = value.clone(),
        }
    }
    object
}

pub(crate) fn owned(api: &str, kind: &str, name: &str, owner: (&str, &str, &str)) -> Value {
    let owner = json!({"apiVersion": owner.0, "kind": owner.1, "name": owner.2, "uid": format!("{}/{}", owner.1, owner.2)});
    object(api, kind, name, &json!({"metadata": {"ownerReferences": [owner]}}))
}

fn show(branch: &Branch) -> String {
    let name = format!("{}/{}", branch.node.kind, branch.node.name);
    match &*branch.children {
        [] => name,
        children => format!("{name}({})", children.iter().map(show).collect::<Vec<_>>().join(" ")),
    }
}

#[test]
fn tree_follows_owners() {
    let mut world = World::new();
    world.add_deployment("web");
    assert_eq!(world.tree(""), "Deployment/web(ReplicaSet/web-1(Pod/web-1-x))");
    assert_eq!(world.tree("kind=Pod"), "Pod/web-1-x");
    assert_eq!(
        world.tree("kind=replicasets.apps,Pod"),
        "ReplicaSet/web-1(Pod/web-1-x)",
        "the Pod is not repeated"
    );
    assert_eq!(world.tree("namespace=b"), "");
}

#[test]
fn owner_may_come_after_what_it_owns() {
    let mut world = World::new();
    world.apply(owned("v1", "Pod", "p", ("apps/v1", "ReplicaSet", "r")));
    assert_eq!(world.tree(""), "Pod/p");
    world.apply(object("apps/v1", "ReplicaSet", "r", &json!({})));
    assert_eq!(world.tree(""), "ReplicaSet/r(Pod/p)");
    world.delete("apps/v1", "ReplicaSet", "r");
    assert_eq!(world.tree(""), "Pod/p");
}

/// Test 45 of the attack list: forged trees.
#[test]
fn forged_owners_end_without_harm() {
    let mut world = World::new();
    // An object that owns itself, and two that own each other.
    world.apply(owned("v1", "ConfigMap", "self", ("v1", "ConfigMap", "self")));
    world.apply(owned("v1", "ConfigMap", "x", ("v1", "ConfigMap", "y")));
    world.apply(owned("v1", "ConfigMap", "y", ("v1", "ConfigMap", "x")));
    assert_eq!(world.tree(""), "ConfigMap/self ConfigMap/x(ConfigMap/y)");

    // The UID of an object in another namespace, of another kind and of another name.
    let mut world = World::new();
    let mut stranger = object("apps/v1", "Deployment", "victim", &json!({"metadata": {"namespace": "b"}}));
    stranger["metadata"]["uid"] = "victim".into();
    world.apply(stranger);
    for (name, owner) in [
        (
            "other-namespace",
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "victim", "uid": "victim"}),
        ),
        ("other-kind", json!({"apiVersion": "v1", "kind": "Node", "name": "victim", "uid": "victim"})),
        ("other-name", json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "x", "uid": "victim"})),
        ("nonsense", json!(3)),
    ] {
        world.apply(object("v1", "ConfigMap", name, &json!({"metadata": {"ownerReferences": [owner]}})));
    }
    assert_eq!(world.tree("kind=Deployment"), "Deployment/victim");

    // A chain that is longer than any real one.
    let mut world = World::new();
    for n in 0..200 {
        world.apply(owned(
            "v1",
            "ConfigMap",
            &format!("c{n:03}"),
            ("v1", "ConfigMap", &format!("c{:03}", n + 1)),
        ));
    }
    let tree = world.graph.tree(&query_of("name=c200,c199"), &Access::of_agent());
    assert_eq!(tree.omitted, 1, "the chain is cut");
    assert_eq!(show(&tree.roots[0]).matches("ConfigMap").count(), 32);
}

#[test]
fn owners_are_inferred_where_kubernetes_has_none() {
    let mut world = World::new();
    world.apply(object(
        "apps/v1",
        "StatefulSet",
        "web",
        &json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}}),
    ));
    for name in ["data-web-0", "xdata-web-0", "data-web-x"] {
        world.apply(object("v1", "PersistentVolumeClaim", name, &json!({})));
    }
    assert_eq!(world.tree("kind=StatefulSet"), "StatefulSet/web(PersistentVolumeClaim/data-web-0)");
    world.apply(object("v1", "Service", "web", &json!({})));
    world.apply(object(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "by-hand",
        &json!({"metadata": {"labels": {"kubernetes.io/service-name": "web"}}}),
    ));
    assert_eq!(world.tree("kind=Service"), "Service/web(EndpointSlice/by-hand)");
}

#[test]
fn relations_are_those_that_the_caller_may_see() {
    let mut world = World::new();
    world.apply(object("v1", "Service", "web", &json!({"spec": {"selector": {"app": "web"}}})));
    for (name, app) in [("p1", "web"), ("p2", "web"), ("p3", "other")] {
        world.apply(object(
            "v1",
            "Pod",
            name,
            &json!({"metadata": {"labels": {"app": app}}, "spec": {"serviceAccountName": "robot"}}),
        ));
    }
    world.apply(object("v1", "ServiceAccount", "robot", &json!({})));
    let edges = |access: &Access, name: &str| {
        let slot = world.graph.by_uid(name).unwrap();
        let edges = world.graph.node(slot, access).edges.into_iter();
        edges.map(|edge| (edge.relation, edge.name, edge.uid)).collect::<Vec<_>>()
    };
    let text = |text: &str| text.to_owned();
    let selected = |name: &str| (Relation::Selects, text(name), format!("Pod/{name}"));
    assert_eq!(edges(&Access::of_agent(), "Service/web"), [selected("p1"), selected("p2")]);
    assert_eq!(
        edges(&Access::of_agent(), "Pod/p1"),
        [(Relation::Uses, text("robot"), text("ServiceAccount/robot"))]
    );

    // A caller who may see Services and Pods only, and one who may not see Pods.
    let only = |world: &World, kinds: &[&str]| {
        let mut access = Access::default();
        for (number, resource) in world.graph.resources().iter().enumerate() {
            if kinds.contains(&&*resource.kind.api.kind) {
                access.allow(number, VisibleNamespaces::All);
            }
        }
        access
    };
    assert_eq!(
        edges(&only(&world, &["Service", "Pod"]), "Pod/p1"),
        [(Relation::Uses, text("robot"), text(""))]
    );
    assert_eq!(
        edges(&only(&world, &["Service"]), "Service/web"),
        [(Relation::Selects, text(""), text(""))],
        "one stub without a name"
    );
}

#[test]
fn objects_come_in_pages() {
    let mut world = World::new();
    for n in 0..25 {
        world.apply(object("v1", "ConfigMap", &format!("c{n:02}"), &json!({})));
    }
    let page = |world: &World, after: Option<&str>| {
        let after = after.map(|text| text.parse().unwrap());
        let page = world.graph.objects(&Query::default(), &Access::of_agent(), 10, after.as_ref());
        (page.objects.into_iter().map(|node| node.name).collect::<Vec<_>>(), page.next)
    };
    let (first, next) = page(&world, None);
    assert_eq!((&*first[0], &*first[9]), ("c00", "c09"));
    world.delete("v1", "ConfigMap", "c09");
    let (second, next) = page(&world, next.as_deref());
    assert_eq!((&*second[0], &*second[9]), ("c10", "c19"), "also if the last object of the page was deleted");
    let (third, next) = page(&world, next.as_deref());
    assert_eq!((&*third[0], third.len(), next), ("c20", 5, None));
    assert_eq!(page(&world, Some("z/Pod/z/")), (Vec::new(), None));
}

#[test]
fn limits_are_exact_and_named() {
    let limits = GraphLimits { objects: 3, objects_per_resource: 2, bytes: 1 << 20 };
    let mut world = World::with_limits(limits);
    world.apply(object("v1", "ConfigMap", "a", &json!({})));
    world.apply(object("v1", "ConfigMap", "b", &json!({})));
    let mut refused = |kind: &str, name: &str| {
        let resource = world.resource("v1", kind);
        let mut object = object("v1", kind, name, &json!({"metadata": {"uid": name}}));
        world.graph.apply(resource, &mut object, NOW).err().map(|error| error.message)
    };
    assert_eq!(refused("ConfigMap", "c").unwrap(), "it has more than 2 objects");
    assert_eq!(refused("Pod", "d"), None);
    assert_eq!(refused("Pod", "e").unwrap(), "all resources together have more than 3 objects");
    let resource = world.resource("v1", "ConfigMap");
    let exceeded =
        LimitExceeded { limit: Limit::ObjectsPerResource, message: "it has more than 2 objects".to_owned() };
    world.graph.count_only(resource, 70_000, &exceeded);
    assert_eq!(Limit::ALL.map(|limit| world.graph.over_limit(limit)), [0, 1, 0]);
    assert_eq!(world.graph.len(), 1);
    let page = world.graph.objects(&Query::default(), &Access::of_agent(), 10, None);
    assert_eq!(
        page.partial,
        ["ConfigMap: 70000 objects are only counted, because it has more than 2 objects"]
    );

    let mut small = World::with_limits(GraphLimits { bytes: 1, ..GraphLimits::default() });
    let resource = small.resource("v1", "Pod");
    let mut pod = object("v1", "Pod", "p", &json!({"metadata": {"uid": "p"}}));
    let error = small.graph.apply(resource, &mut pod, NOW).unwrap_err();
    assert!(error.message.contains("take more than 0 MiB"), "{}", error.message);
}

#[test]
fn states_of_resources_tell_nothing_about_hidden_objects() {
    let mut world = World::new();
    let (pods, claims) = (world.resource("v1", "Pod"), world.resource("v1", "PersistentVolumeClaim"));
    let message = "it has more than 50000 objects".to_owned();
    world.graph.count_only(pods, 70_123, &LimitExceeded { limit: Limit::ObjectsPerResource, message });
    let denied = "agentk may list them in payroll, shop";
    world.graph.set_state(claims, proto::graph::ResourceState::DeniedInSome, denied);
    let told = |access: &Access| {
        let states = world.graph.resource_statuses(access);
        let partial = world.graph.partial(&Query::default(), access);
        format!("{states:?} {partial:?}")
    };
    let seen = told(&Access::of_agent());
    assert!(["70123", "50000", "payroll"].iter().all(|text| seen.contains(text)), "{seen}");
    let mut access = Access::default();
    access.allow(pods, VisibleNamespaces::Some(["shop".to_owned()].into()));
    for access in [access, Access::default()] {
        let seen = told(&access);
        assert!(["70123", "50000", "payroll"].iter().all(|text| !seen.contains(text)), "{seen}");
        assert!(seen.contains("Pod: the objects are only counted, because there are too many"), "{seen}");
    }
}

#[test]
fn kinds_whose_health_is_not_known_are_named() {
    let mut world = World::new();
    world.add_deployment("web");
    for number in 0..7 {
        let denied = world.resource("cert-manager.io/v1", &format!("Kind{number}"));
        world.graph.set_state(denied, proto::graph::ResourceState::Denied, "forbidden");
    }
    let database = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Database"));
    world.graph.set_left_out(vec![database]);
    let partial = |query| world.graph.partial(&query_of(query), &Access::of_agent());
    let denied = "agentk may not list Kind0.cert-manager.io, Kind1.cert-manager.io, Kind2.cert-manager.io, Kind3.cert-manager.io, \
        Kind4.cert-manager.io and 2 more kinds, so that their health is not known";
    let left_out =
        "agentk does not load Database.example.com: add them to graph.health_rules for their health";
    assert_eq!(partial(""), [denied, left_out]);
    assert_eq!(partial("kind=Pod"), Vec::<String>::new());
    assert_eq!(partial("kind=Database"), [left_out]);
}

#[test]
fn list_deletes_what_it_does_not_show() {
    let mut world = World::new();
    for name in ["kept", "gone"] {
        world.apply(object("v1", "ConfigMap", name, &json!({})));
    }
    world.apply(object("v1", "ConfigMap", "elsewhere", &json!({"metadata": {"namespace": "b"}})));
    let resource = world.resource("v1", "ConfigMap");
    let round = world.graph.begin_list(resource);
    world.apply(object("v1", "ConfigMap", "kept", &json!({})));
    world.graph.end_list(resource, "a", round);
    assert_eq!(world.tree(""), "ConfigMap/kept ConfigMap/elsewhere");
}

#[test]
fn hostile_objects_take_little_memory() {
    let mut world = World::new();
    let long = "x".repeat(10 << 20);
    let labels: serde_json::Map<String, Value> =
        (0..10_000).map(|n| (format!("l{n}"), long[..1000].into())).collect();
    let owners: Vec<Value> =
        (0..10_000).map(|n| json!({"kind": "Pod", "name": n.to_string(), "uid": n.to_string()})).collect();
    world.apply(object(
        "v1",
        "Pod",
        &long,
        &json!({
            "metadata": {"uid": long.clone(), "labels": labels, "ownerReferences": owners},
            "spec": {"containers": (0..1000).map(|_| json!({"image": long[..1000]})).collect::<Vec<_>>()},
            "status": {"phase": long.clone(), "reason": long[..5000].to_owned(), "message": long},
        }),
    ));
    assert!(world.graph.bytes() < 10_000, "{}", world.graph.bytes());
    let node = &world.graph.objects(&Query::default(), &Access::of_agent(), 10, None).objects[0];
    assert!(serde_json::to_string(node).unwrap().len() < 32_000);
    for object in [json!({"metadata": {}}), json!([]), json!({"metadata": {"uid": "u", "name": 3}})] {
        let resource = world.resource("v1", "Pod");
        world.graph.apply(resource, &mut object.clone(), NOW).ok();
    }
    assert_eq!(world.graph.len(), 1);
}
