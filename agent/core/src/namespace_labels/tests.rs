//! The follower on a paused clock, with an API server whose answers a test sets.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{sync::watch, time::sleep};
use tower::service_fn;

use super::*;
use crate::{AgentMetrics, services::BoxService};

const TEAM: &str = "rules:
- {name: no-prod, action: deny, services: [kubernetes], resources: [secrets], namespaceSelector: {matchLabels: {tier: prod}}}
- {name: team, action: allow, services: [kubernetes], namespaceSelector: {matchLabels: {team: shop}}}";
const BY_NAME: &str = "rules: [{name: shop, action: allow, services: [kubernetes], namespaces: [shop]}]";
/// A list is complete at the latest after this time, if the API server answers.
const SOON: Duration = Duration::from_secs(16);

/// The answers of the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Answers {
    #[default]
    Lists,
    /// The first page is answered, and the second is not.
    FirstPage,
    /// A page that is larger than agentk reads.
    HugePage,
    /// It fails.
    Errors,
    /// RBAC refuses the list.
    Forbidden,
    /// It never answers.
    Nothing,
}

#[derive(Default)]
struct Server {
    answers: Mutex<Answers>,
    labels: Mutex<Value>,
    requests: AtomicUsize,
}

impl Server {
    async fn respond(self: Arc<Self>, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        self.requests.fetch_add(1, Relaxed);
        let answers = *self.answers.lock();
        let is_second_page = request.uri().query().is_some_and(|query| query.contains("continue=next"));
        Ok(match answers {
            Answers::Nothing => std::future::pending().await,
            Answers::FirstPage if is_second_page => std::future::pending().await,
            Answers::Errors => status(503),
            Answers::Forbidden => status(403),
            Answers::HugePage => Response::new(Body::from("x".repeat(MAX_PAGE_BYTES + 1))),
            Answers::Lists | Answers::FirstPage => self.page(is_second_page),
        })
    }

    /// The namespace `shop` is on the second page.
    fn page(&self, is_second: bool) -> Response<Body> {
        let (name, labels, next) =
            if is_second { ("shop", self.labels.lock().clone(), "") } else { ("first", json!({}), "next") };
        let item = json!({"metadata": {"name": name, "labels": labels, "resourceVersion": "1"}});
        let list = json!({"metadata": {"resourceVersion": "1", "continue": next}, "items": [item]});
        Response::new(Body::from(list.to_string()))
    }

    fn set(&self, answers: Answers) {
        *self.answers.lock() = answers;
    }

    fn label(&self, labels: Value) {
        *self.labels.lock() = labels;
    }

    fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }
}

fn status(code: u16) -> Response<Body> {
    let reason = if code == 403 { "Forbidden" } else { "ServiceUnavailable" };
    let status =
        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason});
    Response::builder().status(code).body(Body::from(status.to_string())).unwrap()
}

struct World {
    _directory: TempDir,
    server: Arc<Server>,
    policy: Arc<PolicyEnforcer>,
    follower: LabelFollower,
}

impl World {
    fn start(policy: &str, answers: Answers) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        fs::write(&file, policy).unwrap();
        let policy = Arc::new(PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap());
        let server = Arc::<Server>::default();
        server.label(json!({"team": "shop"}));
        server.set(answers);
        let of_follower = Arc::clone(&server);
        let service = service_fn(move |request| Arc::clone(&of_follower).respond(request));
        let service = KubeService::of(BoxService::new(service));
        let follower = LabelFollower { policy: Arc::clone(&policy), service };
        tokio::spawn(follower.clone().run());
        Self { _directory: directory, server, policy, follower }
    }

    /// Follows the policy file as agentk does.
    fn follow_file(&self) {
        let file = files::ReloadHealth::default().file("--policy-file");
        tokio::spawn(Arc::clone(&self.policy).follow(file, watch::Sender::new(()).subscribe()));
    }

    fn reload(&self, policy: &str) {
        fs::write(self.policy.file(), policy).unwrap();
        self.policy.reload().unwrap();
    }

    async fn known(&self) {
        timeout(SOON, self.follower.known()).await.unwrap();
    }

    fn allows(&self, path: &str) -> bool {
        self.policy.permits("kubernetes", &Request::get(path).body(()).unwrap())
    }

    fn allows_pods(&self) -> bool {
        self.allows("/api/v1/namespaces/shop/pods")
    }

    fn refusal(&self, path: &str) -> String {
        let refused = self.policy.check("kubernetes", &Request::get(path).body(()).unwrap());
        refused.unwrap_err().message
    }

    fn problem_contains(&self, text: &str) -> bool {
        self.policy.label_problem().is_some_and(|problem| problem.contains(text))
    }
}

#[tokio::test(start_paused = true)]
async fn labels_are_used_for_60_s_after_the_begin_of_the_last_list() {
    for (answers, problem) in [
        (Answers::Errors, FAILED),
        (Answers::Nothing, SILENT),
        (Answers::FirstPage, SILENT),
        (Answers::HugePage, FAILED),
    ] {
        let world = World::start(TEAM, Answers::Lists);
        assert!(!world.allows_pods(), "no labels are known yet");
        world.known().await;
        sleep(Duration::from_secs(600)).await;
        assert!(world.allows_pods());

        let mut announced = world.policy.labels().announcements();
        world.server.set(answers);
        let begin = Instant::now();
        timeout(MAX_AGE * 2, announced.changed()).await.unwrap().unwrap();
        let used = begin.elapsed();
        assert!(used <= MAX_AGE && used >= MAX_AGE - MAX_WAIT, "{answers:?}: {used:?}");
        assert!(!world.allows_pods());
        sleep(LIST_TIMEOUT).await;
        assert!(world.problem_contains(problem), "{answers:?}: {:?}", world.policy.label_problem());

        world.server.set(Answers::Lists);
        timeout(LIST_TIMEOUT + SOON, world.follower.known()).await.unwrap();
        assert!(world.allows_pods());
    }
}

#[tokio::test(start_paused = true)]
async fn refused_list_ends_the_use_of_labels() {
    let world = World::start(TEAM, Answers::Lists);
    world.known().await;
    world.server.set(Answers::Forbidden);
    sleep(SOON).await;
    assert!(!world.allows_pods() && world.problem_contains(REFUSED));
    let message = world.refusal("/api/v1/namespaces/shop/pods");
    assert!(message.ends_with(&format!("the labels of namespaces are not known: {REFUSED}")), "{message}");
}

#[tokio::test(start_paused = true)]
async fn only_changes_of_named_labels_are_announced() {
    let world = World::start(TEAM, Answers::Lists);
    world.known().await;
    let (mut announced, versions) = (world.policy.labels().announcements(), world.policy.changes());
    for number in 0..10 {
        world.server.label(json!({"team": "shop", "note": number.to_string()}));
        sleep(SOON).await;
    }
    assert!(!announced.has_changed().unwrap(), "the policy does not name the label `note`");

    world.server.label(json!({"team": "other"}));
    timeout(SOON, announced.changed()).await.unwrap().unwrap();
    assert!(!world.allows_pods());
    assert!(!versions.has_changed().unwrap(), "labels are no new version of the file");
}

/// The owner adds the first rule with a selector: the version before stays in force until the labels are known.
#[tokio::test(start_paused = true)]
async fn new_version_waits_for_its_labels() {
    let world = World::start(BY_NAME, Answers::Lists);
    world.follow_file();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.server.requests(), 0, "nothing needs labels");

    let mut versions = world.policy.changes();
    world.reload(TEAM);
    assert!(world.allows_pods(), "the version before is in force");
    timeout(Duration::from_secs(1), versions.changed()).await.unwrap().unwrap();
    assert!(world.policy.needs_labels() && world.policy.label_problem().is_none() && world.allows_pods());

    // Other keys need another list at once, without a moment in which labels are missing.
    world.reload(&TEAM.replace("team", "owner"));
    for _ in 0..100 {
        assert!(world.policy.label_problem().is_none());
        sleep(Duration::from_millis(10)).await;
    }
    assert!(!world.allows_pods());

    world.reload(BY_NAME);
    let before = world.server.requests();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(world.server.requests(), before, "nothing needs labels any more");
    assert!(world.policy.labels().read(NamespaceLabels::problem).is_some(), "they are forgotten");
}

#[tokio::test(start_paused = true)]
async fn new_version_waits_for_10_s_at_most() {
    let world = World::start(BY_NAME, Answers::Forbidden);
    world.follow_file();
    let (begin, mut versions) = (Instant::now(), world.policy.changes());
    world.reload(TEAM);
    timeout(MAX_AGE, versions.changed()).await.unwrap().unwrap();
    assert_eq!(begin.elapsed().as_secs(), 10);
    assert!(!world.allows_pods(), "rules by labels allow nothing");

    // A version that is replaced while it waits never comes into force.
    world.reload(BY_NAME);
    world.reload(TEAM);
    world.reload(BY_NAME);
    sleep(Duration::from_secs(60)).await;
    assert!(!world.policy.needs_labels() && world.allows_pods());
}

/// A caller must not learn from a refusal which namespaces exist.
#[tokio::test(start_paused = true)]
async fn refusal_is_the_same_for_a_namespace_that_does_not_exist() {
    let world = World::start(TEAM, Answers::Lists);
    world.server.label(json!({"team": "other", "tier": "prod"}));
    world.known().await;
    for resource in ["pods", "secrets"] {
        let [exists, absent] = ["shop", "absent"].map(|namespace| {
            let message = world.refusal(&format!("/api/v1/namespaces/{namespace}/{resource}"));
            message.replace(namespace, "NAME")
        });
        assert_eq!(exists, absent);
        assert!(exists.ends_with("with the labels of its namespace"), "{exists}");
    }
    world.server.label(json!({"team": "other"}));
    sleep(SOON).await;
    let [exists, absent] = ["shop", "absent"].map(|namespace| {
        world.refusal(&format!("/api/v1/namespaces/{namespace}/secrets")).replace(namespace, "NAME")
    });
    assert_eq!(exists, absent, "also if no rule denies the one that exists");
}
