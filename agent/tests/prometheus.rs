//! Which Prometheus answers, and as whom: servers with names and credentials, and one that is looked for.

use std::{
    convert::Infallible,
    fs,
    net::{IpAddr, UdpSocket},
    path::Path,
    sync::Arc,
    time::Duration,
};

use agent::{
    check::Check,
    cli::Cli,
    cluster::{Cluster, ClusterOptions, Content, CredentialFile},
    handlers::{
        kubernetes::Kubernetes,
        prometheus::{
            Prometheus,
            discovery::{Discovery, Namespaces},
        },
    },
    upstream::Settings,
};
use bytes::Bytes;
use clap::Parser as _;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proto::Reason;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::timeout};
use tunnel::Body;

/// A server on a real socket; its port.
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

/// A Prometheus that says who it is.
async fn prometheus(name: &'static str) -> u16 {
    server(move |_| (200, name.to_owned())).await
}

/// A cluster whose Services change: by label selector. None is a cluster that forbids to list them.
type Services = Arc<Mutex<Option<Vec<(&'static str, Value)>>>>;

async fn cluster(services: &Services) -> u16 {
    let services = Arc::clone(services);
    server(move |request| {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if path != "/api/v1/namespaces/monitoring/services" {
            return (404, String::new());
        }
        let known = services.lock();
        let Some(known) = known.as_ref() else { return (403, "{}".to_owned()) };
        let asked = percent_encoding::percent_decode_str(query).decode_utf8_lossy();
        let matching = |(label, _): &&(&str, Value)| asked.contains(&format!("labelSelector={label}&"));
        let items: Vec<_> = known.iter().filter(matching).map(|(_, service)| service).collect();
        (200, json!({"items": items}).to_string())
    })
    .await
}

/// An address of this machine that is no loopback, which is nobody's Service. Nothing is sent to where it would lead.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
    socket.connect("192.0.2.1:9").expect("a route");
    socket.local_addr().expect("bound").ip()
}

fn service(name: &str, port: u16) -> Value {
    at(&own_address().to_string(), name, port)
}

fn at(address: &str, name: &str, port: u16) -> Value {
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
    let options = ClusterOptions { kubeconfig: Some(kubeconfig(directory.path(), cluster)), context: None };
    let kubernetes = Kubernetes::new(Arc::new(Cluster::load(&options).expect("a kubeconfig")));
    Discovery::new(kubernetes, Namespaces::One("monitoring".to_owned()))
}

async fn ask(prometheus: &Prometheus) -> Result<String, (Reason, String)> {
    let request = Request::get("/api/v1/query?query=up").body(Body::empty()).expect("constants");
    let asking = timeout(Duration::from_secs(3600), prometheus.send(request));
    let answer = asking.await.expect("an answer").map_err(|failure| (failure.reason, failure.message))?;
    let text = answer.into_body().collect().await.expect("a body").to_bytes();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Asks until it is so, on a paused clock.
async fn eventually(prometheus: &Prometheus, what: &str) {
    for _ in 0..100 {
        let answer = ask(prometheus).await;
        if answer.as_deref().unwrap_or_else(|(_, message)| message).contains(what) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    panic!("nobody said {what:?}, but {:?}", ask(prometheus).await);
}

#[tokio::test(start_paused = true)]
async fn prometheus_is_found_and_found_again() {
    let (first, second) = (prometheus("first").await, prometheus("second").await);
    let chart = "app.kubernetes.io/name=prometheus";
    let services = Services::default();
    *services.lock() = Some(Vec::new());
    let discovery = discovery(cluster(&services).await);
    let found = discovery.prometheus();
    let _looking = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(discovery.run()));

    let (reason, message) = ask(&found).await.unwrap_err();
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
    assert_eq!(ask(&found).await.unwrap(), "second", "nobody can look, but it was there");
}

/// Item 46 of the fault list: a label on a Service sends agentk to no other address than a Service's.
#[tokio::test]
async fn attack_46_a_service_leads_neither_to_ourselves_nor_to_the_clouds_metadata() {
    let port = prometheus("what only we may reach").await;
    for address in
        ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254", "fe80::1", "localhost"]
    {
        let services: Services =
            Arc::new(Mutex::new(Some(vec![("agentk/prometheus=true", at(address, "p", port))])));
        let discovery = discovery(cluster(&services).await);
        let refused = discovery.check().await.unwrap_err();
        assert_eq!(refused.reason, Reason::ClusterUnreachable, "{address}");
        assert!(refused.message.contains("there is no Prometheus in the namespace monitoring"), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_named() {
    let services = Services::default();
    let discovery = discovery(cluster(&services).await);
    let found = discovery.prometheus();
    let _looking = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(discovery.run()));
    let (reason, message) = ask(&found).await.unwrap_err();
    assert_eq!(reason, Reason::ClusterCredential);
    assert!(message.contains("/api/v1/namespaces/monitoring/services"), "{message}");
    assert!(message.contains("its RBAC role lacks this right"), "{message}");
}

#[tokio::test]
async fn a_prometheus_that_wants_a_credential_sees_ours_and_not_the_callers() {
    let guarded = |expected: &'static str| {
        server(move |request| match request.headers().get("authorization") {
            Some(value) if value == expected => (200, "welcome".to_owned()),
            _ => (401, String::new()),
        })
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credential");
    for (content, text, expected) in [
        (Content::Token, "ours\n", "Bearer ours"),
        (Content::Password, "ada:lovelace", "Basic YWRhOmxvdmVsYWNl"),
    ] {
        let url = format!("http://127.0.0.1:{}", guarded(expected).await);
        fs::write(&file, "old:one").unwrap();
        let credential = CredentialFile::open(file.clone(), content).unwrap();
        let prometheus = Prometheus::new(url.parse().unwrap(), Settings::default(), Some(credential));

        let refused = ask(&prometheus).await.unwrap_err();
        assert_eq!(refused.0, Reason::ClusterCredential, "and no 401, which would be about the caller's");
        assert!(refused.1.contains(&format!("in {}", file.display())), "{}", refused.1);
        fs::write(&file, text).unwrap();
        assert_eq!(ask(&prometheus).await.unwrap(), "welcome", "a rotated credential is used at once");

        let anonymous = Prometheus::new(url.parse().unwrap(), Settings::default(), None);
        let refused = ask(&anonymous).await.unwrap_err();
        assert!(refused.1.contains("--prometheus-token-file"), "{}", refused.1);
    }
}

#[tokio::test]
async fn a_check_asks_every_server() {
    let services: Services =
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
    let run = Cli::try_parse_from(arguments).unwrap().run.unwrap();
    let mut out = Vec::new();
    let ok = Check::build(run, Some("agent-token".into())).unwrap().run(&mut out).await.unwrap();
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
