//! A stand-in for the API server: lists and watches of policies and Events, and questions about rights.

use std::{convert::Infallible, sync::Arc};

use agentk_core::{
    cluster::{Cluster, KubeconfigOptions},
    services::KubernetesService,
};
use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody, combinators::BoxBody};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testing::test_cluster::TestCluster;

/// What the API server has.
#[derive(Default)]
pub(super) struct Contents {
    /// The objects of lists, by path.
    pub(super) lists: Vec<(&'static str, Vec<Value>)>,
    /// The lines of watches, by path.
    pub(super) watches: Vec<(&'static str, Vec<Value>)>,
    /// The namespaces in which callers may list Events; the empty text is all of them.
    pub(super) allowed: Vec<&'static str>,
}

/// A running API server.
pub(super) struct ApiServer {
    cluster: TestCluster,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ApiServer {
    pub(super) async fn start(contents: Contents) -> Self {
        let (contents, requests) = (Arc::new(contents), Arc::<Mutex<Vec<String>>>::default());
        let seen = Arc::clone(&requests);
        let cluster =
            TestCluster::start(move |request| respond(Arc::clone(&contents), Arc::clone(&seen), request));
        Self { cluster: cluster.await, requests }
    }

    /// Returns agentk's service for it.
    pub(super) fn service(&self) -> KubernetesService {
        let options = KubeconfigOptions { file: Some(self.cluster.kubeconfig()), context: None };
        KubernetesService::new(Arc::new(Cluster::load(&options).unwrap()))
    }

    /// Returns the methods, paths and queries so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

async fn respond(
    contents: Arc<Contents>,
    seen: Arc<Mutex<Vec<String>>>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    seen.lock().push(format!("{} {}", head.method, head.uri));
    let path = head.uri.path();
    let find = |of: &[(&'static str, Vec<Value>)]| {
        of.iter().find(|(known, _)| *known == path).map(|(_, found)| found.clone())
    };
    if head.method == Method::POST {
        let review: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
        let namespace = review["spec"]["resourceAttributes"]["namespace"].as_str().unwrap_or_default();
        let allowed = contents.allowed.contains(&namespace) && head.headers.contains_key("impersonate-user");
        return Ok(whole(&json!({"status": {"allowed": allowed}})));
    }
    if head.uri.query().is_some_and(|query| query.contains("watch=true")) {
        let lines = find(&contents.watches).unwrap_or_default();
        let lines = lines.into_iter().map(|line| Ok(Frame::data(Bytes::from(format!("{line}\n")))));
        let body = StreamBody::new(futures_util::StreamExt::chain(stream::iter(lines), stream::pending()));
        return Ok(Response::new(body.boxed()));
    }
    match find(&contents.lists) {
        Some(items) => Ok(whole(&json!({"metadata": {"resourceVersion": "1"}, "items": items}))),
        None => {
            let status = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "message": "none", "code": 404});
            let mut response = whole(&status);
            *response.status_mut() = StatusCode::NOT_FOUND;
            Ok(response)
        }
    }
}

fn whole(value: &Value) -> Response<BoxBody<Bytes, Infallible>> {
    let body = http_body_util::Full::new(Bytes::from(value.to_string())).boxed();
    let mut response = Response::new(body);
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}
