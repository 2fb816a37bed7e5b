//! Answers that go on.

use crate::support::{Cluster, Kubectl, Process, World};

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
