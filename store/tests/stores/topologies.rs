//! Tests with each kind of Redis: TLS, ACLs, a Cluster, Sentinels.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    time::Duration,
};

use proto::AgentId;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use store::{
    KeyedRateLimiter, RouteStore as _,
    redis::{RedisAddress, RedisServers, RedisTlsFiles},
};
use tokio::time::{sleep, timeout};

use crate::{
    TIMEOUT, TestReplica,
    server::{self, Server, command},
};

/// Returns a port that was free a moment ago. A Cluster also uses this port plus 10000.
fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        if port < 55_000 {
            return port;
        }
    }
}

fn local(port: u16) -> RedisAddress {
    RedisAddress::Tcp("127.0.0.1".into(), port)
}

async fn check_shared_agents(server: &Server, settings: store::redis::RedisSettings) {
    let (here, there) = (TestReplica::joined(settings.clone()).await, TestReplica::joined(settings).await);
    here.announce(1, 1).await;
    there.wait_routes(1, &[here.route(1)]).await;
    assert_eq!(there.store.list_instances(&[AgentId(1)]).await.connected.len(), 1);
    let limit = KeyedRateLimiter::new(1, Duration::from_secs(60), Some((*here.store).clone()));
    limit.admit([1; 16]).await.unwrap();
    let exists: usize = server.run(&format!("EXISTS kas:limit:{}", "01".repeat(16))).await;
    assert_eq!(exists, 1, "Redis has the limit");
    here.withdraw(1, 1).await;
    there.wait_routes(1, &[]).await;
    assert_eq!(here.store.metrics().errors.get(), 0);
    here.stop().await;
    there.wait_routes(1, &[]).await;
}

/// Writes a self-signed certificate for localhost and its key.
fn certificate(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) = (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
    fs::write(&chain, cert.pem()).unwrap();
    fs::write(&key, signing_key.serialize_pem()).unwrap();
    (chain, key)
}

#[tokio::test]
async fn tls_with_client_certificate_works() {
    let directory = tempfile::tempdir().unwrap();
    let (theirs, ours) = (certificate(directory.path(), "redis"), certificate(directory.path(), "kas"));
    let port = free_port();
    let (tls_port, [chain, key, authority]) =
        (port.to_string(), [&theirs.0, &theirs.1, &ours.0].map(|path| path.display().to_string()));
    let arguments = ["--tls-port", &tls_port, "--tls-cert-file", &chain, "--tls-key-file", &key];
    let Some(server) = server::start(&[&arguments[..], &["--tls-ca-cert-file", &authority]].concat()) else {
        return;
    };
    let mut settings = server::settings(RedisServers::Single(RedisAddress::Tcp("localhost".into(), port)));
    settings.tls =
        Some(RedisTlsFiles { ca_certificate_file: Some(theirs.0.clone()), pair: Some(ours.clone()) });
    settings.validate().unwrap();
    check_shared_agents(&server, settings.clone()).await;

    settings.tls = Some(RedisTlsFiles { ca_certificate_file: Some(ours.0.clone()), pair: Some(ours) });
    let replica = TestReplica::start(settings);
    let mut changes = replica.store.health_changes();
    timeout(TIMEOUT, changes.changed()).await.unwrap().unwrap();
    let reason = replica.wait_degraded().await;
    assert!(reason.contains("ertificate"), "another authority: {reason}");
}

#[tokio::test]
async fn documented_acl_is_sufficient() {
    let document = include_str!("../../../docs/redis.md");
    let rules: Vec<&str> = document
        .split('`')
        .filter(|part| part.starts_with(['+', '~', '&']))
        .flat_map(str::split_whitespace)
        .collect();
    assert!(rules.len() > 20, "{rules:?}");
    let Some(server) = server::start(&[]) else { return };
    let file = server.directory().join("password");
    fs::write(&file, "s3cret").unwrap();
    let mut user = command("ACL SETUSER kas reset on >s3cret");
    user.arg(rules);
    let _: () = server.run_cmd(user).await;
    let mut settings = server.settings();
    (settings.username, settings.password_file) = (Some("kas".into()), Some(file));
    check_shared_agents(&server, settings).await;
}

#[tokio::test]
async fn cluster_works() {
    let port = free_port();
    let arguments = ["--port", &port.to_string(), "--cluster-enabled", "yes"];
    let Some(server) = server::start(&arguments) else { return };
    let _: () = server.run("CLUSTER ADDSLOTSRANGE 0 16383").await;
    while !server.run::<String>("CLUSTER INFO").await.contains("cluster_state:ok") {
        sleep(Duration::from_millis(10)).await;
    }
    check_shared_agents(&server, server::settings(RedisServers::Cluster(vec![local(port)]))).await;
}

#[tokio::test]
async fn sentinel_failover_keeps_routes() {
    let (first_port, second_port, sentinel_port) = (free_port(), free_port(), free_port());
    let Some(mut first) = server::start(&["--port", &first_port.to_string()]) else { return };
    let replica_of = format!("127.0.0.1 {first_port}");
    let second =
        ["--port", &second_port.to_string(), "--replicaof", &replica_of, "--repl-diskless-sync-delay", "0"];
    let second = server::start(&second).unwrap();
    while !second.run::<String>("INFO replication").await.contains("master_link_status:up") {
        sleep(Duration::from_millis(20)).await;
    }
    let sentinel = server::start_sentinel(sentinel_port, first_port);
    let is_ready = |replicas: &[Vec<String>]| replicas.iter().flatten().any(|word| word == "ok");
    while !is_ready(&sentinel.run::<Vec<Vec<String>>>("SENTINEL REPLICAS kas").await) {
        sleep(Duration::from_millis(20)).await;
    }

    let servers = RedisServers::Sentinel {
        master: "kas".into(),
        sentinels: vec![local(sentinel_port)],
        password_file: None,
    };
    let settings = server::settings(servers);
    let (here, there) = (TestReplica::joined(settings.clone()).await, TestReplica::joined(settings).await);
    for agent in 0..100 {
        here.announce(agent, 1).await;
    }
    there.wait_routes(99, &[here.route(1)]).await;

    first.kill();
    here.wait_degraded().await;
    assert_eq!(there.store.lookup(AgentId(99)).await.unwrap().routes, [here.route(1)], "during the failover");
    here.announce(500, 1).await;
    here.wait_healthy().await;
    there.wait_routes(500, &[here.route(1)]).await;
    there.wait_routes(99, &[here.route(1)]).await;
    let fields: usize = second.run(&format!("HLEN {{kas}}:routes:{}", here.id)).await;
    assert_eq!(fields, 101 + 1, "records at the new master");
}
