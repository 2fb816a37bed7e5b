//! Responses that continue: watches and followed logs.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use crate::support::{Cluster, Installation, Kubectl, Process, StopGuard, eventually};

/// A script that prints "one", then "two" once `/go` exists, and exits.
pub(crate) const TWO_LINES: &str = "echo one; until [ -e /go ]; do sleep 0.1; done; echo two";

/// Starts `kubectl logs --follow` and waits for the first line.
pub(crate) fn follow(kubectl: &Kubectl, pod: &str) -> Process {
    let logs = kubectl.start(&["logs", "--follow", pod]);
    logs.line("one", |line| line == "one");
    logs
}

/// Lets the container of [`TWO_LINES`] end. The result of the command is not known: the container may end before it is reported.
pub(crate) fn finish(kubectl: &Kubectl, pod: &str) {
    kubectl.run(&["exec", pod, "--", "touch", "/go"]);
}

#[test]
fn watch_receives_events_immediately() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("watch");
    for kubectl in [world.kubectl(), world.kubectl_in_ci()] {
        let kubectl = kubectl.in_namespace(&namespace.name);
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
fn watch_timeout_ends_it_cleanly() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("watch-end");
    let watch = format!("/api/v1/namespaces/{}/pods?watch=true&timeoutSeconds=1", namespace.name);
    for kubectl in [&namespace.kubectl, &world.kubectl(), &world.kubectl_in_ci()] {
        let output = kubectl.raw(&watch);
        assert_eq!((output.code, &*output.stderr), (0, ""), "{}", kubectl.name);
    }
    assert_eq!(world.in_flight(), 0.0);
}

/// Tunnels are replaced at their maximum age. A watch continues in its old tunnel, and new requests use the new one.
#[test]
fn watch_continues_while_tunnels_are_replaced() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates);
        options.max_age = Some(2);
    });
    let namespace = cluster.namespace("watch-age");
    let through = world.kubectl().in_namespace(&namespace.name);
    let watch = through.start(&["get", "configmaps", "--watch", "--output=name"]);
    for number in 0..6 {
        let replaced = world.kas.metric("kas_handshakes_total");
        eventually("a tunnel is replaced", || world.kas.metric("kas_handshakes_total") > replaced);
        let name = format!("during-{number}");
        through.ok(&["create", "configmap", &name]);
        watch.line(&name, |line| line == format!("configmap/{name}"));
    }
}

/// Clients use bookmarks to resume a watch, and start over after an expiry (410).
#[test]
fn watch_receives_bookmarks_and_expiry() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("bookmarks");
    let events = |kubectl: &Kubectl, query: &str| -> Vec<serde_json::Value> {
        let path = format!("/api/v1/namespaces/{}/configmaps?watch=true&{query}", namespace.name);
        let output = kubectl.raw(&path);
        assert_eq!(output.code, 0, "{}", output.stderr);
        output.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let through = world.kubectl();
    // The API server sends a bookmark shortly before the end of a watch if an object has changed since its start.
    let over = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let _end = StopGuard(&over);
        scope.spawn(|| {
            for number in 0.. {
                if over.load(Relaxed) {
                    break;
                }
                namespace.kubectl.ok(&["create", "configmap", &format!("change-{number}")]);
            }
        });
        events(&through, "timeoutSeconds=6&allowWatchBookmarks=true&resourceVersion=0")
    });
    assert!(seen.iter().any(|event| event["type"] == "BOOKMARK"), "{seen:?}");
    // Version 1 has expired only if the cluster has compacted its history, so the direct watch is the reference.
    let expired = [&namespace.kubectl, &through].map(|kubectl| {
        let events = events(kubectl, "timeoutSeconds=2&resourceVersion=1");
        events.iter().any(|event| event["type"] == "ERROR" && event["object"]["code"] == 410)
    });
    assert_eq!(expired[0], expired[1]);
}

#[test]
fn followed_logs_end_with_the_pod() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("logs");
    namespace.pod("two-lines", TWO_LINES);
    let mut logs = [world.kubectl(), world.kubectl_in_ci(), cluster.kubectl.clone()]
        .map(|kubectl| follow(&kubectl.in_namespace(&namespace.name), "two-lines"));

    finish(&namespace.kubectl, "two-lines");
    for logs in &mut logs {
        assert_eq!(logs.exit_code(), 0);
        assert_eq!(logs.printed(), "one\ntwo");
    }
}
