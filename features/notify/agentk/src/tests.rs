//! The work on events, with a stand-in of the cluster and a receiver that a test controls.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    time::Duration,
};

use agentk_core::{AgentMetrics, leader::CandidateProcess};
use agentk_policy::NamespaceLabels;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use kube::client::Body as KubeBody;
use proto::{
    AgentId,
    agent_configuration::AgentConfiguration,
    notify::{ProjectEvent, ProjectEventFields},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tower::service_fn;

use super::*;

/// An API server that keeps what is written.
#[derive(Clone, Default)]
struct TestCluster(Arc<Mutex<HashMap<String, Value>>>);

impl TestCluster {
    fn client(&self) -> KubeCluster {
        let objects = Arc::clone(&self.0);
        let service = service_fn(move |request: Request<KubeBody>| {
            let objects = Arc::clone(&objects);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let mut path = parts.uri.path().to_owned();
                let (status, answer) = match parts.method {
                    Method::GET => match objects.lock().get(&path) {
                        Some(object) => (200, object.clone()),
                        None => (404, json!({"code": 404, "reason": "NotFound", "message": "not found"})),
                    },
                    method => {
                        let mut object: Value = serde_json::from_slice(&body).unwrap();
                        object["metadata"]["resourceVersion"] = "1".into();
                        if method == Method::POST {
                            path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                        }
                        objects.lock().insert(path, object.clone());
                        (200, object)
                    }
                };
                let body = Full::new(Bytes::from(answer.to_string()));
                Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
            }
        });
        KubeCluster::new(move || kube::Client::new(service, "default"))
    }
}

/// A receiver that answers each request with the next status, 200 if there is none.
struct Receiver {
    url: String,
    statuses: Arc<Mutex<VecDeque<u16>>>,
    /// The ids of the requests, each before its response is sent.
    requests: mpsc::UnboundedReceiver<String>,
    /// Lets the receiver send a response.
    responses: mpsc::UnboundedSender<()>,
    _task: AbortOnDropHandle<()>,
}

impl Receiver {
    async fn start(statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let statuses = Arc::new(Mutex::new(statuses.iter().copied().collect::<VecDeque<_>>()));
        let (sender, requests) = mpsc::unbounded_channel();
        let (responses, mut allowed) = mpsc::unbounded_channel();
        let queue = Arc::clone(&statuses);
        let task = tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                let mut read = Vec::new();
                while !read.ends_with(b"}") {
                    assert_ne!(connection.read_buf(&mut read).await.unwrap(), 0);
                }
                let text = String::from_utf8(read).unwrap().to_ascii_lowercase();
                let (_, rest) = text.split_once("webhook-id: ").unwrap();
                sender.send(rest.split_once("\r\n").unwrap().0.to_owned()).unwrap();
                allowed.recv().await;
                let status = queue.lock().pop_front().unwrap_or(200);
                let response =
                    format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                connection.write_all(response.as_bytes()).await.unwrap();
            }
        });
        Self { url, statuses, requests, responses, _task: AbortOnDropHandle::new(task) }
    }

    /// Returns the id of the next request.
    async fn received(&mut self) -> String {
        timeout(Duration::from_secs(10), self.requests.recv()).await.expect("a request").unwrap()
    }

    fn respond(&self) {
        self.responses.send(()).unwrap();
    }

    /// Checks that there is no request for longer than the first wait after a failure.
    async fn is_quiet(&mut self) {
        assert!(timeout(Duration::from_secs(2), self.requests.recv()).await.is_err());
    }
}

/// A pod that leads.
struct Pod {
    notify: Arc<Notify>,
    directory: tempfile::TempDir,
    policy: Arc<PolicyEnforcer>,
    shutdown: CancellationToken,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Pod {
    async fn start(cluster: &TestCluster, url: &str) -> Self {
        Self::with_rules("[]", cluster, url).await
    }

    /// Starts a pod whose policy has these rules.
    async fn with_rules(rules: &str, cluster: &TestCluster, url: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key"), "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n")
            .unwrap();
        let file = directory.path().join("policy.yaml");
        write_policy(&directory, rules, url);
        let policy = Arc::new(PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap());
        let process = CandidateProcess {
            own: cluster.client(),
            namespace: "agentk".to_owned(),
            identity: "pod".to_owned(),
            agent: watch::Sender::default(),
        };
        let (leader, leader_task) = Leader::new(LEASE, process);
        let metrics = NotifyMetrics::register(&mut prometheus_client::registry::Registry::default());
        let (notify, tasks) =
            Notify::new(cluster.client(), Arc::clone(&leader), Some(Arc::clone(&policy)), metrics);
        let shutdown = CancellationToken::new();
        leader.set_agent(AgentId(7));
        let spawned = [
            AbortOnDropHandle::new(tokio::spawn(leader_task.run(shutdown.clone()))),
            AbortOnDropHandle::new(tokio::spawn(tasks.run())),
        ];
        let mut leadership = leader.subscribe();
        leadership.wait_for(|leadership| leadership.is_held()).await.unwrap();
        let text = format!("notify: {{projects: [{{id: a/b, webhooks: [{{url: '{url}'}}]}}]}}");
        let parsed = AgentConfiguration::parse(std::path::Path::new("c.yaml"), &text).unwrap();
        let sections = EventSections { notify: parsed.notify.unwrap(), flux: None };
        notify.set_sections(sections, &BTreeMap::new());
        Self { notify, directory, policy, shutdown, tasks: spawned.into() }
    }

    fn accept(&self, number: u64) {
        self.notify.accept(&event(number));
    }

    async fn stop(self) {
        self.shutdown.cancel();
        for task in self.tasks {
            let _ = timeout(Duration::from_secs(10), task).await;
        }
    }
}

fn write_policy(directory: &tempfile::TempDir, rules: &str, url: &str) {
    let key = directory.path().join("key");
    let text = format!("rules: {rules}\nwebhooks: [{{url: '{url}', secretFile: '{}'}}]\n", key.display());
    std::fs::write(directory.path().join("policy.yaml"), text).unwrap();
}

fn event(number: u64) -> ProjectEvent {
    let fields = ProjectEventFields {
        id: format!("e-{number}"),
        sequence: number,
        project: "a/b".to_owned(),
        reference: Some("refs/heads/main".to_owned()),
        before: None,
        after: None,
        urls: Vec::new(),
        time: std::time::SystemTime::UNIX_EPOCH,
    };
    fields.try_into().unwrap()
}

#[tokio::test]
async fn event_that_arrived_during_another_one_is_tried_until_it_succeeds() {
    let mut receiver = Receiver::start(&[200, 503, 200]).await;
    let pod = Pod::start(&TestCluster::default(), &receiver.url).await;
    pod.accept(1);
    assert_eq!(receiver.received().await, "e-1");
    pod.accept(2);
    pod.accept(3);
    receiver.respond();
    assert_eq!(receiver.received().await, "e-3", "only the latest one counts");
    receiver.respond();
    assert_eq!(receiver.received().await, "e-3", "503 is no success");
    receiver.respond();
    receiver.is_quiet().await;
    assert_eq!(pod.notify.pending(), 0);
}

#[tokio::test]
async fn later_event_replaces_one_that_waits_for_its_next_attempt() {
    let mut receiver = Receiver::start(&[503]).await;
    let pod = Pod::start(&TestCluster::default(), &receiver.url).await;
    pod.accept(1);
    assert_eq!(receiver.received().await, "e-1");
    receiver.respond();
    while pod.notify.metrics.attempts("webhook", "failed") == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pod.accept(2);
    assert_eq!(receiver.received().await, "e-2");
    receiver.respond();
    receiver.is_quiet().await;
}

/// Accepts the first event, and waits for its answer.
async fn first_effect(pod: &Pod, receiver: &mut Receiver) {
    pod.accept(1);
    assert_eq!(receiver.received().await, "e-1");
    receiver.respond();
    while pod.notify.pending() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Expects that kas sends the first event again, and that it has an effect.
async fn sends_again(pod: &Pod, receiver: &mut Receiver, generation: &mut watch::Receiver<u64>) {
    timeout(Duration::from_secs(10), generation.changed())
        .await
        .expect("kas sends the events again")
        .unwrap();
    pod.accept(1);
    assert_eq!(receiver.received().await, "e-1");
}

#[tokio::test]
async fn next_leader_does_not_repeat_an_event() {
    let (mut receiver, cluster) = (Receiver::start(&[]).await, TestCluster::default());
    let pod = Pod::start(&cluster, &receiver.url).await;
    first_effect(&pod, &mut receiver).await;
    pod.stop().await;
    let next = Pod::start(&cluster, &receiver.url).await;
    next.accept(1);
    receiver.is_quiet().await;
    next.accept(2);
    assert_eq!(receiver.received().await, "e-2");
}

#[tokio::test]
async fn refused_event_is_tried_again_only_after_the_policy_has_changed() {
    let mut receiver = Receiver::start(&[404]).await;
    let pod = Pod::start(&TestCluster::default(), &receiver.url).await;
    let mut generation = pod.notify.generation.subscribe();
    first_effect(&pod, &mut receiver).await;
    // Another tunnel brings the same event.
    pod.accept(1);
    receiver.is_quiet().await;
    assert!(receiver.statuses.lock().is_empty());

    let file = pod.directory.path().join("policy.yaml");
    let policy = std::fs::read_to_string(&file).unwrap();
    generation.mark_unchanged();
    std::fs::write(file, policy + "mode: dry-run\n").unwrap();
    pod.policy.reload().unwrap();
    sends_again(&pod, &mut receiver, &mut generation).await;
}

/// Rules by labels allow nothing while the labels of namespaces are not known, so that what they refuse then is tried again.
#[tokio::test]
async fn refused_event_is_tried_again_once_labels_are_known() {
    const TEAM: &str =
        "[{name: team, action: allow, services: [notify], namespaceSelector: {matchLabels: {team: shop}}}]";
    let mut receiver = Receiver::start(&[404]).await;
    let pod = Pod::with_rules(TEAM, &TestCluster::default(), &receiver.url).await;
    let mut generation = pod.notify.generation.subscribe();
    first_effect(&pod, &mut receiver).await;

    generation.mark_unchanged();
    let labels = pod.policy.labels();
    let mut known = NamespaceLabels::empty(["team".to_owned()].into());
    let until = tokio::time::Instant::now() + Duration::from_secs(600);
    labels.set(known.clone(), until);
    sends_again(&pod, &mut receiver, &mut generation).await;

    // Other labels alone send nothing again: each change of a namespace would repeat all refused events.
    known.set("web", [("team".to_owned(), "web".to_owned())].into());
    labels.set(known, until);
    assert!(timeout(Duration::from_secs(1), generation.changed()).await.is_err());
}
