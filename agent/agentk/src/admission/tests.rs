//! The webhook as the API server calls it.

use std::time::SystemTime;

use agentk_policy::NamespaceLabels;
use axum::body::Body;
use futures_util::{StreamExt as _, stream};
use http::Request;
use serde_json::{Value, json};
use strangers::Strangers;
use tokio::{task::JoinHandle, time::Instant};
use tower::ServiceExt as _;

use super::*;
use crate::feature_writes;

const AGENTK: &str = "system:serviceaccount:agentk:agentk";

/// Returns a webhook with a policy in this mode, which allows changes of ConfigMaps only.
fn webhook(mode: &str) -> Arc<Webhook> {
    let rules = "[{name: maps, action: allow, services: [kubernetes], resources: [configmaps]}]";
    webhook_of(&format!("mode: {mode}\nrules: {rules}"))
}

fn webhook_of(policy: &str) -> Arc<Webhook> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, policy).unwrap();
    let policy = PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap();
    let (namespace, service_account) = ("agentk".to_owned(), "agentk".to_owned());
    Arc::new(Webhook {
        policy: Arc::new(policy),
        users: JudgedUsers {
            namespace,
            service_account,
            prefixes: Vec::new(),
            features: FeatureWrites::default(),
        },
        reviews: Family::default(),
        bytes: ByteLimit::new(MAX_IN_FLIGHT),
    })
}

fn question(user: &str, resource: &str) -> String {
    let request = json!({
        "uid": "u-1",
        "operation": "UPDATE",
        "resource": {"group": "", "version": "v1", "resource": resource},
        "namespace": "shop",
        "name": "web",
        "userInfo": {"username": user},
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

/// A client without a certificate.
fn client(address: [u8; 4]) -> Client {
    let stranger = Arc::<Strangers>::default().insert(address.into());
    Client { address: address.into(), stranger: Arc::new(stranger) }
}

async fn send_as(client: Client, webhook: &Arc<Webhook>, body: Body) -> (StatusCode, String) {
    let request = Request::post("/validate").body(body).unwrap();
    let response = routes(Arc::clone(webhook)).layer(Extension(client)).oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn answer(webhook: &Arc<Webhook>, question: String) -> Value {
    let (status, text) = send_as(client([10, 0, 0, 1]), webhook, Body::from(question)).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&answer["apiVersion"], &answer["kind"]),
        (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
    );
    assert_eq!(answer["response"]["uid"], "u-1");
    answer["response"].clone()
}

/// Begins a question of `bytes` bytes, and sends nothing more.
fn begin(client: Client, webhook: &Arc<Webhook>, bytes: usize) -> JoinHandle<(StatusCode, String)> {
    let beginning = stream::iter([Ok::<_, io::Error>(Bytes::from(vec![b' '; bytes]))]);
    let (webhook, body) = (Arc::clone(webhook), Body::from_stream(beginning.chain(stream::pending())));
    tokio::spawn(async move { send_as(client, &webhook, body).await })
}

/// Waits until all questions hold so many bytes.
async fn until_held(webhook: &Webhook, bytes: usize) {
    while webhook.bytes.total() != bytes {
        tokio::task::yield_now().await;
    }
}

fn count(webhook: &Webhook, result: &'static str) -> u64 {
    webhook.reviews.get_or_create(&ReviewLabels { result }).get()
}

#[tokio::test]
async fn refused_write_has_the_rule_and_others_pass() {
    let webhook = webhook("enforce");
    let refused = answer(&webhook, question(AGENTK, "secrets")).await;
    assert_eq!((&refused["allowed"], &refused["status"]["code"]), (&json!(false), &json!(403)));
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(message.contains("no rule allows update secrets \"web\" in namespace \"shop\""), "{message}");
    assert_eq!(
        answer(&webhook, question(AGENTK, "configmaps")).await,
        json!({"uid": "u-1", "allowed": true})
    );
    assert_eq!(answer(&webhook, question("admin", "secrets")).await, json!({"uid": "u-1", "allowed": true}));
    assert_eq!(["refused", "allowed", "not-judged"].map(|result| count(&webhook, result)), [1, 1, 1]);
}

#[tokio::test]
async fn write_is_judged_by_the_labels_of_its_namespace_and_readiness_waits_for_them() {
    let rule =
        "{name: team, action: allow, services: [kubernetes], namespaceSelector: {matchLabels: {team: shop}}}";
    let webhook = webhook_of(&format!("rules: [{rule}]"));
    let health = WebhookHealth::new(ReloadHealth::default(), Arc::clone(&webhook.policy));
    let (status, text) = health.readiness(false);
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.starts_with("not ready\n") && text.contains("agentk has not read them yet"), "{text}");
    let refused = answer(&webhook, question(AGENTK, "configmaps")).await;
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(message.ends_with("are not known: agentk has not read them yet"), "{message}");

    let labels = webhook.policy.labels();
    for (team, allowed) in [("shop", true), ("other", false)] {
        let mut known = NamespaceLabels::empty(["team".to_owned()].into());
        known.set("shop", [("team".to_owned(), team.to_owned())].into());
        labels.set(known, Instant::now() + Duration::from_secs(60));
        assert_eq!(answer(&webhook, question(AGENTK, "configmaps")).await["allowed"], allowed, "{team}");
    }
    assert_eq!(health.readiness(false), (StatusCode::OK, "ready\n".to_owned()));
    labels.set_unknown("the API server is away");
    let (status, text) = health.readiness(false);
    assert_eq!(status, StatusCode::OK, "a pod that has begun refuses what depends on labels, as all pods do");
    assert!(text.starts_with("ready, degraded\n") && text.ends_with("the API server is away\n"), "{text}");
}

#[test]
fn refused_file_is_degraded_and_stopping_is_not_ready() {
    let files = ReloadHealth::default();
    let policy = files.file("--policy-file");
    let health = WebhookHealth::new(files, Arc::clone(&webhook("enforce").policy));
    assert_eq!(health.readiness(false), (StatusCode::OK, "ready\n".to_owned()));
    policy.set_refused("rules[0].action: unknown", SystemTime::UNIX_EPOCH, Instant::now());
    let (status, text) = health.readiness(false);
    let line =
        "--policy-file since 1970-01-01T00:00:00Z: the newest version is refused: rules[0].action: unknown";
    assert_eq!((status, &*text), (StatusCode::OK, &*format!("ready, degraded\n{line}\n")));
    assert_eq!(health.readiness(true).0, StatusCode::SERVICE_UNAVAILABLE);
    policy.set_accepted();
    assert_eq!(health.readiness(false).1, "ready\n");
}

#[tokio::test]
async fn dry_run_warns_and_refuses_nothing() {
    let webhook = webhook("dry-run");
    let answer = answer(&webhook, question(AGENTK, "secrets")).await;
    assert_eq!(answer["allowed"], true);
    let warning = answer["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("agentk, dry-run: the policy of this cluster does not allow this"),
        "{warning}"
    );
    assert_eq!(count(&webhook, "would-refuse"), 1);
}

#[tokio::test]
async fn anything_but_a_question_is_refused_with_the_reason() {
    let webhook = webhook("enforce");
    let old = question(AGENTK, "secrets").replace("k8s.io/v1", "k8s.io/v1beta1");
    for (body, expected, message) in [
        ("{}".to_owned(), StatusCode::BAD_REQUEST, "missing field `apiVersion`"),
        (old, StatusCode::BAD_REQUEST, "only admission.k8s.io/v1 is supported"),
        (" ".repeat(MAX_REVIEW + 1), StatusCode::PAYLOAD_TOO_LARGE, "at most 8 MiB"),
    ] {
        let (status, text) = send_as(client([10, 0, 0, 1]), &webhook, Body::from(body)).await;
        assert_eq!(status, expected, "{text}");
        assert!(text.contains(message), "{text}");
    }
    assert_eq!(count(&webhook, "invalid"), 3);
    assert_eq!(webhook.bytes.total(), 0, "nothing is held");
}

#[tokio::test(start_paused = true)]
async fn questions_that_do_not_arrive_are_given_up() {
    let webhook = webhook("enforce");
    let silent = begin(client([10, 0, 0, 2]), &webhook, 1);
    assert_eq!(silent.await.unwrap().0, StatusCode::REQUEST_TIMEOUT);
    assert_eq!(webhook.bytes.total(), 0);
}

/// Questions of eight megabytes, of which one byte arrives, and of which nearly all arrives.
#[tokio::test(start_paused = true)]
async fn strangers_who_hold_questions_do_not_keep_the_api_server_out() {
    let start = Instant::now();
    for bytes in [1, MAX_REVIEW - 1] {
        let webhook = webhook("enforce");
        let strangers: Vec<_> =
            (0..16).map(|number| begin(client([10, 0, 1, number % 2]), &webhook, bytes)).collect();
        let kept = (MAX_IN_FLIGHT / bytes).min(strangers.len());
        until_held(&webhook, kept * bytes).await;
        let refused = answer(&webhook, question(AGENTK, "secrets")).await;
        assert_eq!(refused["allowed"], false);
        let size = " ".repeat(MAX_REVIEW - 1000);
        let refused = answer(&webhook, size + &question(AGENTK, "secrets")).await;
        assert_eq!(refused["allowed"], false);
        for stranger in strangers {
            stranger.abort();
        }
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "the API server does not wait");
}

#[tokio::test(start_paused = true)]
async fn question_of_a_client_with_a_certificate_is_not_replaced() {
    let webhook = webhook("enforce");
    let api_server = client([10, 0, 0, 1]);
    api_server.stranger.admit();
    let slow = begin(api_server, &webhook, MAX_REVIEW - 1);
    until_held(&webhook, MAX_REVIEW - 1).await;
    let strangers: Vec<_> =
        (0..64).map(|number| begin(client([10, 0, 1, number]), &webhook, MAX_REVIEW - 1)).collect();
    until_held(&webhook, 8 * (MAX_REVIEW - 1)).await;
    for stranger in strangers {
        let (status, _) = stranger.await.unwrap();
        assert!(matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::REQUEST_TIMEOUT), "{status}");
    }
    assert_eq!(count(&webhook, "limit"), 64 - 7);
    assert_eq!(slow.await.unwrap().0, StatusCode::REQUEST_TIMEOUT);
}

#[test]
fn services_that_write_are_judged() {
    let judged = judged_services(&feature_writes());
    let names: Vec<&str> = judged.iter().map(ServiceName::as_str).collect();
    for name in [ServiceName::KUBERNETES, ServiceName::GITOPS, ServiceName::NOTIFY, ServiceName::PROVISION] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

/// Without the task that follows the labels, the webhook would decide by old ones.
#[tokio::test]
async fn webhook_ends_when_a_background_task_panics() {
    let shutdown = CancellationToken::new();
    let mut background = JoinSet::<()>::new();
    background.spawn(std::future::pending());
    background.spawn(async { panic!("a defect") });
    assert!(until_stopped(&mut background, &shutdown).await.is_err());

    shutdown.cancel();
    assert!(until_stopped(&mut background, &shutdown).await.is_ok());
}
