//! Headers between callers and clusters.

use agentk_core::Services;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{Request, Response, StatusCode};
use kas_testing::{
    server::read_head,
    world::{World, text, uppercase_upgrade},
};
use secrecy::ExposeSecret as _;
use tokio::io::AsyncWriteExt as _;
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

/// The API server redirects to the directory of a Service behind its proxy, and so do the applications behind it.
#[tokio::test(start_paused = true)]
async fn redirect_of_the_cluster_leads_to_the_same_agent() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let response = Response::builder().status(301).header("location", format!("{path}/"));
        let response = response.header("content-location", &path).header("refresh", format!("0; url={path}"));
        response.body(Body::empty()).expect("constants")
    });
    let _agent = world.agent(services).await;
    let path = "/api/v1/namespaces/px/pods/http:box:8080/proxy";
    let answer = world.get(&format!("/agents/prod/kubernetes{path}")).await;
    let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("location"), format!("/agents/prod/kubernetes{path}/"));
    assert_eq!(header("content-location"), format!("/agents/prod/kubernetes{path}"));
    assert_eq!(header("refresh"), format!("0; url=/agents/prod/kubernetes{path}"));
    let root = world.get("/agents/prod/kubernetes").await;
    assert_eq!(root.headers()["content-location"], "/agents/prod/kubernetes/");
    assert!(!root.headers().contains_key("location"), "// is the beginning of another origin");
}

/// Without the answer to its offer, a client takes compressed frames for malformed ones.
#[tokio::test(start_paused = true)]
async fn websocket_of_an_application_negotiates_compression() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        let mut response = uppercase_upgrade("early ");
        let extensions = request.headers()["sec-websocket-extensions"].clone();
        response.headers_mut().insert("sec-websocket-extensions", extensions);
        response
    });
    let _agent = world.agent(services).await;
    let mut caller = world.connect();
    let head = format!(
        "GET /agents/prod/kubernetes/api/v1/namespaces/a/services/web/proxy/socket HTTP/1.1\r\nHost: kas\r\n{}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n",
        world.authorization()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    let answer = read_head(&mut caller).await;
    assert!(
        answer.contains("sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\n"),
        "{answer}"
    );
}

#[tokio::test(start_paused = true)]
async fn application_behind_a_proxy_keeps_headers_that_the_api_may_not_send() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |_| {
        let response = Response::builder()
            .status(401)
            .header("www-authenticate", "Basic realm=\"app\"")
            .header("x-total-count", "7")
            .header("set-cookie", "a=b");
        response.body(Body::empty()).expect("constants")
    });
    let _agent = world.agent(services).await;
    let names = async |path: &str| {
        let answer = world.get(&format!("/agents/prod/kubernetes/api/v1/namespaces/a/{path}")).await;
        ["www-authenticate", "x-total-count", "set-cookie"].map(|name| answer.headers().contains_key(name))
    };
    assert_eq!(names("services/web/proxy/").await, [true, true, false]);
    assert_eq!(names("pods/web").await, [false; 3]);
}

/// Browsers cannot set `Authorization` for a WebSocket.
#[tokio::test(start_paused = true)]
async fn token_in_the_websocket_subprotocol_authenticates_and_stays_at_kas() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        let said: Vec<String> =
            request.headers().iter().map(|(name, value)| format!("{name}: {value:?}\n")).collect();
        Response::builder().status(403).body(Body::from(said.concat())).unwrap()
    });
    let _agent = world.agent(services).await;
    let token = URL_SAFE_NO_PAD.encode(world.caller_token.expose_secret());
    for (protocols, status) in [
        (format!("base64url.bearer.authorization.k8s.io.{token}, v5.channel.k8s.io"), StatusCode::FORBIDDEN),
        (
            "base64url.bearer.authorization.k8s.io.d3Jvbmc, v5.channel.k8s.io".to_owned(),
            StatusCode::UNAUTHORIZED,
        ),
        (format!("base64url.bearer.authorization.k8s.io.{token}"), StatusCode::BAD_REQUEST),
        ("v5.channel.k8s.io".to_owned(), StatusCode::UNAUTHORIZED),
    ] {
        let mut request = world.request("/agents/prod/kubernetes/api/v1/namespaces/a/pods/b/exec?command=sh");
        request.headers_mut().remove("authorization");
        for (name, value) in [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", &protocols),
        ] {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let answer = world.send(request).await;
        assert_eq!(answer.status(), status, "{protocols}");
        let seen = text(answer).await;
        assert!(!seen.contains("base64url") && !seen.contains(&token), "{seen}");
        if status == StatusCode::FORBIDDEN {
            assert!(seen.contains("sec-websocket-protocol: \"v5.channel.k8s.io\"\n"), "{seen}");
        }
    }
}
