//! Callers with tokens of an OIDC issuer.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{io, path::Path, pin::pin, sync::Arc, time::Duration};

use access::kill_switch::{DisableRule, file};
use agentk_core::Services;
use bytes::Bytes;
use environments_wire::{DeploymentRecords as _, DeploymentStatus, Tier};
use futures_util::{StreamExt as _, stream};
use gateway::config::Config;
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use kas_testing::{
    fleet::TestFleet,
    issuer::{Behavior, IssuerKey, TestIssuer, claims, now},
    world::{RunningAgent, World, endless, text},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
    time::timeout,
};
use tunnel::{Body, upgrade::UpgradedConnection};

use crate::audit::{audit, lines};

/// An entry whose caller is the user of the token.
const APP: &str = "{name: app, oidc: {issuer: test, claims: {project: app}}, agents: [prod], services: [kubernetes], \
                   access_as: {user: {}}}";
/// The same rights for another project.
const OTHER: &str =
    "{name: other, oidc: {issuer: test, claims: {project: other}}, agents: [prod], services: [kubernetes]}";

/// A cluster that returns the identity of the caller, and watches that do not end.
fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if request.uri().query().is_some() {
            return Response::new(endless("watching"));
        }
        let identity = request.headers().iter().filter(|(name, _)| name.as_str().starts_with("impersonate-"));
        let lines = identity.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        let mut lines: Vec<_> = lines.collect();
        lines.sort();
        Response::new(Body::from(lines.join("\n")))
    })
}

async fn get(world: &World, path: &str, authorization: &str) -> Response<Incoming> {
    let request = Request::get(path).header("host", "kas").header(AUTHORIZATION, authorization);
    world.send(request.body(Body::empty()).unwrap()).await
}

async fn status(world: &World, token: &str) -> StatusCode {
    get(world, "/agents/prod/kubernetes/api", &format!("Bearer {token}")).await.status()
}

/// Returns the error of a request with a token.
async fn refusal(world: &World, token: &str) -> (u16, String) {
    let answer = get(world, "/agents/prod/kubernetes/api", &format!("Bearer {token}")).await;
    (answer.status().as_u16(), text(answer).await)
}

async fn watch(world: &World, token: &str) -> Incoming {
    let answer = get(world, "/agents/prod/kubernetes/pods?watch=true", &format!("Bearer {token}")).await;
    assert_eq!(answer.status(), 200);
    let mut body = answer.into_body();
    body.frame().await.unwrap().unwrap();
    body
}

fn app() -> Value {
    claims(json!({"project": "app"}))
}

#[tokio::test(start_paused = true)]
async fn user_of_a_token_reaches_the_cluster_with_its_groups() {
    let key = IssuerKey::ec("a");
    let world = World::with_issuer(&TestIssuer::new(&[&key]), "groups_claim: groups, username_claim: email");
    world.set_callers(APP);
    let _agent = world.agent(services()).await;
    let token = key.token(&claims(json!({"project": "app", "email": "a@b.c", "groups": ["dev", "ops"]})));
    for (path, authorization) in [
        ("/agents/prod/kubernetes/api", format!("Bearer {token}")),
        ("/agents/1/kubernetes/api", format!("bearer {token}")),
        ("/k8s-proxy/api", format!("Bearer ci:1:{token}")),
        ("/k8s-proxy/api", format!("Bearer pat:1:{token}")),
    ] {
        let answer = get(&world, path, &authorization).await;
        assert_eq!(answer.status(), 200, "{path}");
        let expected =
            "impersonate-group: test:dev\nimpersonate-group: test:ops\nimpersonate-user: test:a@b.c";
        assert_eq!(text(answer).await, expected);
    }
    for (path, authorization, expected) in [
        ("/k8s-proxy/api", format!("Bearer {token}"), 401),
        ("/agents/prod/kubernetes/api", format!("Bearer ci:2:{token}"), 403),
        ("/agents/prod/prometheus/api", format!("Bearer {token}"), 403),
        ("/agents/other/kubernetes/api", format!("Bearer {token}"), 404),
    ] {
        assert_eq!(get(&world, path, &authorization).await.status(), expected, "{path} {expected}");
    }
    assert_eq!(
        world.metric("kas_oidc_tokens_total{issuer=\"test\",result=\"accepted\"}"),
        1.0,
        "then it is cached"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_token_is_401_with_the_class_of_the_reason() {
    let (key, stranger) = (IssuerKey::rsa("a"), IssuerKey::ec("b"));
    let world = World::with_issuer(&TestIssuer::new(&[&key]), "leeway: 10s");
    world.set_callers(APP);
    let _agent = world.agent(services()).await;
    for (class, token) in [
        ("expired", key.token(&claims(json!({"project": "app", "exp": now() - 11})))),
        ("not-yet-valid", key.token(&claims(json!({"project": "app", "nbf": now() + 60})))),
        ("wrong-audience", key.token(&claims(json!({"project": "app", "aud": "other"})))),
        ("unknown-issuer", key.token(&claims(json!({"iss": "https://evil.example.com"})))),
        ("unknown-key", stranger.token(&app())),
        ("no-matching-caller", key.token(&claims(json!({"project": "app2"})))),
        ("too-large", key.token(&claims(json!({"project": "x".repeat(20_000)})))),
    ] {
        let answer = get(&world, "/agents/prod/kubernetes/api", &format!("Bearer {token}")).await;
        assert_eq!(answer.status(), 401, "{class}");
        assert_eq!(answer.headers()["kas-error"], "unauthorized");
        let body = text(answer).await;
        assert!(body.contains(&format!("the OIDC token is refused ({class})")), "{class}: {body}");
        assert!(!body.contains("app") && !body.contains(&token[..40]), "{body}");
    }
    assert_eq!(world.metric("kas_oidc_tokens_total{issuer=\"test\",result=\"expired\"}"), 1.0);
}

/// As with Dex, whose tokens have the address and the groups only if the login has asked for their scopes.
#[tokio::test(start_paused = true)]
async fn refusal_names_the_missing_claims_their_scopes_and_the_remedy() {
    let key = IssuerKey::ec("a");
    let world = World::with_issuer(&TestIssuer::new(&[&key]), "username_claim: email, groups_claim: groups");
    world.set_callers(
        "{name: dev, oidc: {issuer: test, claims: {groups: dev}}, agents: [prod], services: [kubernetes]}",
    );
    let _agent = world.agent(services()).await;
    for (claims, class, missing) in [
        (claims(json!({})), "username", "email"),
        (claims(json!({"email": "a@b.c"})), "no-matching-caller", "groups"),
    ] {
        let (code, body) = refusal(&world, &key.token(&claims)).await;
        assert!(code == 401 && body.contains(class), "{body}");
        let remedy = format!(
            "it has no {missing}: if the issuer has the scope {missing}, write the kubeconfig again with `kas kubeconfig --exec test`, \
             or use `kas login --issuer {} --client-id kas --scopes \\\"openid email groups offline_access\\\"`",
            TestIssuer::URL
        );
        assert!(body.contains(&remedy), "{body}");
    }
    let other = key.token(&claims(json!({"email": "a@b.c", "groups": ["ops"]})));
    let (_, body) = refusal(&world, &other).await;
    assert!(body.contains("no-matching-caller") && !body.contains("kas login"), "nothing is missing: {body}");
}

#[tokio::test(start_paused = true)]
async fn rotated_key_is_found_at_once_and_the_old_one_forgotten() {
    let (old, new) = (IssuerKey::ec("old"), IssuerKey::ec("new"));
    let issuer = TestIssuer::new(&[&old]);
    let world = World::with_issuer(&issuer, "");
    world.set_callers(APP);
    let _agent = world.agent(services()).await;
    assert_eq!(status(&world, &old.token(&app())).await, 200);
    let mut watch = watch(&world, &old.token(&app())).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    issuer.publish(&[&old, &new]);
    assert_eq!(status(&world, &new.token(&app())).await, 200);
    issuer.publish(&[&new]);
    tokio::time::sleep(Duration::from_secs(301)).await;
    let (code, body) = refusal(&world, &old.token(&claims(json!({"project": "app", "jti": 2})))).await;
    assert!(code == 401 && body.contains("(unknown-key)"), "{body}");
    assert!(timeout(Duration::from_secs(60), watch.frame()).await.is_err(), "the watch goes on");
}

#[tokio::test(start_paused = true)]
async fn outage_of_the_issuer_is_503_after_six_hours() {
    let (key, unknown) = (IssuerKey::ec("a"), IssuerKey::ec("b"));
    let issuer = TestIssuer::new(&[&key]);
    let world = World::with_issuer(&issuer, "");
    world.set_callers(APP);
    let _agent = world.agent(services()).await;
    let fresh = |id: u32| key.token(&claims(json!({"project": "app", "jti": id})));
    assert_eq!(status(&world, &fresh(0)).await, 200);
    for behavior in [Behavior::Down, Behavior::Garbage, Behavior::Slow(Duration::from_secs(3600))] {
        issuer.set(behavior);
        tokio::time::sleep(Duration::from_secs(1800)).await;
        assert_eq!(status(&world, &fresh(1)).await, 200, "{behavior:?}: the keys are still there");
    }
    issuer.set(Behavior::Down);
    tokio::time::sleep(Duration::from_secs(3700)).await;
    let (code, body) = refusal(&world, &unknown.token(&app())).await;
    assert!(code == 503 && body.contains("the keys of the issuer test are not available"), "{body}");

    tokio::time::sleep(Duration::from_secs(5 * 3600)).await;
    let answer = get(&world, "/agents/prod/kubernetes/api", &format!("Bearer {}", fresh(2))).await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["kas-error"], "identity-unavailable");
    let wait: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(world.metric("kas_oidc_keys_usable{issuer=\"test\"}"), 0.0);

    issuer.set(Behavior::Up);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(status(&world, &fresh(2)).await, 200);
}

#[tokio::test(start_paused = true)]
async fn watches_go_on_while_the_issuer_is_down() {
    let key = IssuerKey::ec("a");
    let issuer = TestIssuer::new(&[&key]);
    let world = World::with_issuer(&issuer, "");
    world.set_callers(APP);
    let _agent = world.agent(services()).await;
    let fresh = |id: u32| key.token(&claims(json!({"project": "app", "jti": id})));
    let mut before = watch(&world, &fresh(0)).await;
    issuer.set(Behavior::Down);
    let hour = Duration::from_secs(3600);
    assert!(timeout(hour, before.frame()).await.is_err(), "the watch ended with the issuer");
    assert_eq!(status(&world, &fresh(1)).await, 200, "the keys are still there");
    drop(before);

    // Agents replace their tunnels after two hours, which ends a watch: another one lives while the keys become too old.
    tokio::time::sleep(5 * hour - Duration::from_secs(600)).await;
    let mut during = watch(&world, &fresh(2)).await;
    assert!(timeout(Duration::from_secs(900), during.frame()).await.is_err(), "the watch ended");
    for token in [fresh(2), fresh(3)] {
        let answer = get(&world, "/agents/prod/kubernetes/api", &format!("Bearer {token}")).await;
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["kas-error"], "identity-unavailable");
        assert!(answer.headers().contains_key("retry-after"));
    }
    issuer.set(Behavior::Up);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(status(&world, &fresh(2)).await, 200);
    assert!(timeout(Duration::from_secs(60), during.frame()).await.is_err(), "the watch ended");
}

#[tokio::test(start_paused = true)]
async fn first_request_waits_for_the_keys() {
    let key = IssuerKey::ec("a");
    let issuer = TestIssuer::new(&[&key]);
    issuer.set(Behavior::Slow(Duration::from_secs(3)));
    let world = World::with_issuer(&issuer, "");
    world.set_callers(APP);
    let _agent = world.agent(services()).await;
    assert_eq!(status(&world, &key.token(&app())).await, 200);

    issuer.set(Behavior::Down);
    let world = World::with_issuer(&issuer, "");
    world.set_callers(APP);
    let _agent = world.agent(services()).await;
    assert_eq!(status(&world, &key.token(&app())).await, 503);
}

#[tokio::test(start_paused = true)]
async fn change_of_the_identity_file_applies_to_cached_tokens_and_watches() {
    let key = IssuerKey::ec("a");
    let world = World::with_issuer(&TestIssuer::new(&[&key]), "");
    world.set_callers(&format!("{APP}, {OTHER}"));
    let _agent = world.agent(services()).await;
    let (token, other) = (key.token(&app()), key.token(&claims(json!({"project": "other"}))));
    let (mut cut, mut kept) = (watch(&world, &token).await, watch(&world, &other).await);

    world.set_callers(OTHER);
    assert!(matches!(cut.frame().await, Some(Err(_))), "the entry is gone");
    let (code, body) = refusal(&world, &token).await;
    assert!(code == 401 && body.contains("(no-matching-caller)"), "{body}");
    assert_eq!(status(&world, &other).await, 200);
    assert!(timeout(Duration::from_secs(60), kept.frame()).await.is_err(), "it goes on");

    world.set_callers(&format!("{APP}, {OTHER}"));
    assert_eq!(status(&world, &token).await, 200);
    world.set_callers(&format!("{}, {OTHER}", APP.replace("[kubernetes]", "[prometheus]")));
    assert_eq!(status(&world, &token).await, 403);
}

/// Returns the rules of a file of the kill switch.
fn rules(text: &str) -> Vec<DisableRule> {
    file::parse(Path::new("disabled.yaml"), text).unwrap()
}

/// An entry whose callers all act as agentk, so that the cluster does not see who they are.
const SHARED: &str =
    "{name: app, oidc: {issuer: test, claims: {project: app}}, agents: [prod], services: [kubernetes]}";

#[tokio::test(start_paused = true)]
async fn audit_log_has_the_user_of_a_token_that_the_cluster_does_not_see() {
    let key = IssuerKey::ec("a");
    let fleet = TestFleet::with_issuer(2, &TestIssuer::new(&[&key]));
    let sinks = [audit(&fleet.replicas[0]), audit(&fleet.replicas[1])];
    let _agent = fleet.agent(0, services()).await;
    let alice = key.token(&claims(json!({"project": "app", "sub": "alice"})));
    for (replica, sink) in fleet.replicas.iter().zip(&sinks) {
        replica.set_callers(SHARED);
        assert_eq!(status(replica, &alice).await, 200);
        assert_eq!(get(replica, "/agents/prod/other/api", &format!("Bearer {alice}")).await.status(), 403);
        let lines = lines(replica, sink).await;
        let shown = lines.iter().map(|line| {
            json!([
                line["events"][0],
                line["caller"],
                line["user"],
                line["impersonated_user"],
                line["status"]
            ])
        });
        let expected = [
            json!(["login", "app", "test:alice", null, 200]),
            json!(["refusal", "app", "test:alice", null, 403]),
        ];
        assert!(shown.eq(expected), "{lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rule_for_a_user_refuses_its_requests_and_ends_its_streams_at_each_replica() {
    let key = IssuerKey::ec("a");
    let fleet = TestFleet::with_issuer(2, &TestIssuer::new(&[&key]));
    let _agent = fleet.agent(0, services()).await;
    let [alice, bob] =
        ["alice", "bob"].map(|user| key.token(&claims(json!({"project": "app", "sub": user}))));
    for replica in &fleet.replicas {
        replica.set_callers(SHARED);
        let (mut of_alice, mut of_bob) = (watch(replica, &alice).await, watch(replica, &bob).await);
        let switch = &replica.kas.callers.kill_switch;
        switch.set_file(rules(
            "rules: [{user: alice, reason: without the prefix}, {user: 'test:carol', reason: a}]",
        ));
        assert!(timeout(Duration::from_secs(60), of_alice.frame()).await.is_err(), "she is somebody else");

        switch.set_file(rules("rules: [{user: 'test:alice', reason: stolen laptop}]"));
        assert!(matches!(of_alice.frame().await, Some(Err(_))), "her watch ends");
        let (code, body) = refusal(replica, &alice).await;
        assert!(code == 503 && body.contains("user test:alice: stolen laptop"), "{body}");
        let renewed = key.token(&claims(json!({"project": "app", "sub": "alice", "jti": "2"})));
        assert_eq!(status(replica, &renewed).await, 503, "another token of the same user");
        assert_eq!(status(replica, &bob).await, 200);
        assert!(timeout(Duration::from_secs(60), of_bob.frame()).await.is_err(), "his watch continues");
        switch.set_file(Vec::new());
        assert_eq!(status(replica, &alice).await, 200);
    }
}

/// Returns a token that expires in ten minutes, and a kas with additional keys of its issuer.
async fn world_with_expiring_token(keys: &str, services: Services) -> (World, RunningAgent, String) {
    let key = IssuerKey::ec("a");
    let world = World::with_issuer(&TestIssuer::new(&[&key]), keys);
    world.set_callers(APP);
    let agent = world.agent(services).await;
    let token = key.token(&claims(json!({"project": "app", "exp": now() + 600})));
    (world, agent, token)
}

/// Asserts that a stream ends at this time after `exp` of the token, which was created up to two minutes ago on the machine's clock.
async fn assert_ends(after: Duration, end: impl Future<Output = ()>) {
    let mut end = pin!(end);
    assert!(timeout(after + Duration::from_secs(480), &mut end).await.is_err(), "it ended before");
    assert!(timeout(Duration::from_secs(121), end).await.is_ok(), "it did not end");
}

#[tokio::test(start_paused = true)]
async fn stream_ends_when_its_token_has_expired_for_longer_than_the_grace() {
    let minute = Duration::from_secs(60);
    for (keys, grace) in [
        ("leeway: 0s", 60 * minute),
        ("leeway: 0s, stream_grace: 10m", 10 * minute),
        ("leeway: 5m, stream_grace: 0s", 5 * minute),
    ] {
        let (world, _agent, token) = world_with_expiring_token(keys, services()).await;
        let mut watch = watch(&world, &token).await;
        let end = async {
            let end = watch.frame().await;
            assert!(matches!(end, Some(Err(_))), "a caller must not take a part for the whole: {end:?}");
        };
        assert_ends(grace, end).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stream_without_an_end_outlives_its_token() {
    let (world, _agent, token) =
        world_with_expiring_token("leeway: 0s, stream_grace: 'off'", services()).await;
    let mut watch = watch(&world, &token).await;
    assert!(timeout(Duration::from_secs(6000), watch.frame()).await.is_err(), "it ended");
}

#[tokio::test(start_paused = true)]
async fn request_without_a_response_and_exec_end_as_streams_do() {
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if !request.headers().contains_key("upgrade") {
            std::future::pending::<()>().await;
        }
        let (near, far) = tokio::io::duplex(1024);
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(far);
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
        response.extensions_mut().insert(UpgradedConnection::new(near));
        response
    });
    let (world, _agent, token) = world_with_expiring_token("leeway: 0s", services).await;
    let waiting = async {
        let (code, body) = refusal(&world, &token).await;
        assert!(code == 401 && body.contains("stream_grace has passed; the request was cut"), "{body}");
    };
    let exec = async {
        let mut caller = world.connect();
        let head = format!(
            "GET /agents/prod/kubernetes/exec HTTP/1.1\r\nHost: kas\r\nAuthorization: Bearer {token}\r\n\
             Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nof the shell"
        );
        caller.write_all(head.as_bytes()).await.unwrap();
        let mut output = Vec::new();
        // The connection may be closed or reset.
        let _ = caller.read_to_end(&mut output).await;
        let output = String::from_utf8_lossy(&output);
        assert!(output.starts_with("HTTP/1.1 101 ") && output.ends_with("of the shell"), "{output}");
    };
    let hour = Duration::from_secs(3600);
    tokio::join!(assert_ends(hour, waiting), assert_ends(hour, exec));
}

/// The clock of tokens is that of the machine: this test waits for it.
#[tokio::test]
async fn token_that_expires_is_refused_while_its_watch_goes_on() {
    let second_event = Arc::new(Notify::new());
    let cluster = watched(Arc::clone(&second_event));
    let key = IssuerKey::ec("a");
    let world = World::with_issuer(&TestIssuer::new(&[&key]), "leeway: 0s");
    world.set_callers(APP);
    let _agent = world.agent(cluster).await;
    let token = key.token(&claims(json!({"project": "app", "exp": now() + 3})));
    let mut watch = watch(&world, &token).await;
    while now() < expiry(&token) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (code, body) = refusal(&world, &token).await;
    assert!(code == 401 && body.contains("(expired)"), "{body}");
    second_event.notify_one();
    let frame = watch.frame().await.expect("the watch has not ended").expect("it was not cut");
    assert_eq!(frame.into_data().unwrap(), "second");
}

/// A cluster whose watches have a second event after a notification.
fn watched(second_event: Arc<Notify>) -> Services {
    Services::new().with_fn("kubernetes", move |_: Request<Body>| {
        let second_event = Arc::clone(&second_event);
        async move {
            let event =
                |text: &'static str| Ok::<_, io::Error>(Frame::data(Bytes::from_static(text.as_bytes())));
            let second = stream::once(async move {
                second_event.notified().await;
                event("second")
            });
            Response::new(Body::new(StreamBody::new(stream::iter([event("first")]).chain(second))))
        }
    })
}

/// Returns the time at which a token expires.
fn expiry(token: &str) -> u64 {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    claims["exp"].as_u64().unwrap()
}

/// Returns a kas with a GitLab at this URL, whose jobs of `shop/web` may use the cluster and read the graph.
fn with_gitlab_at(key: &IssuerKey, url: &str) -> World {
    let edit = |config: &mut Config| {
        let section =
            json!({"address": "http://gitlab", "authentication_secret_file": "secret", "external_url": url});
        config.gitlab = Some(serde_json::from_value(section).unwrap());
    };
    let world = World::with_issuer_and(&TestIssuer::new(&[key]), "", edit);
    world.set_callers(
        "{name: jobs, oidc: {issuer: test, claims: {project_path: shop/web}}, agents: [prod], \
         services: [kubernetes, graph]}",
    );
    world
}

/// Returns an ID token of a job of GitLab, to whose claims these are added.
fn job_token(key: &IssuerKey, job: u64, added: Value) -> String {
    let mut job = json!({
        "job_id": job.to_string(), "pipeline_id": "301", "project_id": "30", "project_path": "shop/web",
        "user_login": "alice", "ref": "main", "sha": "714a629c0b401fdce83e847fc9589983fc6f46bc",
    });
    job.as_object_mut().unwrap().extend(added.as_object().unwrap().clone());
    key.token(&claims(job))
}

#[tokio::test(start_paused = true)]
async fn job_of_gitlab_with_an_environment_is_a_deployment() {
    let key = IssuerKey::ec("a");
    let world = with_gitlab_at(&key, TestIssuer::URL);
    let _agent = world.agent(services()).await;
    let environment = json!({"environment": "review/1-foo", "deployment_tier": "development"});
    let deploy = job_token(&key, 302, environment.clone());
    let graph = get(&world, "/agents/prod/graph/stream", &format!("Bearer {deploy}")).await;
    assert!(![401, 403].contains(&graph.status().as_u16()), "{}", graph.status());
    assert!(world.kas.deployments.list().await.unwrap().is_empty(), "it has only read");

    let mut stop = environment.clone();
    stop["environment_action"] = json!("stop");
    let mut again = environment;
    again["jti"] = json!("another token of the same job");
    let tokens = [
        deploy.clone(),
        deploy,
        job_token(&key, 302, again),
        job_token(&key, 303, stop),
        job_token(&key, 304, json!({})),
    ];
    for token in tokens {
        assert_eq!(status(&world, &token).await, 200);
    }
    let deployments = world.kas.deployments.list().await.unwrap();
    let jobs: Vec<_> = deployments.iter().map(|deployment| deployment.job).collect();
    assert_eq!(jobs, [302]);
    let found = &deployments[0];
    assert_eq!((&*found.environment, found.tier), ("review-1-foo-9tdj0u", Tier::Development));
    assert_eq!((found.project.as_deref(), found.project_id), (Some("shop/web"), 30));
    assert_eq!(found.commit.as_deref(), Some("714a629c0b401fdce83e847fc9589983fc6f46bc"));
    assert_eq!((found.username.as_deref(), found.facts.status), (Some("alice"), DeploymentStatus::Unknown));
}

#[tokio::test(start_paused = true)]
async fn job_records_no_deployments_with_ids_of_no_agent() {
    let key = IssuerKey::ec("a");
    let world = with_gitlab_at(&key, TestIssuer::URL);
    world.set_callers(
        "{name: jobs, oidc: {issuer: test, claims: {project_path: shop/web}}, agents: [prod, 'gitlab:**'], \
         services: [kubernetes]}",
    );
    let _agent = world.agent(services()).await;
    let token = job_token(&key, 302, json!({"environment": "prod"}));
    for id in 4711..4714 {
        let path = format!("/agents/{id}/kubernetes/api");
        let response = get(&world, &path, &format!("Bearer {token}")).await;
        assert_eq!(response.status(), 503, "the caller may use agents of GitLab with any id");
    }
    assert!(world.kas.deployments.list().await.unwrap().is_empty());
    assert_eq!(status(&world, &token).await, 200);
    assert_eq!(world.kas.deployments.list().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn job_of_another_issuer_than_gitlab_is_no_deployment() {
    let key = IssuerKey::ec("a");
    let world = with_gitlab_at(&key, "https://gitlab.example.com");
    let _agent = world.agent(services()).await;
    let token = job_token(&key, 302, json!({"environment": "prod", "deployment_tier": "production"}));
    assert_eq!(status(&world, &token).await, 200);
    assert!(world.kas.deployments.list().await.unwrap().is_empty());
}
