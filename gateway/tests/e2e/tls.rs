//! TLS at both ends of kas, and what somebody sees who forgets it.

use std::fs;

use crate::{
    streams::{TWO_LINES, follow},
    support::{Agent, Cluster, World, assert_same_among, curl},
};

#[test]
fn everything_works_with_tls_at_both_ends() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates.clone());
        options.agent_tls = Some(certificates);
    });
    assert!(world.agent_options.kas.starts_with("wss://"));
    let namespace = cluster.namespace("tls");
    namespace.pod("two-lines", TWO_LINES);
    let [agents, gitlab] =
        [world.kubectl(), world.kubectl_in_ci()].map(|kubectl| kubectl.within(&namespace.name));
    for arguments in [&["get", "pods"][..], &["exec", "two-lines", "--", "sh", "-c", "echo out; exit 3"]] {
        assert_same_among(&namespace.kubectl, &[&agents, &gitlab], arguments, "");
    }
    let mut logs = follow(&agents, "two-lines");
    agents.ok(&["exec", "two-lines", "--", "touch", "/go"]);
    assert_eq!((logs.exit_code(), logs.printed()), (0, "one\ntwo".to_owned()));
}

#[test]
fn an_agent_that_does_not_know_the_authority_says_so() {
    let nowhere = tempfile::tempdir().unwrap();
    let world = World::without_cluster(|options, certificates| {
        options.agent_tls = Some(certificates);
    });
    let mut options = world.agent_options.clone();
    options.kas_authority = None;
    let mut stranger = Agent::start(nowhere.path(), &options);
    let reason = "not signed by a trusted certificate authority";
    let line = stranger.process.line(reason, |line| line.contains(reason));
    assert!(line.contains("127.0.0.1"), "{line}");
    assert!(stranger.process.runs(), "it tries again");

    fs::write(nowhere.path().join("empty.pem"), "").unwrap();
    options.kas_authority = Some(nowhere.path().join("empty.pem"));
    let mut mistaken = Agent::start(nowhere.path(), &options);
    assert_ne!(mistaken.process.exit_code(), 0);
    assert!(mistaken.process.printed().contains("empty.pem"), "{}", mistaken.process.printed());
}

#[test]
fn plain_http_on_a_tls_port_is_told_to_use_tls() {
    let nowhere = tempfile::tempdir().unwrap();
    let world = World::without_cluster(|options, certificates| {
        options.public_tls = Some(certificates.clone());
        options.agent_tls = Some(certificates);
    });
    for address in [world.kas.public, world.kas.agents] {
        let reply = curl(&[&format!("http://{address}/")]);
        assert_eq!((reply.status, &*reply.text()), (400, "this port speaks TLS: use https:// or wss://\n"));
    }

    let mut options = world.agent_options.clone();
    options.kas = options.kas.replace("wss://", "ws://");
    options.kas_authority = None;
    let plain = Agent::start(nowhere.path(), &options);
    plain.process.line("use wss://", |line| line.contains("wss://"));
}

#[test]
fn tls_on_a_plain_port_is_noticed_at_both_ends() {
    let nowhere = tempfile::tempdir().unwrap();
    let world = World::without_cluster(|_, _| {});
    for (name, address) in [("public", world.kas.public), ("agent", world.kas.agents)] {
        let reply = curl(&["--insecure", &format!("https://{address}/")]);
        assert!(reply.status == 0 && !reply.error.is_empty(), "{reply:?}");
        let listener = format!("\"listener\":\"{name}\"");
        world.kas.process.line("the other end speaks TLS", |line| {
            line.contains(&listener) && line.contains("the other end speaks TLS, and this listener does not")
        });
    }

    let mut options = world.agent_options.clone();
    options.kas = options.kas.replace("ws://", "wss://");
    let encrypted = Agent::start(nowhere.path(), &options);
    encrypted.process.line("a failed TLS handshake", |line| line.contains("TLS"));
}
