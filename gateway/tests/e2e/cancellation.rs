//! Callers that disconnect before the end of a response.

use crate::{
    streams::{TWO_LINES, follow},
    support::{Cluster, Installation, Namespace, eventually},
};

#[test]
fn disconnected_follower_ends_its_request() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("leave");
    namespace.pod("two-lines", TWO_LINES);
    let through = world.kubectl().in_namespace(&namespace.name);

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

/// The cluster decides whether a remote process survives its session, so the direct session is the reference.
#[test]
fn killed_exec_leaves_the_same_remote_processes() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("kill-exec");
    namespace.pod("shell", "exec sleep 1000");

    let through = world.kubectl().in_namespace(&namespace.name);
    let left = [(&namespace.kubectl, "2001"), (&through, "2002")].map(|(kubectl, seconds)| {
        // `cat` ends with the standard input, and the script ends with `cat`.
        let script = format!("sleep {seconds} & echo started; cat; kill $!; wait");
        let mut exec =
            kubectl.start_with_open_stdin(&["exec", "--stdin", "shell", "--", "sh", "-c", &script]);
        exec.line("started", |line| line == "started");
        assert!(sleeps(&namespace, seconds));
        exec.kill();
        eventually("the remote process has ended", || !sleeps(&namespace, seconds));
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
