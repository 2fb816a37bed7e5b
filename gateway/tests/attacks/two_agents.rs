//! Agents with the identity of another agent, and tokens at other listeners.

use std::time::Duration;

use http::{StatusCode, header::AUTHORIZATION};
use kas_testing::world::{World, text};
use proto::InstanceId;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{io::AsyncWriteExt as _, time::sleep};

use crate::{
    cluster::{assert_serves, services},
    http1::{read, status},
    http2::{END_STREAM, HEADERS, headers},
    tunnel_ends::{agent, agent_by, connect, upgrade, upgrade_as},
};

/// Returns a kas with another agent, whose token this is, and a caller of both.
fn with_another() -> (World, SecretString) {
    let world = World::new();
    let other = world.add_second_agent();
    (world, other)
}

#[tokio::test(start_paused = true)]
async fn attack_33_agent_receives_only_its_own_requests() {
    let (world, other) = with_another();
    let instance = InstanceId::random();
    let mut test = agent_by(&world, &upgrade_as(&other, instance), &[]).await;
    // Its word about which process it is makes it nobody else.
    let mut prod = agent_by(&world, &upgrade_as(&world.agent_token, instance), &[]).await;
    for (name, serving) in [("test", &mut test), ("prod", &mut prod)] {
        let (caller, path) = (world.clone(), format!("/agents/{name}/kubernetes/whose"));
        let asking = tokio::spawn(async move { caller.get(&path).await });
        let stream = serving.next_of(HEADERS).await.unwrap().stream;
        serving.send(&headers(stream, END_STREAM, &[(":status", "204")])).await;
        assert_eq!(asking.await.unwrap().status(), StatusCode::NO_CONTENT, "{name}");
    }
    drop(prod);
    world.tunnels(1).await;
    let answer = world.get("/agents/prod/kubernetes/whose").await;
    assert_eq!(answer.headers()["kas-error"], "agent-not-connected", "and not the other one's");
    assert!(tokio::time::timeout(Duration::from_secs(1), test.next_of(HEADERS)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn attack_33_repeated_hello_does_not_replace_the_first() {
    let (world, _other) = with_another();
    let said = upgrade(&world);
    let _honest = world.agent(services()).await;
    let first = agent_by(&world, &said, &[]).await;
    let again = agent_by(&world, &said, &[]).await;
    world.tunnels(4).await;
    drop((first, again));
    world.tunnels(2).await;
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_33_agent_cannot_send_requests() {
    let (world, _other) = with_another();
    for stream in [1, 2, 7] {
        let mut attacker = agent(&world, &[]).await;
        let bearer = format!("Bearer {}", world.agent_token.expose_secret());
        let request = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "kas"),
            (":path", "/agents/test/kubernetes/secrets"),
            ("authorization", &*bearer),
        ];
        attacker.send(&headers(stream, END_STREAM, &request)).await;
        assert!(attacker.goaway().await.is_some_and(|code| code != 0), "stream {stream}");
        world.tunnels(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn attack_33_token_is_refused_at_other_listeners() {
    let (world, other) = with_another();
    let _agent = world.agent(services()).await;
    for token in [&world.agent_token, &other] {
        let mut request = world.request("/agents/prod/kubernetes/api");
        let bearer = format!("Bearer {}", token.expose_secret());
        request.headers_mut().insert(AUTHORIZATION, bearer.parse().unwrap());
        let answer = world.send(request).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert!(!text(answer).await.contains(token.expose_secret()));
    }

    let good = upgrade(&world);
    let line = format!("authorization: Bearer {}\r\n", world.agent_token.expose_secret());
    for instead in [
        format!("authorization: Bearer {}\r\n", world.caller_token.expose_secret()),
        format!("authorization: Bearer ci:1:{}\r\n", world.agent_token.expose_secret()),
        format!("authorization: Basic {}\r\n", world.agent_token.expose_secret()),
        format!("{line}{line}"),
        "authorization: Bearer \r\n".into(),
        format!("authorization: Bearer {}\r\n", "x".repeat(8000)),
        format!("cookie: token={}\r\n", world.agent_token.expose_secret()),
        String::new(),
    ] {
        let mut attacker = connect(&world);
        attacker.write_all(good.replace(&line, &instead).as_bytes()).await.unwrap();
        let answer = read(&mut attacker).await;
        assert_eq!(status(&answer), 401, "{instead}: {answer}");
        assert!(!answer.contains("kas-agent-") && !answer.contains("kas-caller-"), "{answer}");
    }
    sleep(Duration::from_secs(1)).await;
    world.tunnels(2).await;
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_86_tunnels_that_an_agent_aborts_set_the_age_of_no_other_agent() {
    let (world, other) = with_another();
    let _honest = world.agent(services()).await;
    // Tunnels that end with their process say nothing about a load balancer.
    let instance = InstanceId::random();
    for _ in 0..8 {
        let hostile = agent_by(&world, &upgrade_as(&other, instance), &[]).await;
        world.tunnels(3).await;
        sleep(Duration::from_secs(11)).await;
        drop(hostile);
        world.tunnels(2).await;
    }
    assert_eq!(world.metric("kas_cut_age_seconds{listener=\"agent\"}"), 11.0, "of the hostile agent");
    let handshakes = || world.metric("kas_handshakes_total{reason=\"accepted\"}");
    let before = handshakes();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(handshakes(), before, "the honest agent replaces no tunnel");
    assert_serves(&world).await;
}
