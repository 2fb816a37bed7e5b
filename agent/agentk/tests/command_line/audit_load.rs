//! What audit events cost agentk: the load of a busy API server, and the CPU and memory of the process.
//!
//! ```text
//! cargo test --release -p agent --test command_line audit_load -- --ignored --nocapture
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step is a failed test, and the test prints figures"
)]
#![cfg(target_os = "linux")]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::json;
use tokio::{
    net::TcpStream,
    time::{interval, sleep},
};
use tokio_rustls::TlsConnector;

/// The events of a batch, which is the default of kube-apiserver.
const BATCH: usize = 400;
/// The batches in a second.
const RATE: u32 = 5;
const SECONDS: u32 = 30;
/// The events that fill the ring before, so that files are removed while it is measured.
const WARM_UP: usize = 100;
const MAX_BYTES: u64 = 32 << 20;

struct Agentk {
    process: Child,
    audit: SocketAddr,
    observability: SocketAddr,
    directory: PathBuf,
}

impl Drop for Agentk {
    fn drop(&mut self) {
        // It has ended otherwise.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes a certificate that is its own authority.
fn certificate(directory: &Path, name: &str) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(directory.join(format!("{name}.crt")), certificate.pem()).unwrap();
    fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

impl Agentk {
    fn start(directory: &Path) -> Self {
        let file = |name: &str| directory.join(name);
        for name in ["server", "client"] {
            certificate(directory, name);
        }
        let kubeconfig = json!({
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}],
        });
        fs::write(file("kubeconfig"), kubeconfig.to_string()).unwrap();
        fs::write(file("token"), "glagent-0123456789").unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_agentk"))
            .args(["--kas-address", "ws://127.0.0.1:1", "--observability-listen-address", "127.0.0.1:0"])
            .args([
                "--audit-listen",
                "127.0.0.1:0",
                "--audit-max-bytes",
                &MAX_BYTES.to_string(),
                "--no-gitops",
                "--no-graph",
            ])
            .arg("--token-file")
            .arg(file("token"))
            .arg("--kubeconfig")
            .arg(file("kubeconfig"))
            .arg("--audit-certificate-file")
            .arg(file("server.crt"))
            .arg("--audit-certificate-key-file")
            .arg(file("server.key"))
            .arg("--audit-client-ca-file")
            .arg(file("client.crt"))
            .arg("--audit-directory")
            .arg(file("ring"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut address = |message: &str| -> SocketAddr {
            let line = lines.find(|line| line.contains(message)).unwrap();
            line.rsplit_once("address=").unwrap().1.parse().unwrap()
        };
        let audit = address("receiving audit events");
        let observability = address("serving /liveness");
        // Nobody reads it otherwise.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, audit, observability, directory: directory.to_owned() }
    }

    async fn connect(&self) -> http1::SendRequest<Full<Bytes>> {
        let pem = |name: &str| fs::read(self.directory.join(name)).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem("server.crt")).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(&pem("client.crt")).unwrap()],
                PrivateKeyDer::from_pem_slice(&pem("client.key")).unwrap(),
            )
            .unwrap();
        let tcp = TcpStream::connect(self.audit).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(tls)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Returns the number of events with each result.
    async fn events(&self) -> BTreeMap<String, u64> {
        let tcp = TcpStream::connect(self.observability).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await.unwrap();
        tokio::spawn(connection);
        let request =
            Request::get("/metrics").header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
        let body =
            sender.send_request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let series = text.lines().filter_map(|line| line.strip_prefix("agentk_audit_events_total{result=\""));
        series
            .map(|line| line.split_once("\"} ").unwrap())
            .map(|(result, number)| (result.to_owned(), number.parse().unwrap()))
            .collect()
    }

    /// Returns the CPU time of the process.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // The fields 14 and 15 of proc(5), in hundredths of a second.
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    /// Returns a value of `/proc/…/status` in mebibytes.
    fn memory(&self, key: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

/// Returns a batch as kube-apiserver sends it at the level Metadata.
fn batch(first: usize) -> Bytes {
    let event = |number: usize| {
        json!({
            "level": "Metadata", "auditID": format!("kas-{number:032x}"), "stage": "ResponseComplete",
            "requestURI": format!("/api/v1/namespaces/shop-{}/configmaps/settings-{number}?fieldManager=kubectl-client-side-apply", number % 100),
            "verb": "update",
            "user": {
                "username": "system:serviceaccount:agentk:agentk", "uid": "3f4d8a4e-5f57-4c0f-8a2c-5a3d4d6a7b8c",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:agentk", "system:authenticated"],
                "extra": {
                    "authentication.kubernetes.io/credential-id": ["JTI=0b5c1e4f-6a0e-4a5e-9d1f-2f1f6f0d9b3c"],
                    "authentication.kubernetes.io/node-name": ["node-1"],
                    "authentication.kubernetes.io/pod-name": ["agentk-6d5f7c9b8-x2x7k"],
                },
            },
            "impersonatedUser": {
                "username": "gitlab:ci_job:302", "groups": ["gitlab:ci_job", "gitlab:group:23", "gitlab:project:300", "system:authenticated"],
                "extra": {"agent.gitlab.com/ci_job_id": ["302"], "agent.gitlab.com/project_id": ["300"]},
            },
            "sourceIPs": ["192.0.2.7"], "userAgent": "kubectl/v1.37.2 (linux/amd64) kubernetes/0000000",
            "objectRef": {
                "resource": "configmaps", "namespace": format!("shop-{}", number % 100), "name": format!("settings-{number}"),
                "apiVersion": "v1", "resourceVersion": "123456",
            },
            "responseStatus": {"metadata": {}, "code": 200},
            "requestReceivedTimestamp": "2026-01-31T12:00:00.123456Z", "stageTimestamp": "2026-01-31T12:00:00.133456Z",
            "annotations": {
                "authorization.k8s.io/decision": "allow",
                "authorization.k8s.io/reason": "RBAC: allowed by RoleBinding \"deploy/shop\" of Role \"deploy\" to Group \"gitlab:project:300\"",
            },
        })
        .to_string()
    };
    let items: Vec<String> = (first..first + BATCH).map(event).collect();
    let list = format!(
        r#"{{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{{}},"items":[{}]}}"#,
        items.join(",")
    );
    list.into()
}

#[tokio::test]
#[ignore = "it takes half a minute, and needs a machine without other load"]
async fn two_thousand_events_per_second_cost_little() {
    let directory = tempfile::tempdir().unwrap();
    let agentk = Agentk::start(directory.path());
    let mut sender = agentk.connect().await;
    let mut send = async |number: usize| {
        let request = Request::post("/audit").header("host", "localhost");
        let response =
            sender.send_request(request.body(Full::new(batch(number * BATCH))).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.unwrap();
    };
    let before = agentk.memory("VmRSS");
    for number in 0..WARM_UP {
        send(number).await;
    }
    let (begun, cpu) = (Instant::now(), agentk.cpu());
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    for number in 0..(SECONDS * RATE) as usize {
        ticks.tick().await;
        send(WARM_UP + number).await;
    }
    let elapsed = begun.elapsed();
    let share = (agentk.cpu() - cpu).as_secs_f64() / elapsed.as_secs_f64();
    let (rss, most) = (agentk.memory("VmRSS"), agentk.memory("VmHWM"));
    let events = f64::from(SECONDS * RATE) * BATCH as f64 / elapsed.as_secs_f64();
    // The thread of the ring writes the last ones after the response.
    let all = ((WARM_UP + (SECONDS * RATE) as usize) * BATCH) as u64;
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut results = agentk.events().await;
    while results["kept"] < all && Instant::now() < deadline {
        sleep(Duration::from_millis(50)).await;
        results = agentk.events().await;
    }
    println!("events per second:           {events:.0} of {} bytes", batch(0).len() / BATCH);
    println!("share of a core:             {:.1} %", share * 100.0);
    println!("memory before the first one: {before:.1} MiB");
    println!("memory at the end:           {rss:.1} MiB, at most {most:.1} MiB");
    assert_eq!(results.remove("kept"), Some(all), "{results:?}");
    assert!(!results.is_empty() && results.values().all(|number| *number == 0), "{results:?}");
    assert!(events >= 0.99 * f64::from(RATE) * BATCH as f64, "{events} per second");
    assert!(share <= 0.15, "{share}");
    assert!(most <= 32.0, "{most} MiB");
}
