//! Tests of `agentk check`: every step is a line, and the first error of a subject is its last line.

use std::{convert::Infallible, fs, path::Path};

use crate::support::{DialResponse, gitlab_kas, serve};
use agent::{CheckCommand, cli::Cli};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use proto::ReplicaId;
use tokio::{net::TcpListener, sync::mpsc};

/// Starts a kas on a real socket and returns its port.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn kas(answer: DialResponse) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (opened, _keep) = mpsc::unbounded_channel();
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, answer.clone(), 1, opened.clone()));
        }
    });
    port
}

/// Starts a cluster in which agentk may not list secrets, and which is a Prometheus as well. Returns its port.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn cluster() -> u16 {
    cluster_without("secrets").await
}

/// Starts a cluster that refuses the rights whose reviews contain a text, those to services in the namespace `shop`, and all in the namespace
/// `locked`. Returns its port.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn cluster_without(refused: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = move |request: Request<Incoming>| async move {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let review = String::from_utf8_lossy(&body);
        let (status, text) = match &*path {
            "/version" => (200, r#"{"gitVersion": "v1.33.1"}"#),
            "/api/v1/query" => (200, "{}"),
            "/api/v1/namespaces/default/configmaps" => (200, r#"{"items": []}"#),
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
                let is_in_shop = review.contains(r#""shop""#) && review.contains(r#""services""#);
                if review.contains(refused) || review.contains(r#""locked""#) || is_in_shop {
                    (201, r#"{"status": {"allowed": false}}"#)
                } else {
                    (201, r#"{"status": {"allowed": true}}"#)
                }
            }
            _ => (404, ""),
        };
        let mut response = Response::new(Full::<Bytes>::from(text));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        Ok::<_, Infallible>(response)
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
        }
    });
    port
}

/// Returns a port without a listener.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn unused_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

async fn check(directory: &Path, kas: &str, cluster: u16, prometheus: u16) -> (bool, String) {
    check_with(&[], directory, kas, cluster, prometheus).await
}

#[allow(clippy::unwrap_used, reason = "test support")]
async fn check_with(
    flags: &[&str],
    directory: &Path,
    kas: &str,
    cluster: u16,
    prometheus: u16,
) -> (bool, String) {
    let kubeconfig = directory.join("config");
    let config = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{cluster}'}}}}], users: [{{name: u, user: {{}}}}]}}"
    );
    fs::write(&kubeconfig, config).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let prometheus = format!("http://127.0.0.1:{prometheus}");
    let mut arguments =
        vec!["agentk", "--kas-address", kas, "--kubeconfig", kubeconfig, "--prometheus-url", &prometheus];
    arguments.extend(flags);
    let policy = directory.join("policy.yaml");
    if policy.exists() {
        arguments.extend(["--policy-file", policy.to_str().unwrap()]);
    }
    let run = Cli::from_arguments(arguments).unwrap().run.unwrap();
    let mut out = Vec::new();
    let ok = CheckCommand::build(run, Some("agent-token".into())).unwrap().run(&mut out).await.unwrap();
    (ok, String::from_utf8(out).unwrap())
}

/// Returns each line up to its result.
fn steps(report: &str) -> Vec<String> {
    let step = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let result = words.iter().position(|word| matches!(*word, "ok" | "FAILED"));
        words[..=result.expect("a result")].join(" ")
    };
    report.lines().map(step).collect()
}

#[tokio::test]
async fn policy_without_rules_is_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let (kas, cluster) = (kas(DialResponse::Accept(ReplicaId::random())).await, cluster().await);
    fs::write(directory.path().join("policy.yaml"), "rules: []").unwrap();
    let (ok, report) = check(directory.path(), &format!("ws://127.0.0.1:{kas}"), cluster, cluster).await;
    assert!(ok, "{report}");
    let line = "policy: rules            warning there are no rules: the policy refuses every request\n";
    assert!(report.ends_with(line), "{report}");
}

#[tokio::test]
async fn selector_without_the_right_to_read_namespaces_fails() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "rules: [{name: a, action: allow, services: [kubernetes], resources: [pods], namespaceSelector: {matchLabels: {team: shop}}}]";
    fs::write(directory.path().join("policy.yaml"), policy).unwrap();
    let kas = format!("ws://127.0.0.1:{}", kas(DialResponse::Accept(ReplicaId::random())).await);
    for (refused, expected) in [
        (
            "\"namespaces\"",
            "policy: namespaceSelector FAILED  agentk may not list namespaces, so that their labels are not known: ",
        ),
        ("none", "policy: namespaceSelector ok      agentk may read the labels of namespaces\n"),
    ] {
        let cluster = cluster_without(refused).await;
        let (ok, report) = check(directory.path(), &kas, cluster, cluster).await;
        assert!(report.contains(expected), "{refused}: {report}");
        assert!(
            ok == expected.contains(" ok ") && (ok || report.contains("rbac.namespaceLabels")),
            "{report}"
        );
    }
}

#[tokio::test]
async fn successful_check_has_a_line_for_each_step() {
    let directory = tempfile::tempdir().unwrap();
    let (kas, cluster) = (kas(DialResponse::Accept(ReplicaId::random())).await, cluster().await);
    let policy = "mode: dry-run\nrules: [{name: all, action: allow, services: ['*']}]";
    fs::write(directory.path().join("policy.yaml"), policy).unwrap();
    let (flags, kas) = (["--require-scope"], format!("ws://127.0.0.1:{kas}"));
    let (ok, report) = check_with(&flags, directory.path(), &kas, cluster, cluster).await;
    assert!(ok, "{report}");
    assert!(report.contains("policy.yaml is valid; dry-run, refuses nothing; 1 rules\n"), "{report}");
    assert_eq!(
        steps(&report),
        [
            "kas: DNS ok",
            "kas: TCP ok",
            "kas: TLS ok",
            "kas: upgrade ok",
            "kas: authentication ok",
            "kas: tunnel ok",
            "cluster: API server ok",
            "cluster: permissions ok",
            "cluster: impersonation ok",
            "prometheus: query ok",
            "gitops: rights ok",
            "notify: rights ok",
            "graph: rights ok",
            "policy: file ok",
            "scope: --require-scope ok",
        ],
        "{report}"
    );
    assert!(report.contains("v1.33.1 at http://127.0.0.1:"), "{report}");
    assert!(report.contains("agentk may list pods, "), "{report}");
    let impersonation =
        "agentk may impersonate users, impersonate groups, impersonate userextras/agent.gitlab.com/id\n";
    assert!(report.contains(impersonation), "{report}");
    assert!(report.contains("; agentk may not list secrets\n"), "{report}");
    assert!(!report.contains("agent-token"), "{report}");
}

#[tokio::test]
async fn rights_are_checked_in_the_namespaces_of_the_scope() {
    let directory = tempfile::tempdir().unwrap();
    let (kas, cluster) = (kas(DialResponse::Accept(ReplicaId::random())).await, cluster().await);
    let kas = format!("ws://127.0.0.1:{kas}");
    let many = (0..11).map(|number| format!("web-{number}")).collect::<Vec<_>>().join(",");
    for (namespaces, expected) in [
        ("web", "ok      agentk has them all in the namespaces of --namespaces"),
        (&*many, "ok      agentk has them all in the first 10 of the 11 namespaces of --namespaces"),
        ("web,shop", "warning agentk may not list, watch services in shop: the graph is without these; "),
    ] {
        let flags = ["--namespaces", namespaces];
        let (ok, report) = check_with(&flags, directory.path(), &kas, cluster, cluster).await;
        assert!(ok, "{report}");
        let line = report.lines().find(|line| line.starts_with("graph: rights")).unwrap();
        assert!(line.contains(expected), "{line}");
    }
}

#[tokio::test]
async fn rights_for_events_are_checked_without_those_of_gitops() {
    let directory = tempfile::tempdir().unwrap();
    let (kas, cluster) = (kas(DialResponse::Accept(ReplicaId::random())).await, cluster().await);
    let (flags, kas) = (["--pod-namespace", "locked"], format!("ws://127.0.0.1:{kas}"));
    let (ok, report) = check_with(&flags, directory.path(), &kas, cluster, cluster).await;
    assert!(ok, "{report}");
    for expected in [
        "create, delete, get, list, patch, watch configmaps in locked; create, get, update leases.coordination.k8s.io in locked, so",
        "agentk may not create, get, patch events in locked, so that projects have none",
    ] {
        let line = report.lines().find(|line| line.starts_with("gitops: ") && line.contains(expected));
        assert!(line.is_some_and(|line| line.contains("warning")), "{expected}: {report}");
    }
}

#[tokio::test]
async fn audit_webhook_and_sources_of_alerts_have_lines() {
    let directory = tempfile::tempdir().unwrap();
    let (kas, cluster) = (kas(DialResponse::Accept(ReplicaId::random())).await, cluster().await);
    let kas = format!("ws://127.0.0.1:{kas}");
    let file = |name: &str, text: String| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = file("tls.crt", pair.cert.pem());
    let key = file("tls.key", pair.signing_key.serialize_pem());
    let hubble = format!("http://127.0.0.1:{cluster}");
    let mut flags = vec!["--audit-listen", "127.0.0.1:8444", "--audit-directory", "ring"];
    flags.extend(["--audit-certificate-file", &certificate, "--audit-certificate-key-file", &key]);
    flags.extend(["--audit-client-ca-file", &certificate]);
    flags.extend(["--policy-engine-alerts", "--hubble-address", &hubble]);
    let (ok, report) = check_with(&flags, directory.path(), &kas, cluster, cluster).await;
    assert!(!ok, "an API server is no relay: {report}");
    let last = steps(&report);
    let expected =
        ["audit: --audit-listen ok", "alerts: rights ok", "alerts: Events ok", "alerts: Hubble Relay FAILED"];
    assert_eq!(last[last.len() - 4..], expected, "{report}");
    assert!(report.contains("events to 127.0.0.1:8444, path /audit") && report.contains(&key), "{report}");
    assert!(report.contains("agentk may list and watch events in all namespaces\n"), "{report}");
    let hubble = format!("http://127.0.0.1:{}", unused_port().await);
    let flags = ["--hubble-address", &hubble];
    let (ok, report) = check_with(&flags, directory.path(), &kas, cluster, cluster).await;
    assert_eq!((ok, &**steps(&report).last().unwrap()), (false, "alerts: Hubble Relay FAILED"), "{report}");
}

#[tokio::test]
async fn failed_step_ends_its_subject_and_has_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    let (refused, lost) = (DialResponse::Refuse(401, &[], "unknown"), DialResponse::Refuse(404, &[], ""));
    for (kas, expected, hint) in [
        (
            format!("ws://127.0.0.1:{}", kas(refused).await),
            "kas: authentication FAILED",
            "kas token new agent",
        ),
        (format!("ws://127.0.0.1:{}", kas(lost).await), "kas: upgrade FAILED", "address for agents"),
        (format!("ws://127.0.0.1:{}", unused_port().await), "kas: TCP FAILED", "NetworkPolicies"),
        (format!("wss://127.0.0.1:{}", cluster().await), "kas: TLS FAILED", "--kas-ca-cert-file"),
    ] {
        let unused = unused_port().await;
        let (ok, report) = check(directory.path(), &kas, unused, unused).await;
        assert!(!ok);
        let steps = steps(&report);
        let failed = steps.iter().filter(|step| step.ends_with("FAILED")).collect::<Vec<_>>();
        assert_eq!(failed, [expected, "cluster: API server FAILED", "prometheus: query FAILED"], "{report}");
        let line = report.lines().find(|line| line.starts_with("kas") && line.contains("FAILED")).unwrap();
        assert!(line.contains(hint), "{line}");
    }
}

#[tokio::test]
async fn check_names_gitlabs_kas_and_its_version() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = cluster().await;
    for (websocket, status, kas_steps, texts) in [
        (
            true,
            0,
            &["DNS ok", "TCP ok", "TLS ok", "upgrade ok", "gRPC ok", "authentication ok"][..],
            &["GitLab's kas (gitlab-kas/v16.5.0-8daa08cc/8daa08cc) answers\n", "AGENTK_TOKEN is accepted\n"]
                [..],
        ),
        (
            false,
            0,
            &["DNS ok", "TCP ok", "TLS ok", "gRPC ok", "authentication ok"],
            &["not used (grpc://)", "GitLab's kas answers\n"],
        ),
        (
            false,
            16,
            &["DNS ok", "TCP ok", "TLS ok", "gRPC ok", "authentication FAILED"],
            &["requires an agent token", "kas refused the agent token", "in GitLab"],
        ),
        (
            true,
            14,
            &["DNS ok", "TCP ok", "TLS ok", "upgrade ok", "gRPC FAILED"],
            &["Unavailable: from the test"],
        ),
    ] {
        let scheme = if websocket { "ws" } else { "grpc" };
        let kas = format!("{scheme}://127.0.0.1:{}", gitlab_kas::listen(websocket, status).await);
        let (ok, report) = check(directory.path(), &kas, cluster, cluster).await;
        assert_eq!(ok, status == 0, "{report}");
        let steps: Vec<_> = steps(&report)
            .into_iter()
            .filter_map(|step| step.strip_prefix("kas: ").map(str::to_owned))
            .collect();
        assert_eq!(steps, kas_steps, "{report}");
        for text in texts {
            assert!(report.contains(text), "{text} in {report}");
        }
        assert!(!report.contains("agent-token"), "{report}");
    }
}

#[tokio::test]
async fn server_without_http2_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = cluster().await;
    let (ok, report) =
        check(directory.path(), &format!("grpc://127.0.0.1:{cluster}"), cluster, cluster).await;
    assert!(!ok);
    let line = report.lines().find(|line| line.contains("gRPC")).unwrap();
    assert!(line.contains("FAILED") && line.contains("did not answer in HTTP/2"), "{report}");
}

#[test]
fn protocol_that_the_address_does_not_have_is_refused_before_a_dial() {
    let arguments = ["agentk", "--kas-address", "grpc://kas:8150", "--protocol", "kas-tunnel"];
    let run = Cli::from_arguments(arguments).unwrap().run.unwrap();
    let error = CheckCommand::build(run, Some("agent-token".into())).err().unwrap().to_string();
    assert!(error.starts_with("--protocol kas-tunnel needs a WebSocket"), "{error}");
}
