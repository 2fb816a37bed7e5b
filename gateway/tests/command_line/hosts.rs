//! Agents by host name: the kubeconfig, and the host of a real TLS handshake.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::workspace::{Kas, SOON, Workspace};

const ARGUMENTS: &str = "kubeconfig --config kas.yaml --agent 1 --token-file caller-token";

/// Returns a workspace with hosts of agents, and a certificate for them.
async fn workspace(pattern: &str) -> Workspace {
    let workspace = Workspace::new().await;
    let names = ["*.k8s.example.com".to_owned(), "kas.example.com".to_owned()];
    let pair = rcgen::generate_simple_self_signed(names).unwrap();
    workspace.write("kas.crt", &pair.cert.pem());
    workspace.write("kas.key", &pair.signing_key.serialize_pem());
    let config = workspace.read("kas.yaml");
    let hosts = format!("  kubernetes_api:\n    hosts: ['{pattern}']\n");
    workspace.write("kas.yaml", &config.replace("  kubernetes_api:\n", &hosts));
    workspace
}

#[tokio::test]
async fn kubeconfig_by_host_has_no_path() {
    let workspace = workspace("{agent}.k8s.example.com").await;
    for (flags, server) in [
        ("--by-host", "https://production.k8s.example.com"),
        ("--by-host --server https://kas.example.com:8154", "https://production.k8s.example.com:8154"),
    ] {
        let text = workspace.stdout(&format!("{ARGUMENTS} {flags}")).await;
        assert!(text.contains(&format!("server: {server}\n")), "{text}");
        assert!(text.contains("certificate-authority-data: "), "{text}");
    }
    let (exit, text) =
        workspace.failure(&format!("{ARGUMENTS} --by-host --server https://kas.example.com/kas")).await;
    assert_eq!(exit, 64);
    assert!(text.contains("the URL of --server may not have a path"), "{text}");

    let without = Workspace::new().await;
    let (exit, text) = without.failure(&format!("{ARGUMENTS} --by-host")).await;
    assert_eq!(exit, 64);
    assert!(text.contains("--by-host needs agent.kubernetes_api.hosts in kas.yaml"), "{text}");
}

#[tokio::test]
async fn invalid_pattern_is_an_error_with_file_line_and_key() {
    for pattern in ["*.k8s.example.com", "{agent}", "k8s.{agent}.example.com", "{agent}-k8s.example.com"] {
        let workspace = workspace(pattern).await;
        let (exit, text) = workspace.failure("check-config --config kas.yaml").await;
        assert_eq!(exit, 64, "{text}");
        assert!(text.contains("kas.yaml:4") && text.contains("agent.kubernetes_api.hosts"), "{text}");
        assert!(text.contains("{agent} in place of the first label"), "{text}");
    }
}

/// Sends a request with a name in the TLS handshake and a `Host`. Returns the response.
async fn send(workspace: &Workspace, kas: &Kas, name: &str, host: &str) -> String {
    let mut roots = RootCertStore::empty();
    let pem = workspace.read("kas.crt");
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection = TcpStream::connect(kas.public).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = TlsConnector::from(Arc::new(config)).connect(name, connection).await.unwrap();
    let request = format!(
        "GET /agents/staging/kubernetes/api HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\n\
         Connection: close\r\n\r\n",
        workspace.caller_token
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    timeout(SOON, connection.read_to_string(&mut response)).await.unwrap().unwrap();
    response
}

#[tokio::test]
async fn attack_89_tls_handshake_for_another_host_is_misdirected() {
    let workspace = workspace("{agent}.k8s.example.com").await;
    let kas = workspace.serve().await;
    let [production, staging] = ["production", "staging"].map(|agent| format!("{agent}.k8s.example.com"));
    for (name, host) in
        [(&*staging, &*production), ("kas.example.com", &production), (&production, "kas.example.com")]
    {
        let response = send(&workspace, &kas, name, host).await;
        assert!(response.starts_with("HTTP/1.1 421 "), "{name} {host}: {response}");
        assert!(response.contains("kas-error: misdirected-request\r\n"), "{response}");
    }
    // The caller may use only `production`, which has no tunnel.
    for (host, reason) in [
        (&*production, "agent-not-connected"),
        (&staging, "unknown-agent"),
        ("kas.example.com", "unknown-agent"),
    ] {
        let response = send(&workspace, &kas, host, host).await;
        assert!(response.contains(&format!("kas-error: {reason}\r\n")), "{host}: {response}");
    }
}
