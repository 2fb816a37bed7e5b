//! Requests of callers and their responses.

use std::{sync::Arc, time::Duration};

use agentk_core::Services;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use kas_testing::{
    fleet::TestFleet,
    server::http2,
    world::{World, endless, text},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

#[tokio::test(start_paused = true)]
async fn request_reaches_the_cluster_and_is_answered() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        assert!(!request.headers().contains_key("authorization"), "the caller's credential stays at kas");
        let said = format!("{} {}", request.method(), request.uri());
        Response::builder().header("etag", "7").header("set-cookie", "a=b").body(Body::from(said)).unwrap()
    });
    let _agent = world.agent(services).await;

    let answer = world.get("/agents/prod/kubernetes/api/v1/a%2Fb//c?x=%20").await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["etag"], "7");
    assert!(!answer.headers().contains_key("set-cookie"));
    assert!(answer.headers().contains_key("x-request-id"));
    assert_eq!(text(answer).await, "GET /api/v1/a%2Fb//c?x=%20");
}

#[tokio::test(start_paused = true)]
async fn refused_request_links_to_the_documents_of_its_reason() {
    let docs = "https://kas.example.com/docs/0.2.0/docs/";
    let world = World::with(|config| config.agent.kubernetes_api.docs_url = Some(docs.parse().unwrap()));
    let link = format!("{docs}errors.html#unknown-agent");
    let kubernetes = text(world.get("/agents/other/kubernetes/api").await).await;
    let status: serde_json::Value = serde_json::from_str(&kubernetes).unwrap();
    assert!(status["message"].as_str().unwrap().ends_with(&format!(". See {link}")), "{kubernetes}");
    let prometheus = text(world.get("/agents/other/prometheus/api/v1/query?query=up").await).await;
    assert!(prometheus.contains(&format!("\"docs: {link}\"")), "{prometheus}");

    let without = text(World::new().get("/agents/other/kubernetes/api").await).await;
    assert!(without.contains("unknown-agent") && !without.contains("errors.html"), "{without}");
}

#[tokio::test(start_paused = true)]
async fn slow_caller_does_not_stall_others() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if request.uri().path() != "/large" {
            return Response::new(Body::from("quick"));
        }
        let chunk = http_body::Frame::data(bytes::Bytes::from_static(&[7; 1 << 16]));
        let chunks = std::iter::repeat_n(chunk.into_data().unwrap(), 1 << 10);
        let frames = stream::iter(chunks.map(|data| Ok::<_, std::io::Error>(http_body::Frame::data(data))));
        Response::new(Body::new(StreamBody::new(frames)))
    });
    let _agent = world.agent(services).await;

    let mut slow = Vec::new();
    for _ in 0..20 {
        slow.push(world.get("/agents/prod/kubernetes/large").await);
    }
    let quick = timeout(Duration::from_secs(1), world.get("/agents/prod/kubernetes/quick")).await;
    assert_eq!(text(quick.expect("not stalled")).await, "quick");
    let whole = slow.pop().unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_eq!(whole.len(), 64 << 20);
}

#[tokio::test(start_paused = true)]
async fn disconnect_of_caller_cancels_the_request() {
    let world = World::new();
    let left = Arc::new(Notify::new());
    let noticed = Arc::clone(&left);
    let services = Services::new().with_fn("kubernetes", move |_: Request<Body>| {
        let guard = OnDrop(Arc::clone(&noticed));
        async move {
            let body = endless("watching").map_frame(move |frame| {
                let _ = &guard;
                frame
            });
            Response::new(Body::new(body))
        }
    });
    let _agent = world.agent(services).await;

    let answer = world.get("/agents/prod/kubernetes/api/v1/pods?watch=true").await;
    let mut body = answer.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    left.notified().await;
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_reconnecting_agent() {
    let world = World::new();
    let caller = {
        let world = world.clone();
        tokio::spawn(async move { world.get("/agents/prod/kubernetes/").await })
    };
    sleep(Duration::from_millis(1500)).await;
    let _agent = world.agent(hello()).await;
    assert_eq!(text(caller.await.unwrap()).await, "hello");
}

#[tokio::test(start_paused = true)]
async fn absent_agent_is_503_after_the_wait() {
    let world = World::new();
    let started = Instant::now();
    let answer = world.get("/agents/prod/kubernetes/").await;
    assert_eq!(started.elapsed().as_secs(), 2, "the default of reconnect_wait");
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["kas-error"], "agent-not-connected");
    assert_eq!(answer.headers()["retry-after"], "5");
    assert!(text(answer).await.contains("has not connected to this kas since it started"));

    let agent = world.agent(hello()).await;
    agent.stop().await;
    world.tunnels(0).await;
    let answer = world.get("/agents/prod/prometheus/api/v1/query").await;
    let envelope: serde_json::Value = serde_json::from_str(&text(answer).await).unwrap();
    assert_eq!(envelope["errorType"], "unavailable");
    assert!(envelope["error"].as_str().unwrap().contains("agent prod disconnected"));
}

#[tokio::test(start_paused = true)]
async fn unknown_service_error_lists_the_services() {
    let world = World::new();
    let _agent = world.agent(hello()).await;
    let answer = world.get("/agents/prod/prometheus/api/v1/query").await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert_eq!(answer.headers()["kas-error"], "unknown-service");
    assert!(text(answer).await.contains("it serves: kubernetes"));
}

#[tokio::test(start_paused = true)]
async fn refused_upgrade_is_an_ordinary_response() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        assert_eq!(request.headers()["upgrade"], "SPDY/3.1");
        Response::builder().status(403).body(Body::from("no exec for you")).unwrap()
    });
    let _agent = world.agent(services).await;

    let mut request = world.request("/agents/prod/kubernetes/api/v1/namespaces/a/pods/b/exec?command=sh");
    *request.method_mut() = http::Method::POST;
    request.headers_mut().insert("connection", "Upgrade".parse().unwrap());
    request.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
    let answer = world.send(request).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert!(!answer.headers().contains_key("upgrade"));
    assert_eq!(text(answer).await, "no exec for you");
}

#[tokio::test(start_paused = true)]
async fn error_of_agent_has_the_dialect_of_the_caller() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |_: Request<Body>| {
        agentk_core::ServiceError::new(
            proto::Reason::ClusterUnreachable,
            "cannot connect to 10.0.0.1:443: refused",
        )
        .into_response()
    });
    let _agent = world.agent(services).await;
    let answer = world.get("/agents/prod/kubernetes/version").await;
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(answer.headers()["kas-error"], "cluster-unreachable");
    let status: serde_json::Value = serde_json::from_str(&text(answer).await).unwrap();
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["message"], "kas: agent prod: cannot connect to 10.0.0.1:443: refused");
}

fn hello() -> Services {
    Services::new().with_fn("kubernetes", async |_: Request<Body>| Response::new(Body::from("hello")))
}

struct OnDrop(Arc<Notify>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test(start_paused = true)]
async fn body_of_many_small_frames_that_is_read_is_not_cut() {
    const FRAMES: usize = 140_000;
    // Through a second replica.
    let fleet = TestFleet::new(2);
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        let mut body = request.into_body();
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, bytes::Bytes::len);
        }
        Response::new(Body::from(read.to_string()))
    });
    let _agent = fleet.agent(1, services).await;
    // Few of them wait to be read.
    let frames = stream::iter(0..FRAMES).then(async |number| {
        if number % 200 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        Ok::<_, std::io::Error>(http_body::Frame::data(bytes::Bytes::from_static(b"x")))
    });
    let mut request = fleet.replicas[0].request("/agents/prod/kubernetes/api");
    *request.method_mut() = http::Method::POST;
    *request.body_mut() = Body::new(StreamBody::new(frames.boxed()));
    let response = http2(&fleet.replicas[0]).await.send_request(request).await.unwrap();
    assert_eq!((response.status(), text(response).await), (StatusCode::OK, FRAMES.to_string()));
    assert_eq!(fleet.replicas[0].limit_count("overhead"), 0.0);
}
