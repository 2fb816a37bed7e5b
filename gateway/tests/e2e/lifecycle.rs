//! Programs that come and go while requests are under way.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::{
    streams::{TWO_LINES, follow},
    support::{AGENT, Agent, Cluster, Namespace, World, curl, eventually, file},
};

fn with_two_lines(
    cluster: &Cluster,
    topic: &str,
    listen_grace: u32,
    shutdown_grace: u32,
) -> (World, Namespace) {
    let world = World::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates);
        options.listen_grace = listen_grace;
        options.shutdown_grace = shutdown_grace;
    });
    let namespace = cluster.namespace(topic);
    namespace.pod("two-lines", TWO_LINES);
    (world, namespace)
}

/// Lets the pod say its second line and end.
fn go(namespace: &Namespace) {
    namespace.kubectl.ok(&["exec", "two-lines", "--", "touch", "/go"]);
}

#[test]
fn a_stopping_kas_lets_streams_finish() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines(&cluster, "kas-term", 2, 30);
    let kubectl = world.kubectl().within(&namespace.name);
    let mut logs = follow(&kubectl, "two-lines");

    world.kas.process.terminate();
    eventually("kas is not ready", || !world.kas.is_ready());
    assert_eq!(kubectl.run(&["get", "pods"]).code, 0, "until load balancers notice, requests are served");
    world.kas.process.line("finishing", |line| line.contains("stopping: finishing requests in flight"));
    assert_eq!(curl(&[&format!("http://{}/", world.kas.public)]).status, 0, "nothing is accepted any more");
    assert!(world.kas.process.runs());
    go(&namespace);
    assert_eq!((logs.exit_code(), logs.printed()), (0, "one\ntwo".to_owned()));
    assert_eq!(world.kas.process.exit_code(), 0);
    assert!(!world.kas.process.printed().contains("requests in flight are cut"));
}

#[test]
fn a_stopping_kas_cuts_what_does_not_finish() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines(&cluster, "kas-cut", 0, 2);
    let mut logs = follow(&world.kubectl().within(&namespace.name), "two-lines");
    world.kas.process.terminate();
    assert_eq!(world.kas.process.exit_code(), 0);
    world.kas.process.line("the end", |line| line.contains("requests in flight are cut"));
    assert_ne!(logs.exit_code(), 0, "a log that was cut does not look like a whole one");
}

#[test]
fn a_stopping_agent_lets_streams_finish() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines(&cluster, "agent-term", 0, 30);
    let kubectl = world.kubectl().within(&namespace.name);
    let mut logs = follow(&kubectl, "two-lines");
    assert_eq!(world.agent.readiness(), 200);

    world.agent.process.terminate();
    eventually("agentk is not ready", || world.agent.readiness() == 503);
    let refused = world.curl(&format!("/agents/{AGENT}/kubernetes/version"), &[]);
    assert_eq!((refused.status, refused.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(world.agent.process.runs(), "it has a stream to finish");
    go(&namespace);
    assert_eq!((logs.exit_code(), logs.printed()), (0, "one\ntwo".to_owned()));
    assert_eq!(world.agent.process.exit_code(), 0);
    eventually("the tunnels are gone", || world.kas.metric("kas_tunnels") == 0.0);
}

#[test]
fn a_stopping_agent_cuts_what_does_not_finish() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines(&cluster, "agent-cut", 0, 30);
    world.agent.process.terminate();
    assert_eq!(world.agent.process.exit_code(), 0, "it has nothing to finish");
    world.agent_options.grace = 1;
    world.restart_agent();
    let mut logs = follow(&world.kubectl().within(&namespace.name), "two-lines");
    world.agent.process.terminate();
    assert_eq!(world.agent.process.exit_code(), 0);
    assert_ne!(logs.exit_code(), 0, "a log that was cut does not look like a whole one");
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

/// Nobody sees a broken request. What was refused unseen is sent again where that is possible: always without a body; with
/// one, if none of it had left, and otherwise the caller is told to come again.
#[test]
fn requests_survive_agents_that_come_and_go() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = World::of_cluster(&cluster.kubeconfig);
    let made =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}}).to_string();
    let path = format!("/agents/{AGENT}/kubernetes/api/v1/namespaces/default/configmaps?dryRun=All&limit=1");
    let token = format!("Authorization: Bearer {}", world.tokens.ops.expose_secret());
    let (url, authority) = (world.kas.url(&path), world.kas.authority().unwrap().to_owned());
    let get = ["--cacert", file(&authority), "--header", &token, &url];
    let post = [&get[..], &["--header", "Content-Type: application/json", "--data", &made]].concat();
    let (done, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ask = |request: &[&str]| {
        let mut replies = Vec::new();
        while !done.load(Ordering::Relaxed) {
            replies.push(curl(request));
            answered.fetch_add(1, Ordering::Relaxed);
        }
        replies
    };
    let (got, posted) = thread::scope(|scope| {
        let getting = [(); 2].map(|()| scope.spawn(|| ask(&get)));
        let posting = [(); 2].map(|()| scope.spawn(|| ask(&post)));
        for _ in 0..5 {
            world.agent.process.terminate();
            assert_eq!(world.agent.process.exit_code(), 0);
            world.restart_agent();
            let before = answered.load(Ordering::Relaxed);
            eventually("requests are served again", || answered.load(Ordering::Relaxed) > before + 8);
        }
        done.store(true, Ordering::Relaxed);
        [getting, posting].map(|asking| asking.map(|replies| replies.join().unwrap()).concat()).into()
    });
    for reply in got {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    for reply in posted {
        assert_eq!(reply.status, 201, "{}", reply.text());
    }
}

#[test]
fn a_restarted_agent_is_back_before_callers_notice() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = World::of_cluster(&cluster.kubeconfig);
    for gently in [true, false] {
        if gently {
            world.agent.process.terminate();
            assert_eq!(world.agent.process.exit_code(), 0, "it has nothing to finish");
        } else {
            world.agent.process.kill();
        }
        eventually("the tunnels are gone", || world.kas.metric("kas_tunnels") == 0.0);
        let (reply, agent) = thread::scope(|scope| {
            let asking = scope.spawn(|| world.curl(&format!("/agents/{AGENT}/kubernetes/version"), &[]));
            let agent = Agent::start(world.directory(), &world.agent_options);
            (asking.join().unwrap(), agent)
        });
        assert_eq!(reply.status, 200, "{reply:?}");
        world.agent = agent;
    }
}

#[test]
fn agents_find_a_kas_that_was_restarted() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = World::of_cluster(&cluster.kubeconfig);
    for gently in [true, false] {
        if gently {
            world.kas.process.terminate();
            assert_eq!(world.kas.process.exit_code(), 0);
        } else {
            world.kas.process.kill();
        }
        eventually("agentk is not ready", || world.agent.readiness() == 503);
        world.restart_kas();
        eventually("the tunnels are back", || world.kas.metric("kas_tunnels") == 2.0);
        assert!(world.kubectl().ok(&["version"]).contains("Server Version"));
        assert_eq!(world.agent.readiness(), 200);
    }
}

#[test]
fn a_second_signal_ends_kas_at_once() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (mut world, namespace) = with_two_lines(&cluster, "twice", 0, 60);
    let _logs = follow(&world.kubectl().within(&namespace.name), "two-lines");
    world.kas.process.terminate();
    world.kas.process.line("finishing", |line| line.contains("stopping: finishing"));
    world.kas.process.terminate();
    assert_eq!(world.kas.process.exit_code(), 1);
}
