//! Answers that go on.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use crate::support::{Cluster, Kubectl, Process, World, eventually};

/// Says "one", then "two" once `/go` is there, and ends.
pub(crate) const TWO_LINES: &str = "echo one; until [ -e /go ]; do sleep 0.1; done; echo two";

/// `logs --follow` of a pod, which has shown its first line.
pub(crate) fn follow(kubectl: &Kubectl, pod: &str) -> Process {
    let logs = kubectl.start(&["logs", "--follow", pod]);
    logs.line("one", |line| line == "one");
    logs
}

#[test]
fn a_watch_sees_events_as_they_happen() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("watch");
    for kubectl in [world.kubectl(), world.kubectl_in_ci()] {
        let kubectl = kubectl.within(&namespace.name);
        let watch = kubectl.start(&["get", "configmaps", "--watch", "--output-watch-events"]);
        let saw = |event: &str| {
            let words = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
            watch.line(event, |line| words(line) == [event, "watched"]);
        };
        namespace.kubectl.ok(&["create", "configmap", "watched"]);
        saw("ADDED");
        kubectl.ok(&["label", "configmap", "watched", "a=b"]);
        saw("MODIFIED");
        namespace.kubectl.ok(&["delete", "configmap", "watched"]);
        saw("DELETED");
    }
}

#[test]
fn a_watch_ends_with_its_timeout_as_it_does_without_the_tunnel() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("watch-end");
    let watch = format!("/api/v1/namespaces/{}/pods?watch=true&timeoutSeconds=1", namespace.name);
    for kubectl in [&namespace.kubectl, &world.kubectl(), &world.kubectl_in_ci()] {
        let answer = kubectl.raw(&watch);
        assert_eq!((answer.code, &*answer.stderr), (0, ""), "{}", kubectl.name);
    }
    assert_eq!(world.in_flight(), 0.0);
}

/// Tunnels are replaced at their maximum age; a watch goes on in the old one, and another finds the new.
#[test]
fn a_watch_goes_on_while_tunnels_are_replaced() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates);
        options.max_age = Some(2);
    });
    let namespace = cluster.namespace("watch-age");
    let through = world.kubectl().within(&namespace.name);
    let watch = through.start(&["get", "configmaps", "--watch", "--output=name"]);
    for number in 0..6 {
        let replaced = world.kas.metric("kas_handshakes_total");
        eventually("a tunnel is replaced", || world.kas.metric("kas_handshakes_total") > replaced);
        let name = format!("during-{number}");
        through.ok(&["create", "configmap", &name]);
        watch.line(&name, |line| line == format!("configmap/{name}"));
    }
}

/// What a client needs to know that it missed nothing, and to start over if it did.
#[test]
fn bookmarks_and_expiry_of_a_watch_arrive() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("bookmarks");
    let events = |kubectl: &Kubectl, query: &str| -> Vec<serde_json::Value> {
        let path = format!("/api/v1/namespaces/{}/configmaps?watch=true&{query}", namespace.name);
        let answer = kubectl.raw(&path);
        assert_eq!(answer.code, 0, "{}", answer.stderr);
        answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let through = world.kubectl();
    // The API server sends one shortly before the end of the watch, if something has changed since its beginning.
    let over = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if over.load(Relaxed) {
                    break;
                }
                namespace.kubectl.ok(&["create", "configmap", &format!("change-{number}")]);
            }
        });
        let seen = events(&through, "timeoutSeconds=6&allowWatchBookmarks=true&resourceVersion=0");
        over.store(true, Relaxed);
        seen
    });
    assert!(seen.iter().any(|event| event["type"] == "BOOKMARK"), "{seen:?}");
    // Whether the beginning is still known depends on when the cluster compacted its history last.
    let gone = [&namespace.kubectl, &through].map(|kubectl| {
        let events = events(kubectl, "timeoutSeconds=2&resourceVersion=1");
        events.iter().any(|event| event["type"] == "ERROR" && event["object"]["code"] == 410)
    });
    assert_eq!(gone[0], gone[1]);
}

#[test]
fn logs_follow_a_pod_to_its_end() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("logs");
    namespace.pod("two-lines", TWO_LINES);
    let mut logs = [world.kubectl(), world.kubectl_in_ci(), cluster.kubectl.clone()]
        .map(|kubectl| follow(&kubectl.within(&namespace.name), "two-lines"));

    namespace.kubectl.ok(&["exec", "two-lines", "--", "touch", "/go"]);
    for logs in &mut logs {
        assert_eq!(logs.exit_code(), 0);
        assert_eq!(logs.printed(), "one\ntwo");
    }
}
