//! kas and agentk stop and restart while requests are in flight.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::{
    streams::{TWO_LINES, finish, follow},
    support::{
        AGENT, Agent, Cluster, Installation, Namespace, curl, default_tunnels, eventually, path_argument,
    },
};

fn with_two_lines_pod(
    cluster: &Cluster,
    topic: &str,
    listen_grace: u32,
    shutdown_grace: u32,
) -> (Installation, Namespace) {
    let world = Installation::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates);
        options.listen_grace = listen_grace;
        options.shutdown_grace = shutdown_grace;
    });
    let namespace = cluster.namespace(topic);
    namespace.pod("two-lines", TWO_LINES);
    (world, namespace)
}

/// Makes the pod print its second line and exit.
fn print_second_line(namespace: &Namespace) {
    finish(&namespace.kubectl, "two-lines");
}

#[test]
fn stopping_kas_completes_streams() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines_pod(&cluster, "kas-term", 2, 30);
    let kubectl = world.kubectl().in_namespace(&namespace.name);
    let mut logs = follow(&kubectl, "two-lines");

    world.kas.process.terminate();
    eventually("kas is not ready", || !world.kas.is_ready());
    assert_eq!(kubectl.run(&["get", "pods"]).code, 0, "requests are served during the listen grace period");
    world.kas.process.line("finishing", |line| line.contains("stopping: finishing requests in flight"));
    assert_eq!(
        curl(&[&format!("http://{}/", world.kas.public)]).status,
        0,
        "kas accepts no connections any more"
    );
    assert!(world.kas.process.runs());
    print_second_line(&namespace);
    assert_eq!((logs.exit_code(), logs.printed()), (0, "one\ntwo".to_owned()));
    assert_eq!(world.kas.process.exit_code(), 0);
    assert!(!world.kas.process.printed().contains("requests in flight are cut"));
}

#[test]
fn stopping_kas_aborts_streams_after_grace_period() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines_pod(&cluster, "kas-cut", 0, 2);
    let mut logs = follow(&world.kubectl().in_namespace(&namespace.name), "two-lines");
    world.kas.process.terminate();
    assert_eq!(world.kas.process.exit_code(), 0);
    world.kas.process.line("the end", |line| line.contains("requests in flight are cut"));
    assert_ne!(logs.exit_code(), 0, "an aborted log stream is an error");
}

#[test]
fn stopping_agent_completes_streams() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines_pod(&cluster, "agent-term", 0, 30);
    let kubectl = world.kubectl().in_namespace(&namespace.name);
    let mut logs = follow(&kubectl, "two-lines");
    assert_eq!(world.agent.readiness().status, 200);

    world.agent.process.terminate();
    eventually("agentk is not ready", || world.agent.readiness().status == 503);
    let refused = world.curl(&format!("/agents/{AGENT}/kubernetes/version"), &[]);
    assert_eq!((refused.status, refused.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(world.agent.process.runs(), "agentk completes its stream first");
    print_second_line(&namespace);
    assert_eq!((logs.exit_code(), logs.printed()), (0, "one\ntwo".to_owned()));
    assert_eq!(world.agent.process.exit_code(), 0);
    eventually("the tunnels are closed", || world.kas.metric("kas_tunnels") == 0.0);
}

#[test]
fn stopping_agent_aborts_streams_after_grace_period() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines_pod(&cluster, "agent-cut", 0, 30);
    world.agent.process.terminate();
    assert_eq!(world.agent.process.exit_code(), 0, "agentk has no streams");
    world.agent_options.grace = 1;
    world.restart_agent();
    let mut logs = follow(&world.kubectl().in_namespace(&namespace.name), "two-lines");
    world.agent.process.terminate();
    assert_eq!(world.agent.process.exit_code(), 0);
    assert_ne!(logs.exit_code(), 0, "an aborted log stream is an error");
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

/// No request fails. kas retries requests that the agent did not process: always without a body; with a body if none of
/// it was sent.
#[test]
fn requests_survive_agent_restarts() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = Installation::with_cluster(&cluster.kubeconfig);
    let created =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}}).to_string();
    let path = format!("/agents/{AGENT}/kubernetes/api/v1/namespaces/default/configmaps?dryRun=All&limit=1");
    let token = format!("Authorization: Bearer {}", world.tokens.ops.expose_secret());
    let (url, authority) = (world.kas.url(&path), world.kas.authority().unwrap().to_owned());
    let get = ["--cacert", path_argument(&authority), "--header", &token, &url];
    let post = [&get[..], &["--header", "Content-Type: application/json", "--data", &created]].concat();
    let (done, completed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let send_until_done = |request: &[&str]| {
        let mut responses = Vec::new();
        while !done.load(Ordering::Relaxed) {
            responses.push(curl(request));
            completed.fetch_add(1, Ordering::Relaxed);
        }
        responses
    };
    let (get_responses, post_responses) = thread::scope(|scope| {
        let get_callers = [(); 2].map(|()| scope.spawn(|| send_until_done(&get)));
        let post_callers = [(); 2].map(|()| scope.spawn(|| send_until_done(&post)));
        for _ in 0..5 {
            world.agent.process.terminate();
            assert_eq!(world.agent.process.exit_code(), 0);
            world.restart_agent();
            let before = completed.load(Ordering::Relaxed);
            eventually("requests are served again", || completed.load(Ordering::Relaxed) > before + 8);
        }
        done.store(true, Ordering::Relaxed);
        [get_callers, post_callers]
            .map(|callers| callers.map(|responses| responses.join().unwrap()).concat())
            .into()
    });
    for response in get_responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    for response in post_responses {
        assert_eq!(response.status, 201, "{}", response.text());
    }
}

#[test]
fn request_waits_for_restarted_agent() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = Installation::with_cluster(&cluster.kubeconfig);
    for gently in [true, false] {
        if gently {
            world.agent.process.terminate();
            assert_eq!(world.agent.process.exit_code(), 0, "agentk has no streams");
        } else {
            world.agent.process.kill();
        }
        eventually("the tunnels are closed", || world.kas.metric("kas_tunnels") == 0.0);
        let (response, agent) = thread::scope(|scope| {
            let request = scope.spawn(|| world.curl(&format!("/agents/{AGENT}/kubernetes/version"), &[]));
            let agent = Agent::start(world.directory(), &world.agent_options);
            (request.join().unwrap(), agent)
        });
        assert_eq!(response.status, 200, "{response:?}");
        world.agent = agent;
    }
}

#[test]
fn agent_reconnects_to_restarted_kas() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = Installation::with_cluster(&cluster.kubeconfig);
    for gently in [true, false] {
        if gently {
            world.kas.process.terminate();
            assert_eq!(world.kas.process.exit_code(), 0);
        } else {
            world.kas.process.kill();
        }
        eventually("agentk is not ready", || world.agent.readiness().status == 503);
        world.restart_kas();
        eventually("the tunnels are back", || world.kas.metric("kas_tunnels") == default_tunnels());
        assert!(world.kubectl().ok(&["version"]).contains("Server Version"));
        assert_eq!(world.agent.readiness().status, 200);
    }
}

#[test]
fn second_signal_stops_kas_at_once() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines_pod(&cluster, "twice", 0, 60);
    let _logs = follow(&world.kubectl().in_namespace(&namespace.name), "two-lines");
    world.kas.process.terminate();
    world.kas.process.line("finishing", |line| line.contains("stopping: finishing"));
    world.kas.process.terminate();
    assert_eq!(world.kas.process.exit_code(), 1);
}
