//! Tests of a policy between kas and the cluster.

use std::{fs, path::PathBuf, sync::Arc};

use crate::support::{DialResponse, Kas, options, start};
use agentk_core::{
    AgentMetrics, Services,
    policy::{PolicyEnforcer, ScopeEnforcer},
};
use bytes::Bytes;
use files::ReloadHealth;
use futures_util::stream::{self, StreamExt as _};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use proto::{ReplicaId, agent_configuration::Scope};
use tempfile::TempDir;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Duration, sleep},
};
use tunnel::Body;

struct Fixture {
    _directory: TempDir,
    file: PathBuf,
    enforcer: Arc<PolicyEnforcer>,
    registry: Registry,
    /// The targets of requests that the policy allowed.
    passed: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    #[allow(clippy::unwrap_used, reason = "test support")]
    fn new(policy: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        fs::write(&file, policy).unwrap();
        let mut registry = Registry::default();
        let enforcer = Arc::new(
            PolicyEnforcer::load(file.clone(), Vec::new(), AgentMetrics::register(&mut registry)).unwrap(),
        );
        Self { _directory: directory, file, enforcer, registry, passed: Arc::default() }
    }

    /// Waits until the file has been reloaded `times` times with this result, on a paused clock.
    async fn reloaded(&self, result: &str, times: usize) {
        let line = format!("agentk_policy_reloads_total{{result=\"{result}\"}} {times}");
        while !self.counted(&line) {
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn services(&self) -> Services {
        let passed = Arc::clone(&self.passed);
        let handler = move |request: Request<Body>| {
            passed.lock().push(request.uri().to_string());
            async { Response::new(Body::empty()) }
        };
        Services::new()
            .with_fn("kubernetes", handler.clone())
            .with_fn("prometheus", handler)
            .with_policy(&self.enforcer)
    }

    /// Returns a cluster with endless responses, and the list of dropped responses.
    fn endless(&self) -> (Services, Arc<Mutex<Vec<String>>>) {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&ended);
        let handler = move |request: Request<Body>| {
            let recorder = DropRecorder(request.uri().to_string(), Arc::clone(&list));
            async move {
                let first = Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(b"first")));
                let frames = stream::once(async { first }).chain(stream::pending());
                let frames = frames.inspect(move |_| {
                    let _ = &recorder;
                });
                Response::new(Body::new(StreamBody::new(frames)))
            }
        };
        (Services::new().with_fn("kubernetes", handler).with_policy(&self.enforcer), ended)
    }

    fn follow(&self) -> JoinHandle<()> {
        let (enforcer, file) = (Arc::clone(&self.enforcer), ReloadHealth::default().file("--policy-file"));
        tokio::spawn(enforcer.follow(file, watch::Sender::new(()).subscribe()))
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }

    fn counted(&self, line: &str) -> bool {
        self.metrics().lines().any(|each| each == line)
    }
}

/// Adds itself to the list when it is dropped.
struct DropRecorder(String, Arc<Mutex<Vec<String>>>);

impl Drop for DropRecorder {
    fn drop(&mut self) {
        self.1.lock().push(self.0.clone());
    }
}

const NO_SECRETS: &str = "rules:
- {name: no-secrets, action: deny, services: [kubernetes], resources: [secrets]}
- {name: pods, action: allow, services: [kubernetes], resources: [pods]}
";

#[tokio::test(start_paused = true)]
async fn refused_request_is_not_sent_to_the_cluster() {
    let fixture = Fixture::new(NO_SECRETS);
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, fixture.services());
    let tunnel = kas.opened().await;

    assert_eq!(tunnel.get("kubernetes", "/api/v1/pods").await.status(), 200);
    for (service, path, message) in [
        (
            "kubernetes",
            "/api/v1/namespaces/a/secrets/b",
            "the policy of this cluster does not allow this: rule \"no-secrets\" refuses get secrets \"b\" in \
             namespace \"a\"",
        ),
        (
            "kubernetes",
            "/apis/apps/v1/deployments?watch=1",
            "the policy of this cluster does not allow this: no rule allows watch deployments.apps",
        ),
        (
            "kubernetes",
            "/api/v1//pods",
            "the policy of this cluster refuses GET /api/v1//pods, which it cannot interpret: its path has an empty segment",
        ),
        (
            "prometheus",
            "/api/v1/query",
            "the policy of this cluster does not allow this: no rule allows GET /api/v1/query of prometheus",
        ),
    ] {
        let response = tunnel.get(service, path).await;
        assert_eq!(response.status(), 403, "{path}");
        assert_eq!(response.headers()["kas-error"], "refused-by-policy");
        assert_eq!(response.headers()["kas-error-message"], message);
    }
    assert_eq!(*fixture.passed.lock(), ["/api/v1/pods"]);
    for line in [
        "agentk_policy_decisions_total{rule=\"pods\",decision=\"allowed\"} 1",
        "agentk_policy_decisions_total{rule=\"no-secrets\",decision=\"refused\"} 1",
        "agentk_policy_decisions_total{rule=\"default\",decision=\"refused\"} 2",
        "agentk_policy_decisions_total{rule=\"unclear\",decision=\"refused\"} 1",
    ] {
        assert!(fixture.counted(line), "{line} is not in\n{}", fixture.metrics());
    }
}

#[tokio::test(start_paused = true)]
async fn dry_run_counts_and_refuses_nothing() {
    let fixture = Fixture::new(&format!("mode: dry-run\n{NO_SECRETS}"));
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, fixture.services());
    let tunnel = kas.opened().await;
    for path in ["/api/v1/secrets", "/api/v1//pods", "/version"] {
        assert_eq!(tunnel.get("kubernetes", path).await.status(), 200, "{path}");
    }
    assert!(
        fixture.counted("agentk_policy_decisions_total{rule=\"no-secrets\",decision=\"would-refuse\"} 1")
    );
    assert!(fixture.counted("agentk_policy_decisions_total{rule=\"unclear\",decision=\"would-refuse\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn only_a_valid_version_replaces_the_policy() {
    let fixture = Fixture::new(NO_SECRETS);
    let following = fixture.follow();
    let secrets = Request::get("/api/v1/secrets").body(()).unwrap();
    let passes = || fixture.enforcer.check("kubernetes", &secrets).is_ok();

    let bad = ["rules: [{name: x}]", "", "rules: [{name: a, action: allow, services: ['*'], verbs: }]"];
    for (number, bad) in bad.into_iter().enumerate() {
        fs::write(&fixture.file, bad).unwrap();
        fixture.reloaded("failed", number + 1).await;
        assert!(!passes(), "{bad:?}");
    }
    fs::remove_file(&fixture.file).unwrap();
    fixture.reloaded("failed", 4).await;
    assert!(!passes());
    assert!(fixture.counted("agentk_policy_reloads_total{result=\"failed\"} 4"));

    fs::write(&fixture.file, "rules: [{name: all, action: allow, services: ['*']}]").unwrap();
    fixture.reloaded("ok", 1).await;
    assert!(passes());
    assert!(fixture.counted("agentk_policy_reloads_total{result=\"ok\"} 1"));
    assert!(fixture.counted("agentk_policy_decisions_total{rule=\"all\",decision=\"allowed\"} 1"));
    let shown = fixture.metrics();
    assert!(!shown.contains("no-secrets"), "the counters of removed rules are removed: {shown}");
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn streams_refused_by_new_policy_are_closed_within_seconds() {
    let all = "rules: [{name: all, action: allow, services: ['*']}]";
    let fixture = Fixture::new(all);
    let following = fixture.follow();
    let (services, ended) = fixture.endless();
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, services);
    let tunnel = kas.opened().await;
    let mut bodies = Vec::new();
    for path in
        ["/api/v1/pods?watch=1", "/api/v1/secrets?watch=1", "/api/v1/namespaces/a/pods/b/log?follow=1"]
    {
        let mut body = tunnel.get("kubernetes", path).await.into_body();
        body.frame().await.unwrap().unwrap();
        bodies.push(body);
    }

    // These versions close no stream: one that allows all of them, an invalid one, and one in dry-run mode.
    for text in [format!("{all}\n#"), "rules: [{name: x}]".to_owned(), "mode: dry-run\nrules: []".to_owned()]
    {
        fs::write(&fixture.file, &text).unwrap();
        sleep(Duration::from_secs(5)).await;
        assert!(ended.lock().is_empty(), "{text:?}: {ended:?}");
    }
    fs::write(&fixture.file, NO_SECRETS).unwrap();
    let logs = bodies.pop().unwrap().frame().await;
    assert!(logs.unwrap().is_err(), "the caller receives an error");
    assert!(bodies.pop().unwrap().frame().await.unwrap().is_err());
    let mut watched = bodies.pop().unwrap();
    let more = tokio::time::timeout(Duration::from_secs(60), watched.frame()).await;
    assert!(more.is_err(), "an allowed stream continues");
    ended.lock().sort();
    assert_eq!(*ended.lock(), ["/api/v1/namespaces/a/pods/b/log?follow=1", "/api/v1/secrets?watch=1"]);
    assert!(fixture.counted("agentk_policy_decisions_total{rule=\"no-secrets\",decision=\"refused\"} 1"));
    assert!(fixture.counted("agentk_policy_decisions_total{rule=\"default\",decision=\"refused\"} 1"));
    following.abort();
}

/// Returns a cluster that reads each body to its end, and the list of requests that ended before.
fn reading(passed: &Arc<Mutex<Vec<String>>>) -> (Services, Arc<Mutex<Vec<String>>>) {
    let (ended, passed) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(passed));
    let list = Arc::clone(&ended);
    let services = Services::new().with_fn("kubernetes", move |request: Request<Body>| {
        let recorder = DropRecorder(request.uri().to_string(), Arc::clone(&list));
        let passed = Arc::clone(&passed);
        async move {
            let uri = request.uri().to_string();
            let whole = request.into_body().collect().await;
            if uri.ends_with("/awaited") {
                std::future::pending::<()>().await;
            }
            passed.lock().push(format!("{uri}: {}", whole.is_ok()));
            drop(recorder);
            Response::new(Body::empty())
        }
    });
    (services, ended)
}

/// Posts a body that does not end, and one that is whole but gets no response. Both must be refused once `tighten` was called.
async fn assert_unfinished_requests_are_refused(services: Services, tighten: impl FnOnce()) {
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, services);
    let tunnel = kas.opened().await;
    let half = stream::iter([Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(b"half")))]);
    let half = Body::new(StreamBody::new(half.chain(stream::pending())));
    let post = |path: &str, body| {
        let request =
            Request::post(format!("/api/v1/namespaces/a/{path}")).header("kas-service", "kubernetes");
        tunnel.tunnel.call(request.body(body).expect("a request"))
    };
    let mut unfinished = Box::pin(post("secrets/half", half));
    let mut awaited = Box::pin(post("secrets/awaited", Body::from("whole")));
    tokio::select! {
        _ = &mut unfinished => panic!("it has not ended"),
        _ = &mut awaited => panic!("it is not answered"),
        () = sleep(Duration::from_secs(10)) => {}
    }
    tighten();
    for response in [unfinished, awaited] {
        let response = tokio::time::timeout(Duration::from_secs(10), response)
            .await
            .expect("refused")
            .expect("a response");
        assert_eq!(response.status(), 403);
        assert_eq!(response.headers()["kas-error"], "refused-by-policy");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_81_request_without_a_response_is_refused_by_a_new_policy() {
    let fixture = Fixture::new("rules: [{name: all, action: allow, services: ['*']}]");
    let following = fixture.follow();
    let (services, ended) = reading(&fixture.passed);
    let tighten = || fs::write(&fixture.file, NO_SECRETS).unwrap();
    assert_unfinished_requests_are_refused(services.with_policy(&fixture.enforcer), tighten).await;
    assert_eq!(ended.lock().len(), 2);
    assert!(fixture.passed.lock().is_empty(), "no body was complete: {:?}", fixture.passed);
    assert!(fixture.counted("agentk_policy_decisions_total{rule=\"no-secrets\",decision=\"refused\"} 2"));
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn attack_81_request_without_a_response_is_refused_by_a_new_scope() {
    let (passed, scope) = (Arc::default(), Arc::new(ScopeEnforcer::new(None, AgentMetrics::default())));
    let (services, ended) = reading(&passed);
    let tighten = || scope.set(Some(Scope { namespaces: vec!["b".to_owned()] }));
    assert_unfinished_requests_are_refused(services.with_scope(&scope), tighten).await;
    assert_eq!(ended.lock().len(), 2);
    assert!(passed.lock().is_empty(), "no body was complete: {passed:?}");
}
