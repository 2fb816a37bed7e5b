//! A replica that stops while it serves watches, or while another one uses its tunnels.

use std::process::Command;

use secrecy::ExposeSecret as _;

use crate::support::{AGENT, Cluster, Fleet, Installation, Process, Redis, Simulator, eventually};

#[test]
fn stopping_replica_exits_while_another_replica_watches() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    for (requests, peers) in [(1, 5), (5, 1)] {
        fleet.options.shutdown_grace = requests;
        fleet.membership().private_grace = Some(peers);
        let [mut owner, other] = fleet.start_replicas();
        let _agent = fleet.start_agent_at(&owner);
        let path = format!("/agents/{AGENT}/kubernetes/api/v1/pods?watch=true");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--no-buffer", "--header"]);
        curl.arg(format!("Authorization: Bearer {}", fleet.tokens.ops.expose_secret())).arg(other.url(&path));
        let mut watch = Process::start("a watch", &mut curl);
        eventually("the owner serves the watch", || {
            owner.metric_with("kas_peer_served_total", "forwarded") > 0.0
                && other.metric("kas_requests_in_flight") == 1.0
        });

        owner.process.terminate();
        assert_eq!(owner.process.exit_code(), 0);
        // The response is complete: a client sends a watch again that ends, and reports one that is cut.
        assert_eq!(watch.exit_code(), 0);
    }
}

/// A watch that is cut is an error, and one that goes on holds kas for an hour.
#[test]
fn stopping_kas_ends_watches_of_kubectl() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = Installation::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates);
        options.shutdown_grace = 3600;
    });
    let namespace = cluster.namespace("stopping-kas");
    namespace.kubectl.ok(&["create", "configmap", "watched"]);
    let path = format!("/api/v1/namespaces/{}/configmaps?watch=true", namespace.name);
    let kubectl = world.kubectl();
    let mut watch = kubectl.start(&["get", "--raw", &kubectl.raw_path(&path)]);
    watch.line("an event", |line| line.contains("watched"));
    world.kas.process.terminate();
    assert_eq!(watch.exit_code(), 0);
    assert_eq!(world.kas.process.exit_code(), 0);
}
