//! What a session is besides its bytes: the size of its terminal, the end of each direction, many at a time.

use std::{fs, process::Stdio, thread};

use crate::support::{
    Cluster, Kubectl, KubectlVersion, Process, Simulator, World, assert_same_among, curl, eventually, file,
};

const IDLE: &str = "exec sleep 1000";
const SIMULATED: &str = "deployment/web";

#[test]
fn a_terminal_that_is_resized_is_resized_at_the_other_end() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("resize");
    namespace.pod("shell", IDLE);
    let remote = "while [ \"$(stty size)\" != \"33 101\" ]; do sleep 0.1; done; echo first size; \
                  while [ \"$(stty size)\" != \"22 77\" ]; do sleep 0.1; done; echo second size; exit 4";
    for kubectl in [&namespace.kubectl, &world.kubectl().within(&namespace.name)] {
        let resize = world.directory().join(format!("resize-{}", kubectl.name));
        let before =
            format!("(until [ -e {} ]; do sleep 0.1; done; stty cols 77 rows 22) </dev/tty &", file(&resize));
        let mut command = kubectl
            .terminal(&before, &["exec", "--stdin", "--tty", "shell", "--", "sh", "-c", &quoted(remote)]);
        let mut session = Process::start("a session at a terminal", command.stdin(Stdio::piped()));
        session.line("the first size", |line| line.contains("first size"));
        fs::write(&resize, "").unwrap();
        session.line("the second size", |line| line.contains("second size"));
        assert_eq!(session.exit_code(), 4, "{}", kubectl.name);
    }
}

/// Within the single quotes that arguments of a terminal are given.
fn quoted(script: &str) -> String {
    script.replace('\'', "'\\''")
}

#[test]
fn the_end_of_standard_input_ends_one_direction_only() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("half-close");
    namespace.pod("shell", IDLE);
    let through = [world.kubectl(), world.kubectl_in_ci()].map(|kubectl| kubectl.within(&namespace.name));
    let script = "wc -c; sleep 1; seq 20000; echo end >&2; exit 6";
    let arguments = ["exec", "--stdin", "shell", "--", "sh", "-c", script];
    for input in ["", "words\n"] {
        let code = assert_same_among(&namespace.kubectl, &[&through[0], &through[1]], &arguments, input);
        assert_eq!(code, 6);
    }
}

/// A cluster of today speaks WebSocket with kubectl, in whose fifth version either direction ends by itself.
#[test]
fn exec_over_the_fifth_version_of_websocket_has_ends_and_exit_codes() {
    let Some(simulator) = Simulator::or_skip() else { return };
    if !KubectlVersion::WEBSOCKET_EXEC.or_skip("exec over WebSocket") {
        return;
    }
    let world = World::of_cluster(&simulator.kubeconfig);
    let direct = Kubectl::of_cluster(&simulator.kubeconfig, world.directory());
    let exec = |kubectl: &Kubectl, command: &[&str], stdin: &str| {
        let arguments = [&["exec", "--stdin", SIMULATED, "--namespace=demo", "--"], command].concat();
        let answer = kubectl.pipe(&arguments, stdin.as_bytes());
        (answer.code, answer.text(), answer.stderr)
    };
    let many = "line after line\n".repeat(200_000);
    for (command, stdin, code, output) in [
        (&["cat"][..], "some words", 0, Some("some words")),
        (&["cat"], &*many, 0, Some(&*many)),
        (&["cat"], "", 0, Some("")),
        (&["sh"], "echo one\nexit 9\n", 9, None),
        (&["sh", "-c", "echo out; echo error >&2; exit 3"], "", 3, Some("out\n")),
        (&["false"], "", 1, Some("")),
        (&["no-such-program"], "", 1, Some("")),
    ] {
        let expected = exec(&direct, command, stdin);
        assert_eq!(expected.0, code, "{command:?}: {}", expected.2);
        if let Some(output) = output {
            assert!(expected.1 == output, "{command:?}: {} bytes", expected.1.len());
        }
        for kubectl in [world.kubectl(), world.kubectl_in_ci()] {
            assert!(exec(&kubectl, command, stdin) == expected, "{command:?} ({})", kubectl.name);
        }
    }
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

#[test]
fn twenty_sessions_at_a_time_do_not_mix() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("sessions");
    namespace.pod("shell", IDLE);
    let through = world.kubectl().within(&namespace.name);
    thread::scope(|scope| {
        for number in 0..20 {
            let through = &through;
            scope.spawn(move || {
                let words = format!("words of {number}\n").repeat(2000);
                let script = format!("cat; exit {number}");
                let answer =
                    through.pipe(&["exec", "--stdin", "shell", "--", "sh", "-c", &script], words.as_bytes());
                assert_eq!(answer.code, number, "{}", answer.stderr);
                assert!(answer.text() == words, "{number}: {} bytes", answer.stdout.len());
            });
        }
    });
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

#[test]
fn fifty_connections_share_one_port_forward() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("fifty");
    namespace.pod("web", "mkdir -p /www; seq 50000 >/www/page; exec httpd -f -p 8080 -h /www");
    let page = namespace.kubectl.run(&["exec", "web", "--", "cat", "/www/page"]).stdout;
    let through = world.kubectl().within(&namespace.name);
    let mut forward = through.start(&["port-forward", "pod/web", ":8080"]);
    let line = forward.line("Forwarding", |line| line.starts_with("Forwarding from 127.0.0.1:"));
    let url = format!("http://127.0.0.1:{}/page", line.split([':', ' ']).nth(3).unwrap());
    thread::scope(|scope| {
        let all: Vec<_> = (0..50).map(|_| scope.spawn(|| curl(&[&url]))).collect();
        for reply in all {
            let reply = reply.join().unwrap();
            assert_eq!(reply.status, 200, "{}", reply.error);
            assert!(reply.body == page, "{} bytes of {}", reply.body.len(), page.len());
        }
    });
    forward.terminate();
    forward.exit_code();
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}
