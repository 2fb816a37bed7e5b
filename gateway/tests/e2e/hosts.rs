//! Agents by host name: clients that drop the path of the server's URL.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
};

use secrecy::ExposeSecret as _;

use crate::support::{AGENT, Cluster, Installation, Kas, KubectlVersion, Process, curl, run};

/// Starts an HTTP proxy that connects all clients to one server, in place of a DNS record. Returns its URL.
fn proxy_to(server: SocketAddr) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            thread::spawn(move || tunnel(client, server));
        }
    });
    url
}

/// Answers a CONNECT request, and copies the bytes of both directions. Errors end the connection.
fn tunnel(mut client: TcpStream, mut server: TcpStream) -> io::Result<()> {
    // The client sends nothing after the head before it has the response.
    let mut head = BufReader::new(client.try_clone()?).lines();
    while head.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut from_server, mut to_client) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_server, &mut to_client);
        to_client.shutdown(Shutdown::Both)
    });
    io::copy(&mut client, &mut server)?;
    server.shutdown(Shutdown::Both)
}

/// One of Kubernetes' own conformance tests does the same (`Kubectl client Proxy server`).
#[test]
fn kubectl_proxy_works_with_a_kubeconfig_by_host() {
    let Some(cluster) = Cluster::or_skip() else { return };
    if !KubectlVersion::PROXY_SENDS_SERVER_HOST.or_skip("kubectl proxy with a host") {
        return;
    }
    let world = Installation::start(&cluster.kubeconfig, |options, certificates| {
        options.hosts = vec!["{agent}.k8s.example.com".to_owned()];
        options.public_tls = Some(certificates);
    });
    let directory = world.directory().to_owned();
    fs::write(directory.join("ops-token"), world.tokens.ops.expose_secret()).unwrap();
    let mut kubeconfig = Kas::command();
    let arguments = ["--by-host", "--agent", AGENT, "--config", "kas.yaml", "--token-file", "ops-token"];
    kubeconfig.arg("kubeconfig").args(arguments).args(["--output", "by-host", "--certificate-authority"]);
    let output = run(kubeconfig.arg(world.kas.authority().unwrap()).current_dir(&directory), b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut kubectl = Command::new("kubectl");
    kubectl.args(["--kubeconfig", "by-host", "proxy", "--port=0"]).current_dir(&directory);
    kubectl.env_remove("KUBECONFIG").env_remove("NO_PROXY").env("HTTPS_PROXY", proxy_to(world.kas.public));
    let proxy = Process::start("kubectl proxy", &mut kubectl);
    let line = proxy.line("the address", |line| line.starts_with("Starting to serve on "));
    let address = line.rsplit(' ').next().unwrap();
    for path in ["/version", "/api", "/apis/apps/v1", "/api/v1/namespaces/kube-system"] {
        let through = curl(&[&format!("http://{address}{path}")]);
        assert_eq!(through.status, 200, "{path}: {}", through.text());
        let direct: serde_json::Value = serde_json::from_slice(&cluster.kubectl.raw(path).stdout).unwrap();
        assert_eq!(through.json(), direct, "{path}");
    }

    let other = curl(&[&format!("http://{address}/agents/{AGENT}/kubernetes/version")]);
    assert_eq!(other.status, 404, "the path is that of the cluster: {}", other.text());
}
