//! The observability listener.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::Arc;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use testkit::world::{CALLER, World, text};
use tunnel::Body;

async fn send(world: &World, method: Method, path: &str) -> Response<Incoming> {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(Arc::clone(&world.kas.admin).server().serve(far, CALLER));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header("host", "kas");
    sender.send_request(request.body(Body::empty()).unwrap()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_path_has_its_status_and_content_type() {
    let world = World::new();
    let (plain, metrics) =
        ("text/plain; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8");
    for (path, status, content_type, begin) in [
        ("/liveness", 200, plain, "alive\n"),
        ("/readiness", 503, plain, "not ready: starting\n"),
        ("/metrics", 200, metrics, "# HELP "),
        ("/agents", 200, "application/json", "{\n"),
        ("/", 404, plain, "the paths are /liveness, /readiness, /metrics and /agents\n"),
        ("/metrics/", 404, plain, "the paths are /liveness"),
    ] {
        let response = send(&world, Method::GET, path).await;
        assert_eq!(
            (response.status().as_u16(), response.headers()["content-type"].as_bytes()),
            (status, content_type.as_bytes())
        );
        let body = text(response).await;
        assert!(body.starts_with(begin), "{path}: {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn head_has_no_body_and_other_methods_are_refused() {
    let world = World::new();
    let head = send(&world, Method::HEAD, "/liveness").await;
    assert_eq!((head.status().as_u16(), head.headers()["content-length"].as_bytes()), (200, &b"6"[..]));
    assert_eq!(text(head).await, "");
    for path in ["/liveness", "/readiness", "/metrics", "/agents"] {
        let refused = send(&world, Method::POST, path).await;
        assert_eq!(
            (refused.status().as_u16(), refused.headers()["allow"].as_bytes()),
            (405, &b"GET,HEAD"[..]),
            "{path}"
        );
        assert_eq!(text(refused).await, "the methods are GET and HEAD\n");
    }
}
