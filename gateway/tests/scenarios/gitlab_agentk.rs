//! GitLab's agentk at kas: an independent client plays agentk, from the field numbers of GitLab's protocol.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod calls;
pub(crate) mod client;
mod connection;
mod cuts;
pub(crate) mod messages;
mod recordings;
mod requests;
mod streams;
mod upgrades;

use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_testing::world::{World, text};
use tokio::task::JoinHandle;
use tunnel::Body;

/// Sends a GET request in a task, and reads the response.
fn get(world: &World, path: &str) -> JoinHandle<(StatusCode, String)> {
    send(world, world.request(&format!("/agents/prod/kubernetes{path}")))
}

/// Sends a POST request in a task, and reads the response.
fn post(world: &World, path: &str, body: impl Into<Body>) -> JoinHandle<(StatusCode, String)> {
    let mut request = world.request(&format!("/agents/prod/kubernetes{path}"));
    *request.method_mut() = http::Method::POST;
    *request.body_mut() = body.into();
    send(world, request)
}

fn send(world: &World, request: http::Request<Body>) -> JoinHandle<(StatusCode, String)> {
    let world = world.clone();
    tokio::spawn(async move {
        let response = world.send(request).await;
        (response.status(), text(response).await)
    })
}

/// Returns the reason of an error that the caller received.
fn reason(body: &str) -> String {
    let status: serde_json::Value =
        serde_json::from_str(body).unwrap_or_else(|_| panic!("no Status: {body}"));
    let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
    causes.iter().find_map(|cause| cause["reason"].as_str()).unwrap_or_default().to_owned()
}

/// Checks that a body breaks off.
async fn assert_aborted(body: Incoming) {
    body.collect().await.expect_err("the body breaks off");
}
