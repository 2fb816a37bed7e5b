//! Callers with forged, stolen and unsuitable OIDC tokens.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::future::join_all;
use kas_testing::{
    internal_api::jwt,
    issuer::{Behavior, IssuerKey, TestIssuer, claims},
    world::World,
};
use serde_json::{Value, json};
use testing::logs::Logs;

use crate::{
    cluster::Seen,
    http1::{exchange, status},
};

const CALLERS: &str = "{name: app, oidc: {issuer: test, claims: {project: app}}, agents: [prod], services: [kubernetes], \
                       access_as: {user: {}}}";

async fn attacked(issuer: &TestIssuer) -> (World, Seen, impl Sized + use<>) {
    let world = World::with_issuer(issuer, "groups_claim: groups, groups_prefix: '', username_prefix: ''");
    world.set_callers(CALLERS);
    let seen = Seen::default();
    let agent = world.agent(seen.services()).await;
    (world, seen, agent)
}

async fn send(world: &World, lines: &str) -> String {
    exchange(
        world,
        format!(
            "GET /agents/prod/kubernetes/who HTTP/1.1\r\nHost: kas\r\nConnection: close\r\n{lines}\r\n\r\n"
        ),
    )
    .await
}

async fn send_token(world: &World, token: &str) -> String {
    send(world, &format!("Authorization: Bearer {token}")).await
}

fn app(additional: Value) -> Value {
    let mut claims = claims(additional);
    claims["project"] = "app".into();
    claims
}

#[tokio::test(start_paused = true)]
async fn attack_31_token_cannot_name_a_user_of_kubernetes() {
    let key = IssuerKey::ec("a");
    let (world, seen, _agent) = attacked(&TestIssuer::new(&[&key])).await;
    for additional in [
        json!({"sub": "system:admin"}),
        json!({"sub": "system:serviceaccount:kube-system:default"}),
        json!({"groups": "system:masters"}),
        json!({"groups": ["dev", "system:masters"]}),
        json!({"groups": ["dev", " system:masters"]}),
        json!({"groups": ["\tsystem:masters"]}),
        json!({"groups": ["system:masters "]}),
        json!({"sub": " system:admin"}),
        json!({"sub": "bob "}),
        json!({"sub": "a\r\nImpersonate-Group: system:masters"}),
        json!({"groups": ["dev\nImpersonate-User: root"]}),
    ] {
        let answer = send_token(&world, &key.token(&app(additional.clone()))).await;
        assert_eq!(status(&answer), 401, "{additional}: {answer}");
    }
    let token = key.token(&app(json!({})));
    let answer = send(&world, &format!("Authorization: Bearer {token}\r\nImpersonate-User: root")).await;
    assert_eq!(status(&answer), 400, "{answer}");
    assert_eq!(seen.all(), Vec::<String>::new());
    let answer = send_token(&world, &token).await;
    assert!(status(&answer) == 200 && answer.contains("impersonate-user: \"alice\""), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_32_misplaced_token_is_refused_and_not_logged() {
    let logs = Logs::capture();
    let key = IssuerKey::ec("a");
    let (world, seen, _agent) = attacked(&TestIssuer::new(&[&key])).await;
    let token = key.token(&app(json!({})));
    let long = "x".repeat(9000);
    for lines in [
        format!("Authorization: Bearer {token}\r\nAuthorization: Bearer {token}"),
        format!("Authorization: Bearer {token}, Bearer {token}"),
        format!("Authorization: Bearer {token}."),
        format!("Authorization: Bearer {token}.{token}"),
        format!("Authorization: Bearer {} {}", &token[..20], &token[20..]),
        format!("Authorization: Bearer oidc:1:{token}"),
        format!("Authorization: Bearer {token}{long}{long}"),
        format!("Cookie: token={token}"),
        format!("X-Id-Token: {token}"),
    ] {
        let answer = send(&world, &lines).await;
        assert_eq!(status(&answer), 401, "{lines}: {answer}");
        assert!(!answer.contains(&token), "{answer}");
    }
    // It is not encoded.
    let protocol = format!("Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{token}");
    let answer = send(&world, &protocol).await;
    assert!(status(&answer) == 400 && !answer.contains(&token), "{answer}");
    let line = format!("GET /agents/prod/kubernetes/who?id_token={token} HTTP/1.1\r\nHost: kas\r\n\r\n");
    assert_eq!(status(&exchange(&world, line).await), 401);
    assert_eq!(seen.all(), Vec::<String>::new());
    assert_eq!(status(&send_token(&world, &token).await), 200);
    let text = logs.text();
    assert!(text.contains("request answered") && !text.contains(&token), "{text}");
    assert!(!text.contains(token.rsplit('.').next().unwrap()), "{text}");
}

#[tokio::test(start_paused = true)]
async fn attack_35_outage_is_neither_an_allow_nor_a_lasting_deny() {
    let key = IssuerKey::ec("a");
    let issuer = TestIssuer::new(&[&key]);
    issuer.set(Behavior::Down);
    let (world, seen, _agent) = attacked(&issuer).await;
    let token = key.token(&app(json!({})));
    let answer = send_token(&world, &token).await;
    assert_eq!(status(&answer), 503, "{answer}");
    assert_eq!(seen.all(), Vec::<String>::new());
    issuer.set(Behavior::Up);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(status(&send_token(&world, &token).await), 200);
}

#[tokio::test(start_paused = true)]
async fn attack_35_many_callers_cause_one_fetch_of_the_keys() {
    let key = IssuerKey::ec("a");
    let issuer = TestIssuer::new(&[&key]);
    issuer.set(Behavior::Slow(Duration::from_secs(2)));
    let (world, _seen, _agent) = attacked(&issuer).await;
    let tokens: Vec<_> = (0..100).map(|id| key.token(&app(json!({"jti": id})))).collect();
    let answers = join_all(tokens.iter().map(|token| send_token(&world, token))).await;
    assert!(answers.iter().all(|answer| status(answer) == 200));
    assert_eq!(issuer.fetches(), 2, "the discovery document and the keys");
}

#[tokio::test(start_paused = true)]
async fn attack_35_random_key_ids_do_not_flood_the_issuer() {
    let key = IssuerKey::ec("a");
    let issuer = TestIssuer::new(&[&key]);
    let (world, _seen, _agent) = attacked(&issuer).await;
    assert_eq!(status(&send_token(&world, &key.token(&app(json!({})))).await), 200);
    let before = issuer.fetches();
    for second in 0..60 {
        let forged = (0..10)
            .map(|id| key.sign(&json!({"alg": "ES256", "kid": format!("{second}-{id}")}), &app(json!({}))));
        let forged: Vec<_> = forged.collect();
        for answer in join_all(forged.iter().map(|token| send_token(&world, token))).await {
            assert!(matches!(status(&answer), 401 | 429), "{answer}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let fetches = issuer.fetches() - before;
    assert!((2..=14).contains(&fetches), "two documents in ten seconds: {fetches}");
}

#[tokio::test(start_paused = true)]
async fn attack_37_forged_tokens_are_refused() {
    let (key, stranger) = (IssuerKey::rsa("a"), IssuerKey::rsa("a"));
    let (world, seen, _agent) = attacked(&TestIssuer::new(&[&key])).await;
    let good = key.token(&app(json!({})));
    let (message, signature) = good.rsplit_once('.').unwrap();
    let (header, body) = message.split_once('.').unwrap();
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let admin = part(&app(json!({"sub": "admin"})));
    let none = part(&json!({"alg": "none", "kid": "a"}));
    let embedded =
        json!({"alg": "RS256", "kid": "b", "jwk": stranger.jwk(), "jku": "https://evil.example.com/keys"});
    for token in [
        format!("{none}.{body}."),
        format!("{none}.{body}.{signature}"),
        format!("{header}.{body}."),
        format!("{header}.{admin}.{signature}"),
        stranger.token(&app(json!({}))),
        stranger.sign(&embedded, &app(json!({}))),
        stranger.sign(&json!({"alg": "RS256", "x5u": "https://evil.example.com/a.pem"}), &app(json!({}))),
        stranger.sign(&json!({"alg": "RS256", "kid": "a", "x5c": ["MIIB"]}), &app(json!({}))),
        stranger.sign(&json!({"alg": "RS256", "kid": "../a"}), &app(json!({}))),
        stranger.sign(&json!({"alg": "RS256", "kid": "a\0"}), &app(json!({}))),
        key.sign(&json!({"alg": "RS256", "kid": 1}), &app(json!({}))),
        key.sign(&json!({"alg": "rs256", "kid": "a"}), &app(json!({}))),
        format!("{good}.{body}.{signature}"),
        stranger.sign(&json!({"alg": "RS256", "kid": "a' OR 1=1"}), &app(json!({}))),
        jwt(key.public_bytes(), &json!({"alg": "HS256", "kid": "a"}), &app(json!({}))),
        jwt(b"", &json!({"alg": "HS256"}), &app(json!({}))),
        key.sign(&json!({"alg": "RS256", "kid": "a", "crit": ["exp"]}), &app(json!({}))),
        key.sign(&json!({"alg": "RS256", "kid": "a", "crit": []}), &app(json!({}))),
        key.token(&app(json!({"exp": 1}))),
        key.token(&app(json!({"exp": "4000000000"}))),
        key.token(&app(json!({"aud": ["other", ["kas"]]}))),
        key.token(&app(json!({"iss": [TestIssuer::URL]}))),
        key.token(&app(json!({"exp": null}))),
        key.token(&app(json!({"nbf": 4_000_000_000_u64}))),
        key.token(&app(json!({"aud": "kas.example.com"}))),
        key.token(&app(json!({"iss": "https://issuer.example.com.evil.example.com"}))),
        key.token(&claims(json!({"project": "apps"}))),
    ] {
        let answer = send_token(&world, &token).await;
        assert_eq!(status(&answer), 401, "{token}: {answer}");
    }
    assert_eq!(seen.all(), Vec::<String>::new());
    assert_eq!(status(&send_token(&world, &good).await), 200);
}

#[tokio::test(start_paused = true)]
async fn attack_75_forged_tokens_of_one_address_are_limited() {
    let (key, stranger) = (IssuerKey::ec("a"), IssuerKey::ec("a"));
    let (world, _seen, _agent) = attacked(&TestIssuer::new(&[&key])).await;
    let good = key.token(&app(json!({})));
    assert_eq!(status(&send_token(&world, &good).await), 200);
    for id in 0..100 {
        let (forged, expired) =
            (stranger.token(&app(json!({"jti": id}))), key.token(&app(json!({"exp": 1, "jti": id}))));
        if id < 60 {
            assert_eq!(status(&send_token(&world, &expired).await), 401, "{id}: its issuer has signed it");
        }
        assert_eq!(status(&send_token(&world, &forged).await), if id < 60 { 401 } else { 429 }, "{id}");
    }
    assert_eq!(status(&send_token(&world, &good).await), 200, "this token is known");
    assert_eq!(status(&send_token(&world, &key.token(&app(json!({"jti": "new"})))).await), 429);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(status(&send_token(&world, &key.token(&app(json!({"jti": "new"})))).await), 200);
    assert_eq!(world.limit_count("unknown-credentials-per-address"), 41.0);
}
