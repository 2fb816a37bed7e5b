//! Callers who leave.

use crate::{
    streams::{TWO_LINES, follow},
    support::{Cluster, Namespace, World, eventually},
};

#[test]
fn a_follower_who_leaves_ends_its_request() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("leave");
    namespace.pod("two-lines", TWO_LINES);
    let through = world.kubectl().within(&namespace.name);

    let mut logs = follow(&through, "two-lines");
    let mut watch = through.start(&["get", "pods", "--watch"]);
    watch.line("the pod", |line| line.starts_with("two-lines"));
    eventually("both are in flight", || world.in_flight() == 2.0);
    logs.kill();
    eventually("one is in flight", || world.in_flight() == 1.0);
    watch.terminate();
    watch.exit_code();
    eventually("none is in flight", || world.in_flight() == 0.0);
    assert_eq!(through.ok(&["logs", "two-lines"]), "one\n");
}

/// What becomes of a remote process is not kas's to decide: it is what it is without the tunnel.
#[test]
fn a_killed_exec_leaves_what_it_leaves_without_the_tunnel() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("kill-exec");
    namespace.pod("shell", "exec sleep 1000");

    let through = world.kubectl().within(&namespace.name);
    let left = [(&namespace.kubectl, "2001"), (&through, "2002")].map(|(kubectl, seconds)| {
        // It reads its standard input, so that it notices when that ends.
        let script = format!("sleep {seconds} & echo started; cat; kill $!; wait");
        let mut exec = kubectl.start_listening(&["exec", "--stdin", "shell", "--", "sh", "-c", &script]);
        exec.line("started", |line| line == "started");
        assert!(sleeps(&namespace, seconds));
        exec.kill();
        eventually("the remote process is gone", || !sleeps(&namespace, seconds));
        sleeps(&namespace, seconds)
    });
    assert_eq!(left[0], left[1]);

    let ignoring = [(&namespace.kubectl, "3001"), (&through, "3002")].map(|(kubectl, seconds)| {
        let mut exec =
            kubectl.start(&["exec", "shell", "--", "sh", "-c", &format!("echo started; sleep {seconds}")]);
        exec.line("started", |line| line == "started");
        exec.kill();
        eventually("nothing is in flight", || world.in_flight() == 0.0);
        sleeps(&namespace, seconds)
    });
    assert_eq!(ignoring[0], ignoring[1]);
}

fn sleeps(namespace: &Namespace, seconds: &str) -> bool {
    let processes = namespace.kubectl.ok(&["exec", "shell", "--", "ps", "-o", "args"]);
    processes.lines().any(|line| line.trim() == format!("sleep {seconds}"))
}
