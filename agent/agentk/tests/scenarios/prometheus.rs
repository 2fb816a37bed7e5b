//! Tests of Prometheus servers: configured ones with credentials, and discovery.

use std::{
    convert::Infallible,
    fs,
    net::{IpAddr, UdpSocket},
    path::Path,
    sync::Arc,
    time::Duration,
};

use agent::{CheckCommand, cli::Cli};
use agentk_core::{
    cluster::{Cluster, CredentialFile, CredentialKind, KubeconfigOptions},
    services::{
        KubernetesService, PrometheusService,
        prometheus::discovery::{Discovery, Namespaces},
    },
    upstream::UpstreamConfig,
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proto::Reason;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::timeout};
use tunnel::Body;

/// Starts a server on a real socket and returns its port.
async fn server<F>(answer: F) -> u16
where
    F: Fn(Request<Incoming>) -> (u16, String) + Clone + Send + Sync + 'static,
{
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port is free");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let (status, text) = answer(request);
                let mut response = Response::new(Full::<Bytes>::from(text));
                *response.status_mut() = StatusCode::from_u16(status).expect("a status");
                async { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

/// Starts a Prometheus that responds with its name.
async fn prometheus(name: &'static str) -> u16 {
    server(move |_| (200, name.to_owned())).await
}

/// The Services of a cluster by label selector. `None` is a cluster in which agentk may not list them.
type KubeServices = Arc<Mutex<Option<Vec<(&'static str, Value)>>>>;

async fn cluster(services: &KubeServices) -> u16 {
    let services = Arc::clone(services);
    server(move |request| {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if path != "/api/v1/namespaces/monitoring/services" {
            return (404, String::new());
        }
        let known = services.lock();
        let Some(known) = known.as_ref() else { return (403, "{}".to_owned()) };
        let query = percent_encoding::percent_decode_str(query).decode_utf8_lossy();
        let matching = |(label, _): &&(&str, Value)| query.contains(&format!("labelSelector={label}&"));
        let items: Vec<_> = known.iter().filter(matching).map(|(_, service)| service).collect();
        (200, json!({"items": items}).to_string())
    })
    .await
}

/// Returns an address of this machine other than loopback. The socket determines the route and sends nothing.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
    socket.connect("192.0.2.1:9").expect("a route");
    socket.local_addr().expect("bound").ip()
}

fn service(name: &str, port: u16) -> Value {
    service_at(&own_address().to_string(), name, port)
}

fn service_at(address: &str, name: &str, port: u16) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "monitoring"},
        "spec": {"type": "ClusterIP", "clusterIP": address, "ports": [{"name": "web", "port": port}]},
    })
}

fn kubeconfig(directory: &Path, port: u16) -> std::path::PathBuf {
    let file = directory.join("config");
    let config = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}], users: [{{name: u, user: {{}}}}]}}"
    );
    fs::write(&file, config).expect("a directory of ours");
    file
}

fn discovery(cluster: u16) -> Discovery {
    let directory = tempfile::tempdir().expect("a directory");
    let options = KubeconfigOptions { file: Some(kubeconfig(directory.path(), cluster)), context: None };
    let kubernetes = KubernetesService::new(Arc::new(Cluster::load(&options).expect("a kubeconfig")));
    Discovery::new(kubernetes, Namespaces::One("monitoring".to_owned()))
}

async fn query(prometheus: &PrometheusService) -> Result<String, (Reason, String)> {
    let request = Request::get("/api/v1/query?query=up").body(Body::empty()).expect("constants");
    let asking = timeout(Duration::from_secs(3600), prometheus.send(request));
    let answer = asking.await.expect("an answer").map_err(|failure| (failure.reason, failure.message))?;
    let text = answer.into_body().collect().await.expect("a body").to_bytes();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Sends queries until the response contains `what`, on a paused clock.
async fn eventually(prometheus: &PrometheusService, what: &str) {
    for _ in 0..100 {
        let answer = query(prometheus).await;
        if answer.as_deref().unwrap_or_else(|(_, message)| message).contains(what) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    panic!("no answer contained {what:?}; the last was {:?}", query(prometheus).await);
}

#[tokio::test(start_paused = true)]
async fn discovered_server_follows_changes_of_services() {
    let (first, second) = (prometheus("first").await, prometheus("second").await);
    let chart = "app.kubernetes.io/name=prometheus";
    let services = KubeServices::default();
    *services.lock() = Some(Vec::new());
    let discovery = discovery(cluster(&services).await);
    let found = discovery.service();
    let _looking = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(discovery.run()));

    let (reason, message) = query(&found).await.unwrap_err();
    assert_eq!(reason, Reason::ClusterUnreachable);
    assert_eq!(
        message,
        "there is no Prometheus in the namespace monitoring: give its Service the label agentk/prometheus=true, or \
         start agentk with --prometheus-url"
    );

    *services.lock() = Some(vec![(chart, service("a", first))]);
    eventually(&found, "first").await;
    *services.lock() = Some(vec![(chart, service("a", first)), (chart, service("b", second))]);
    eventually(&found, "monitoring/a, monitoring/b; choose one with the label agentk/prometheus=true").await;
    services.lock().as_mut().unwrap().push(("agentk/prometheus=true", service("b", second)));
    eventually(&found, "second").await;

    *services.lock() = None;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(query(&found).await.unwrap(), "second", "the last server is used while searches fail");
}

/// Attack 46: a Service with the label has the address of agentk itself, of its node or of the cloud's metadata.
#[tokio::test]
async fn attack_46_service_with_a_special_address_is_refused() {
    let port = prometheus("an address that only agentk can reach").await;
    for address in
        ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254", "fe80::1", "localhost"]
    {
        let services: KubeServices =
            Arc::new(Mutex::new(Some(vec![("agentk/prometheus=true", service_at(address, "p", port))])));
        let discovery = discovery(cluster(&services).await);
        let refused = discovery.check().await.unwrap_err();
        assert_eq!(refused.reason, Reason::ClusterUnreachable, "{address}");
        assert!(refused.message.contains("there is no Prometheus in the namespace monitoring"), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn missing_right_is_named() {
    let services = KubeServices::default();
    let discovery = discovery(cluster(&services).await);
    let found = discovery.service();
    let _looking = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(discovery.run()));
    let (reason, message) = query(&found).await.unwrap_err();
    assert_eq!(reason, Reason::ClusterCredential);
    assert!(message.contains("/api/v1/namespaces/monitoring/services"), "{message}");
    assert!(message.contains("its RBAC role lacks this right"), "{message}");
}

#[tokio::test]
async fn credential_of_agentk_is_sent_and_read_again_after_401() {
    let protected = |expected: &'static str| {
        server(move |request| match request.headers().get("authorization") {
            Some(value) if value == expected => (200, "welcome".to_owned()),
            _ => (401, String::new()),
        })
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credential");
    for (content, text, expected) in [
        (CredentialKind::Token, "ours\n", "Bearer ours"),
        (CredentialKind::Password, "ada:lovelace", "Basic YWRhOmxvdmVsYWNl"),
    ] {
        let url = format!("http://127.0.0.1:{}", protected(expected).await);
        fs::write(&file, "old:one").unwrap();
        let credential = CredentialFile::open(file.clone(), content).unwrap();
        let prometheus =
            PrometheusService::new(url.parse().unwrap(), UpstreamConfig::default(), Some(credential));

        let refused = query(&prometheus).await.unwrap_err();
        assert_eq!(refused.0, Reason::ClusterCredential, "a 401 would concern the credential of the caller");
        assert!(refused.1.contains(&format!("in {}", file.display())), "{}", refused.1);
        fs::write(&file, text).unwrap();
        assert_eq!(query(&prometheus).await.unwrap(), "welcome", "a rotated credential is used at once");

        let anonymous = PrometheusService::new(url.parse().unwrap(), UpstreamConfig::default(), None);
        let refused = query(&anonymous).await.unwrap_err();
        assert!(refused.1.contains("--prometheus-token-file"), "{}", refused.1);
    }
}

#[tokio::test]
async fn check_queries_every_server() {
    let services: KubeServices =
        Arc::new(Mutex::new(Some(vec![("operated-prometheus=true", service("p", prometheus("ok").await))])));
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = kubeconfig(directory.path(), cluster(&services).await);
    let thanos = format!("thanos=http://127.0.0.1:{}", prometheus("ok").await);
    let arguments = [
        "agentk",
        "--kas-address=ws://127.0.0.1:1",
        &format!("--kubeconfig={}", kubeconfig.display()),
        &format!("--prometheus-url={thanos}"),
        "--prometheus-url=gone=http://127.0.0.1:1",
        "--prometheus-discovery=monitoring",
    ];
    let run = Cli::from_arguments(arguments).unwrap().run.unwrap();
    let mut out = Vec::new();
    let ok = CheckCommand::build(run, Some("agent-token".into())).unwrap().run(&mut out).await.unwrap();
    let report = String::from_utf8(out).unwrap();
    assert!(!ok, "{report}");
    let steps = report.lines().filter(|line| line.starts_with("prometheus"));
    let steps: Vec<_> =
        steps.map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        steps,
        [
            "prometheus.gone: query FAILED",
            "prometheus.thanos: query ok",
            "prometheus: discovery ok",
            "prometheus: query ok"
        ],
        "{report}"
    );
    let line = |start: &str| report.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(line("prometheus: discovery").contains("monitoring/p at http://"), "{report}");
}
