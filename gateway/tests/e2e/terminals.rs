//! Sessions of exec and port-forward: terminal size, half-close and concurrency.

use std::{fs, process::Stdio, thread};

use crate::{
    support::{
        Cluster, Installation, Kubectl, KubectlVersion, Process, Simulator, assert_same_output, curl,
        eventually, path_argument,
    },
    upgrades::INPUTS,
};

const IDLE: &str = "exec sleep 1000";
const SIMULATED: &str = "deployment/web";

#[test]
fn terminal_resize_reaches_the_pod() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("resize");
    namespace.pod("shell", IDLE);
    let remote = "while [ \"$(stty size)\" != \"33 101\" ]; do sleep 0.1; done; echo first size; \
                  while [ \"$(stty size)\" != \"22 77\" ]; do sleep 0.1; done; echo second size; exit 4";
    for kubectl in [&namespace.kubectl, &world.kubectl().in_namespace(&namespace.name)] {
        let resize = world.directory().join(format!("resize-{}", kubectl.name));
        let before = format!(
            "(until [ -e {} ]; do sleep 0.1; done; stty cols 77 rows 22) </dev/tty &",
            path_argument(&resize)
        );
        let mut command = kubectl.terminal_command(
            &before,
            &["exec", "--stdin", "--tty", "shell", "--", "sh", "-c", &quoted(remote)],
        );
        let mut session = Process::start("a session at a terminal", command.stdin(Stdio::piped()));
        session.line("the first size", |line| line.contains("first size"));
        fs::write(&resize, "").unwrap();
        session.line("the second size", |line| line.contains("second size"));
        assert_eq!(session.exit_code(), 4, "{}", kubectl.name);
    }
}

/// Escapes a script for the single quotes around the arguments of [`Kubectl::terminal_command`].
fn quoted(script: &str) -> String {
    script.replace('\'', "'\\''")
}

#[test]
fn stdin_eof_closes_one_direction() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("half-close");
    namespace.pod("shell", IDLE);
    let through =
        [world.kubectl(), world.kubectl_in_ci()].map(|kubectl| kubectl.in_namespace(&namespace.name));
    let script = "read line; wc -c; sleep 1; seq 20000; echo end >&2; exit 6";
    let arguments = ["exec", "--stdin", "shell", "--", "sh", "-c", script];
    for input in INPUTS {
        let code = assert_same_output(&namespace.kubectl, &[&through[0], &through[1]], &arguments, input);
        assert_eq!(code, 6);
    }
}

/// Clusters of today use WebSocket with kubectl. Its protocol `v5.channel.k8s.io` has a half-close.
#[test]
fn exec_v5_websocket_has_half_close_and_exit_codes() {
    let Some(simulator) = Simulator::or_skip() else { return };
    if !KubectlVersion::WEBSOCKET_EXEC.or_skip("exec over WebSocket") {
        return;
    }
    let world = Installation::with_cluster(&simulator.kubeconfig);
    let direct = Kubectl::direct(&simulator.kubeconfig, world.directory());
    let exec = |kubectl: &Kubectl, command: &[&str], stdin: &str| {
        let arguments = [&["exec", "--stdin", SIMULATED, "--namespace=demo", "--"], command].concat();
        let output = kubectl.run_with_stdin(&arguments, stdin.as_bytes());
        (output.code, output.text(), output.stderr)
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
fn concurrent_exec_sessions_do_not_mix() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("sessions");
    namespace.pod("shell", IDLE);
    let through = world.kubectl().in_namespace(&namespace.name);
    thread::scope(|scope| {
        for number in 0..20 {
            let through = &through;
            scope.spawn(move || {
                let words = format!("words of {number}\n").repeat(2000);
                let script = format!("cat; exit {number}");
                let output = through.run_with_stdin(
                    &["exec", "--stdin", "shell", "--", "sh", "-c", &script],
                    words.as_bytes(),
                );
                assert_eq!(output.code, number, "{}", output.stderr);
                assert!(output.text() == words, "{number}: {} bytes", output.stdout.len());
            });
        }
    });
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

#[test]
fn fifty_connections_share_one_port_forward() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("fifty");
    namespace.pod("web", "mkdir -p /www; seq 50000 >/www/page; exec httpd -f -p 8080 -h /www");
    let page = namespace.kubectl.run(&["exec", "web", "--", "cat", "/www/page"]).stdout;
    let through = world.kubectl().in_namespace(&namespace.name);
    let mut forward = through.start(&["port-forward", "pod/web", ":8080"]);
    let line = forward.line("Forwarding", |line| line.starts_with("Forwarding from 127.0.0.1:"));
    let url = format!("http://127.0.0.1:{}/page", line.split([':', ' ']).nth(3).unwrap());
    thread::scope(|scope| {
        let all: Vec<_> = (0..50).map(|_| scope.spawn(|| curl(&[&url]))).collect();
        for response in all {
            let response = response.join().unwrap();
            assert_eq!(response.status, 200, "{}", response.error);
            assert!(response.body == page, "{} bytes of {}", response.body.len(), page.len());
        }
    });
    forward.terminate();
    forward.exit_code();
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}
