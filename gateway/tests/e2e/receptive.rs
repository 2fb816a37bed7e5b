//! kas dials an agentk that accepts connections and opens none, with mutual TLS and a key.

use std::{fs, net::TcpListener, path::Path, process::Command};

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::support::{
    AGENT, Certificates, Cluster, Fleet, Kas, Process, Redis, assert_same_output, eventually, run_under_load,
};

const KEY: &str = "e2e-0123456789abcdef0123456789abcdef";

/// Starts a replica whose identity file has these keys of the agent.
fn start_replica(fleet: &Fleet, agent: &Value) -> Kas {
    let directory = fleet.subdirectory("kas");
    fleet.tokens.write_identity(&directory, false);
    let file = directory.join("identity.yaml");
    let mut identity: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    identity["agents"][0].as_object_mut().unwrap().extend(agent.as_object().unwrap().clone());
    fs::write(&file, identity.to_string()).unwrap();
    Kas::start(&directory, &fleet.options)
}

/// Returns a command of agentk that listens at the port.
fn agentk(fleet: &Fleet, subcommand: &str, kubeconfig: &Path, port: u16, tls: &Certificates) -> Command {
    let (directory, token) = (fleet.directory(), fleet.directory().join("agent-token"));
    fs::write(&token, fleet.tokens.agent.expose_secret()).unwrap();
    fs::write(directory.join("key"), KEY).unwrap();
    let mut command = Command::new(Kas::program().with_file_name("agentk"));
    command.args([subcommand, "--listen", &format!("127.0.0.1:{port}"), "--log-format", "text"]);
    command.arg("--listen-certificate-file").arg(&tls.certificate);
    command.arg("--listen-certificate-key-file").arg(&tls.key);
    command.arg("--listen-client-ca-file").arg(&tls.authority);
    command.arg("--listen-key-file").arg(directory.join("key"));
    command.arg("--token-file").arg(token).arg("--kubeconfig").arg(kubeconfig);
    command.args(["--observability-listen-address", "127.0.0.1:0"]).env_remove("KUBECONFIG");
    command
}

#[test]
fn kubectl_reaches_an_agent_that_kas_dials_and_another_replica_takes_over() {
    let (Some(cluster), Some(redis)) = (Cluster::or_skip(), Redis::or_skip()) else { return };
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let certificates = Certificates::generate(&fleet.subdirectory("tls"));
    fleet.options.public_tls = Some(certificates.clone());
    fleet.options.receptive = Some(json!({
        "allowed_networks": ["127.0.0.0/8"],
        "certificate_file": certificates.certificate,
        "key_file": certificates.key,
    }));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();

    let check = agentk(&fleet, "check", &cluster.kubeconfig, port, &certificates).output().unwrap();
    let printed = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{printed}");
    assert!(printed.contains("kas needs a certificate of the authority"), "{printed}");
    let mut serve = agentk(&fleet, "serve", &cluster.kubeconfig, port, &certificates);
    let mut agent = Process::start("agentk", &mut serve);
    agent.line("its address", |line| line.contains("listening for kas"));

    let target = json!({
        "url": format!("wss://127.0.0.1:{port}"),
        "ca_file": certificates.authority,
        "key_file": fleet.directory().join("key"),
    });
    let [mut one, two] = [(); 2].map(|()| start_replica(&fleet, &target));
    eventually("each replica has a tunnel", || {
        one.metric("kas_tunnels") == 1.0 && two.metric("kas_tunnels") == 1.0
    });

    let namespace = cluster.namespace("receptive");
    namespace.pod("shell", "exec sleep 1000");
    let through = [&one, &two].map(|kas| fleet.kubectl(kas.public).in_namespace(&namespace.name));
    for arguments in [&["get", "pods"][..], &["exec", "shell", "--", "sh", "-c", "echo out; exit 3"]] {
        assert_same_output(&namespace.kubectl, &[&through[0], &through[1]], arguments, "");
    }

    let responses = run_under_load(
        || {
            let url = two.url(&format!("/agents/{AGENT}/kubernetes/version"));
            let authority = certificates.authority.to_str().unwrap();
            two.curl(&["--cacert", authority, "--header", &fleet.authorization(), &url])
        },
        |wait_for_more| {
            one.process.terminate();
            eventually("the other replica has both tunnels", || two.metric("kas_tunnels") == 2.0);
            wait_for_more();
        },
    );
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert_eq!(one.process.exit_code(), 0);

    agent.terminate();
    assert_eq!(agent.exit_code(), 0);
    eventually("kas reports why it cannot dial", || two.metric_with("kas_dials_total", "connect\"") > 0.0);
    let response = through[1].run(&["get", "pods"]);
    assert!(response.stderr.contains("kas cannot dial it (connect)"), "{response:?}");
    let agent = Process::start("agentk", &mut serve);
    eventually("kas dials again", || two.metric("kas_tunnels") == 2.0);
    through[1].ok(&["get", "pods"]);
    agent.terminate();
}
