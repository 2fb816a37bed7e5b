//! Agents by host name.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::Path;

use access::kill_switch::file;
use http::{Request, Response, StatusCode, header::HOST};
use kas_testing::world::{World, text};
use serde_json::json;
use tunnel::Body;

use crate::audit::{audit, lines};

fn world() -> World {
    World::with(|config| {
        config.agent.kubernetes_api.hosts = vec!["{agent}.k8s.example.com".parse().unwrap()];
    })
}

fn request(world: &World, method: &str, host: &str, path: &str) -> Request<Body> {
    let mut request = world.request(path);
    *request.method_mut() = method.parse().unwrap();
    request.headers_mut().insert(HOST, host.parse().unwrap());
    request
}

async fn target(request: Request<Body>) -> Response<Body> {
    Response::new(Body::from(request.uri().to_string()))
}

fn services() -> agentk_core::Services {
    agentk_core::Services::new().with_fn("kubernetes", target)
}

#[tokio::test(start_paused = true)]
async fn whole_path_of_a_request_to_the_host_of_an_agent_is_that_of_its_cluster() {
    let world = world();
    let _agent = world.agent(services()).await;
    for host in ["prod.k8s.example.com", "1.k8s.example.com:8154", "PROD.K8S.example.com"] {
        for path in ["/", "/version", "/api/v1/pods?limit=1", "/agents/2/kubernetes/api", "//a/%2e%2e/b"] {
            let response = world.send(request(&world, "GET", host, path)).await;
            assert_eq!((response.status(), &*text(response).await), (StatusCode::OK, path), "{host}");
        }
    }
    let response = world.send(request(&world, "GET", "kas", "/version")).await;
    assert_eq!(response.headers()["kas-error"], "unknown-path");
    assert!(text(response).await.contains("agent.kubernetes_api.hosts"), "the error names the remedy");
}

#[tokio::test(start_paused = true)]
async fn audit_line_has_the_host_that_names_the_agent() {
    let world = world();
    let sink = audit(&world);
    let _agent = world.agent(services()).await;
    let path = "/api/v1/namespaces/a/pods";
    for (host, path) in
        [("PROD.k8s.example.com:1", path.to_owned()), ("kas", format!("/agents/prod/kubernetes{path}"))]
    {
        text(world.send(request(&world, "POST", host, &path)).await).await;
    }
    let lines = lines(&world, &sink).await;
    let fields = |line: &serde_json::Value| json!([line["agent"], line["verb"], line["host"], line["path"]]);
    assert_eq!(fields(&lines[0]), json!(["prod", "create", "prod.k8s.example.com", path]));
    assert_eq!(fields(&lines[1]), json!(["prod", "create", null, format!("/agents/prod/kubernetes{path}")]));
}

#[tokio::test(start_paused = true)]
async fn kill_switch_of_the_agent_stops_requests_by_host() {
    let world = world();
    let _agent = world.agent(services()).await;
    let send = async || {
        let response = world.send(request(&world, "GET", "prod.k8s.example.com", "/version")).await;
        let reason = response.headers().get("kas-error").map(|reason| reason.to_str().unwrap().to_owned());
        (response.status().as_u16(), reason)
    };
    assert_eq!(send().await, (200, None));
    let rules = file::parse(Path::new("disabled.yaml"), "rules: [{agent: prod, reason: drill}]").unwrap();
    world.kas.callers.kill_switch.set_file(rules);
    assert_eq!(send().await.1.as_deref(), Some("disabled"));
}
