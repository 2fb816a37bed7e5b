//! A stand-in for the API server: it keeps the objects of five kinds, with apply, JSON patches and preconditions.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use agentk_core::{
    cluster::{Cluster, KubeconfigOptions},
    services::KubernetesService,
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use testing::test_cluster::TestCluster;

/// A running API server.
pub(super) struct ApiServer {
    cluster: TestCluster,
    objects: Arc<Mutex<Objects>>,
}

#[derive(Default)]
struct Objects {
    /// The objects by their paths.
    all: BTreeMap<String, Value>,
    versions: u64,
}

impl ApiServer {
    pub(super) async fn start() -> Self {
        let objects = Arc::<Mutex<Objects>>::default();
        let served = Arc::clone(&objects);
        let cluster = TestCluster::start(move |request| respond(Arc::clone(&served), request)).await;
        Self { cluster, objects }
    }

    /// Returns agentk's service for it.
    pub(super) fn service(&self) -> KubernetesService {
        let options = KubeconfigOptions { file: Some(self.cluster.kubeconfig()), context: None };
        KubernetesService::new(Arc::new(Cluster::load(&options).unwrap()))
    }

    /// Puts an object there as another program would.
    pub(super) fn put(&self, path: &str) {
        let mut objects = self.objects.lock();
        let name = path.rsplit('/').next().unwrap_or_default();
        objects.store(path, json!({"metadata": {"name": name, "uid": path, "managedFields": []}}));
    }

    /// Returns the paths of all objects.
    pub(super) fn paths(&self) -> Vec<String> {
        self.objects.lock().all.keys().cloned().collect()
    }
}

impl Objects {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.versions += 1;
        object["metadata"]["resourceVersion"] = self.versions.to_string().into();
        self.all.insert(path.to_owned(), object.clone());
        object
    }

    fn list(&self, collection: &str, query: &str) -> Value {
        let selector = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector="));
        let label = percent_encoding::percent_decode_str(selector.unwrap_or_default()).decode_utf8_lossy();
        let is_listed = |(path, object): &(&String, &Value)| {
            let (parent, _) = path.rsplit_once('/').unwrap();
            let everywhere = parent
                .split_once("/namespaces/")
                .and_then(|(prefix, rest)| Some(format!("{prefix}/{}", rest.split_once('/')?.1)));
            let is_labelled = label.is_empty() || object["metadata"]["labels"].get(&*label).is_some();
            (parent == collection || everywhere.as_deref() == Some(collection)) && is_labelled
        };
        let items: Vec<Value> = self
            .all
            .iter()
            .filter(is_listed)
            .map(|(_, object)| json!({"metadata": object["metadata"]}))
            .collect();
        json!({"metadata": {}, "items": items})
    }

    fn apply(&mut self, path: &str, mut applied: Value) -> (u16, Value) {
        let live = self.all.get(path).cloned();
        let wanted = applied["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        if wanted.is_some_and(|wanted| {
            live.as_ref().is_none_or(|live| live["metadata"]["resourceVersion"] != wanted)
        }) {
            return failure(409, "Conflict");
        }
        let status = if live.is_some() { 200 } else { 201 };
        let mut object =
            live.clone().unwrap_or_else(|| json!({"metadata": {"uid": path, "managedFields": []}}));
        merge(&mut object, applied);
        if live.as_ref() == Some(&object) { (200, object) } else { (status, self.store(path, object)) }
    }

    fn patch(&mut self, path: &str, operations: &Value) -> (u16, Value) {
        let Some(mut object) = self.all.get(path).cloned() else { return failure(404, "NotFound") };
        for operation in operations.as_array().unwrap() {
            let (parent, key) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
            let parent = object.pointer_mut(parent).and_then(Value::as_object_mut).unwrap();
            let key = key.replace("~1", "/");
            match operation["op"].as_str().unwrap() {
                "test" if parent[&key] != operation["value"] => return failure(422, "Invalid"),
                "add" => drop(parent.insert(key, operation["value"].clone())),
                "remove" => drop(parent.remove(&key)),
                _ => {}
            }
        }
        (200, self.store(path, object))
    }

    fn delete(&mut self, path: &str, options: &Value) -> (u16, Value) {
        let Some(object) = self.all.get(path) else { return failure(404, "NotFound") };
        for key in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][key];
            if !wanted.is_null() && object["metadata"][key] != *wanted {
                return failure(409, "Conflict");
            }
        }
        let inside = format!("{path}/");
        let prefix = path.strip_prefix("/api/v1").unwrap_or(path).to_owned() + "/";
        self.all.retain(|other, _| other != path && !other.starts_with(&inside) && !other.contains(&prefix));
        (200, json!({"kind": "Status", "status": "Success"}))
    }
}

async fn respond(
    objects: Arc<Mutex<Objects>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    let is_apply =
        head.headers.get(CONTENT_TYPE).is_some_and(|it| it.as_bytes().starts_with(b"application/apply"));
    let mut objects = objects.lock();
    let (status, answer) = match (&head.method, path) {
        (&Method::GET, "/api" | "/apis") => (200, discovery(path)),
        (&Method::PATCH, _) if is_apply => objects.apply(path, body),
        (&Method::PATCH, _) => objects.patch(path, &body),
        (&Method::DELETE, _) => objects.delete(path, &body),
        (_, path) => match objects.all.get(path) {
            Some(object) => (200, object.clone()),
            None if KINDS.iter().any(|(_, _, plural, _)| path.ends_with(&format!("/{plural}"))) => {
                (200, objects.list(path, query))
            }
            None => failure(404, "NotFound"),
        },
    };
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The API group, the kind, its resource, and whether its objects are in namespaces.
const KINDS: [(&str, &str, &str, bool); 5] = [
    ("", "Namespace", "namespaces", false),
    ("", "ServiceAccount", "serviceaccounts", true),
    ("", "Secret", "secrets", true),
    ("apps", "Deployment", "deployments", true),
    ("rbac.authorization.k8s.io", "RoleBinding", "rolebindings", true),
];

/// Returns the answer of the aggregated discovery.
fn discovery(path: &str) -> Value {
    let is_here = |group: &str| group.is_empty() == (path == "/api");
    let groups = KINDS.iter().filter(|(group, ..)| is_here(group)).map(|(group, kind, plural, namespaced)| {
        let scope = if *namespaced { "Namespaced" } else { "Cluster" };
        let resource = json!({"resource": plural, "responseKind": {"kind": kind}, "scope": scope, "verbs": ["list"]});
        let version = json!({"version": "v1", "freshness": "Current", "resources": [resource]});
        json!({"metadata": {"name": group}, "versions": [version]})
    });
    json!({"items": groups.collect::<Vec<_>>()})
}

fn failure(status: u16, reason: &str) -> (u16, Value) {
    (
        status,
        json!({"kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": status}),
    )
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Object(Map::new())), value);
            }
        }
        (into, from) => *into = from,
    }
}
