//! The kinds of Redis that kas speaks to: with TLS, with rights, chosen by Sentinels, a Cluster.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    time::Duration,
};

use proto::AgentId;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use router::{
    RateLimit, RouteStore as _,
    redis::{Address, Servers, Tls},
};
use tokio::time::{sleep, timeout};

use crate::{
    Member, PATIENCE,
    server::{self, Server, words},
};

/// A port that was free a moment ago, and from which the port of a Cluster's bus can be made.
fn port() -> u16 {
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        if port < 55_000 {
            return port;
        }
    }
}

fn local(port: u16) -> Address {
    Address::Tcp("127.0.0.1".into(), port)
}

async fn agents_are_shared(server: &Server, settings: router::redis::Settings) {
    let (here, there) = (Member::joined(settings.clone()).await, Member::joined(settings).await);
    here.announce(1, 1).await;
    there.sees(1, &[here.route(1)]).await;
    assert_eq!(there.store.holdings(&[AgentId(1)]).await.held.len(), 1);
    let limit = RateLimit::new(1, Duration::from_secs(60), Some((*here.store).clone()));
    limit.admit([1; 16]).await.unwrap();
    let counted: usize = server.run(&format!("EXISTS kas:limit:{}", "01".repeat(16))).await;
    assert_eq!(counted, 1, "counted by Redis");
    here.withdraw(1, 1).await;
    there.sees(1, &[]).await;
    assert_eq!(here.store.counts().errors.get(), 0);
    here.leaves().await;
    there.sees(1, &[]).await;
}

/// A certificate for localhost that is its own authority.
fn certificate(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) = (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
    fs::write(&chain, cert.pem()).unwrap();
    fs::write(&key, signing_key.serialize_pem()).unwrap();
    (chain, key)
}

#[tokio::test]
async fn over_tls_with_certificates_of_both() {
    let directory = tempfile::tempdir().unwrap();
    let (theirs, ours) = (certificate(directory.path(), "redis"), certificate(directory.path(), "kas"));
    let port = port();
    let (tls_port, [chain, key, authority]) =
        (port.to_string(), [&theirs.0, &theirs.1, &ours.0].map(|path| path.display().to_string()));
    let arguments = ["--tls-port", &tls_port, "--tls-cert-file", &chain, "--tls-key-file", &key];
    let Some(server) = server::start(&[&arguments[..], &["--tls-ca-cert-file", &authority]].concat()).await
    else {
        return;
    };
    let mut settings = server::settings(Servers::One(Address::Tcp("localhost".into(), port)));
    settings.tls = Some(Tls { ca_certificate_file: Some(theirs.0.clone()), pair: Some(ours.clone()) });
    settings.check().unwrap();
    agents_are_shared(&server, settings.clone()).await;

    settings.tls = Some(Tls { ca_certificate_file: Some(ours.0.clone()), pair: Some(ours) });
    let member = Member::start(settings);
    let mut changes = member.store.health_changes();
    timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    let why = member.is_degraded().await;
    assert!(why.contains("ertificate"), "another authority: {why}");
}

#[tokio::test]
async fn as_a_user_with_the_documented_rights_only() {
    let document = include_str!("../../../docs/redis.md");
    let rights: Vec<&str> = document
        .split('`')
        .filter(|part| part.starts_with(['+', '~', '&']))
        .flat_map(str::split_whitespace)
        .collect();
    assert!(rights.len() > 20, "{rights:?}");
    let Some(server) = server::start(&[]).await else { return };
    let file = server.directory().join("password");
    fs::write(&file, "s3cret").unwrap();
    let mut user = words("ACL SETUSER kas reset on >s3cret");
    user.arg(rights);
    let _: () = server.run_cmd(user).await;
    let mut settings = server.settings();
    (settings.username, settings.password_file) = (Some("kas".into()), Some(file));
    agents_are_shared(&server, settings).await;
}

#[tokio::test]
async fn a_cluster() {
    let port = port();
    let arguments = ["--port", &port.to_string(), "--cluster-enabled", "yes"];
    let Some(server) = server::start(&arguments).await else { return };
    let _: () = server.run("CLUSTER ADDSLOTSRANGE 0 16383").await;
    while !server.run::<String>("CLUSTER INFO").await.contains("cluster_state:ok") {
        sleep(Duration::from_millis(10)).await;
    }
    agents_are_shared(&server, server::settings(Servers::Cluster(vec![local(port)]))).await;
}

#[tokio::test]
async fn sentinels_name_another_server_when_one_is_lost() {
    let (first_port, second_port, sentinel_port) = (port(), port(), port());
    let Some(mut first) = server::start(&["--port", &first_port.to_string()]).await else { return };
    let replica_of = format!("127.0.0.1 {first_port}");
    let second =
        ["--port", &second_port.to_string(), "--replicaof", &replica_of, "--repl-diskless-sync-delay", "0"];
    let second = server::start(&second).await.unwrap();
    while !second.run::<String>("INFO replication").await.contains("master_link_status:up") {
        sleep(Duration::from_millis(20)).await;
    }
    let sentinel = server::start_sentinel(sentinel_port, first_port).await;
    let known = |replicas: &[Vec<String>]| replicas.iter().flatten().any(|word| word == "ok");
    while !known(&sentinel.run::<Vec<Vec<String>>>("SENTINEL REPLICAS kas").await) {
        sleep(Duration::from_millis(20)).await;
    }

    let servers = Servers::Sentinel {
        master: "kas".into(),
        sentinels: vec![local(sentinel_port)],
        password_file: None,
    };
    let settings = server::settings(servers);
    let (here, there) = (Member::joined(settings.clone()).await, Member::joined(settings).await);
    for agent in 0..100 {
        here.announce(agent, 1).await;
    }
    there.sees(99, &[here.route(1)]).await;

    first.kill();
    here.is_degraded().await;
    assert_eq!(there.store.lookup(AgentId(99)).await.unwrap().routes, [here.route(1)], "meanwhile");
    here.announce(500, 1).await;
    here.is_healthy().await;
    there.sees(500, &[here.route(1)]).await;
    there.sees(99, &[here.route(1)]).await;
    let held: usize = second.run(&format!("HLEN {{kas}}:routes:{}", here.id)).await;
    assert_eq!(held, 101 + 1, "at the server that took over");
}
