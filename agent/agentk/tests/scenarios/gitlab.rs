//! Tests of an agent and a kas of GitLab.

mod configuration;
mod connection;
mod recorded;
mod requests;
mod upgrades;

use agentk_core::{AgentToken, KasAddress, Services, SessionConfig};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tunnel::Body;

use crate::support::{
    RunningAgent,
    gitlab_kas::{AgentStream, GitLabKas, KasConnection},
    start,
};

#[allow(clippy::unwrap_used, reason = "test support")]
fn config() -> SessionConfig {
    let kas: KasAddress = "grpc://kas.test:8150".parse().unwrap();
    SessionConfig::new(kas, AgentToken::value("agent-token"))
}

/// Starts an agent with a service `kubernetes`, and returns its first connection.
async fn connect(services: Services) -> (RunningAgent, GitLabKas, KasConnection) {
    let (mut kas, dial) = GitLabKas::grpc();
    let agent = start(config(), dial, services);
    let connection = kas.connection().await;
    (agent, kas, connection)
}

/// Returns a cluster like [`echo`] with a service that takes configurations, and the configurations that it received.
fn configurable() -> (Services, mpsc::UnboundedReceiver<Value>) {
    let (sender, updates) = mpsc::unbounded_channel();
    let services = echo().with_fn("configuration", move |request: Request<Body>| {
        let sender = sender.clone();
        async move {
            assert_eq!((request.method().as_str(), request.uri().path()), ("PUT", "/v1/configuration"));
            let body = request.into_body().collect().await.expect("it is whole").to_bytes();
            sender.send(serde_json::from_slice(&body).expect("JSON")).expect("the test runs");
            Response::new(Body::empty())
        }
    });
    (services, updates)
}

/// Returns a cluster that responds with the request: method, target, some headers, and the body.
fn echo() -> Services {
    Services::new().with_fn("kubernetes", |request: Request<Body>| async move {
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("the body is complete").to_bytes();
        let text =
            |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("none");
        let (length, user) = (text("content-length"), text("impersonate-user"));
        let (method, uri) = (&head.method, &head.uri);
        let echo = format!("{method} {uri} {length} {user} {}", String::from_utf8_lossy(&body));
        let mut response = Response::new(Body::from(echo));
        response.headers_mut().insert("x-cluster", "1".parse().expect("a value"));
        response
    })
}

/// Returns a cluster that responds when the test sends to the channel, and the token that is cancelled when a request is
/// dropped.
fn held() -> (Services, mpsc::UnboundedSender<()>, CancellationToken) {
    let (release, released) = mpsc::unbounded_channel::<()>();
    let released = std::sync::Arc::new(parking_lot::Mutex::new(Some(released)));
    let dropped = CancellationToken::new();
    let token = dropped.clone();
    let services = Services::new().with_fn("kubernetes", move |_: Request<Body>| {
        let mut released = released.lock().take().expect("there is one request");
        let guard: DropGuard = token.clone().drop_guard();
        async move {
            released.recv().await.expect("the sender is not dropped");
            drop(guard);
            Response::new(Body::from("finished"))
        }
    });
    (services, release, dropped)
}

/// Sends a GET and reads the whole response.
async fn get(mut stream: AgentStream, path: &str) -> (u64, String) {
    stream.get(path);
    let response = stream.response().await;
    stream.end(0);
    response
}
