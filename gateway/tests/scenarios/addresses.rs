//! The addresses of clients behind proxies, and the networks that may connect.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::Path;

use access::{Identity, token::TokenHash};
use agentk_core::Services;
use gateway::{config::ProxyProtocol, test_support::AddressRules};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kas_testing::{
    internal_api,
    world::{AGENT_ADDRESS, World, endless, text},
};
use secrecy::ExposeSecret as _;
use settings::Network;
use testing::logs::Logs;
use tunnel::Body;

fn networks(list: &[&str]) -> Vec<Network> {
    list.iter().map(|network| network.parse().unwrap()).collect()
}

fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| match request.uri().path() {
        "/watch" => Response::new(endless("watching")),
        _ => Response::new(Body::from("hello")),
    })
}

/// Writes the identity file anew, with networks of the agent and of the caller.
fn set_networks(world: &World, agent: &str, caller: &str) {
    let (agent_token, caller_token) = (TokenHash::of(&world.agent_token), TokenHash::of(&world.caller_token));
    let text = format!(
        "agents: [{{id: 1, name: prod, tokens: ['{agent_token}']{agent}}}]\n\
         callers: [{{name: ci, tokens: ['{caller_token}'], agents: ['*'], services: ['*']{caller}}}]\n"
    );
    world.kas.identities.replace(Identity::parse(Path::new("identity.yaml"), &text).unwrap());
}

/// Sends a handshake without the data of the agent, which is 400 once its address is accepted. Returns status and message.
async fn handshake(world: &World, forwarded_for: Option<&str>) -> (StatusCode, String) {
    let bearer = format!("Bearer {}", world.agent_token.expose_secret());
    let mut headers = vec![("authorization", bearer.as_str())];
    headers.extend(forwarded_for.map(|value| ("x-forwarded-for", value)));
    let response = kas_testing::handshake::handshake(world, AGENT_ADDRESS, &headers).await;
    (response.status(), text(response).await)
}

/// Sends a request of the caller with an `X-Forwarded-For`. Returns the status, and the reason of an error.
async fn call(world: &World, forwarded_for: &str) -> (StatusCode, Option<String>) {
    let mut request = world.request("/agents/prod/kubernetes/");
    request.headers_mut().insert("x-forwarded-for", forwarded_for.parse().unwrap());
    let response = world.send(request).await;
    let reason = response.headers().get("kas-error").map(|reason| reason.to_str().unwrap().to_owned());
    (response.status(), reason)
}

#[tokio::test(start_paused = true)]
async fn agent_behind_a_trusted_proxy_has_the_address_of_the_header() {
    for (trusted, expected) in [(&["192.0.2.0/24"][..], "198.51.100.7"), (&[], "192.0.2.2:40000")] {
        let (world, logs) =
            (World::with(|config| config.agent.listen.trusted_proxies = networks(trusted)), Logs::capture());
        let (status, _) = handshake(&world, Some("6.6.6.6, 198.51.100.7")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let logs = logs.text();
        assert!(logs.contains(&format!("peer=\"{expected}\"")), "{expected}: {logs}");
    }
}

#[tokio::test(start_paused = true)]
async fn networks_of_the_listener_apply_to_each_client_of_a_proxy() {
    let world = World::with(|config| {
        config.agent.listen.trusted_proxies = networks(&["192.0.2.0/24"]);
        config.agent.listen.allowed_networks = networks(&["198.51.100.0/24"]);
        let listen = &mut config.agent.kubernetes_api.listen;
        listen.trusted_proxies = networks(&["192.0.2.0/24"]);
        listen.allowed_networks = networks(&["198.51.100.0/24"]);
    });
    let (status, message) = handshake(&world, Some("203.0.113.7")).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(
        message,
        "connections from 203.0.113.7 are not allowed: it is in none of the networks of agent.listen.allowed_networks\n"
    );
    assert_eq!(world.metric(r#"kas_handshakes_total{reason="address-not-allowed"}"#), 1.0);
    assert_eq!(handshake(&world, Some("198.51.100.7")).await.0, StatusCode::BAD_REQUEST);

    let refused = (StatusCode::FORBIDDEN, Some("address-not-allowed".to_owned()));
    assert_eq!(call(&world, "203.0.113.7").await, refused);
    assert_eq!(call(&world, "rubbish").await, refused, "it has the address of the proxy");
    assert_eq!(call(&world, "198.51.100.7").await.0, StatusCode::SERVICE_UNAVAILABLE, "there is no agent");
}

#[tokio::test(start_paused = true)]
async fn change_of_an_agents_networks_cuts_its_tunnels() {
    let (world, logs) = (World::new(), Logs::capture());
    let _agent = world.agent(services()).await;
    set_networks(&world, ", allowed_networks: [192.0.2.0/24]", "");
    assert_eq!(text(world.get("/agents/prod/kubernetes/").await).await, "hello");

    set_networks(&world, ", allowed_networks: [198.51.100.0/24]", "");
    world.tunnels(0).await;
    assert!(logs.text().contains("address of the agent not allowed any more, tunnel cut"), "{}", logs.text());
    let (status, message) = handshake(&world, None).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(message.ends_with("the entry of agent prod in the identity file of kas\n"), "{message}");

    set_networks(&world, "", "");
    world.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn change_of_a_callers_networks_cuts_its_streams() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    set_networks(&world, "", ", allowed_networks: [192.0.2.0/24]");
    let mut watch = world.get("/agents/prod/kubernetes/watch").await.into_body();
    watch.frame().await.unwrap().unwrap();

    set_networks(&world, "", ", allowed_networks: [198.51.100.0/24]");
    while let Some(Ok(_)) = watch.frame().await {}
    let response = world.get("/agents/prod/kubernetes/").await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(response.headers()["kas-error"], "address-not-allowed");
    let body = text(response).await;
    assert!(body.contains("requests from 192.0.2.1 are not allowed"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn networks_of_the_internal_api_come_before_its_tokens() {
    let world = World::new();
    let rules =
        AddressRules::new(&networks(&["192.0.2.0/24"]), ProxyProtocol::Off, &networks(&["198.51.100.0/24"]));
    for (forwarded_for, status) in [("203.0.113.7", 403), ("198.51.100.7", 401)] {
        let io = internal_api::connect_with_addresses(&world, rules.clone());
        let request =
            Request::get("/api/v1/agents").header("host", "kas").header("x-forwarded-for", forwarded_for);
        let response = internal_api::send_over(io, request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), status);
    }
    assert_eq!(world.metric(r#"kas_api_requests_total{result="address-not-allowed"}"#), 1.0);
}
