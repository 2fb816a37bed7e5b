//! What people read when something is wrong.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use gateway::token::{self, Holder};
use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::support::{AGENT, Agent, Kas, World, curl, eventually, run};

/// kas, and an agentk whose cluster cannot be reached.
fn without_cluster() -> World {
    World::without_cluster(|options, certificates| options.public_tls = Some(certificates))
}

#[test]
fn a_wrong_configuration_is_named_by_line_and_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kas.yaml");
    let serve = |text: &str| {
        fs::write(&file, text).unwrap();
        let output = run(Kas::command().args(["serve", "--config"]).arg(&file), b"");
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said.replace(&*file.to_string_lossy(), "kas.yaml"))
    };
    let (code, said) = serve("identity: {file: i.yaml}\nagent:\n  listen:\n    adress: 127.0.0.1:0\n");
    assert_eq!(code, Some(64), "{said}");
    assert!(said.starts_with("kas: kas.yaml:4:5: agent.listen.adress: unknown field `adress`"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let (code, said) = serve("identity: {file: i.yaml}\n");
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("i.yaml: the file does not exist"), "{said}");

    fs::write(directory.path().join("i.yaml"), "agents: []\n").unwrap();
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied.local_addr().unwrap();
    let (code, said) =
        serve(&format!("identity: {{file: i.yaml}}\nagent: {{listen: {{address: '{address}'}}}}\n"));
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains(&format!("cannot listen on {address} for agent")), "{said}");
}

#[test]
fn an_agent_with_a_wrong_token_says_so_and_tries_again() {
    let world = without_cluster();
    let directory = tempfile::tempdir().unwrap();
    let wrong = token::new(Holder::Agent);
    let mut options = world.agent_options.clone();
    options.token = wrong.expose_secret().to_owned();
    let mut stranger = Agent::start(directory.path(), &options);

    let line = stranger.process.line("the token is refused", |line| line.contains("refused the agent token"));
    assert!(line.contains("agent-token"), "it names the file: {line}");
    let refused = |line: &str| line.contains("a tunnel was refused") && line.contains("401");
    world.kas.process.line("a tunnel was refused", refused);
    let before = world.kas.metric("kas_handshakes_total");
    eventually("it tries again", || world.kas.metric("kas_handshakes_total") >= before + 2.0);
    assert!(stranger.process.runs());
    for said in [world.kas.process.printed(), stranger.process.printed()] {
        assert!(!said.contains(wrong.expose_secret()), "nobody prints the token");
    }
}

#[test]
fn an_unknown_agent_is_not_found_among_those_that_are_there() {
    let world = without_cluster();
    let reply = world.curl("/agents/nope/kubernetes/api/v1/pods", &[]);
    assert_eq!((reply.status, reply.header("kas-error")), (404, Some("unknown-agent")));
    let status = reply.json();
    assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &json!("NotFound")));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("\"nope\"") && message.contains("prod (7)"), "{message}");

    let kubectl = world.kubectl_of_agent("nope").run(&["get", "pods"]);
    assert_eq!(kubectl.code, 1);
    let warning = "Warning: there is no agent \"nope\" for caller ops; there are: ";
    assert!(kubectl.stderr.contains(warning), "{}", kubectl.stderr);
    let reply = world.curl_as(&world.tokens.alice, "/agents/absent/kubernetes/api", &[]);
    assert!(
        reply.status == 404 && !reply.text().contains("absent (8)"),
        "alice may not know: {}",
        reply.text()
    );
}

#[test]
fn an_agent_that_never_connected_is_unavailable_after_a_short_wait() {
    let world = without_cluster();
    let started = Instant::now();
    let reply = world.curl("/agents/absent/kubernetes/api", &[]);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!((reply.status, reply.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(reply.header("retry-after").is_some() && reply.header("x-request-id").is_some());
    let status = reply.json();
    assert_eq!(status["reason"], "ServiceUnavailable");
    assert_eq!(status["details"]["causes"][0]["reason"], "agent-not-connected");
    assert!(status["message"].as_str().unwrap().contains("has not connected since this kas started"));
    let text = world.curl("/agents/absent/kubernetes/api", &["--header", "Accept: text/plain"]).text();
    assert!(text.starts_with("kas: agent absent has not connected"), "{text}");
}

#[test]
fn kubectl_is_told_of_an_absent_agent_within_seconds() {
    let world = without_cluster();
    let started = Instant::now();
    let kubectl = world.kubectl_of_agent("absent").run(&["get", "pods"]);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert!(kubectl.stderr.contains("agent absent has not connected"), "{}", kubectl.stderr);
}

#[test]
fn an_unreachable_cluster_is_a_bad_gateway() {
    let world = without_cluster();
    let reply = world.curl(&format!("/agents/{AGENT}/kubernetes/version"), &[]);
    assert_eq!((reply.status, reply.header("kas-error")), (502, Some("cluster-unreachable")));
    let message = reply.json()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("kas: agent prod: ") && message.contains("127.0.0.1:1"), "{message}");
    assert!(message.to_lowercase().contains("connection refused"), "{message}");
    let kubectl = world.kubectl().run(&["get", "pods"]);
    assert!(kubectl.code == 1 && kubectl.stderr.contains("127.0.0.1:1"), "{}", kubectl.stderr);
}

#[test]
fn a_service_that_the_agent_does_not_serve_is_named() {
    let world = without_cluster();
    let reply = world.curl(&format!("/agents/{AGENT}/gitops/state"), &[]);
    assert_eq!((reply.status, reply.header("kas-error")), (404, Some("unknown-service")));
    assert!(reply.text().contains("does not serve gitops; it serves: "), "{}", reply.text());
}

#[test]
fn a_bad_credential_is_unauthorized_and_said_to_be_kas_s() {
    let world = without_cluster();
    let path = format!("/agents/{AGENT}/kubernetes/api");
    let reply = world.curl_as(&token::new(Holder::Caller), &path, &[]);
    assert_eq!((reply.status, reply.header("kas-error")), (401, Some("unauthorized")));
    assert_eq!(reply.header("gitlab-unauthorized"), Some("true"));
    assert!(reply.text().contains("the token is unknown or was revoked"), "{}", reply.text());
    let reply = world.curl("/k8s-proxy/api", &[]);
    assert!(reply.status == 401 && reply.text().contains("ci:<agent id>:<token>"), "{}", reply.text());
    assert_eq!(world.curl("/", &[]).status, 404);
}

#[test]
fn who_is_no_agent_is_told_so_on_the_port_of_agents() {
    let world = without_cluster();
    let url = format!("http://{}/", world.kas.agents);
    let reply = curl(&[&url]);
    assert_eq!((reply.status, reply.header("upgrade")), (426, Some("websocket")));
    assert!(reply.text().contains("callers use kas's public address"), "{}", reply.text());
    let upgrade = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol: ws-tunnel",
    ]
    .map(|header| ["--header", header])
    .concat();
    let reply = curl(&[&["--http1.1", &*url], &upgrade[..]].concat());
    assert_eq!(reply.status, 426);
    assert!(reply.text().contains("this kas speaks kas-tunnel.v1"), "{}", reply.text());
    assert_eq!(reply.header("sec-websocket-protocol"), Some("kas-tunnel.v1"));
}

#[test]
fn a_revoked_token_cuts_the_tunnels_within_seconds() {
    let mut world = without_cluster();
    world.tokens.write_identity(world.directory(), true);
    let started = Instant::now();
    eventually("the tunnels are cut", || world.kas.metric("kas_tunnels") == 0.0);
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    world.kas.process.line("token revoked", |line| line.contains("token revoked, tunnel cut"));
    world.agent.process.line("the token is refused", |line| line.contains("refused the agent token"));
    assert!(world.agent.process.runs());
    let reply = world.curl(&format!("/agents/{AGENT}/kubernetes/api"), &[]);
    assert_eq!((reply.status, reply.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(reply.text().contains("is not connected since"), "{}", reply.text());

    world.tokens.write_identity(world.directory(), false);
    eventually("the agent is back", || world.kas.metric("kas_tunnels") == 2.0);
}

#[test]
fn an_agent_says_where_it_cannot_reach_kas() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = without_cluster();
    world.agent_options.kas = "ws://127.0.0.1:1".to_owned();
    let mut lost = Agent::start(directory.path(), &world.agent_options);
    let line =
        lost.process.line("the address", |line| line.contains("127.0.0.1:1") && line.contains("refused"));
    assert!(line.to_lowercase().contains("connection refused"), "{line}");
    assert!(lost.process.runs());

    let program = Kas::program().with_file_name("agentk");
    let output = run(Command::new(program).args(["--kas-address", "http://kas.example"]), b"");
    assert_ne!(output.status.code(), Some(0));
    assert!(!output.stderr.is_empty());
}
