//! A browser that follows the graph by server-sent events, with a stand-in for the API server.

use std::{convert::Infallible, time::Duration};

use agentk_core::{
    cluster::{Cluster, KubeconfigOptions},
    services::KubernetesService,
};
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode, header::ACCEPT};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use proto::{
    graph::{GraphEvent, Token, WatchMode},
    header::LAST_EVENT_ID,
};
use serde_json::{Value, json};
use testing::test_cluster::TestCluster;
use tokio::{sync::mpsc, time::timeout};

use super::*;

const PODS: &str = "/api/v1/pods";

/// An API server with Pods.
struct ApiServer {
    cluster: TestCluster,
    state: Arc<Mutex<ApiState>>,
}

#[derive(Default)]
struct ApiState {
    pods: Vec<Value>,
    watches: Vec<mpsc::UnboundedSender<Value>>,
}

impl ApiServer {
    async fn start() -> Self {
        let state = Arc::<Mutex<ApiState>>::default();
        let responding = Arc::clone(&state);
        let cluster = TestCluster::start(move |request: Request<hyper::body::Incoming>| {
            std::future::ready(Ok::<_, Infallible>(respond(&responding, request.uri())))
        });
        Self { cluster: cluster.await, state }
    }

    fn add(&self, name: &str) {
        let mut state = self.state.lock();
        let version = (state.pods.len() + 2).to_string();
        let metadata = json!({"name": name, "namespace": "shop", "uid": name, "resourceVersion": version});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        state.watches.retain(|watch| watch.send(added(&pod)).is_ok());
        state.pods.push(pod);
    }

    fn handler(&self) -> GraphHandler {
        let options = KubeconfigOptions { file: Some(self.cluster.kubeconfig()), context: None };
        let service = KubernetesService::new(Arc::new(Cluster::load(&options).unwrap()));
        GraphHandler::new(GraphService::new(service, Restrictions::default(), InstanceId::random()))
    }
}

fn added(pod: &Value) -> Value {
    json!({"type": "ADDED", "object": pod})
}

fn respond(state: &Mutex<ApiState>, uri: &http::Uri) -> Response<BoxBody<Bytes, Infallible>> {
    let (mut state, query) = (state.lock(), uri.query().unwrap_or_default());
    let value = match uri.path() {
        "/api" => {
            json!({"metadata": {}, "items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [{
                "resource": "pods", "singularResource": "pod", "scope": "Namespaced", "verbs": ["list", "watch"],
                "responseKind": {"group": "", "version": "v1", "kind": "Pod"},
            }]}]}]})
        }
        "/apis" => json!({"metadata": {}, "items": []}),
        PODS if query.contains("watch=true") => {
            let (sender, receiver) = mpsc::unbounded_channel::<Value>();
            // The objects that were added after the list.
            let listed =
                query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse().ok());
            for pod in state.pods.iter().skip(listed.map_or(0, |version: usize| version - 1)) {
                sender.send(added(pod)).unwrap();
            }
            state.watches.push(sender);
            let lines = stream::unfold(receiver, async |mut receiver| {
                let line = format!("{}\n", receiver.recv().await?);
                Some((Ok(Frame::data(Bytes::from(line))), receiver))
            });
            return Response::new(StreamBody::new(lines).boxed());
        }
        PODS => {
            json!({"metadata": {"resourceVersion": (state.pods.len() + 1).to_string()}, "items": state.pods})
        }
        _ => {
            let status = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "none", "code": 404});
            let mut response = Response::new(Full::new(Bytes::from(status.to_string())).boxed());
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        }
    };
    Response::new(Full::new(Bytes::from(value.to_string())).boxed())
}

/// A browser's reader of server-sent events.
struct EventSource {
    body: Body,
    buffer: String,
    mode: WatchMode,
    /// The names of the objects that were sent.
    names: Vec<String>,
    last_id: Option<String>,
}

impl EventSource {
    /// Sends the request of a browser, which has this id if it was connected before.
    async fn open(handler: &GraphHandler, query: &str, last_id: Option<&str>) -> Self {
        let mut request = Request::get(format!("{WATCH_PATH}{query}")).header(ACCEPT, "text/event-stream");
        if let Some(id) = last_id {
            request = request.header(LAST_EVENT_ID, id);
        }
        let response = handler.handle(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert!(response.extensions().get::<WatchResponse>().is_some(), "agentk ends it when it stops");
        let (body, buffer, mode) = (response.into_body(), String::new(), WatchMode::Snapshot);
        let mut source = Self { body, buffer, mode, names: Vec::new(), last_id: None };
        let GraphEvent::Begin { mode } = source.next().await else { panic!("the first event") };
        source.mode = mode;
        source
    }

    async fn next(&mut self) -> GraphEvent {
        loop {
            if let Some((message, rest)) = self.buffer.split_once("\n\n") {
                let field = |name: &str| message.lines().find_map(|line| line.strip_prefix(name));
                let event = serde_json::from_str(field("data: ").unwrap()).unwrap();
                if let Some(id) = field("id: ") {
                    self.last_id = Some(id.to_owned());
                }
                self.buffer = rest.to_owned();
                return event;
            }
            let frame = timeout(Duration::from_secs(20), self.body.frame()).await.expect("an event in time");
            let data = frame.unwrap().unwrap().into_data().unwrap();
            self.buffer.push_str(str::from_utf8(&data).unwrap());
        }
    }

    /// Reads until the changes with an object are complete. Returns the names of all objects so far.
    async fn read_until(&mut self, name: &str) -> Vec<String> {
        let is_known = |names: &[String]| names.iter().any(|known| known == name);
        loop {
            match self.next().await {
                GraphEvent::Node { node } => self.names.push(node.name),
                GraphEvent::Commit { token } if is_known(&self.names) => {
                    assert_eq!(self.last_id, Some(token.to_string()));
                    self.names.sort();
                    return self.names.clone();
                }
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn browser_that_connects_again_gets_what_is_new_since_its_last_event() {
    let server = ApiServer::start().await;
    server.add("a");
    let handler = server.handler();
    let mut first = EventSource::open(&handler, "", None).await;
    assert_eq!((first.mode, first.read_until("a").await), (WatchMode::Snapshot, vec!["a".to_owned()]));
    let at_first = first.last_id.clone().unwrap();
    server.add("b");
    assert_eq!(first.read_until("b").await, ["a", "b"]);
    let last = first.last_id.clone();
    // The connection is lost, and something happens meanwhile.
    drop(first);
    server.add("c");
    let mut again = EventSource::open(&handler, "", last.as_deref()).await;
    assert_eq!((again.mode, again.read_until("c").await), (WatchMode::Delta, vec!["c".to_owned()]));
    // A browser repeats the address of the first request, whose position is older than that of the id.
    let query = format!("?since={at_first}");
    let mut again = EventSource::open(&handler, &query, last.as_deref()).await;
    assert_eq!((again.mode, again.read_until("c").await), (WatchMode::Delta, vec!["c".to_owned()]));
    let mut without_id = EventSource::open(&handler, &query, None).await;
    assert_eq!(
        (without_id.mode, without_id.read_until("c").await),
        (WatchMode::Delta, vec!["b".to_owned(), "c".to_owned()])
    );
}

#[tokio::test]
async fn browser_with_an_unknown_id_gets_everything() {
    let server = ApiServer::start().await;
    server.add("a");
    server.add("b");
    let handler = server.handler();
    let of_another_process = Token { instance: InstanceId::random(), generation: 1, sequence: 1 }.to_string();
    for id in [&*of_another_process, "an id of another version", "1795179600250-0"] {
        let mut source = EventSource::open(&handler, "", Some(id)).await;
        assert_eq!(
            (source.mode, source.read_until("b").await),
            (WatchMode::Reset, vec!["a".to_owned(), "b".to_owned()]),
            "{id}"
        );
    }
    let mut source = EventSource::open(&handler, "", Some("")).await;
    assert_eq!((source.mode, source.read_until("b").await.len()), (WatchMode::Snapshot, 2), "no id");
    let wrong = Request::get(format!("{WATCH_PATH}?since=x")).body(Body::empty()).unwrap();
    assert_eq!(handler.handle(wrong).await.unwrap_err().reason, Reason::BadRequest);
}
