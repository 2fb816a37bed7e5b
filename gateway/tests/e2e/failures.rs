//! Errors that operators and callers see.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use access::token::{self, Holder};
use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::support::{AGENT, Agent, Installation, Kas, curl, default_tunnels, eventually, run};

/// Starts kas with TLS for callers, and an agentk whose cluster is unreachable.
fn without_cluster() -> Installation {
    Installation::without_cluster(|options, certificates| options.public_tls = Some(certificates))
}

#[test]
fn invalid_config_error_names_line_and_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kas.yaml");
    let serve = |text: &str| {
        fs::write(&file, text).unwrap();
        let output = run(Kas::command().args(["serve", "--config"]).arg(&file), b"");
        assert!(output.stdout.is_empty());
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr.replace(&*file.to_string_lossy(), "kas.yaml"))
    };
    let (code, stderr) = serve("identity: {file: i.yaml}\nagent:\n  listen:\n    adress: 127.0.0.1:0\n");
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.starts_with("kas: kas.yaml:4:5: agent.listen.adress: unknown field `adress`"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let (code, stderr) = serve("identity: {file: i.yaml}\n");
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains("i.yaml: the file does not exist"), "{stderr}");

    fs::write(directory.path().join("i.yaml"), "agents: []\n").unwrap();
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied.local_addr().unwrap();
    let (code, stderr) =
        serve(&format!("identity: {{file: i.yaml}}\nagent: {{listen: {{address: '{address}'}}}}\n"));
    assert_eq!(code, Some(69), "{stderr}");
    assert!(stderr.contains(&format!("cannot listen on {address} for agent")), "{stderr}");
}

#[test]
fn agent_with_wrong_token_logs_and_retries() {
    let world = without_cluster();
    let directory = tempfile::tempdir().unwrap();
    let wrong = token::new(Holder::Agent);
    let mut options = world.agent_options.clone();
    options.token = wrong.expose_secret().to_owned();
    let mut agent = Agent::start(directory.path(), &options);

    let line = agent.process.line("the token is refused", |line| line.contains("refused the agent token"));
    assert!(line.contains("agent-token"), "the log line names the token file: {line}");
    let refused = |line: &str| line.contains("tunnel refused") && line.contains("401");
    world.kas.process.line("tunnel refused", refused);
    let before = world.kas.metric("kas_handshakes_total");
    eventually("the agent connects again", || world.kas.metric("kas_handshakes_total") >= before + 2.0);
    assert!(agent.process.runs());
    for log in [world.kas.process.printed(), agent.process.printed()] {
        assert!(!log.contains(wrong.expose_secret()), "the token is not logged");
    }
}

#[test]
fn unknown_agent_gets_404_with_known_agents() {
    let world = without_cluster();
    let response = world.curl("/agents/nope/kubernetes/api/v1/pods", &[]);
    assert_eq!((response.status, response.header("kas-error")), (404, Some("unknown-agent")));
    let status = response.json();
    assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &json!("NotFound")));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("\"nope\"") && message.contains("prod (7)"), "{message}");

    let kubectl = world.kubectl_for_agent("nope").run(&["get", "pods"]);
    assert_eq!(kubectl.code, 1);
    let warning = "Warning: there is no agent \"nope\" for caller ops; there are: ";
    assert!(kubectl.stderr.contains(warning), "{}", kubectl.stderr);
    let response = world.curl_as(&world.tokens.alice, "/agents/absent/kubernetes/api", &[]);
    assert!(
        response.status == 404 && !response.text().contains("absent (8)"),
        "alice must not see other agents: {}",
        response.text()
    );
}

#[test]
fn never_connected_agent_gets_503_after_short_wait() {
    let world = without_cluster();
    let started = Instant::now();
    let response = world.curl("/agents/absent/kubernetes/api", &[]);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!((response.status, response.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(response.header("retry-after").is_some() && response.header("x-request-id").is_some());
    let status = response.json();
    assert_eq!(status["reason"], "ServiceUnavailable");
    assert_eq!(status["details"]["causes"][0]["reason"], "agent-not-connected");
    assert!(status["message"].as_str().unwrap().contains("has not connected to this kas since it started"));
    let text = world.curl("/agents/absent/kubernetes/api", &["--header", "Accept: text/plain"]).text();
    assert!(text.starts_with("kas: agent absent is not connected"), "{text}");
}

#[test]
fn kubectl_reports_absent_agent_within_seconds() {
    let world = without_cluster();
    let started = Instant::now();
    let kubectl = world.kubectl_for_agent("absent").run(&["get", "pods"]);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert!(kubectl.stderr.contains("agent absent is not connected"), "{}", kubectl.stderr);
}

#[test]
fn unreachable_cluster_gets_502() {
    let world = without_cluster();
    let response = world.curl(&format!("/agents/{AGENT}/kubernetes/version"), &[]);
    assert_eq!((response.status, response.header("kas-error")), (502, Some("cluster-unreachable")));
    let message = response.json()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("kas: agent prod: ") && message.contains("127.0.0.1:1"), "{message}");
    assert!(message.to_lowercase().contains("connection refused"), "{message}");
    let kubectl = world.kubectl().run(&["get", "pods"]);
    assert!(kubectl.code == 1 && kubectl.stderr.contains("127.0.0.1:1"), "{}", kubectl.stderr);
}

#[test]
fn raw_path_without_agent_gets_an_explanation() {
    let world = without_cluster();
    let server = format!("--server={}", world.kas.url(""));
    let output = world.kubectl().run(&["get", "--raw", "/version", &server]);
    let whole = "give them the whole path, like /agents/<id or name>/kubernetes/version";
    assert!(output.code == 1 && output.stderr.contains(whole), "{}", output.stderr);
}

#[test]
fn unknown_service_gets_404_with_its_name() {
    let world = without_cluster();
    let response = world.curl(&format!("/agents/{AGENT}/logs/today"), &[]);
    assert_eq!((response.status, response.header("kas-error")), (404, Some("unknown-service")));
    assert!(response.text().contains("does not serve logs; it serves: "), "{}", response.text());
}

#[test]
fn invalid_credential_gets_401_of_kas() {
    let world = without_cluster();
    let path = format!("/agents/{AGENT}/kubernetes/api");
    let response = world.curl_as(&token::new(Holder::Caller), &path, &[]);
    assert_eq!((response.status, response.header("kas-error")), (401, Some("unauthorized")));
    assert_eq!(response.header("gitlab-unauthorized"), Some("true"));
    assert!(response.text().contains("the token is unknown or was revoked"), "{}", response.text());
    let response = world.curl("/k8s-proxy/api", &[]);
    assert!(
        response.status == 401 && response.text().contains("ci:<agent id>:<token>"),
        "{}",
        response.text()
    );
    assert_eq!(world.curl("/", &[]).status, 404);
}

#[test]
fn client_without_tunnel_protocol_gets_426() {
    let world = without_cluster();
    let url = format!("http://{}/", world.kas.agents);
    let response = curl(&[&url]);
    assert_eq!((response.status, response.header("upgrade")), (426, Some("websocket")));
    assert!(response.text().contains("callers use kas's public address"), "{}", response.text());
    let upgrade = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol: chat.v1",
    ]
    .map(|header| ["--header", header])
    .concat();
    let response = curl(&[&["--http1.1", &*url], &upgrade[..]].concat());
    assert_eq!(response.status, 426);
    assert!(response.text().contains("it supports kas-tunnel.v1, ws-tunnel"), "{}", response.text());
    assert_eq!(response.header("sec-websocket-protocol"), Some("kas-tunnel.v1, ws-tunnel"));
}

#[test]
fn revoked_token_closes_tunnels_within_seconds() {
    let mut world = without_cluster();
    world.tokens.write_identity(world.directory(), true);
    let started = Instant::now();
    eventually("the tunnels are cut", || world.kas.metric("kas_tunnels") == 0.0);
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    world.kas.process.line("token revoked", |line| line.contains("token revoked, tunnel cut"));
    world.agent.process.line("the token is refused", |line| line.contains("refused the agent token"));
    assert!(world.agent.process.runs());
    let response = world.curl(&format!("/agents/{AGENT}/kubernetes/api"), &[]);
    assert_eq!((response.status, response.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(response.text().contains("disconnected"), "{}", response.text());

    world.tokens.write_identity(world.directory(), false);
    eventually("the agent is back", || world.kas.metric("kas_tunnels") == default_tunnels());
}

#[test]
fn agent_logs_unreachable_kas_address() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = without_cluster();
    world.agent_options.kas = "ws://127.0.0.1:1".to_owned();
    let mut agent = Agent::start(directory.path(), &world.agent_options);
    let line =
        agent.process.line("the address", |line| line.contains("127.0.0.1:1") && line.contains("refused"));
    assert!(line.to_lowercase().contains("connection refused"), "{line}");
    assert!(agent.process.runs());

    let program = Kas::program().with_file_name("agentk");
    let output = run(Command::new(program).args(["--kas-address", "http://kas.example"]), b"");
    assert_ne!(output.status.code(), Some(0));
    assert!(!output.stderr.is_empty());
}
