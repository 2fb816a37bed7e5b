//! The limits of an address of agents: connections, and unknown tokens.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use http::{StatusCode, header::RETRY_AFTER};
use kas_testing::{
    handshake::handshake,
    world::{AGENT_ADDRESS, World, text},
};
use secrecy::ExposeSecret as _;
use testing::gitlab::Endpoint;
use tokio::time::sleep;

use crate::gitlab_client::{TOKEN, client, standin};

/// Sends a handshake without the data of the agent: 401 if the token is unknown, 400 if it is that of the agent.
async fn connect(world: &World, peer: &str, token: &str) -> StatusCode {
    let peer: SocketAddr = peer.parse().unwrap();
    handshake(world, peer, &[("authorization", &format!("Bearer {token}"))]).await.status()
}

async fn known(world: &World, peer: &str) -> StatusCode {
    connect(world, peer, world.agent_token.expose_secret()).await
}

/// Sends a token that nobody has sent before.
async fn unknown(world: &World, peer: &str) -> StatusCode {
    static SENT: AtomicU64 = AtomicU64::new(0);
    connect(world, peer, &format!("unknown-{}", SENT.fetch_add(1, Relaxed))).await
}

#[tokio::test(start_paused = true)]
async fn unknown_tokens_of_an_address_are_limited_and_good_ones_pass() {
    let (world, peer) = (World::new(), "192.0.2.7:40000");
    for _ in 0..60 {
        assert_eq!(unknown(&world, peer).await, StatusCode::UNAUTHORIZED);
    }
    for headers in [&[][..], &[("authorization", "Bearer guessed")]] {
        let refused = handshake(&world, peer.parse().unwrap(), headers).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()[RETRY_AFTER], "1");
        assert_eq!(
            text(refused).await,
            "this address has sent as many unknown agent tokens in this minute as allowed \
             (agent.listen.unknown_tokens_per_address_per_minute): wait, and check the token\n"
        );
    }
    assert_eq!(world.limit_count("unknown-tokens-per-address"), 2.0);
    assert_eq!(world.metric(r#"kas_handshakes_total{reason="unknown-token-rate-limit"}"#), 2.0);
    assert_eq!(known(&world, peer).await, StatusCode::BAD_REQUEST);
    assert_eq!(unknown(&world, "192.0.2.8:40000").await, StatusCode::UNAUTHORIZED, "another address");

    sleep(Duration::from_secs(1)).await;
    assert_eq!(unknown(&world, peer).await, StatusCode::UNAUTHORIZED, "one more each second");
    assert_eq!(unknown(&world, peer).await, StatusCode::TOO_MANY_REQUESTS);
}

/// GitLab's agentk sends a revoked token in each of its calls.
#[tokio::test(start_paused = true)]
async fn token_that_is_sent_again_and_again_does_not_shut_out_others() {
    let gitlab = standin().await;
    let limit = |config: &mut gateway::config::Config| {
        config.agent.listen.unknown_tokens_per_address_per_minute = 5;
    };
    let (world, peer) = (World::with_gitlab(client(&gitlab), TOKEN, limit), "192.0.2.7:40000");
    for _ in 0..100 {
        assert_eq!(connect(&world, peer, "glagent-revoked").await, StatusCode::UNAUTHORIZED);
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(known(&world, peer).await, StatusCode::BAD_REQUEST, "a token that is new to kas");
    assert_eq!(world.limit_count("unknown-tokens-per-address"), 0.0);
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn connections_of_an_address_are_limited_whatever_their_token() {
    let world = World::with(|config| config.agent.listen.connections_per_address_per_minute = 3);
    let peer = "[2001:db8::1]:40000";
    assert_eq!(known(&world, peer).await, StatusCode::BAD_REQUEST);
    assert_eq!(unknown(&world, peer).await, StatusCode::UNAUTHORIZED);
    assert_eq!(known(&world, "[2001:db8::2]:40000").await, StatusCode::BAD_REQUEST);
    let token = format!("Bearer {}", world.agent_token.expose_secret());
    let refused =
        handshake(&world, "[2001:db8::ffff]:40000".parse().unwrap(), &[("authorization", &token)]).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "an address of the same /64");
    assert_eq!(refused.headers()[RETRY_AFTER], "20");
    let message = text(refused).await;
    assert!(message.contains("(agent.listen.connections_per_address_per_minute): wait;"), "{message}");
    assert_eq!(world.limit_count("connections-per-address"), 1.0);
    assert_eq!(world.metric(r#"kas_handshakes_total{reason="address-rate-limit"}"#), 1.0);
    assert_eq!(known(&world, "[2001:db8:0:1::1]:40000").await, StatusCode::BAD_REQUEST, "another /64");

    sleep(Duration::from_secs(20)).await;
    assert_eq!(known(&world, peer).await, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn clients_of_a_trusted_proxy_have_limits_of_their_own() {
    for (trusted, second) in [(true, StatusCode::UNAUTHORIZED), (false, StatusCode::TOO_MANY_REQUESTS)] {
        let world = World::with(|config| {
            config.agent.listen.unknown_tokens_per_address_per_minute = 1;
            if trusted {
                config.agent.listen.trusted_proxies = vec!["192.0.2.0/24".parse().unwrap()];
            }
        });
        for (client, expected) in [("198.51.100.7", StatusCode::UNAUTHORIZED), ("198.51.100.8", second)] {
            let response = handshake(&world, AGENT_ADDRESS, &[("x-forwarded-for", client)]).await;
            assert_eq!(response.status(), expected, "{client}, trusted: {trusted}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn address_that_has_to_wait_does_not_reach_gitlab() {
    let gitlab = standin().await;
    let limit = |config: &mut gateway::config::Config| {
        config.agent.listen.unknown_tokens_per_address_per_minute = 5;
    };
    let (world, peer) = (World::with_gitlab(client(&gitlab), TOKEN, limit), "192.0.2.7:40000");
    assert_eq!(known(&world, peer).await, StatusCode::BAD_REQUEST);
    for n in 0..5 {
        assert_eq!(connect(&world, peer, &format!("glagent-{n}")).await, StatusCode::UNAUTHORIZED);
    }
    // The sixth lookup finds that the limit is reached. From then on, the replica remembers it.
    assert_eq!(connect(&world, peer, "glagent-5").await, StatusCode::TOO_MANY_REQUESTS);
    let lookups = gitlab.requests(Endpoint::AgentInfo);
    assert_eq!(lookups, 7);
    for n in 6..20 {
        assert_eq!(connect(&world, peer, &format!("glagent-{n}")).await, StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(gitlab.requests(Endpoint::AgentInfo), lookups);
    assert_eq!(known(&world, peer).await, StatusCode::BAD_REQUEST, "GitLab knew this token");
    gitlab.assert_no_violations();
}
