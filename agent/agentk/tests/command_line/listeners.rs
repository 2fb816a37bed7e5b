//! Connections without a valid credential do not keep others out of any listener of agentk.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
// The strangers have addresses that only Linux has.
#![cfg(target_os = "linux")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// The timeout of every wait.
const SOON: Duration = Duration::from_secs(20);
/// More connections than any listener has.
const STRANGERS: u16 = 300;
/// The beginning of a TLS handshake.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
const HEAD: &[u8] = b"GET /liveness HTTP/1.1\r\nHost: agentk\r\n";
/// A question of which one byte of eight megabytes arrives.
const QUESTION: &[u8] = b"POST /validate HTTP/1.1\r\nHost: agentk\r\nContent-Length: 8388608\r\n\r\n{";

trait Io: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Io for T {}

/// A running agentk, which prints its addresses.
struct Agentk {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Drop for Agentk {
    fn drop(&mut self) {
        // It has ended otherwise.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Agentk {
    fn start(directory: &Path, arguments: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentk"));
        command.args(arguments.split_whitespace()).current_dir(directory).env_clear();
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let log = BufReader::new(process.stderr.take().unwrap());
        // Fails once the test has all addresses; the log is read to its end.
        std::thread::spawn(move || {
            log.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)))
        });
        Self { process, lines }
    }

    /// Returns the addresses of the listeners whose lines have these texts, in any order of the log.
    fn addresses<const N: usize>(&self, messages: [&str; N]) -> [SocketAddr; N] {
        let mut found = [None; N];
        while found.contains(&None) {
            let line = self.lines.recv_timeout(SOON).expect("agentk prints its addresses");
            let position = messages.iter().position(|message| line.contains(message));
            let address = line.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
            if let (Some(position), Some(address)) = (position, address) {
                found[position] = Some(address.parse().unwrap());
            }
        }
        found.map(Option::unwrap)
    }
}

/// Writes a certificate that is its own authority.
fn certificate(directory: &Path, name: &str) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(directory.join(format!("{name}.crt")), certificate.pem()).unwrap();
    fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

/// Returns a client with a certificate, or without one.
fn client(directory: &Path, has_certificate: bool) -> TlsConnector {
    let pem = |name: &str| fs::read(directory.join(name)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem("server.crt")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = if has_certificate {
        let certificate = CertificateDer::from_pem_slice(&pem("client.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&pem("client.key")).unwrap();
        config.with_client_auth_cert(vec![certificate], key).unwrap()
    } else {
        config.with_no_client_auth()
    };
    TlsConnector::from(Arc::new(config))
}

/// Opens a connection from an address of this machine.
async fn connect(from: [u8; 4], to: SocketAddr, tls: Option<&TlsConnector>) -> Option<Box<dyn Io>> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let tcp: TcpStream = socket.connect(to).await.ok()?;
    Some(match tls {
        Some(tls) => Box::new(tls.connect(ServerName::try_from("localhost").unwrap(), tcp).await.ok()?),
        None => Box::new(tcp),
    })
}

#[tokio::test]
async fn attack_90_parts_of_requests_keep_no_client_out_of_any_listener() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for name in ["server", "client"] {
        certificate(directory, name);
    }
    let kubeconfig = "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
                      clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}";
    fs::write(directory.join("kubeconfig"), kubeconfig).unwrap();
    fs::write(directory.join("token"), "glagent-0123456789").unwrap();
    fs::write(directory.join("key"), "0123456789abcdef0123456789abcdef").unwrap();
    fs::write(directory.join("policy"), "rules: [{name: all, action: allow, services: [kubernetes]}]")
        .unwrap();
    let serve = Agentk::start(
        directory,
        "serve --listen 127.0.0.1:0 --listen-key-file key --listen-certificate-file server.crt \
         --listen-certificate-key-file server.key --token-file token --kubeconfig kubeconfig --no-gitops --no-graph \
         --observability-listen-address 127.0.0.1:0 --audit-listen 127.0.0.1:0 --audit-directory ring \
         --audit-certificate-file server.crt --audit-certificate-key-file server.key --audit-client-ca-file client.crt",
    );
    let [kas, audit, observability] =
        serve.addresses(["listening for kas", "receiving audit events", "serving /liveness"]);
    let webhook = Agentk::start(
        directory,
        "admission --policy-file policy --service-account agentk/agentk --certificate-file server.crt \
         --certificate-key-file server.key --client-ca-file client.crt --listen-address 127.0.0.1:0 \
         --observability-listen-address 127.0.0.1:0",
    );
    let [admission, probes] = webhook.addresses(["answering admission reviews", "serving /liveness"]);

    let (known, unknown) = (client(directory, true), client(directory, false));
    for (name, address, stranger, beginning, client, answer) in [
        ("kas", kas, None, CLIENT_HELLO, Some(&unknown), "HTTP/1.1 401"),
        ("kas, with TLS", kas, Some(&unknown), HEAD, Some(&unknown), "HTTP/1.1 401"),
        ("audit", audit, None, CLIENT_HELLO, Some(&known), "HTTP/1.1 404"),
        ("observability", observability, None, HEAD, None, "HTTP/1.1 200"),
        ("admission", admission, None, CLIENT_HELLO, Some(&unknown), "HTTP/1.1 404"),
        ("admission, with questions", admission, Some(&unknown), QUESTION, Some(&unknown), "HTTP/1.1 404"),
        ("admission, for a certificate", admission, Some(&unknown), QUESTION, Some(&known), "HTTP/1.1 404"),
        ("observability of admission", probes, None, HEAD, None, "HTTP/1.1 200"),
    ] {
        let mut strangers = Vec::new();
        for number in 0..STRANGERS {
            // Fails if it was replaced during its handshake.
            let Some(mut connection) = connect([127, 0, 1, number as u8 % 30], address, stranger).await
            else {
                continue;
            };
            let _ = connection.write_all(beginning).await;
            let _ = connection.flush().await;
            strangers.push(connection);
        }
        let started = Instant::now();
        let asked = async {
            let mut connection = connect([127, 0, 0, 2], address, client).await.expect(name);
            connection.write_all(&[HEAD, b"\r\n"].concat()).await.unwrap();
            let mut received = vec![0; answer.len()];
            connection.read_exact(&mut received).await.unwrap();
            String::from_utf8(received).unwrap()
        };
        let received = timeout(SOON, asked).await.unwrap_or_else(|_| panic!("{name}: no answer"));
        assert_eq!(received, answer, "{name}");
        // All timeouts of strangers are longer, but that of a handshake of the audit webhook.
        assert!(started.elapsed() < Duration::from_secs(3), "{name}: {:?}", started.elapsed());
        drop(strangers);
    }
}
