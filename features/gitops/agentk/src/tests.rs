//! The subscriptions of kas, with a stand-in of the cluster.

use std::{collections::BTreeMap, convert::Infallible};

use agentk_core::{
    leader::{CandidateProcess, LeaderTask, LeaseDefinition},
    services::RequestHandler as _,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body as KubeBody;
use kube_cluster::Leadership;
use prometheus_client::registry::Registry;
use proto::{InstanceId, Reason};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tower::service_fn;
use tunnel::Body;

use super::*;

const CONFIG_MAPS: &str = "/api/v1/namespaces/agentk/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/agentk/leases";
const WITHOUT_PROJECTS: &str = "/v1/source?agent=7&projects=none";

/// An API server that keeps what is written.
#[derive(Clone, Default)]
struct TestCluster(Arc<Mutex<ClusterState>>);

#[derive(Default)]
struct ClusterState {
    objects: BTreeMap<String, Value>,
    /// The methods and paths of the requests.
    requests: Vec<String>,
    /// The status of responses to lists; 0 is that of a success.
    list_status: u16,
    /// Requests for Leases are answered with 403.
    forbids_leases: bool,
}

impl TestCluster {
    fn client(&self) -> KubeCluster {
        let state = Arc::clone(&self.0);
        let service = service_fn(move |request: Request<KubeBody>| {
            let state = Arc::clone(&state);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let (status, answer) = state.lock().respond(&parts.method, &parts.uri, &body);
                let body = Full::new(Bytes::from(answer.to_string()));
                Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
            }
        });
        KubeCluster::new(move || kube::Client::new(service, "default"))
    }

    fn set_list_status(&self, status: u16) {
        self.0.lock().list_status = status;
    }

    /// Adds a ConfigMap, as agentk writes inventories.
    fn add(&self, name: &str, project: &str, state: &str) {
        let status = json!({"project": project, "reference": "branch main", "state": state, "message": "", "objects": {}});
        let object = json!({
            "metadata": {"name": name, "annotations": {"agentk/project": project}},
            "data": {"status": status.to_string()},
        });
        self.0.lock().objects.insert(format!("{CONFIG_MAPS}/{name}"), object);
    }

    fn requests(&self) -> Vec<String> {
        self.0.lock().requests.clone()
    }
}

impl ClusterState {
    fn respond(&mut self, method: &Method, uri: &http::Uri, body: &[u8]) -> (u16, Value) {
        let mut path = uri.path().to_owned();
        self.requests.push(format!("{method} {path}"));
        let failure = |status: u16| (status, json!({"kind": "Status", "code": status, "message": "no"}));
        if self.forbids_leases && path.starts_with(LEASES) {
            return failure(403);
        }
        if *method != Method::GET {
            let mut object: Value = serde_json::from_slice(body).unwrap();
            object["metadata"]["resourceVersion"] = self.requests.len().to_string().into();
            if *method == Method::POST {
                path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
            }
            self.objects.insert(path, object.clone());
            return (200, object);
        }
        if path != CONFIG_MAPS {
            return self.objects.get(&path).map_or_else(|| failure(404), |object| (200, object.clone()));
        }
        let query = uri.query().unwrap_or_default();
        assert!(query.contains("labelSelector=app.kubernetes.io%2Fmanaged-by%3Dagentk"), "{query}");
        let of_members = query.contains("component%3Dgitops-members");
        let is_listed =
            |path: &str| path.starts_with(CONFIG_MAPS) && path.ends_with("-members") == of_members;
        match self.list_status {
            _ if query.contains("watch=") => failure(405),
            0 => {
                let items = self.objects.iter().filter(|(path, _)| is_listed(path));
                let items: Vec<&Value> = items.map(|(_, object)| object).collect();
                (200, json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {}, "items": items}))
            }
            status => failure(status),
        }
    }
}

/// A pod of agentk.
struct Pod {
    gitops: Arc<Gitops>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl Pod {
    fn start(cluster: &TestCluster) -> Self {
        let (leader, task) = Leader::new(LEASE, process(cluster, "pod"));
        let metrics = GitopsMetrics::register(&mut Registry::default());
        let log = EventLog::new(InstanceId::random());
        let (gitops, tasks) = Gitops::new(cluster.client(), leader, metrics, log);
        let lead = LeaderTask::run(task, CancellationToken::new());
        let tasks = [tokio::spawn(lead), tokio::spawn(tasks.run())].map(AbortOnDropHandle::new);
        Self { gitops, _tasks: tasks }
    }

    /// Sends a request of kas.
    async fn manifests(&self, request: Request<Body>) -> Response<Body> {
        let response = ManifestsHandler(Arc::clone(&self.gitops)).handle(request).await;
        response.unwrap_or_else(ServiceError::into_response)
    }

    async fn subscribe(&self, uri: &str) -> Response<Body> {
        self.manifests(Request::get(uri).body(Body::empty()).unwrap()).await
    }

    /// Returns the names and states of the projects, as a caller gets them, or the status of the error.
    async fn list(&self) -> Result<Vec<(String, String)>, u16> {
        let request = Request::get("/v1/projects").body(Body::empty()).unwrap();
        let response = GitopsHandler(Arc::clone(&self.gitops)).handle(request).await;
        let response = response.map_err(|error| error.reason.status().as_u16())?;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let projects = body["projects"].as_array().unwrap().iter();
        Ok(projects.map(|project| (text(&project["project"]), text(&project["state"]))).collect())
    }
}

/// Returns a process of agentk by the name of its pod.
fn process(cluster: &TestCluster, name: &str) -> CandidateProcess {
    let agent = watch::Sender::default();
    CandidateProcess {
        own: cluster.client(),
        namespace: "agentk".to_owned(),
        identity: name.to_owned(),
        agent,
    }
}

fn projects(list: &[(&str, &str)]) -> Result<Vec<(String, String)>, u16> {
    Ok(list.iter().map(|(project, state)| ((*project).to_owned(), (*state).to_owned())).collect())
}

/// Returns the next line of a subscription.
async fn notice(subscription: &mut Response<Body>) -> String {
    let frame = subscription.body_mut().frame().await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn agent_without_projects_is_not_named_and_has_no_lease() {
    let cluster = TestCluster::default();
    cluster.add("gitops-77-shop-1a2b", "group/shop", "synced");
    cluster.add("gitops-notify-7-1a2b", "group/shop", "synced");
    cluster.add("kube-root-ca.crt", "group/shop", "synced");
    let pod = Pod::start(&cluster);
    assert_eq!(pod.subscribe(WITHOUT_PROJECTS).await.status(), 204);
    assert_eq!((pod.list().await, pod.gitops.leader.agent()), (projects(&[]), None));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.requests(), [format!("GET {CONFIG_MAPS}"), format!("GET {CONFIG_MAPS}")]);

    assert_eq!(pod.subscribe("/v1/source?agent=7").await.status(), 200);
    sleep(Duration::from_secs(60)).await;
    assert!(cluster.requests().contains(&format!("POST {LEASES}")));
}

#[tokio::test(start_paused = true)]
async fn former_projects_are_listed_and_orphaned_after_a_restart() {
    let cluster = TestCluster::default();
    let name = ApplySet::new(AgentId(7), "group/shop", "agentk").name;
    cluster.add(&name, "group/shop", "synced");
    let pod = Pod::start(&cluster);
    let mut subscription = pod.subscribe(WITHOUT_PROJECTS).await;
    assert_eq!(subscription.status(), 200);
    assert_eq!(notice(&mut subscription).await, "\"standby\"\n");
    assert_eq!(pod.list().await, projects(&[("group/shop", "synced")]), "it need not lead");
    assert_eq!(notice(&mut subscription).await, "\"active\"\n");
    let list = Request::put("/v1/projects").body(Body::from(Bytes::from(r#"{"projects": []}"#))).unwrap();
    assert_eq!(pod.manifests(list).await.status(), 204);
    assert_eq!(pod.list().await, projects(&[("group/shop", "orphaned")]));

    // The inventory may be gone, and the process still works on the project.
    cluster.0.lock().objects.clear();
    assert_eq!(pod.subscribe(WITHOUT_PROJECTS).await.status(), 200);
}

/// Somebody has deleted the parent of the inventory of an orphaned project. The record of its members remains.
#[tokio::test(start_paused = true)]
async fn orphaned_project_without_the_parent_of_its_inventory_is_listed() {
    let cluster = TestCluster::default();
    let name = ApplySet::new(AgentId(7), "group/shop", "agentk").record_id().1.name;
    cluster.add(&name, "group/shop", "synced");
    let pod = Pod::start(&cluster);
    let mut subscription = pod.subscribe(WITHOUT_PROJECTS).await;
    assert_eq!(notice(&mut subscription).await, "\"standby\"\n");
    assert_eq!(notice(&mut subscription).await, "\"active\"\n");
    let list = Request::put("/v1/projects").body(Body::from(Bytes::from(r#"{"projects": []}"#))).unwrap();
    assert_eq!(pod.manifests(list).await.status(), 204);
    assert_eq!(pod.list().await, projects(&[("group/shop", "inventory-lost")]));
    let prune = Request::post("/v1/projects/group%2Fshop/prune").body(Body::empty()).unwrap();
    let refused = GitopsHandler(Arc::clone(&pod.gitops)).handle(prune).await.unwrap_err();
    assert!(
        refused.message.contains("list the project in gitops.manifest_projects again"),
        "{}",
        refused.message
    );
}

#[tokio::test(start_paused = true)]
async fn inventories_that_cannot_be_listed_are_an_error_unless_agentk_may_not() {
    let cluster = TestCluster::default();
    cluster.add("gitops-7-shop-1a2b", "group/shop", "orphaned");
    cluster.set_list_status(403);
    let pod = Pod::start(&cluster);
    assert_eq!(pod.subscribe(WITHOUT_PROJECTS).await.status(), 204);
    assert_eq!(pod.list().await, projects(&[]));
    cluster.set_list_status(500);
    assert_eq!(pod.subscribe(WITHOUT_PROJECTS).await.status(), 502);
    assert_eq!(pod.list().await, Err(502), "there may be projects");
    cluster.set_list_status(0);
    assert_eq!(pod.subscribe(WITHOUT_PROJECTS).await.status(), 200);
    assert_eq!(pod.list().await, projects(&[("group/shop", "orphaned")]));
}

#[tokio::test(start_paused = true)]
async fn caller_waits_for_the_first_subscription() {
    let cluster = TestCluster::default();
    cluster.add("gitops-7-shop-1a2b", "group/shop", "orphaned");
    let pod = Pod::start(&cluster);
    let subscribe = async {
        sleep(Duration::from_secs(2)).await;
        pod.subscribe(WITHOUT_PROJECTS).await
    };
    let (listed, _subscription) = tokio::join!(pod.list(), subscribe);
    assert_eq!(listed, projects(&[("group/shop", "orphaned")]));

    // An older kas does not subscribe without projects.
    let other = Pod::start(&cluster);
    let start = Instant::now();
    assert_eq!((other.list().await, start.elapsed()), (projects(&[]), SUBSCRIPTION_WAIT));
    sleep(Duration::from_secs(30)).await;
    let start = Instant::now();
    assert_eq!((other.list().await, start.elapsed()), (projects(&[]), Duration::ZERO));
}

/// The pod for audit events applies no manifests, and receives project events.
#[tokio::test(start_paused = true)]
async fn pod_without_gitops_does_not_keep_another_one_from_it() {
    let cluster = TestCluster::default();
    let lease = LeaseDefinition { suffix: "-notify", ..LEASE };
    let (events, task) = Leader::new(lease, process(&cluster, "audit"));
    events.set_agent(AgentId(7));
    let lead = LeaderTask::run(task, CancellationToken::new());
    let _lead = AbortOnDropHandle::new(tokio::spawn(lead));
    let held = async |leader: &Leader| leader.subscribe().wait_for(Leadership::is_held).await.is_ok();
    assert!(held(&events).await);

    let pod = Pod::start(&cluster);
    let _subscription = pod.subscribe("/v1/source?agent=7").await;
    assert!(held(&pod.gitops.leader).await && events.is_leading());
}

#[tokio::test(start_paused = true)]
async fn project_without_a_leader_is_unattended() {
    let cluster = TestCluster::default();
    cluster.add(&ApplySet::new(AgentId(7), "group/shop", "agentk").name, "group/shop", "synced");
    cluster.0.lock().forbids_leases = true;
    let pod = Pod::start(&cluster);
    let _subscription = pod.subscribe("/v1/source?agent=7").await;
    assert_eq!(pod.list().await, projects(&[("group/shop", "synced")]), "another pod may lead");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(pod.list().await, projects(&[("group/shop", "unattended")]));
    let text = pod.gitops.leader.unattended().unwrap();
    assert!(text.contains("403"), "{text}");

    cluster.0.lock().forbids_leases = false;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(pod.list().await, projects(&[("group/shop", "synced")]));
}

/// Test of shares: bodies that do not arrive leave the places of diffs to others.
#[tokio::test(start_paused = true)]
async fn bodies_that_trickle_take_no_place_of_other_diffs() {
    let pod = Pod::start(&TestCluster::default());
    let diff = async |body: Body| {
        let request = Request::post("/v1/projects/shop/diff").body(body).unwrap();
        GitopsHandler(Arc::clone(&pod.gitops)).handle(request).await.unwrap_err()
    };
    let trickle = || {
        let begin = Frame::data(Bytes::from_static(b"{"));
        let frames = stream::iter([Ok::<_, Infallible>(begin)]).chain(stream::pending());
        diff(Body::new(StreamBody::new(frames)))
    };
    let start = Instant::now();
    let whole = async {
        let error = diff(Body::from(Bytes::from_static(b"{}"))).await;
        (error.reason, start.elapsed())
    };
    let (first, second, whole) = tokio::join!(trickle(), trickle(), whole);
    assert_eq!(whole, (Reason::SourceUnavailable, Duration::ZERO), "no replica of kas sends manifests");
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    for late in [first, second] {
        assert_eq!(
            (late.reason, &*late.message),
            (Reason::BadRequest, "the manifests were not received in time")
        );
    }
    assert_eq!(pod.gitops.diff_bodies.used(), 0);
}
