//! The loads of a cache, from an API server in memory whose kinds change.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use kube::Client;
use parking_lot::Mutex;
use proto::{InstanceId, graph::ResourceState};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};
use tower::service_fn;

use crate::{Access, Cache, CacheConfig, keep_loaded};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// An API server with the definition of the kind Widget, or without it, and one Widget.
#[derive(Clone, Default)]
struct ApiServer(Arc<Mutex<ApiState>>);

#[derive(Default)]
struct ApiState {
    /// The version in which Widgets are served.
    version: Option<&'static str>,
    /// The open watches, by path.
    watches: Vec<(String, mpsc::UnboundedSender<Value>)>,
}

impl ApiServer {
    /// Serves Widgets in this version, or not any more.
    fn define(&self, version: Option<&'static str>) {
        let mut state = self.0.lock();
        let event = match (state.version, version) {
            (Some(before), None) => json!({"type": "DELETED", "object": definition(before)}),
            (_, version) => json!({"type": "MODIFIED", "object": definition(version.unwrap_or_default())}),
        };
        state.version = version;
        // The watches of another version end.
        state.watches.retain(|(path, _)| path == DEFINITIONS);
        for (_, watch) in &state.watches {
            watch.send(event.clone()).ok();
        }
    }

    fn respond(&self, request: &Request<kube::client::Body>) -> Response<BoxBody<Bytes, Infallible>> {
        let mut state = self.0.lock();
        let widgets = state.version.map(|version| format!("/apis/example.com/{version}/widgets"));
        let path = request.uri().path();
        let items = match path {
            "/api" => return whole(&json!({"metadata": {}, "items": []})),
            "/apis" => {
                let groups = [
                    ("example.com", "Widget", "widgets", state.version),
                    ("example.org", "Gadget", "gadgets", Some("v1")),
                ];
                let own = (
                    "apiextensions.k8s.io",
                    "CustomResourceDefinition",
                    "customresourcedefinitions",
                    Some("v1"),
                );
                let groups = groups.into_iter().chain([own]);
                let items = groups.filter_map(|(group, kind, plural, version)| {
                    Some(discovery(group, kind, plural, version?))
                });
                return whole(&json!({"metadata": {}, "items": items.collect::<Vec<_>>()}));
            }
            DEFINITIONS => state.version.map(definition).into_iter().collect::<Vec<_>>(),
            path if Some(path) == widgets.as_deref() => vec![object("w")],
            _ => {
                let status = json!({"kind": "Status", "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404});
                let mut response = whole(&status);
                *response.status_mut() = StatusCode::NOT_FOUND;
                return response;
            }
        };
        if !request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            return whole(&json!({"metadata": {"resourceVersion": "1"}, "items": items}));
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        state.watches.push((path.to_owned(), sender));
        let lines = stream::unfold(receiver, async |mut receiver: mpsc::UnboundedReceiver<Value>| {
            let line = format!("{}\n", receiver.recv().await?);
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line))), receiver))
        });
        Response::new(StreamBody::new(lines).boxed())
    }

    fn cache(&self) -> Arc<Cache> {
        let server = self.clone();
        let service = service_fn(move |request: Request<kube::client::Body>| {
            let response = server.respond(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        let section = json!({"views": [{"name": "widgets", "count": "widgets.example.com"}]});
        Arc::new(Cache::new(CacheConfig {
            client: Client::new(service, "default"),
            namespaces: None,
            section: Arc::new(serde_json::from_value(section).unwrap()),
            instance: InstanceId::from_bytes([7; 16]),
            generation: 1,
        }))
    }
}

fn whole(value: &Value) -> Response<BoxBody<Bytes, Infallible>> {
    Response::new(Full::new(Bytes::from(value.to_string())).boxed())
}

fn object(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1"}})
}

fn definition(version: &str) -> Value {
    let mut definition = object("widgets.example.com");
    definition["metadata"]["namespace"] = Value::Null;
    definition["spec"] = json!({"group": "example.com", "versions": [{"name": version, "served": true}]});
    definition
}

fn discovery(group: &str, kind: &str, plural: &str, version: &str) -> Value {
    json!({"metadata": {"name": group}, "versions": [{"version": version, "resources": [{
        "resource": plural, "singularResource": "", "scope": "Namespaced", "verbs": ["list", "watch"],
        "responseKind": {"group": group, "version": version, "kind": kind},
        "subresources": [{"subresource": "status", "verbs": ["get"]}],
    }]}]})
}

/// Waits until the cache has Widgets in this state: version, state and number. The time limit is far below the one of a regular look.
async fn widgets(cache: &Cache, expected: Option<(&str, ResourceState, u64)>) {
    let mut changes = cache.changes();
    let seen = || {
        let status = cache.status(&Access::of_agent());
        let found = status.resources.into_iter().find(|resource| resource.kind == "Widget");
        found.map(|found| (found.version, found.state, found.objects))
    };
    let expected = expected.map(|(version, state, objects)| (version.to_owned(), state, objects));
    let reached = async {
        while seen() != expected {
            changes.changed().await.unwrap();
        }
    };
    let reached = timeout(Duration::from_secs(60), reached).await;
    assert!(reached.is_ok(), "{expected:?} is not reached: {:?}", seen());
    assert_eq!(
        cache.status(&Access::of_agent()).partial,
        ["agentk does not load Gadget.example.org: add them to graph.health_rules for their health"]
    );
}

#[tokio::test(start_paused = true)]
async fn kinds_that_change_at_run_time_are_followed() {
    let server = ApiServer::default();
    let cache = server.cache();
    let loading = Arc::clone(&cache);
    let task = tokio::spawn(async move { keep_loaded(&loading).await });
    timeout(Duration::from_secs(10), cache.loaded()).await.unwrap();
    widgets(&cache, None).await;
    server.define(Some("v1beta1"));
    widgets(&cache, Some(("v1beta1", ResourceState::Synced, 1))).await;
    server.define(Some("v1"));
    widgets(&cache, Some(("v1", ResourceState::Synced, 1))).await;
    server.define(None);
    widgets(&cache, None).await;
    server.define(Some("v1"));
    widgets(&cache, Some(("v1", ResourceState::Synced, 1))).await;
    task.abort();
}
