//! PromQL through the tunnel, against a stand-in for Prometheus that does what a test says (item 67 of the fault list:
//! what a proxy between Grafana and Prometheus must not do).
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use agentk_core::{Services, services::PrometheusService, upstream::UpstreamConfig};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode, header::HeaderMap};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kas_testing::world::{RunningAgent, World, endless, text};
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc},
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

/// A request that reached the stand-in: method, target, headers, body.
type Seen = (Method, String, HeaderMap, Bytes);

/// A timeout for failures of the test.
const PATIENCE: Duration = Duration::from_secs(30);

/// A kas and an agent with a stand-in for Prometheus.
struct Behind {
    world: World,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Notified when a connection of agentk ends.
    closed: Arc<Notify>,
    _agent: RunningAgent,
}

impl Behind {
    async fn new<A>(answer: impl Fn(Seen) -> A + Clone + Send + Sync + 'static) -> Self
    where
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let (seen, closed) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base", listener.local_addr().unwrap());
        let (list, ended) = (Arc::clone(&seen), Arc::clone(&closed));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (list, ended, answer) = (Arc::clone(&list), Arc::clone(&ended), answer.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (list, answer) = (Arc::clone(&list), answer.clone());
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await?.to_bytes();
                        let seen = (head.method, head.uri.to_string(), head.headers, body);
                        list.lock().push(seen.clone());
                        Ok::<_, hyper::Error>(answer(seen).await)
                    }
                });
                tokio::spawn(async move {
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                    ended.notify_one();
                });
            }
        });

        let world = World::new();
        let prometheus = PrometheusService::new(url.parse().unwrap(), UpstreamConfig::default(), None);
        let _agent = world.agent(Services::new().with_handler("prometheus", prometheus)).await;
        Self { world, seen, closed, _agent }
    }

    fn request(&self, method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
        let mut request = self.world.request(&format!("/agents/prod/prometheus{path}"));
        *request.method_mut() = method.parse().unwrap();
        *request.body_mut() = body.into();
        request
    }

    async fn send(&self, method: &str, path: &str) -> Response<Incoming> {
        self.world.send(self.request(method, path, Body::empty())).await
    }
}

/// Returns a body with one frame per message of the channel.
fn frames(receiver: mpsc::Receiver<Bytes>) -> Body {
    let frames = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let frames = frames.map(|bytes| Ok::<_, Infallible>(http_body::Frame::data(bytes)));
    Body::new(StreamBody::new(Box::pin(frames)))
}

async fn success(_: Seen) -> Response<Body> {
    Response::builder().header("content-type", "application/json").body(Body::from("{}")).unwrap()
}

#[tokio::test(start_paused = true)]
async fn named_servers_of_an_agent_are_served() {
    let world = World::new();
    let named = |name: &'static str| move |_: Request<Body>| async move { Response::new(Body::from(name)) };
    let services = Services::new()
        .with_fn("prometheus", named("the one without a name"))
        .with_fn("prometheus.thanos", named("thanos"));
    let _agent = world.agent(services).await;
    for (service, answer) in [("prometheus", "the one without a name"), ("prometheus.thanos", "thanos")] {
        assert_eq!(text(world.get(&format!("/agents/prod/{service}/api/v1/query")).await).await, answer);
    }
    let unknown = world.get("/agents/prod/prometheus.mimir/api/v1/query").await;
    assert_eq!(unknown.headers()["kas-error"], "unknown-service");
    let envelope = text(unknown).await;
    assert!(envelope.contains("\"status\":\"error\""), "in the words of Prometheus: {envelope}");
    assert!(envelope.contains("it serves: prometheus, prometheus.thanos"), "{envelope}");
}

/// Item 67: an evaluation of 2 minutes without a byte of the response.
#[tokio::test(start_paused = true)]
async fn slow_evaluation_does_not_time_out() {
    let prometheus = Behind::new(async |seen| {
        sleep(Duration::from_secs(120)).await;
        success(seen).await
    })
    .await;
    for method in ["GET", "POST"] {
        let started = Instant::now();
        let answer = prometheus.send(method, "/api/v1/query_range?query=up").await;
        assert_eq!(answer.status(), StatusCode::OK, "{method}");
        assert!(started.elapsed() >= Duration::from_secs(120), "{method}");
    }
}

/// Item 67: SSE and NDJSON are flushed, as are the frames of a streamed remote read and of a federation.
#[tokio::test]
async fn server_sent_events_are_flushed() {
    for (method, path, content_type) in [
        ("GET", "/api/v1/notifications/live", "text/event-stream"),
        ("GET", "/api/v1/search/metric_names", "application/x-ndjson"),
        ("POST", "/api/v1/read", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"),
        ("GET", "/federate?match[]=up", "text/plain; version=0.0.4"),
    ] {
        let (sender, receiver) = mpsc::channel(1);
        let once = Arc::new(Mutex::new(Some(frames(receiver))));
        let prometheus = Behind::new(move |_| {
            let body = once.lock().take().expect("asked once");
            async move { Response::builder().header("content-type", content_type).body(body).unwrap() }
        })
        .await;
        let head = timeout(PATIENCE, prometheus.send(method, path)).await;
        let answer = head.unwrap_or_else(|_| panic!("{path}: the head is held back"));
        assert_eq!(answer.headers()["content-type"], content_type);
        let mut body = pin!(answer.into_body());
        for event in ["data: one\n\n", "data: two\n\n", "x"] {
            sender.send(Bytes::from_static(event.as_bytes())).await.unwrap();
            // The stand-in sends nothing more until this is here.
            let frame = timeout(PATIENCE, body.frame()).await;
            let frame = frame.unwrap_or_else(|_| panic!("{path}: {event:?} is held back"));
            assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), event, "{path}");
        }
        drop(sender);
        assert!(body.frame().await.is_none(), "{path}: it ends as it does without us");
    }
}

/// Item 67: a disconnect reaches Prometheus, which ends a query when its connection closes.
#[tokio::test]
async fn disconnect_of_caller_closes_the_connection_to_prometheus() {
    let evaluating = Behind::new(async |_| std::future::pending().await).await;
    let asking = evaluating.request("POST", "/api/v1/query", "query=slow");
    let world = evaluating.world.clone();
    let caller = tokio::spawn(async move { world.send(asking).await });
    while evaluating.seen.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    caller.abort();
    let closed = timeout(PATIENCE, evaluating.closed.notified()).await;
    closed.expect("closed during the evaluation");

    let answering = Behind::new(async |_| Response::new(endless("first"))).await;
    let head = timeout(PATIENCE, answering.send("GET", "/federate?match[]=up")).await;
    let answer = head.expect("the head is not held back");
    let mut body = answer.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    let closed = timeout(PATIENCE, answering.closed.notified()).await;
    closed.expect("closed in the middle of an answer");
}

/// Item 67: gzip is forwarded byte for byte. These bytes are not valid gzip: kas and agentk do not decode them.
#[tokio::test(start_paused = true)]
async fn compressed_answers_pass_byte_for_byte() {
    const BYTES: &[u8] = b"\x1f\x8b\x08\x00 not really gzip \xff\x00";
    let prometheus = Behind::new(async |_| {
        let answer = Response::builder().header("content-encoding", "gzip").header("vary", "Accept-Encoding");
        answer.body(Body::from(Bytes::from_static(BYTES))).unwrap()
    })
    .await;
    let mut request = prometheus.request("GET", "/api/v1/query?query=up", Body::empty());
    request.headers_mut().insert("accept-encoding", "gzip;q=0.9, snappy".parse().unwrap());
    let answer = prometheus.world.send(request).await;
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    assert_eq!(answer.headers()["vary"], "Accept-Encoding");
    assert_eq!(answer.headers()["content-length"], BYTES.len().to_string());
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), BYTES);
    assert_eq!(prometheus.seen.lock()[0].2["accept-encoding"], "gzip;q=0.9, snappy");
}

/// Item 46.
#[tokio::test(start_paused = true)]
async fn redirect_is_forwarded_not_followed() {
    for (location, expected) in [
        ("/base/graph", Some("/agents/prod/prometheus/graph")),
        ("http://169.254.169.254/latest/meta-data", None),
    ] {
        let prometheus = Behind::new(move |_| async move {
            Response::builder().status(302).header("location", location).body(Body::empty()).unwrap()
        })
        .await;
        let answer = prometheus.send("GET", "/api/v1/query").await;
        assert_eq!(answer.status(), StatusCode::FOUND);
        let received = answer.headers().get("location").map(|value| value.to_str().unwrap());
        assert_eq!(received, expected, "{location}");
        assert_eq!(prometheus.seen.lock().len(), 1, "nobody followed it");
    }
}

/// Of item 67: query in body and URL. Prometheus reads the body first; which one counts is not for us to say. And a
/// snappy bomb: what nobody on the way unpacks does not go off there.
#[tokio::test(start_paused = true)]
async fn posted_form_is_forwarded_unchanged() {
    let prometheus = Behind::new(success).await;
    let form = "query=1%2B1&time=4&query=second&&match[]=a%7Bb%3D%22%C3%BC%22%7D&x=%zz;y=+";
    let bomb: &[u8] = b"\xff\xff\xff\xff\x0f\x00\x01 4 GiB, says the length";
    for (path, content_type, body) in [
        ("/api/v1/query?query=first&time=5", "application/x-www-form-urlencoded", form.as_bytes()),
        ("/api/v1/read", "application/x-protobuf", bomb),
    ] {
        let mut request = prometheus.request("POST", path, Bytes::copy_from_slice(body));
        request.headers_mut().insert("content-type", content_type.parse().unwrap());
        request.headers_mut().insert("content-encoding", "snappy".parse().unwrap());
        assert_eq!(prometheus.world.send(request).await.status(), StatusCode::OK);
        let (method, target, headers, arrived) = prometheus.seen.lock().pop().unwrap();
        assert_eq!((method, target), (Method::POST, format!("/base{path}")));
        assert_eq!((headers["content-type"].as_bytes(), &*arrived), (content_type.as_bytes(), body));
        assert_eq!(headers["content-encoding"], "snappy");
        assert_eq!(headers["content-length"], body.len().to_string());
    }
}

/// Item 67: GET and POST are equal on all endpoints that accept both.
#[tokio::test(start_paused = true)]
async fn get_endpoints_accept_post() {
    let prometheus = Behind::new(success).await;
    for name in [
        "query",
        "query_range",
        "query_exemplars",
        "format_query",
        "parse_query",
        "series",
        "labels",
        "search/metric_names",
        "search/label_names",
        "search/label_values",
    ] {
        let path = format!("/api/v1/{name}?query=up&match%5B%5D=up");
        for method in ["GET", "POST"] {
            assert_eq!(prometheus.send(method, &path).await.status(), StatusCode::OK, "{method} {path}");
            let (arrived, target, ..) = prometheus.seen.lock().pop().unwrap();
            assert_eq!((arrived.as_str(), target), (method, format!("/base{path}")));
        }
    }
}

/// Grafana retries with GET after a 405 to a POST.
#[tokio::test(start_paused = true)]
async fn another_method_is_answered_with_those_that_would_do() {
    let prometheus = Behind::new(success).await;
    for (method, path, allow) in [
        ("POST", "/api/v1/label/job/values", "GET"),
        ("POST", "/api/v1/rules", "GET"),
        ("GET", "/api/v1/read", "POST"),
        ("DELETE", "/api/v1/series", "GET, POST"),
        ("OPTIONS", "/api/v1/query", "GET, POST"),
        ("HEAD", "/api/v1/query", "GET, POST"),
        ("PUT", "/-/healthy", "GET, HEAD"),
    ] {
        let answer = prometheus.send(method, path).await;
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        assert_eq!(answer.headers()["allow"], allow, "{method} {path}");
        assert_eq!(answer.headers()["kas-error"], "method-not-allowed");
        let envelope = text(answer).await;
        assert!(method == "HEAD" || envelope.contains(&format!("use {allow}")), "{envelope}");
    }
    assert!(prometheus.seen.lock().is_empty(), "nothing reached Prometheus");
    assert_eq!(prometheus.send("HEAD", "/-/ready").await.status(), StatusCode::OK);
}

/// Items 48 and 67: denied endpoints in every spelling.
#[tokio::test(start_paused = true)]
async fn denied_endpoints_are_refused_in_every_spelling() {
    let prometheus = Behind::new(success).await;
    let denied = [
        "/api/v1/write",
        "/api/v1/otlp/v1/metrics",
        "/api/v1/admin/tsdb/snapshot",
        "/api/v1/status/config",
        "/-/reload",
        "/-/quit",
        "/debug/pprof/heap",
    ];
    for path in denied {
        let last = path.rsplit('/').next().unwrap();
        let first = format!("%{:02x}", last.as_bytes()[0]);
        for spelling in [
            path.to_owned(),
            format!("/{path}"),
            path.replace('/', "//"),
            format!("/.{path}"),
            format!("/%2e{path}"),
            format!("/api/..{path}"),
            format!("/api/v1/query/../../..{path}"),
            format!("/api/v1/query/%2e%2e/%2E%2E/%2e%2e{path}"),
            format!("/api/v1/label/..%2f..%2f..{}/values", path.replace('/', "%2f")),
            path.replace(last, &format!("{first}{}", &last[1..])),
            path.replace('/', "%2f").replacen("%2f", "/", 1),
            path.replace('/', "%5c").replacen("%5c", "/", 1),
            format!("{path}/"),
            format!("{path}?query=up"),
            format!("{path};x"),
            path.to_uppercase(),
        ] {
            for method in ["GET", "POST", "PUT", "HEAD"] {
                let answer = prometheus.send(method, &spelling).await;
                assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{method} {spelling}");
                assert_eq!(answer.headers()["kas-error"], "not-proxied", "{method} {spelling}");
            }
        }
    }
    assert!(prometheus.seen.lock().is_empty(), "nothing reached Prometheus");
}
