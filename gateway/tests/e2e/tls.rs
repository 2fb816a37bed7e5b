//! TLS on both listeners of kas, and the errors where one end does not use it.

use std::fs;

use crate::{
    streams::{TWO_LINES, finish, follow},
    support::{Agent, Cluster, Installation, assert_same_output, curl},
};

#[test]
fn kubectl_works_with_tls_on_both_listeners() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates.clone());
        options.agent_tls = Some(certificates);
    });
    assert!(world.agent_options.kas.starts_with("wss://"));
    let namespace = cluster.namespace("tls");
    namespace.pod("two-lines", TWO_LINES);
    let [agents, gitlab] =
        [world.kubectl(), world.kubectl_in_ci()].map(|kubectl| kubectl.in_namespace(&namespace.name));
    for arguments in [&["get", "pods"][..], &["exec", "two-lines", "--", "sh", "-c", "echo out; exit 3"]] {
        assert_same_output(&namespace.kubectl, &[&agents, &gitlab], arguments, "");
    }
    let mut logs = follow(&agents, "two-lines");
    finish(&agents, "two-lines");
    assert_eq!((logs.exit_code(), logs.printed()), (0, "one\ntwo".to_owned()));
}

#[test]
fn agent_without_ca_certificate_logs_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let world = Installation::without_cluster(|options, certificates| {
        options.agent_tls = Some(certificates);
    });
    let mut options = world.agent_options.clone();
    options.kas_authority = None;
    let mut agent = Agent::start(directory.path(), &options);
    let reason = "not signed by a trusted certificate authority";
    let line = agent.process.line(reason, |line| line.contains(reason));
    assert!(line.contains("127.0.0.1"), "{line}");
    assert!(agent.process.runs(), "agentk retries");

    fs::write(directory.path().join("empty.pem"), "").unwrap();
    options.kas_authority = Some(directory.path().join("empty.pem"));
    let mut mistaken = Agent::start(directory.path(), &options);
    assert_ne!(mistaken.process.exit_code(), 0);
    assert!(mistaken.process.printed().contains("empty.pem"), "{}", mistaken.process.printed());
}

#[test]
fn plain_http_on_tls_port_gets_400() {
    let directory = tempfile::tempdir().unwrap();
    let world = Installation::without_cluster(|options, certificates| {
        options.public_tls = Some(certificates.clone());
        options.agent_tls = Some(certificates);
    });
    for address in [world.kas.public, world.kas.agents] {
        let response = curl(&[&format!("http://{address}/")]);
        assert_eq!(
            (response.status, &*response.text()),
            (400, "this port speaks TLS: use https:// or wss://\n")
        );
    }

    let mut options = world.agent_options.clone();
    options.kas = options.kas.replace("wss://", "ws://");
    options.kas_authority = None;
    let plain = Agent::start(directory.path(), &options);
    plain.process.line("use wss://", |line| line.contains("wss://"));
}

#[test]
fn tls_on_plain_port_is_logged_at_both_ends() {
    let directory = tempfile::tempdir().unwrap();
    let world = Installation::without_cluster(|_, _| {});
    for (name, address) in [("public", world.kas.public), ("agent", world.kas.agents)] {
        let response = curl(&["--insecure", &format!("https://{address}/")]);
        assert!(response.status == 0 && !response.error.is_empty(), "{response:?}");
        let listener = format!("\"listener\":\"{name}\"");
        world.kas.process.line("the other end speaks TLS", |line| {
            line.contains(&listener) && line.contains("the peer uses TLS, but this listener does not")
        });
    }

    let mut options = world.agent_options.clone();
    options.kas = options.kas.replace("ws://", "wss://");
    let encrypted = Agent::start(directory.path(), &options);
    encrypted.process.line("a failed TLS handshake", |line| line.contains("TLS"));
}
