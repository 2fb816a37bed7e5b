//! Headers between callers and clusters.

use agent::Services;
use http::{Request, Response, StatusCode};
use testing::kas::world::{World, text};
use tunnel::Body;

/// Returns a cluster that echoes requests.
fn echo() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        let headers = request.headers();
        let line = |name: &str| {
            let values: Vec<_> =
                headers.get_all(name).iter().map(|value| value.to_str().expect("ASCII")).collect();
            format!("{name}: {}\n", values.join(" | "))
        };
        let said: String =
            ["via", "x-forwarded-for", "x-real-ip", "x-remote-user", "origin"].map(line).concat();
        let kind = if request.uri().path() == "/page" { "text/html" } else { "text/plain" };
        let response = Response::builder().header("content-type", kind).header("x-custom", "1");
        response.header("access-control-allow-origin", "*").body(Body::from(said)).expect("constants")
    })
}

#[tokio::test(start_paused = true)]
async fn cluster_receives_the_client_address() {
    let world = World::with(|config| {
        config.agent.kubernetes_api.listen.trusted_proxies = vec!["192.0.2.0/24".parse().unwrap()];
    });
    let _agent = world.agent(echo()).await;
    let mut request = world.request("/agents/prod/kubernetes/");
    request.headers_mut().insert("x-forwarded-for", "6.6.6.6, 198.51.100.7".parse().unwrap());
    request.headers_mut().insert("x-real-ip", "6.6.6.6".parse().unwrap());
    request.headers_mut().insert("x-remote-user", "root".parse().unwrap());
    let answer = world.send(request).await;
    assert_eq!(answer.headers()["via"], "2 kas");
    assert!(answer.headers()["server-timing"].to_str().unwrap().starts_with("queue;dur="));
    assert_eq!(
        text(answer).await,
        "via: 1.1 kas\nx-forwarded-for: 198.51.100.7, 192.0.2.1\nx-real-ip: \nx-remote-user: \norigin: \n"
    );
}

#[tokio::test(start_paused = true)]
async fn forwarding_headers_of_untrusted_peers_are_dropped() {
    let world = World::new();
    let _agent = world.agent(echo()).await;
    let mut request = world.request("/agents/prod/kubernetes/");
    request.headers_mut().insert("x-forwarded-for", "10.0.0.1".parse().unwrap());
    let answer = text(world.send(request).await).await;
    assert!(answer.contains("x-forwarded-for: 192.0.2.1\n"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn page_of_a_cluster_is_sandboxed() {
    let world = World::new();
    let _agent = world.agent(echo()).await;
    let page = world.get("/agents/prod/kubernetes/page").await;
    assert!(page.headers()["content-security-policy"].to_str().unwrap().starts_with("sandbox;"));
    assert_eq!(page.headers()["x-content-type-options"], "nosniff");
    assert!(!page.headers().contains_key("access-control-allow-origin"), "the cluster's own");
    let data = world.get("/agents/prod/kubernetes/data").await;
    assert!(!data.headers().contains_key("content-security-policy"));
}

#[tokio::test(start_paused = true)]
async fn extra_response_headers_are_allowed() {
    let world = World::with(|config| {
        let extra = serde_json::from_str(r#"["X-Custom"]"#).unwrap();
        config.agent.kubernetes_api.extra_allowed_response_headers = extra;
    });
    let _agent = world.agent(echo()).await;
    assert_eq!(world.get("/agents/prod/kubernetes/").await.headers()["x-custom"], "1");
    let world = World::new();
    let _agent = world.agent(echo()).await;
    assert!(!world.get("/agents/prod/kubernetes/").await.headers().contains_key("x-custom"));
}

#[tokio::test(start_paused = true)]
async fn pages_of_other_origins_are_refused() {
    let world = World::with(|config| {
        config.agent.kubernetes_api.allowed_origins = vec!["https://gitlab.example.com".parse().unwrap()];
    });
    let _agent = world.agent(echo()).await;
    let from = |origin: &str| {
        let mut request = world.request("/agents/prod/kubernetes/");
        request.headers_mut().insert("origin", origin.parse().unwrap());
        request
    };
    let answer = world.send(from("https://gitlab.example.com")).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://gitlab.example.com");
    // Also what failed, or a page could not tell its user why.
    let mut denied = from("https://gitlab.example.com");
    denied.headers_mut().remove("authorization");
    let answer = world.send(denied).await;
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://gitlab.example.com");

    let answer = world.send(from("https://evil.example")).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert_eq!(answer.headers()["kas-error"], "origin-not-allowed");
    assert!(!answer.headers().contains_key("access-control-allow-origin"));

    // A browser asks first, and has no credential then.
    let mut preflight = from("https://gitlab.example.com");
    *preflight.method_mut() = http::Method::OPTIONS;
    preflight.headers_mut().remove("authorization");
    preflight.headers_mut().insert("access-control-request-method", "DELETE".parse().unwrap());
    assert_eq!(world.send(preflight).await.status(), StatusCode::NO_CONTENT);
}
