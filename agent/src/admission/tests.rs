//! The webhook as the API server calls it.

use axum::body::Body;
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;

const AGENTK: &str = "system:serviceaccount:agentk:agentk";

/// Returns a webhook with a policy in this mode, which allows changes of ConfigMaps only.
fn webhook(mode: &str) -> Arc<Webhook> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let rules = "[{name: maps, action: allow, services: [kubernetes], resources: [configmaps]}]";
    std::fs::write(&file, format!("mode: {mode}\nrules: {rules}")).unwrap();
    let policy = PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap();
    let (namespace, service_account) = ("agentk".to_owned(), "agentk".to_owned());
    Arc::new(Webhook {
        policy: Arc::new(policy),
        users: JudgedUsers { namespace, service_account, prefixes: Vec::new() },
        reviews: Family::default(),
        bytes: Semaphore::new(MAX_IN_FLIGHT),
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

async fn send(webhook: &Arc<Webhook>, length: Option<usize>, body: String) -> (StatusCode, String) {
    let mut request = Request::post("/validate");
    if let Some(length) = length {
        request = request.header(CONTENT_LENGTH, length);
    }
    let response =
        routes(Arc::clone(webhook)).oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn answer(webhook: &Arc<Webhook>, question: String) -> Value {
    let (status, text) = send(webhook, Some(question.len()), question).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&answer["apiVersion"], &answer["kind"]),
        (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
    );
    assert_eq!(answer["response"]["uid"], "u-1");
    answer["response"].clone()
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
    for (length, body, expected, message) in [
        (Some(2), "{}".to_owned(), StatusCode::BAD_REQUEST, "missing field `apiVersion`"),
        (Some(old.len()), old, StatusCode::BAD_REQUEST, "only admission.k8s.io/v1 is supported"),
        (Some(MAX_REVIEW + 1), String::new(), StatusCode::PAYLOAD_TOO_LARGE, "at most 8 MiB"),
        (None, "{}".to_owned(), StatusCode::PAYLOAD_TOO_LARGE, "at most 8 MiB"),
    ] {
        let (status, text) = send(&webhook, length, body).await;
        assert_eq!(status, expected, "{text}");
        assert!(text.contains(message), "{text}");
    }
    assert_eq!(count(&webhook, "invalid"), 4);
    assert_eq!(webhook.bytes.available_permits(), MAX_IN_FLIGHT, "nothing is held");
}

/// Strangers who send nothing hold as much as they have announced, and no longer than a question may take.
#[tokio::test(start_paused = true)]
async fn questions_that_do_not_arrive_are_given_up() {
    let webhook = webhook("enforce");
    let silent = || {
        let body = Body::from_stream(futures_util::stream::pending::<Result<axum::body::Bytes, io::Error>>());
        let request = Request::post("/validate").header(CONTENT_LENGTH, MAX_REVIEW).body(body).unwrap();
        tokio::spawn(routes(Arc::clone(&webhook)).oneshot(request))
    };
    let strangers: Vec<_> = (0..MAX_IN_FLIGHT / MAX_REVIEW).map(|_| silent()).collect();
    tokio::task::yield_now().await;
    for stranger in strangers {
        assert_eq!(stranger.await.unwrap().unwrap().status(), StatusCode::REQUEST_TIMEOUT);
    }
    let refused = answer(&webhook, question(AGENTK, "secrets")).await;
    assert_eq!(refused["allowed"], false);
}
