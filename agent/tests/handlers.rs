//! The handlers against servers that speak raw TCP, so that what is on the wire is what is checked.

mod support;

use std::{fs, sync::Arc};

use agent::{
    Failure, Services,
    cluster::{Cluster, ClusterOptions},
    handlers::{kubernetes::Kubernetes, prometheus::Prometheus},
    upstream::Settings,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::Request;
use http_body_util::BodyExt as _;
use proto::{Reason, ReplicaId};
use support::{Answer, Kas, options, start, tls::certificates};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};
use tokio_rustls::TlsAcceptor;
use tunnel::{Body, upgrade::Outside};

type Heads = mpsc::UnboundedReceiver<String>;

/// Answers each connection once, and tells the head of the request.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn server(tls: Option<TlsAcceptor>, answer: &'static str) -> (u16, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, heads) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream: Box<dyn agent::connect::Io> = match &tls {
                Some(tls) => Box::new(tls.accept(stream).await.unwrap()),
                None => Box::new(stream),
            };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            sender.send(String::from_utf8(head).unwrap().to_lowercase()).unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
    });
    (port, heads)
}

/// A cluster over TLS, where we are `user`: credentials are sent to no other.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn cluster(user: &str, answer: &'static str) -> (Kubernetes, Heads) {
    let (authority, config) = certificates("127.0.0.1");
    let (port, heads) = server(Some(Arc::new(config).into()), answer).await;
    let authority = BASE64_STANDARD.encode(authority);
    let url = format!("https://127.0.0.1:{port}/base', certificate-authority-data: '{authority}");
    (kubernetes(&url, user), heads)
}

#[allow(clippy::unwrap_used, reason = "test support")]
fn kubernetes(url: &str, user: &str) -> Kubernetes {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    let config = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: '{url}'}}}}], users: [{{name: u, user: {{{user}}}}}]}}"
    );
    fs::write(&file, config).unwrap();
    let options = ClusterOptions { kubeconfig: Some(file), context: None };
    Kubernetes::new(Arc::new(Cluster::load(&options).unwrap()))
}

async fn plain(answer: &'static str) -> (Kubernetes, Heads) {
    let (port, heads) = server(None, answer).await;
    (kubernetes(&format!("http://127.0.0.1:{port}"), ""), heads)
}

async fn nowhere(user: &str) -> Kubernetes {
    // Bound, and closed again: free, but nobody's.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    kubernetes(&format!("http://{}", listener.local_addr().expect("bound")), user)
}

fn prometheus(port: u16) -> Prometheus {
    let url = format!("http://127.0.0.1:{port}/prom");
    Prometheus::new(url.parse().expect("a URL"), Settings::default(), None)
}

fn request(head: http::request::Builder) -> Request<Body> {
    head.body(Body::empty()).expect("a test's request")
}

const OK: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKas-Error: forbidden\r\nKeep-Alive: timeout=5\r\n\r\nok";

#[tokio::test]
async fn the_api_server_sees_our_credential_and_the_callers_request() {
    let (kubernetes, mut heads) = cluster("token: ours", OK).await;
    let asked = Request::get("/api/v1/pods?watch=1&x=%2F")
        .header("authorization", "Bearer of-somebody-else")
        .header("impersonate-user", "ada")
        .header("connection", "x-hop")
        .header("x-hop", "1");
    let response = kubernetes.send(request(asked)).await.unwrap();

    let head = heads.recv().await.unwrap();
    assert!(head.starts_with("get /base/api/v1/pods?watch=1&x=%2f http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nauthorization: bearer ours\r\n"), "{head}");
    assert!(head.contains("\r\nimpersonate-user: ada\r\n"), "{head}");
    assert!(!head.contains("somebody") && !head.contains("x-hop"), "{head}");
    for name in ["kas-error", "keep-alive"] {
        assert!(!response.headers().contains_key(name), "{name}");
    }
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
}

#[tokio::test]
async fn nobody_impersonates_twice() {
    let kubernetes = nowhere("token: ours, as: robot").await;
    let asked = Request::get("/api").header("impersonate-user", "ada");
    let failure = kubernetes.send(request(asked)).await.unwrap_err();
    assert_eq!(failure.reason, Reason::NestedImpersonation);
}

#[tokio::test]
async fn we_may_be_somebody_else_ourselves() {
    let (kubernetes, mut heads) = cluster("token: ours, as: robot", OK).await;
    kubernetes.send(request(Request::get("/api"))).await.unwrap();
    assert!(heads.recv().await.unwrap().contains("\r\nimpersonate-user: robot\r\n"));
}

#[tokio::test]
async fn an_upgrade_tells_that_it_has_no_body() {
    let (kubernetes, mut heads) =
        plain("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n").await;
    let exec = Request::post("/exec").header("connection", "upgrade").header("upgrade", "SPDY/3.1");
    let mut response = kubernetes.send(request(exec)).await.unwrap();

    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    let head = heads.recv().await.unwrap();
    for line in ["connection: upgrade", "upgrade: spdy/3.1", "content-length: 0"] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
    }
    assert!(Outside::take(&mut response).is_some());
}

#[tokio::test]
async fn a_cluster_that_is_away_is_told_apart_from_one_that_misbehaves() {
    let away = nowhere("").await.send(request(Request::get("/api"))).await.unwrap_err();
    assert_eq!(away.reason, Reason::ClusterUnreachable);
    assert!(away.message.starts_with("cannot connect to 127.0.0.1:"), "{}", away.message);
    let response = away.into_response();
    assert_eq!(response.status(), 502);
    assert_eq!(response.headers()["kas-error"], "cluster-unreachable");

    let (garbled, _heads) = plain("SSH-2.0-OpenSSH_9.9\r\n").await;
    let garbage = garbled.send(request(Request::get("/api"))).await.unwrap_err();
    assert_eq!(garbage.reason, Reason::ClusterMisbehaved);
}

#[tokio::test]
async fn the_version_is_learned_and_a_refused_credential_noticed() {
    let (kubernetes, mut heads) =
        plain("HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{\"gitVersion\": \"v1.33.1\"}").await;
    assert_eq!(kubernetes.version().await, Ok(Some("v1.33.1".to_owned())));
    assert!(heads.recv().await.unwrap().starts_with("get /version "));

    let (kubernetes, _heads) = plain("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(kubernetes.version().await, Ok(None));

    let refused = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
    let (kubernetes, _heads) = cluster("token: ours", refused).await;
    let failure = kubernetes.version().await.unwrap_err();
    assert_eq!(failure.reason, Reason::ClusterCredential);
    assert!(!failure.message.contains("ours"), "{}", failure.message);
}

#[tokio::test]
async fn a_query_of_prometheus_passes_and_a_write_does_not() {
    let (port, mut heads) = server(None, OK).await;
    let prometheus = prometheus(port);
    let query = Request::get("/api/v1/query?query=up%7Ba%3D%221%22%7D").header("authorization", "Bearer x");
    let response = prometheus.send(request(query)).await.unwrap();
    assert_eq!(response.status(), 200);
    let head = heads.recv().await.unwrap();
    assert!(head.starts_with("get /prom/api/v1/query?query=up%7ba%3d%221%22%7d http/1.1\r\n"), "{head}");
    assert!(!head.contains("authorization"), "{head}");

    let failure: Failure = prometheus.send(request(Request::post("/api/v1/write"))).await.unwrap_err();
    assert_eq!(failure.reason, Reason::NotProxied);
    assert_eq!(
        failure.message,
        "POST /api/v1/write of Prometheus is not proxied: only what reads, and shows no secrets, is (docs/prometheus.md)"
    );
    let response = failure.into_response();
    assert_eq!(response.status(), 403);
    assert!(heads.is_empty(), "nothing was sent");
}

#[tokio::test]
async fn a_redirect_of_prometheus_is_passed_on() {
    let (port, _heads) =
        server(None, "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n").await;
    let response = prometheus(port).send(request(Request::get("/-/ready"))).await.unwrap();
    assert_eq!(response.status(), 302);
    assert_eq!(response.headers()["location"], "http://elsewhere/");
}

#[tokio::test]
async fn exec_runs_through_the_tunnel() {
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nprompt> ";
    let (kubernetes, mut heads) = plain(switch).await;
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, Services::new().with("kubernetes", kubernetes));
    let tunnel = kas.opened().await;
    let exec = Request::post("/exec?command=sh")
        .header("kas-service", "kubernetes")
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1");
    let mut response = tunnel.tunnel.call(request(exec)).await.unwrap();

    assert_eq!(response.status(), 101);
    assert!(heads.recv().await.unwrap().starts_with("post /exec?command=sh "));
    let upgraded = tunnel::upgrade::take(&mut response).unwrap();
    let (mut caller, outside) = tokio::io::duplex(1024);
    let splice = tokio::spawn(tunnel::upgrade::splice(upgraded, outside));
    let mut prompt = [0; 8];
    caller.read_exact(&mut prompt).await.unwrap();
    assert_eq!(&prompt, b"prompt> ");
    drop(caller);
    splice.abort();
}

#[tokio::test]
async fn kas_hears_from_agentk_what_is_wrong_with_the_cluster() {
    let kubernetes = nowhere("").await;
    let (mut kas, dial) = Kas::new(|_| Answer::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, Services::new().with("kubernetes", kubernetes));
    let response = kas.opened().await.get("kubernetes", "/api").await;

    assert_eq!(response.status(), 502);
    assert_eq!(response.headers()["kas-error"], "cluster-unreachable");
    let message = response.headers()["kas-error-message"].to_str().unwrap();
    assert!(message.starts_with("cannot connect to 127.0.0.1:"), "{message}");
}
