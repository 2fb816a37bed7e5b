//! Applications, as different callers see them.

use std::collections::BTreeSet;

use proto::graph::{Application, ApplicationList, ApplicationOrigin, HealthState};
use serde_json::{Value, json};

use super::{NOW, World, object, query_of};
use crate::{
    access::{Access, VisibleNamespaces},
    applications::ApplicationDetail,
};

const API: &str = "app.k8s.io/v1beta1";

fn application(name: &str, spec: &Value) -> Value {
    object(API, "Application", name, &json!({"spec": spec}))
}

fn labelled(api: &str, kind: &str, name: &str, labels: &Value) -> Value {
    object(api, kind, name, &json!({"metadata": {"labels": labels}}))
}

fn list(world: &World, access: &Access, detail: ApplicationDetail) -> ApplicationList {
    world.graph.applications(&query_of(""), access, NOW, detail)
}

fn all(world: &World) -> Vec<Application> {
    list(world, &Access::of_agent(), ApplicationDetail::Full).applications
}

/// Returns the places of applications with the names of their members.
fn shown(applications: &[Application]) -> Vec<String> {
    let members = |found: &Application| {
        found.members.iter().map(|member| format!("{}/{}", member.kind, member.name)).collect::<Vec<_>>()
    };
    applications
        .iter()
        .map(|found| format!("{}/{}: {}", found.namespace, found.name, members(found).join(" ")))
        .collect()
}

/// Allows the objects of these kinds in one namespace.
fn only(world: &mut World, kinds: &[(&str, &str)], namespace: &str) -> Access {
    let mut access = Access::default();
    for (api, kind) in kinds {
        let namespaces = VisibleNamespaces::Some(BTreeSet::from([namespace.to_owned()]));
        access.allow(world.resource(api, kind), namespaces);
    }
    access
}

/// A world with the Application `shop`, its Service, a Deployment that is its member, and a Secret that is one, too.
fn shop() -> World {
    let mut world = World::new();
    world.add_deployment("web");
    world.apply(labelled("apps/v1", "Deployment", "web", &json!({"part": "shop"})));
    world.apply(labelled("v1", "Service", "web", &json!({"part": "shop"})));
    world.apply(labelled("v1", "Secret", "password", &json!({"part": "shop"})));
    world.apply(application(
        "shop",
        &json!({
            "selector": {"matchLabels": {"part": "shop"}},
            "descriptor": {"type": "shop", "version": "1.2", "notes": "# Start",
                "links": [{"description": "About", "url": "https://example.com"}]},
            "componentKinds": [{"group": "apps", "kind": "StatefulSet"}, {"group": "core", "kind": "Service"}],
        }),
    ));
    world
}

#[test]
fn application_has_its_members_and_their_health() {
    let all = all(&shop());
    let [found] = &*all else { panic!("one application") };
    assert_eq!(
        shown(std::slice::from_ref(found)),
        ["a/shop: Deployment/web Pod/web-1-x ReplicaSet/web-1 Secret/password Service/web"]
    );
    assert_eq!((found.origin, &*found.group), (ApplicationOrigin::Object, "application:a/shop"));
    assert_eq!((found.health.health, &*found.descriptor.version), (HealthState::Healthy, "1.2"));
    let kinds: Vec<_> =
        found.kinds.iter().map(|it| format!("{} {} {}", it.kind, it.declared, it.members)).collect();
    assert_eq!(
        kinds,
        [
            "Pod false 1",
            "Secret false 1",
            "Service true 1",
            "Deployment false 1",
            "ReplicaSet false 1",
            "StatefulSet true 0"
        ]
    );
}

#[test]
fn caller_sees_the_members_and_the_applications_that_it_may_list() {
    let mut world = shop();
    let access = only(&mut world, &[(API, "Application"), ("v1", "Service")], "a");
    let seen = list(&world, &access, ApplicationDetail::Full).applications;
    assert_eq!(shown(&seen), ["a/shop: Service/web"]);
    assert_eq!(
        seen[0].kinds.iter().map(|kind| kind.members).sum::<u64>(),
        1,
        "numbers count no hidden object"
    );

    let without_members = only(&mut world, &[(API, "Application")], "a");
    let seen = list(&world, &without_members, ApplicationDetail::Full).applications;
    assert_eq!((shown(&seen), seen[0].health.health), (vec!["a/shop: ".to_owned()], HealthState::Unknown));

    for hidden in [
        only(&mut world, &[("v1", "Service"), ("v1", "Secret")], "a"),
        only(&mut world, &[(API, "Application"), ("v1", "Service")], "b"),
        Access::default(),
    ] {
        let seen = list(&world, &hidden, ApplicationDetail::Full);
        assert_eq!((seen.applications, seen.omitted), (vec![], 0));
    }
}

#[test]
fn degraded_member_makes_the_application_degraded() {
    let mut world = shop();
    let status = json!({"phase": "Running", "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
    let metadata = json!({"labels": {"part": "shop"}});
    let fields = json!({"metadata": metadata, "spec": {"restartPolicy": "Always"}, "status": status});
    world.apply(object("v1", "Pod", "job", &fields));
    let health = &all(&world)[0].health;
    assert_eq!((health.health, &*health.attention[0].name), (HealthState::Degraded, "job"));
}

#[test]
fn selector_cannot_leave_its_namespace_and_without_requirements_it_selects_nothing() {
    let mut world = shop();
    world.apply(object(
        "v1",
        "Service",
        "other",
        &json!({"metadata": {"namespace": "b", "labels": {"part": "shop"}}}),
    ));
    let everything = json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]});
    world.apply(application("all", &json!({"selector": everything})));
    world.apply(application("none", &json!({"selector": {}})));
    let node = json!({"metadata": {"name": "n1", "namespace": "", "labels": {"part": "shop"}}});
    world.apply(object("v1", "Node", "n1", &node));
    let seen = shown(&all(&world));
    assert!(!seen.iter().any(|text| text.contains("other") || text.contains("Node")), "{seen:?}");
    assert_eq!(seen[1], "a/none: ");
    assert!(
        seen[0].starts_with("a/all: Application/all Application/none Application/shop Deployment/web"),
        "{seen:?}"
    );
    let groups = world.graph.groups(&query_of(""), &Access::of_agent(), NOW).groups;
    assert!(!groups.iter().any(|group| group.id == "application:a/none"));
}

#[test]
fn selector_with_expressions_has_the_members_that_fulfil_all() {
    let mut world = shop();
    let expressions = json!([{"key": "tier", "operator": "In", "values": ["front"]}]);
    let selector = json!({"matchLabels": {"part": "shop"}, "matchExpressions": expressions});
    world.apply(application("front", &json!({"selector": selector})));
    world.apply(labelled("v1", "Service", "front", &json!({"part": "shop", "tier": "front"})));
    assert_eq!(shown(&all(&world))[0], "a/front: Service/front");
}

#[test]
fn labels_name_applications_of_objects_that_belong_to_no_other_one() {
    let mut world = shop();
    let labels = json!({"app.kubernetes.io/instance": "db", "app.kubernetes.io/name": "mysql",
        "app.kubernetes.io/version": "8.4", "app.kubernetes.io/managed-by": "Helm"});
    world.apply(labelled("apps/v1", "StatefulSet", "mysql", &labels));
    world.apply(labelled("v1", "Service", "mysql", &labels));
    // A member of the Application `shop`, an account without a workload, and a name that is no value of a label.
    world.apply(labelled(
        "v1",
        "Service",
        "web",
        &json!({"part": "shop", "app.kubernetes.io/instance": "db"}),
    ));
    world.apply(labelled("v1", "ServiceAccount", "alone", &json!({"app.kubernetes.io/part-of": "alone"})));
    world.apply(labelled("apps/v1", "Deployment", "odd", &json!({"app.kubernetes.io/name": "a=b,c"})));
    let all = all(&world);
    assert_eq!(shown(&all)[0], "a/db: Service/mysql StatefulSet/mysql");
    assert_eq!(all.len(), 2, "{:?}", shown(&all));
    let db = &all[0];
    assert_eq!((db.origin, &*db.label), (ApplicationOrigin::Labels, "app.kubernetes.io/instance=db"));
    let descriptor = &db.descriptor;
    assert_eq!(
        (&*descriptor.application_type, &*descriptor.version, &*db.managed_by),
        ("mysql", "8.4", "Helm")
    );
    let services = only(&mut world, &[("v1", "Service")], "a");
    let seen = list(&world, &services, ApplicationDetail::Full).applications;
    assert!(seen.is_empty(), "no workload is visible: {:?}", shown(&seen));
}

#[test]
fn many_applications_and_members_are_bounded() {
    let mut world = World::new();
    for n in 0..300 {
        let text = "é".repeat(600);
        let link = json!({"url": format!("https://example.com/{}", "x".repeat(900)), "description": text});
        let mut descriptor =
            json!({"description": text, "notes": text, "links": vec![link; 40], "version": "1"});
        if n == 1 {
            descriptor = json!({"links": [{"url": "https://example.com"}]});
        }
        let everything = json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]});
        let spec = json!({"descriptor": descriptor, "selector": everything});
        world.apply(application(&format!("app-{n:04}"), &spec));
    }
    let full = list(&world, &Access::of_agent(), ApplicationDetail::Full);
    assert!(full.applications.len() < 200 && full.omitted + full.applications.len() as u64 == 300);
    assert_eq!((full.applications[0].members.len(), full.applications[0].omitted_members), (100, 200));
    let brief = list(&world, &Access::of_agent(), ApplicationDetail::Brief);
    assert!(serde_json::to_string(&brief).unwrap().len() < 66 << 10);
    assert_eq!((brief.applications.len(), brief.omitted), (200, 100));
    let first = &brief.applications[0];
    assert_eq!((&*first.descriptor.version, first.omitted_members), ("1", 300));
    assert!(first.members.is_empty() && first.descriptor.links.is_empty(), "{first:?}");
    assert_eq!(brief.applications[1].descriptor.links.len(), 1, "a short description keeps its link");
}

#[test]
fn brief_application_has_what_a_list_shows() {
    let brief = list(&shop(), &Access::of_agent(), ApplicationDetail::Brief).applications;
    let descriptor = &brief[0].descriptor;
    assert_eq!((&*descriptor.version, &*descriptor.links[0].url), ("1.2", "https://example.com"));
    assert_eq!((&*descriptor.notes, brief[0].omitted_members), ("", 5));
}

#[test]
fn query_selects_namespaces() {
    let mut world = shop();
    let other = json!({"metadata": {"namespace": "b"}, "spec": {"descriptor": {"version": "1"}}});
    world.apply(object(API, "Application", "bank", &other));
    let in_b =
        world.graph.applications(&query_of("namespace=b"), &Access::of_agent(), NOW, ApplicationDetail::Full);
    assert_eq!(shown(&in_b.applications), ["b/bank: "]);
}

#[test]
fn crowded_namespace_is_named_to_those_who_ask_for_it() {
    let mut world = shop();
    for n in 0..201 {
        let metadata = json!({"namespace": "b"});
        let selector = json!({"matchLabels": {"part": "bank"}});
        let fields = json!({"metadata": metadata, "spec": {"selector": selector}});
        world.apply(object(API, "Application", &format!("app-{n:04}"), &fields));
    }
    let crowded = "Application: only the first 200 of the namespace b, by name, have members";
    for (query, expected) in [("namespace=a", None), ("namespace=b", Some(crowded))] {
        let (query, access) = (query_of(query), Access::of_agent());
        let groups = world.graph.groups(&query, &access, NOW).partial;
        let applications = world.graph.applications(&query, &access, NOW, ApplicationDetail::Full).partial;
        for partial in [groups, applications] {
            let found = partial.iter().map(String::as_str).find(|it| it.starts_with("Application: only"));
            assert_eq!(found, expected, "{partial:?}");
        }
    }
}
