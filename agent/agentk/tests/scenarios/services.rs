//! Tests of the services against servers that read and write raw TCP, so that they check the bytes on the wire.

use std::{fs, sync::Arc, time::Duration};

use crate::support::{DialResponse, Kas, options, start, tls::certificates};
use agentk_core::{
    ServiceError, Services,
    cluster::{Cluster, KubeconfigOptions},
    services::{KubernetesService, PrometheusService, RequestHandler as _, response::WatchResponse},
    upstream::UpstreamConfig,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::Request;
use http_body_util::BodyExt as _;
use proto::{Reason, ReplicaId};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};
use tokio_rustls::TlsAcceptor;
use tunnel::{Body, upgrade::UpgradedConnection};

type Heads = mpsc::UnboundedReceiver<String>;

/// Starts a server that responds to one request per connection. Returns its port and a receiver of the request heads.
async fn server(tls: Option<TlsAcceptor>, answer: &'static str) -> (u16, Heads) {
    server_with(tls, move |_| answer).await
}

/// Starts a server whose response depends on the head of the request.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn server_with(
    tls: Option<TlsAcceptor>,
    answer: impl Fn(&str) -> &'static str + Send + 'static,
) -> (u16, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, heads) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream: Box<dyn agentk_core::upstream::Io> = match &tls {
                Some(tls) => Box::new(tls.accept(stream).await.unwrap()),
                None => Box::new(stream),
            };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            let answer = answer(&head);
            sender.send(head).unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
    });
    (port, heads)
}

/// Starts a cluster with TLS, since credentials are not sent without it. `user` is the user in the kubeconfig.
async fn cluster(user: &str, answer: &'static str) -> (KubernetesService, Heads) {
    cluster_with(user, move |_| answer).await
}

#[allow(clippy::unwrap_used, reason = "test support")]
async fn cluster_with(
    user: &str,
    answer: impl Fn(&str) -> &'static str + Send + 'static,
) -> (KubernetesService, Heads) {
    let (authority, config) = certificates("127.0.0.1");
    let (port, heads) = server_with(Some(Arc::new(config).into()), answer).await;
    let authority = BASE64_STANDARD.encode(authority);
    let url = format!("https://127.0.0.1:{port}/base', certificate-authority-data: '{authority}");
    (kubernetes(&url, user), heads)
}

#[allow(clippy::unwrap_used, reason = "test support")]
fn kubernetes(url: &str, user: &str) -> KubernetesService {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    let config = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: '{url}'}}}}], users: [{{name: u, user: {{{user}}}}}]}}"
    );
    fs::write(&file, config).unwrap();
    let options = KubeconfigOptions { file: Some(file), context: None };
    KubernetesService::new(Arc::new(Cluster::load(&options).unwrap()))
}

async fn plain_cluster(answer: &'static str) -> (KubernetesService, Heads) {
    plain_cluster_with(move |_| answer).await
}

async fn plain_cluster_with(
    answer: impl Fn(&str) -> &'static str + Send + 'static,
) -> (KubernetesService, Heads) {
    let (port, heads) = server_with(None, answer).await;
    (kubernetes(&format!("http://127.0.0.1:{port}"), ""), heads)
}

async fn unreachable_cluster(user: &str) -> KubernetesService {
    // The port was free a moment ago, and no program listens on it.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    kubernetes(&format!("http://{}", listener.local_addr().expect("bound")), user)
}

fn prometheus(port: u16) -> PrometheusService {
    let url = format!("http://127.0.0.1:{port}/prom");
    PrometheusService::new(url.parse().expect("a URL"), UpstreamConfig::default(), None)
}

fn request(head: http::request::Builder) -> Request<Body> {
    head.body(Body::empty()).expect("a test's request")
}

const OK: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKas-Error: forbidden\r\nKeep-Alive: timeout=5\r\n\r\nok";

#[tokio::test]
async fn request_is_sent_with_the_credential_of_agentk() {
    let (kubernetes, mut heads) = cluster("token: ours", OK).await;
    let builder = Request::get("/api/v1/pods?watch=1&x=%2F")
        .header("authorization", "Bearer of-somebody-else")
        .header("impersonate-user", "ada")
        .header("connection", "x-hop")
        .header("x-hop", "1");
    let response = kubernetes.send(request(builder)).await.unwrap();

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
async fn nested_impersonation_is_refused() {
    let kubernetes = unreachable_cluster("token: ours, as: robot").await;
    let builder = Request::get("/api").header("impersonate-user", "ada");
    let failure = kubernetes.send(request(builder)).await.unwrap_err();
    assert_eq!(failure.reason, Reason::NestedImpersonation);
}

#[tokio::test]
async fn impersonation_of_the_kubeconfig_is_sent() {
    let (kubernetes, mut heads) = cluster("token: ours, as: robot", OK).await;
    kubernetes.send(request(Request::get("/api"))).await.unwrap();
    assert!(heads.recv().await.unwrap().contains("\r\nimpersonate-user: robot\r\n"));
}

#[tokio::test]
async fn post_upgrade_has_content_length_zero() {
    let (kubernetes, mut heads) =
        plain_cluster("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
            .await;
    let exec = Request::post("/exec").header("connection", "upgrade").header("upgrade", "SPDY/3.1");
    let mut response = kubernetes.send(request(exec)).await.unwrap();

    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    let head = heads.recv().await.unwrap();
    for line in ["connection: upgrade", "upgrade: spdy/3.1", "content-length: 0"] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
    }
    assert!(UpgradedConnection::take(&mut response).is_some());
}

#[tokio::test]
async fn unreachable_and_misbehaving_clusters_have_different_reasons() {
    let unreachable = unreachable_cluster("").await.send(request(Request::get("/api"))).await.unwrap_err();
    assert_eq!(unreachable.reason, Reason::ClusterUnreachable);
    assert!(unreachable.message.starts_with("cannot connect to 127.0.0.1:"), "{}", unreachable.message);
    let response = unreachable.into_response();
    assert_eq!(response.status(), 502);
    assert_eq!(response.headers()["kas-error"], "cluster-unreachable");

    let (garbled, _heads) = plain_cluster("SSH-2.0-OpenSSH_9.9\r\n").await;
    let garbage = garbled.send(request(Request::get("/api"))).await.unwrap_err();
    assert_eq!(garbage.reason, Reason::ClusterMisbehaved);
}

#[tokio::test]
async fn version_is_returned_unless_the_credential_is_refused() {
    let (kubernetes, mut heads) =
        plain_cluster("HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{\"gitVersion\": \"v1.33.1\"}").await;
    assert_eq!(kubernetes.version().await, Ok(Some("v1.33.1".to_owned())));
    assert!(heads.recv().await.unwrap().starts_with("get /version "));

    let (kubernetes, _heads) = plain_cluster("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(kubernetes.version().await, Ok(None));

    let (kubernetes, _heads) = cluster("token: ours", REFUSED).await;
    let failure = kubernetes.version().await.unwrap_err();
    assert_eq!(failure.reason, Reason::ClusterCredential);
    assert!(!failure.message.contains("ours"), "{}", failure.message);
}

const REFUSED: &str = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn refused_credential_of_agentk_is_502() {
    let (kubernetes, _heads) = cluster("token: ours", REFUSED).await;
    let plain = Request::get("/api/v1/pods");
    let impersonated = Request::get("/api/v1/pods").header("impersonate-user", "ada");
    let exec = Request::post("/exec").header("connection", "upgrade").header("upgrade", "SPDY/3.1");
    for builder in [plain, impersonated, exec] {
        let failure = kubernetes.send(request(builder)).await.unwrap_err();
        assert_eq!(failure.reason, Reason::ClusterCredential);
        assert!(
            failure.message.ends_with("with a fixed token refused agentk's credential (401)"),
            "{failure}"
        );
        assert_eq!(failure.into_response().status(), 502);
    }

    let (kubernetes, _heads) = plain_cluster_with(|_| REFUSED).await;
    let failure = kubernetes.send(request(Request::get("/api/v1/pods"))).await.unwrap_err();
    assert_eq!(failure.reason, Reason::ClusterCredential);
    assert!(failure.message.contains("requires a credential (401): name a user"), "{failure}");
}

/// The API server accepts agentk's credential for `/api`, so that the 401 is of an application behind `…/proxy/`, or for the
/// impersonated user.
#[tokio::test]
async fn response_401_of_another_server_is_forwarded() {
    let api_server = |head: &str| if head.starts_with("get /base/api http") { OK } else { REFUSED };
    let (kubernetes, mut heads) = cluster_with("token: ours", api_server).await;
    let proxied = Request::get("/api/v1/namespaces/a/services/b/proxy/login");
    let impersonated = Request::get("/api/v1/pods").header("impersonate-user", "ada");
    for builder in [proxied, impersonated] {
        let response = kubernetes.send(request(builder)).await.unwrap();
        assert_eq!(response.status(), 401);
        heads.recv().await.unwrap();
        let own_request = heads.recv().await.unwrap();
        assert!(own_request.contains("\r\nauthorization: bearer ours\r\n"), "{own_request}");
        assert!(!own_request.contains("impersonate"), "{own_request}");
    }
}

/// A header that `Connection` lists is removed at the next hop: without `Impersonate-User`, agentk's own user would apply.
#[tokio::test]
async fn connection_header_cannot_remove_the_impersonation() {
    let (kubernetes, mut heads) = cluster("token: ours, as: robot", OK).await;
    let builder =
        Request::get("/api").header("connection", "impersonate-user").header("impersonate-user", "x");
    kubernetes.send(request(builder)).await.unwrap();
    assert!(heads.recv().await.unwrap().contains("\r\nimpersonate-user: robot\r\n"));
}

/// The watch was sent first, and gets its response after the list has timed out.
#[tokio::test]
async fn silent_api_server_times_out_and_a_watch_waits() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubernetes = kubernetes(&format!("http://{}", listener.local_addr().unwrap()), "")
        .with_response_timeout(Duration::from_millis(50));
    let watch = kubernetes.clone();
    let watch = async move { watch.send(request(Request::get("/api/v1/pods?watch=1"))).await };
    let watch = tokio::spawn(watch);
    let (mut watched, _) = listener.accept().await.unwrap();
    let mut head = [0; 1024];
    assert!(watched.read(&mut head).await.unwrap() > 0);

    let failure = kubernetes.send(request(Request::get("/api/v1/pods"))).await.unwrap_err();
    assert_eq!(failure.reason, Reason::ClusterTimeout);
    assert!(failure.message.ends_with("within 50ms"), "{failure}");
    assert_eq!(failure.into_response().status(), 504);

    watched.write_all(OK.as_bytes()).await.unwrap();
    assert_eq!(watch.await.unwrap().unwrap().status(), 200);
}

/// Only responses of watches are marked, which agentk ends when it stops.
#[tokio::test]
async fn response_of_a_watch_is_marked() {
    let (kubernetes, _heads) = cluster("token: ours", OK).await;
    for (path, expected) in [
        ("/api/v1/pods?watch=1", true),
        ("/apis/apps/v1/watch/deployments", true),
        ("/apis/apps/v1/w%61tch/deployments", true),
        ("/api/v1/pods?limit=500", false),
        ("/api/v1/namespaces/a/pods/b/log?follow=true", false),
        ("/api/v1/namespaces/a/services/b/proxy/?watch=1", false),
    ] {
        let response = kubernetes.handle(request(Request::get(path))).await.unwrap();
        assert_eq!(response.extensions().get::<WatchResponse>().is_some(), expected, "{path}");
    }
    let (port, _heads) = server(None, OK).await;
    for (path, expected) in [("/api/v1/notifications/live", true), ("/api/v1/query?query=up", false)] {
        let response = prometheus(port).handle(request(Request::get(path))).await.unwrap();
        assert_eq!(response.extensions().get::<WatchResponse>().is_some(), expected, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_credential_plugin_is_named() {
    let plugin = "exec: {apiVersion: client.authentication.k8s.io/v1, command: sleep, args: ['600'], \
                  interactiveMode: Never}";
    let kubernetes = kubernetes("https://127.0.0.1:1", plugin);
    let expected = ServiceError::new(
        Reason::ClusterCredential,
        "the credential plugin sleep: did not finish within 10s",
    );
    assert_eq!(kubernetes.version().await, Err(expected.clone()));
    assert_eq!(kubernetes.send(request(Request::get("/api"))).await.unwrap_err(), expected);
}

#[tokio::test]
async fn prometheus_query_is_sent_and_write_is_refused() {
    let (port, mut heads) = server(None, OK).await;
    let prometheus = prometheus(port);
    let query = Request::get("/api/v1/query?query=up%7Ba%3D%221%22%7D").header("authorization", "Bearer x");
    let response = prometheus.send(request(query)).await.unwrap();
    assert_eq!(response.status(), 200);
    let head = heads.recv().await.unwrap();
    assert!(head.starts_with("get /prom/api/v1/query?query=up%7ba%3d%221%22%7d http/1.1\r\n"), "{head}");
    assert!(!head.contains("authorization"), "{head}");

    let failure: ServiceError = prometheus.send(request(Request::post("/api/v1/write"))).await.unwrap_err();
    assert_eq!(failure.reason, Reason::NotProxied);
    assert_eq!(
        failure.message,
        "POST /api/v1/write of Prometheus is not proxied: only requests that read, and return no secrets, are (docs/prometheus.md)"
    );
    let response = failure.into_response();
    assert_eq!(response.status(), 403);
    assert!(heads.is_empty(), "nothing was sent");
}

#[tokio::test]
async fn redirect_of_prometheus_is_returned() {
    let (port, _heads) =
        server(None, "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n").await;
    let response = prometheus(port).send(request(Request::get("/-/ready"))).await.unwrap();
    assert_eq!(response.status(), 302);
    assert_eq!(response.headers()["location"], "http://elsewhere/");
}

#[tokio::test]
async fn exec_works_through_the_tunnel() {
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nprompt> ";
    let (kubernetes, mut heads) = plain_cluster(switch).await;
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, Services::new().with_handler("kubernetes", kubernetes));
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
async fn error_of_the_cluster_is_sent_to_kas() {
    let kubernetes = unreachable_cluster("").await;
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, Services::new().with_handler("kubernetes", kubernetes));
    let response = kas.opened().await.get("kubernetes", "/api").await;

    assert_eq!(response.status(), 502);
    assert_eq!(response.headers()["kas-error"], "cluster-unreachable");
    let message = response.headers()["kas-error-message"].to_str().unwrap();
    assert!(message.starts_with("cannot connect to 127.0.0.1:"), "{message}");
}

/// HEAD has the head of the response to GET (RFC 9110 section 9.3.2). The cluster decides about its own.
#[tokio::test]
async fn head_of_a_service_of_agentk_is_that_of_get() {
    let respond = |request: Request<Body>| async move {
        let body = if request.method() == "GET" { "text" } else { "" };
        let response = http::Response::builder().header("seen", request.method().as_str());
        response.body(Body::from(body.to_owned())).expect("a test's response")
    };
    let services = Services::new().with_fn("graph", respond).with_fn("kubernetes", respond);
    let (mut kas, dial) = Kas::new(|_| DialResponse::Accept(ReplicaId::random()));
    let _agent = start(options(1), dial, services);
    let tunnel = kas.opened().await;
    for (service, seen) in [("graph", "GET"), ("kubernetes", "HEAD")] {
        let head = Request::head("/v1/status").header("kas-service", service);
        let response = tunnel.tunnel.call(request(head)).await.unwrap();
        assert_eq!((response.status().as_u16(), response.headers()["seen"].to_str().unwrap()), (200, seen));
        assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty(), "{service}");
    }
}
