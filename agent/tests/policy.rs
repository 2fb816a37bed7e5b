//! A policy between kas and the cluster.

mod support;

use std::{fs, path::PathBuf, sync::Arc};

use agent::{Services, metrics, metrics::Metrics, policy::Guard};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proto::ReplicaId;
use support::{Answer, Kas, options, start};
use tempfile::TempDir;
use tokio::time::{Duration, sleep};
use tunnel::Body;

struct Fixture {
    _directory: TempDir,
    file: PathBuf,
    guard: Arc<Guard>,
    registry: Registry,
    /// What got through.
    passed: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    #[allow(clippy::unwrap_used, reason = "test support")]
    fn new(policy: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        fs::write(&file, policy).unwrap();
        let mut registry = Registry::default();
        let guard = Arc::new(Guard::read(file.clone(), Metrics::register(&mut registry)).unwrap());
        Self { _directory: directory, file, guard, registry, passed: Arc::default() }
    }

    /// Waits until the guard has looked at another version, on a paused clock.
    async fn looked(&self, result: &str, times: usize) {
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
            .guarded(&self.guard)
    }

    /// A cluster whose answers do not end; what became of them is in the list.
    fn endless(&self) -> (Services, Arc<Mutex<Vec<String>>>) {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let gone = Arc::clone(&ended);
        let handler = move |request: Request<Body>| {
            let ending = Ending(request.uri().to_string(), Arc::clone(&gone));
            async move {
                let first = Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(b"first")));
                let frames = stream::once(async { first }).chain(stream::pending());
                let frames = frames.inspect(move |_| {
                    let _ = &ending;
                });
                Response::new(Body::new(StreamBody::new(frames)))
            }
        };
        (Services::new().with_fn("kubernetes", handler).guarded(&self.guard), ended)
    }

    fn counted(&self, line: &str) -> bool {
        metrics::render(&self.registry).lines().any(|each| each == line)
    }
}

/// Says that it is dropped.
struct Ending(String, Arc<Mutex<Vec<String>>>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.1.lock().push(self.0.clone());
    }
}

const NO_SECRETS: &str = "rules:
- {name: no-secrets, action: deny, services: [kubernetes], resources: [secrets]}
- {name: pods, action: allow, services: [kubernetes], resources: [pods]}
";

#[tokio::test(start_paused = true)]
async fn what_is_refused_never_reaches_the_cluster() {
    let fixture = Fixture::new(NO_SECRETS);
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
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
            "the policy of this cluster cannot judge GET /api/v1//pods, and so refuses it: its path has an empty segment",
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
        assert!(fixture.counted(line), "{line} is not in\n{}", metrics::render(&fixture.registry));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_refuses_nothing_and_counts() {
    let fixture = Fixture::new(&format!("mode: dry-run\n{NO_SECRETS}"));
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
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
async fn a_good_version_replaces_the_policy_and_a_bad_one_does_not() {
    let fixture = Fixture::new(NO_SECRETS);
    let following = tokio::spawn(Arc::clone(&fixture.guard).follow());
    let secrets = Request::get("/api/v1/secrets").body(()).unwrap();
    let passes = || fixture.guard.check("kubernetes", &secrets).is_ok();

    let bad = ["rules: [{name: x}]", "", "rules: [{name: a, action: allow, services: ['*'], verbs: }]"];
    for (number, bad) in bad.into_iter().enumerate() {
        fs::write(&fixture.file, bad).unwrap();
        fixture.looked("failed", number + 1).await;
        assert!(!passes(), "{bad:?}");
    }
    fs::remove_file(&fixture.file).unwrap();
    fixture.looked("failed", 4).await;
    assert!(!passes());
    assert!(fixture.counted("agentk_policy_reloads_total{result=\"failed\"} 4"));

    fs::write(&fixture.file, "rules: [{name: all, action: allow, services: ['*']}]").unwrap();
    fixture.looked("ok", 1).await;
    assert!(passes());
    assert!(fixture.counted("agentk_policy_reloads_total{result=\"ok\"} 1"));
    assert!(fixture.counted("agentk_policy_decisions_total{rule=\"all\",decision=\"allowed\"} 1"));
    let shown = metrics::render(&fixture.registry);
    assert!(!shown.contains("no-secrets"), "the rules of old are forgotten: {shown}");
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn streams_that_a_new_version_refuses_are_ended_within_seconds() {
    let all = "rules: [{name: all, action: allow, services: ['*']}]";
    let fixture = Fixture::new(all);
    let following = tokio::spawn(Arc::clone(&fixture.guard).follow());
    let (services, ended) = fixture.endless();
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
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

    // A version that refuses none of them, a bad one, and one that only says what it would refuse.
    for text in [format!("{all}\n#"), "rules: [{name: x}]".to_owned(), "mode: dry-run\nrules: []".to_owned()]
    {
        fs::write(&fixture.file, &text).unwrap();
        sleep(Duration::from_secs(5)).await;
        assert!(ended.lock().is_empty(), "{text:?}: {ended:?}");
    }
    fs::write(&fixture.file, NO_SECRETS).unwrap();
    let logs = bodies.pop().unwrap().frame().await;
    assert!(logs.unwrap().is_err(), "the caller is told that it is cut");
    assert!(bodies.pop().unwrap().frame().await.unwrap().is_err());
    let mut watched = bodies.pop().unwrap();
    let more = tokio::time::timeout(Duration::from_secs(60), watched.frame()).await;
    assert!(more.is_err(), "what is allowed goes on");
    ended.lock().sort();
    assert_eq!(*ended.lock(), ["/api/v1/namespaces/a/pods/b/log?follow=1", "/api/v1/secrets?watch=1"]);
    assert!(fixture.counted("agentk_policy_decisions_total{rule=\"no-secrets\",decision=\"refused\"} 1"));
    assert!(fixture.counted("agentk_policy_decisions_total{rule=\"default\",decision=\"refused\"} 1"));
    following.abort();
}
