//! Rules that select namespaces by labels, with a cluster whose labels callers may try to change.
#![allow(clippy::unwrap_used, reason = "test support: a failure is a panic")]

use std::{collections::BTreeMap, convert::Infallible, fs, sync::Arc, time::Duration};

use crate::support::{DialResponse, Kas, OpenedTunnel, RunningAgent, options, start};
use agentk_core::{AgentMetrics, Services, policy::PolicyEnforcer};
use agentk_policy::NamespaceLabels;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use proto::ReplicaId;
use tempfile::TempDir;
use tokio::time::{Instant, timeout};
use tunnel::Body;

/// The rules of a team that has its namespaces by their label, and those for reviews by their prefix.
const TEAM: &str = "rules:
- {name: no-prod, action: deny, services: [kubernetes], resources: [secrets], namespaceSelector: {matchLabels: {tier: prod}}}
- {name: team, action: allow, services: [kubernetes], namespaceSelector: {matchLabels: {team: shop}}}
- {name: reviews, action: allow, services: [kubernetes], namespaces: ['review-*']}
";
/// The same callers also make and change namespaces.
const MANAGE: &str = "- {name: manage, action: allow, services: [kubernetes], apiGroups: [''], resources: [namespaces, 'namespaces/*']}
";
/// The rule of docs/policy.md.
const NO_LABELS: &str = "- {name: no-labels-of-namespaces, action: deny, services: [kubernetes, gitops], verbs: [create, update, patch], apiGroups: [''], resources: [namespaces, 'namespaces/*']}
";

type Labels = &'static [(&'static str, &'static str)];

/// The labels of the namespaces in the cluster, which agentk knows at once.
#[derive(Default)]
struct Cluster(Mutex<BTreeMap<String, BTreeMap<String, String>>>);

struct Fixture {
    _directory: TempDir,
    policy: Arc<PolicyEnforcer>,
    cluster: Arc<Cluster>,
    /// The requests that have reached the cluster.
    passed: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    fn new(policy: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        fs::write(&file, policy).unwrap();
        let policy = PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap();
        let fixture = Self {
            _directory: directory,
            policy: Arc::new(policy),
            cluster: Arc::default(),
            passed: Arc::default(),
        };
        fixture.label("shop", &[("team", "shop")]);
        fixture.label("other", &[("team", "other")]);
        fixture
    }

    fn label(&self, namespace: &str, labels: Labels) {
        self.cluster.label(&self.policy, namespace, labels);
    }

    /// Returns a tunnel to an agent in a cluster that gives a namespace the label which a write asks for. Its watches do not end.
    async fn tunnel(&self) -> (OpenedTunnel, RunningAgent) {
        let (policy, passed) = (Arc::clone(&self.policy), Arc::clone(&self.passed));
        let namespaces = Arc::clone(&self.cluster);
        let cluster = move |request: Request<Body>| {
            passed.lock().push(request.uri().path().to_owned());
            let named = request.uri().path().strip_prefix("/api/v1/namespaces/").map(str::to_owned);
            let named = named.as_deref().and_then(|rest| rest.split('/').next()).unwrap_or("mine");
            if [Method::POST, Method::PUT, Method::PATCH].contains(request.method()) {
                namespaces.label(&policy, named, &[("team", "shop")]);
            }
            let first = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"first")))]);
            let is_watch = request.uri().query().is_some();
            let rest = if is_watch { stream::pending().boxed() } else { stream::empty().boxed() };
            let response = Response::new(Body::new(StreamBody::new(first.chain(rest))));
            std::future::ready(response)
        };
        let services = Services::new().with_fn("kubernetes", cluster).with_policy(&self.policy);
        let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
        let agent = start(options(1), dial, services);
        (kas.opened().await, agent)
    }
}

impl Cluster {
    fn label(&self, policy: &PolicyEnforcer, namespace: &str, labels: Labels) {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        self.0.lock().insert(namespace.to_owned(), labels.collect());
        self.list(policy);
    }

    fn remove(&self, policy: &PolicyEnforcer, namespace: &str) {
        self.0.lock().remove(namespace);
        self.list(policy);
    }

    /// agentk lists the namespaces.
    fn list(&self, policy: &PolicyEnforcer) {
        let mut known = NamespaceLabels::empty(["team", "tier"].map(str::to_owned).into());
        for (namespace, labels) in &*self.0.lock() {
            known.set(namespace, labels.clone());
        }
        policy.labels().set(known, Instant::now() + Duration::from_secs(24 * 3600));
    }
}

/// Opens a stream, which has begun when this returns.
async fn open(tunnel: &OpenedTunnel, path: &str) -> Body {
    let response = tunnel.get("kubernetes", path).await;
    assert_eq!(response.status(), 200, "{path}: {:?}", response.headers());
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    body
}

async fn send(tunnel: &OpenedTunnel, line: &str) -> u16 {
    let (method, path) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(path).header("kas-service", "kubernetes");
    let request = request.header("content-type", "application/apply-patch+yaml");
    let request = request.body(Body::from(r#"{"metadata": {"labels": {"team": "shop"}}}"#)).unwrap();
    tunnel.tunnel.call(request).await.unwrap().status().as_u16()
}

/// Returns whether a stream ends with an error, which its caller receives.
async fn is_cut(body: &mut Body) -> bool {
    let frame = timeout(Duration::from_secs(600), body.frame()).await;
    frame.is_ok_and(|frame| frame.unwrap().is_err())
}

async fn stays_open(body: &mut Body) -> bool {
    timeout(Duration::from_secs(600), body.frame()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn change_of_labels_ends_only_the_streams_that_are_refused_now() {
    let fixture = Fixture::new(TEAM);
    let (tunnel, _agent) = fixture.tunnel().await;
    let mut pods = open(&tunnel, "/api/v1/namespaces/shop/pods?watch=1").await;
    let mut secrets = open(&tunnel, "/api/v1/namespaces/shop/secrets?watch=1").await;
    let mut reviews = open(&tunnel, "/api/v1/namespaces/review-7/pods?watch=1").await;
    let versions = fixture.policy.changes();

    fixture.label("shop", &[("team", "shop"), ("tier", "prod")]);
    assert!(is_cut(&mut secrets).await, "a rule denies the secrets by the new label");
    assert!(stays_open(&mut pods).await);

    fixture.label("shop", &[("team", "other")]);
    assert!(is_cut(&mut pods).await, "the caller receives an error");
    assert_eq!(send(&tunnel, "GET /api/v1/namespaces/shop/pods").await, 403);

    fixture.label("shop", &[("team", "shop")]);
    let mut pods = open(&tunnel, "/api/v1/namespaces/shop/pods?watch=1").await;
    fixture.cluster.remove(&fixture.policy, "shop");
    assert!(is_cut(&mut pods).await, "the namespace is gone");
    fixture.label("shop", &[("team", "other")]);
    assert_eq!(send(&tunnel, "GET /api/v1/namespaces/shop/pods").await, 403, "it was made anew");

    fixture.policy.labels().set_unknown("the API server is away");
    assert!(stays_open(&mut reviews).await, "its rule does not depend on labels");
    assert!(!versions.has_changed().unwrap(), "labels are no new version of the file");
}

/// The requests by which a caller may choose the labels of a namespace: an update, a patch or a server-side apply, of the namespace or of its
/// status; and a new namespace.
const LABELLING: [&str; 8] = [
    "PATCH /api/v1/namespaces/other",
    "PATCH /api/v1/namespaces/other?fieldManager=kubectl",
    "PUT /api/v1/namespaces/other",
    "PATCH /api/v1/namespaces/other/status",
    "PUT /api/v1/namespaces/other/status",
    "PUT /api/v1/namespaces/other/finalize",
    "POST /api/v1/namespaces",
    "PATCH /api/v1/namespaces/mine",
];

#[tokio::test(start_paused = true)]
async fn attack_125_caller_gives_a_namespace_the_label_of_a_rule() {
    for line in LABELLING {
        let target = if line.contains("other") { "other" } else { "mine" };
        let pods = format!("GET /api/v1/namespaces/{target}/pods");
        for (policy, gets_in) in [
            (format!("{TEAM}{MANAGE}"), true),
            (format!("rules:\n{NO_LABELS}{}{MANAGE}", &TEAM["rules:\n".len()..]), false),
            (TEAM.to_owned(), false),
        ] {
            let fixture = Fixture::new(&policy);
            let (tunnel, _agent) = fixture.tunnel().await;
            assert_eq!(send(&tunnel, &pods).await, 403, "{line}");
            let status = send(&tunnel, line).await;
            assert_eq!(status == 200, gets_in, "{line}: {status}");
            assert_eq!(send(&tunnel, &pods).await == 200, gets_in, "{line}");
            assert_eq!(fixture.passed.lock().is_empty(), !gets_in, "{line}");
            let warned =
                fixture.policy.warnings().iter().any(|warning| warning.contains("choose the labels"));
            let labels_own = policy == TEAM;
            assert_eq!(warned, gets_in || labels_own, "{line}: the owner is warned of such a rule");
        }
    }
}

/// A caller of a namespace with the label may not remove one that denies, nor pass the label on.
#[tokio::test(start_paused = true)]
async fn attack_125_caller_removes_the_label_that_denies() {
    let fixture = Fixture::new(&format!("rules:\n{NO_LABELS}{}", &TEAM["rules:\n".len()..]));
    fixture.label("shop", &[("team", "shop"), ("tier", "prod")]);
    let (tunnel, _agent) = fixture.tunnel().await;
    let secrets = "GET /api/v1/namespaces/shop/secrets";
    for line in ["PATCH /api/v1/namespaces/shop", "PUT /api/v1/namespaces/shop/finalize", secrets] {
        assert_eq!(send(&tunnel, line).await, 403, "{line}");
    }
    assert!(fixture.passed.lock().is_empty());
    assert!(fixture.policy.warnings().iter().all(|warning| !warning.contains("choose the labels")));
}
