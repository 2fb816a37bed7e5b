//! Hosts that name other agents than the credential, the path or the connection.

use gateway::test_support::TlsName;
use http::Request;
use kas_testing::{
    gitlab::{AGENT, world_with},
    world::{World, text},
};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tunnel::Body;

use crate::{
    cluster::Seen,
    http1::{exchange, read, status},
};

const PATTERN: &str = "{agent}.k8s.example.com";

/// Returns a world with the agents `prod`, which has a tunnel, and `test`. The caller may use `prod` only.
async fn attacked() -> (World, Seen, impl Sized) {
    let world = World::with(|config| config.agent.kubernetes_api.hosts = vec![PATTERN.parse().unwrap()]);
    let other = "agents: [{id: 2, name: test, tokens: []}, ";
    let identity = world.identity_file("services: ['*']").replacen("agents: [", other, 1);
    world.kas.identities.replace(kas_testing::world::parse(&identity));
    let seen = Seen::default();
    let agent = world.agent(seen.services()).await;
    (world, seen, agent)
}

/// Returns a request with the credential of the caller.
fn request(world: &World, target: &str, lines: &str) -> String {
    let authorization = world.authorization();
    format!("GET {target} HTTP/1.1\r\n{lines}{authorization}\r\nConnection: close\r\n\r\n")
}

/// Returns the status and the reason of a response.
fn outcome(answer: &str) -> (u16, Option<&str>) {
    let reason = answer.lines().find_map(|line| line.strip_prefix("kas-error: "));
    (status(answer), reason)
}

const MISDIRECTED: (u16, Option<&str>) = (421, Some("misdirected-request"));

#[tokio::test(start_paused = true)]
async fn attack_89_host_of_another_agent_is_refused_like_its_path() {
    let (world, seen, _agent) = attacked().await;
    let by_path = exchange(&world, request(&world, "/agents/test/kubernetes/api", "Host: kas\r\n")).await;
    assert_eq!(outcome(&by_path), (404, Some("unknown-agent")), "{by_path}");
    for lines in [
        "Host: test.k8s.example.com\r\n",
        "Host: TEST.k8s.example.com:443\r\n",
        "Host: 2.k8s.example.com\r\n",
        "Host: test.k8s.example.com\r\nX-Forwarded-Host: prod.k8s.example.com\r\n",
        "Host: test.k8s.example.com\r\nForwarded: host=prod.k8s.example.com\r\n",
    ] {
        for target in ["/api", "/agents/prod/kubernetes/api", "/k8s-proxy/api"] {
            let answer = exchange(&world, request(&world, target, lines)).await;
            assert_eq!(outcome(&answer), outcome(&by_path), "{lines}: {answer}");
        }
    }
    for lines in [
        "Host: a.prod.k8s.example.com\r\n",
        "Host: prod.k8s.example.com.\r\n",
        "Host: .k8s.example.com\r\n",
        "Host: prod%2ek8s.k8s.example.com\r\n",
    ] {
        let answer = exchange(&world, request(&world, "/agents/prod/kubernetes/api", lines)).await;
        assert_eq!(outcome(&answer), MISDIRECTED, "{lines}: {answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn attack_89_path_on_the_host_of_an_agent_does_not_name_another_agent() {
    let (world, seen, _agent) = attacked().await;
    for lines in [
        "Host: prod.k8s.example.com\r\n",
        "Host: prod.k8s.example.com\r\nX-Forwarded-Host: test.k8s.example.com\r\n",
    ] {
        for target in ["/agents/test/kubernetes/api", "/k8s-proxy/api", "/agents", "/metrics?a=b", "/"] {
            let before = seen.all().len();
            let answer = exchange(&world, request(&world, target, lines)).await;
            assert_eq!(status(&answer), 200, "{target}: {answer}");
            assert_eq!(seen.all()[before..], [format!("GET {target}")]);
        }
    }
}

/// RFC 9112 section 3.2.2: the authority of the target wins. kas refuses requests in which they differ.
#[tokio::test(start_paused = true)]
async fn attack_89_target_and_host_of_different_agents_are_misdirected() {
    let (world, seen, _agent) = attacked().await;
    for (authority, host) in [
        ("prod.k8s.example.com", "test.k8s.example.com"),
        ("test.k8s.example.com", "prod.k8s.example.com"),
        ("kas", "prod.k8s.example.com"),
        ("prod.k8s.example.com", "kas"),
    ] {
        let target = format!("http://{authority}/agents/prod/kubernetes/api");
        let answer = exchange(&world, request(&world, &target, &format!("Host: {host}\r\n"))).await;
        assert_eq!(outcome(&answer), MISDIRECTED, "{authority} {host}: {answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
}

/// RFC 9113 section 9.1.2: clients send a request again on another connection after 421.
#[tokio::test(start_paused = true)]
async fn attack_89_connection_for_another_host_is_misdirected() {
    let (world, seen, _agent) = attacked().await;
    for (name, host) in [
        (Some("test.k8s.example.com"), "prod.k8s.example.com"),
        (Some("kas"), "prod.k8s.example.com"),
        (None, "prod.k8s.example.com"),
        (Some("prod.k8s.example.com"), "kas"),
    ] {
        let mut connection = world.connect_with_name(TlsName::Sent(name.map(Box::from)));
        let request = request(&world, "/agents/prod/kubernetes/api", &format!("Host: {host}\r\n"));
        connection.write_all(request.as_bytes()).await.unwrap();
        let answer = read(&mut connection).await;
        assert_eq!(outcome(&answer), MISDIRECTED, "{name:?} {host}: {answer}");
        assert!(answer.contains("SNI"), "the message has the cause: {answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    let mut connection = world.connect_with_name(TlsName::Sent(Some("prod.k8s.example.com".into())));
    let request = request(&world, "/api", "Host: PROD.k8s.example.com:8154\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let answer = read(&mut connection).await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert_eq!(seen.all(), ["GET /api"]);
}

/// Streams of one HTTP/2 connection may have different authorities (RFC 9113 section 9.1.1).
#[tokio::test(start_paused = true)]
async fn attack_89_coalesced_http2_connection_serves_its_own_host_only() {
    let (world, seen, _agent) = attacked().await;
    let connection = world.connect_with_name(TlsName::Sent(Some("prod.k8s.example.com".into())));
    let executor = hyper_util::rt::TokioExecutor::new();
    let handshake = hyper::client::conn::http2::handshake(executor, hyper_util::rt::TokioIo::new(connection));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let authorization = world.authorization();
    let (_, bearer) = authorization.split_once(": ").unwrap();
    for (host, expected) in [("prod", 200), ("test", 421), ("2", 421), ("prod", 200)] {
        let request = Request::get(format!("https://{host}.k8s.example.com/api"));
        let request = request.header("authorization", bearer).body(Body::empty()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), expected, "{host}");
        text(response).await;
    }
    assert_eq!(seen.all(), ["GET /api", "GET /api"]);
}

#[tokio::test(start_paused = true)]
async fn attack_89_credential_of_gitlab_for_another_agent_is_refused() {
    let seen = Seen::default();
    let edit = |config: &mut gateway::config::Config| {
        config.agent.kubernetes_api.hosts = vec![PATTERN.parse().unwrap()];
    };
    let limit = kas_gitlab::ApiRateLimit::default();
    let (gitlab, world, _agent) = world_with(&limit, edit, seen.services()).await;
    let job = testing::gitlab::Job::new(3, 30).with_agent(AGENT, json!({})).with_agent(8, json!({}));
    gitlab.state().add_job("job", job);
    let send = async |target: &str, host: &str, token: &str| {
        let lines = format!("Host: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n");
        exchange(&world, format!("GET {target} HTTP/1.1\r\n{lines}\r\n")).await
    };
    for (agent, token) in [("8", "ci:7:job"), ("7", "ci:8:job"), ("test", "ci:7:job")] {
        let by_path = send(&format!("/agents/{agent}/kubernetes/api"), "kas", token).await;
        assert!((400..500).contains(&status(&by_path)), "{by_path}");
        let by_host = send("/api", &format!("{agent}.k8s.example.com"), token).await;
        assert_eq!(outcome(&by_host), outcome(&by_path), "{agent} {token}: {by_host}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    let answer = send("/api", "7.k8s.example.com", "ci:7:job").await;
    assert_eq!(status(&answer), 200, "{answer}");
}
