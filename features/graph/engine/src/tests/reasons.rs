//! The reasons of objects, which states and events give, and crashes that are forgotten.

use proto::graph::{HealthState, Node};
use serde_json::{Value, json};

use super::{NOW, World, object, query_of};
use crate::{
    access::{Access, VisibleNamespaces},
    time,
};

impl World {
    fn pod(&self, access: &Access) -> Node {
        let tree = self.graph.tree(&query_of("kind=Pod"), access);
        tree.roots.into_iter().next().expect("there is a pod").node
    }
}

fn running(container: &Value, ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    let status = json!({
        "phase": "Running", "conditions": [{"type": "Ready", "status": ready}], "containerStatuses": [container],
    });
    object("v1", "Pod", "web", &json!({"status": status}))
}

fn probe_event(message: &str) -> Value {
    json!({
        "metadata": {"uid": "e", "namespace": "a"}, "reason": "Unhealthy", "message": message,
        "lastTimestamp": time::text(NOW), "involvedObject": {"kind": "Pod", "namespace": "a", "name": "web", "uid": "Pod/web"},
    })
}

#[test]
fn reason_of_a_probe_has_the_words_of_its_event() {
    let mut world = World::new();
    let container =
        json!({"name": "app", "ready": false, "started": true, "restartCount": 0, "state": {"running": {}}});
    world.apply(running(&container, false));
    let (pods, events) = (world.resource("v1", "Pod"), world.resource("v1", "Event"));
    let everything = Access::of_agent();
    let without_event = "container app runs, and its readiness probe fails";
    assert_eq!(world.pod(&everything).message, without_event);
    let before = world.graph.sequence();

    world.graph.apply_event(&probe_event("Readiness probe failed: HTTP probe failed with statuscode: 503"));
    let after = world.graph.sequence();
    assert_eq!(
        world.pod(&everything).message,
        "container app runs, and its readiness probe fails: HTTP probe failed with statuscode: 503"
    );
    assert!(after > before, "readers receive the object again");
    world.graph.apply_event(&probe_event("Readiness probe failed: HTTP probe failed with statuscode: 503"));
    assert_eq!(world.graph.sequence(), after, "the same words are no change");

    let mut access = Access::default();
    access.allow(pods, VisibleNamespaces::All);
    assert_eq!(world.pod(&access).message, without_event, "the caller may not read events");
    access.allow(events, VisibleNamespaces::All);
    assert!(world.pod(&access).message.ends_with("503"));

    world.graph.apply_event(&probe_event("Readiness probe failed: "));
    assert_eq!(world.pod(&everything).message, without_event, "the probe has no output");
    world.graph.delete_event(&probe_event(""));
    assert_eq!(world.pod(&everything).message, without_event);
    world.graph.apply_event(&probe_event("Liveness probe failed: timeout"));
    assert_eq!(
        world.pod(&everything).message,
        "container app runs, and its readiness probe fails; Liveness probe failed: timeout"
    );
}

#[test]
fn objects_that_lead_nowhere_say_so() {
    let mut world = World::new();
    for (api, kind, spec) in [
        ("v1", "Service", json!({"spec": {"selector": {"app": "web"}}})),
        (
            "networking.k8s.io/v1",
            "Ingress",
            json!({"spec": {"defaultBackend": {"service": {"name": "gone"}}}}),
        ),
        (
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            json!({
                "roleRef": {"kind": "Role", "name": "gone"}, "subjects": [{"kind": "ServiceAccount", "name": "later", "namespace": "a"}],
            }),
        ),
    ] {
        world.apply(object(api, kind, "o", &spec));
    }
    let message = |world: &World, kind: &str, access: &Access| {
        let found = world.graph.tree(&query_of(&format!("kind={kind}")), access).roots.remove(0).node;
        (found.health, found.message)
    };
    let everything = Access::of_agent();
    let healthy = |message: &str| (HealthState::Healthy, message.to_owned());
    assert_eq!(message(&world, "RoleBinding", &everything), healthy(""), "Roles may be hidden from agentk");
    for (api, kind) in [("v1", "Pod"), ("v1", "ServiceAccount"), ("rbac.authorization.k8s.io/v1", "Role")] {
        world.resource(api, kind);
    }
    let nobody = healthy("no pod has the labels that it selects");
    assert_eq!(message(&world, "Service", &everything), nobody);
    assert_eq!(
        message(&world, "Ingress", &everything),
        (HealthState::Progressing, "it has no address yet; Service gone does not exist".to_owned())
    );
    assert_eq!(message(&world, "RoleBinding", &everything), healthy("Role gone does not exist"));

    let mut access = Access::default();
    access.allow(world.resource("v1", "Service"), VisibleNamespaces::All);
    assert_eq!(message(&world, "Service", &access), healthy(""), "the caller may not list Pods");
    world.apply(object("v1", "Pod", "p", &json!({"metadata": {"labels": {"app": "web"}}})));
    assert_eq!(message(&world, "Service", &everything), healthy(""));
}

#[test]
fn crash_loop_is_degraded_between_crashes_until_it_is_over() {
    let mut world = World::new();
    let crash = json!({
        "exitCode": 1, "message": "no database", "startedAt": time::text(NOW - 60), "finishedAt": time::text(NOW - 50),
    });
    let container = |restarts: u32, state: &Value, last: &Value| {
        json!({
            "name": "app", "ready": state.get("running").is_some(), "restartCount": restarts, "state": state, "lastState": last,
        })
    };
    let last = json!({"terminated": crash});
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container"}});
    world.apply(running(&container(1, &waiting, &last), false));
    let access = Access::of_agent();
    let waits = world.pod(&access);
    assert_eq!(waits.health, HealthState::Degraded);
    assert_eq!(
        waits.message,
        "container app crashed 2 times, the last time with exit code 1: no database; the pause before its next start is 20s"
    );

    let runs = json!({"running": {"startedAt": time::text(NOW)}});
    world.apply(running(&container(2, &runs, &last), true));
    let between = world.pod(&access);
    assert_eq!((between.health, &between.since), (HealthState::Degraded, &waits.since), "since then");
    assert_eq!(between.message, "container app crashed 2 times, the last time with exit code 1: no database");

    world.graph.recover(NOW + 599);
    assert_eq!(world.pod(&access).health, HealthState::Degraded);
    world.graph.recover(NOW + 600);
    let over = world.pod(&access);
    assert_eq!((over.health, &*over.message, over.since), (HealthState::Healthy, "", time::text(NOW + 600)));
    world.graph.recover(NOW + 601);
    world.delete("v1", "Pod", "web");
    world.graph.recover(NOW + 9999);
}

/// The API server says whether a status is kept apart, and not whether somebody writes one.
#[test]
fn object_without_a_status_is_progressing_for_ten_minutes() {
    let mut world = World::new();
    let metadata = json!({"creationTimestamp": time::text(NOW - 60)});
    world.apply(object("example.com/v1", "Database", "db", &json!({"metadata": metadata})));
    let node = |world: &World| {
        world.graph.objects(&query_of("name=db"), &Access::of_agent(), 1, None).objects.remove(0)
    };
    let new = node(&world);
    assert_eq!(
        (new.health, &*new.message),
        (HealthState::Progressing, "its controller has written no status yet")
    );
    world.graph.recover(NOW + 539);
    assert_eq!(node(&world).health, HealthState::Progressing);
    world.graph.recover(NOW + 540);
    assert_eq!((node(&world).health, &*node(&world).message), (HealthState::Healthy, ""));
}
