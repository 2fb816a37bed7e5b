//! The programs of a caller: curl, kubectl, and a WebSocket of a page.

use std::{fs, net::SocketAddr, path::PathBuf, process::Command, time::Duration};

use futures_util::{SinkExt as _, StreamExt as _};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::json;
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _, http::HeaderName};

use super::{
    callers,
    support::{HttpResponse, Kubectl, Process, curl},
    world::Start,
};

/// The address, the credential and the programs with which a caller sends requests.
pub(crate) struct Client {
    /// The address of kas or of its proxy, with TLS.
    pub(crate) address: SocketAddr,
    headers: Vec<String>,
    authority: PathBuf,
    /// The beginning of the paths of the cluster.
    kubernetes: String,
    /// The beginning of the paths of services.
    services: String,
    /// kubectl, for callers whose credential it can have.
    kubectl: Option<Kubectl>,
}

impl Client {
    /// Creates the client of a case. A caller of the page logs in.
    pub(crate) fn new(start: &Start<'_>, front: SocketAddr) -> Self {
        let case = start.case;
        let kubectl = Self::of_kubectl(case.caller).then(|| {
            let file = start.directory.path().join("caller.kubeconfig");
            let kubeconfig = json!({
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "e2e", "cluster": {
                    "server": format!("https://{front}{}", case.kubernetes()),
                    "certificate-authority": start.certificates.authority,
                }}],
                "users": [{"name": "e2e", "user": callers::user(start)}],
                "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
                "current-context": "e2e",
            });
            fs::write(&file, kubeconfig.to_string()).unwrap();
            Kubectl::direct(&file, &start.subdirectory("kubectl"))
        });
        Self {
            address: front,
            headers: callers::headers(start, front),
            authority: start.certificates.authority.clone(),
            kubernetes: case.kubernetes(),
            services: format!("/agents/{}", case.name_in_path()),
            kubectl,
        }
    }

    /// Returns kubectl in a namespace, or `None` for a caller of a browser.
    pub(crate) fn kubectl(&self, namespace: &str) -> Option<Kubectl> {
        self.kubectl.as_ref().map(|kubectl| kubectl.in_namespace(namespace))
    }

    /// Requests a path of the cluster.
    pub(crate) fn cluster(&self, path: &str, arguments: &[&str]) -> HttpResponse {
        self.curl(&format!("{}{path}", self.kubernetes), arguments)
    }

    /// Requests a path of a service.
    pub(crate) fn service(&self, path: &str) -> HttpResponse {
        self.curl(&format!("{}{path}", self.services), &[])
    }

    /// Requests a list about several agents.
    pub(crate) fn list(&self, path: &str) -> HttpResponse {
        self.curl(path, &[])
    }

    fn curl(&self, path: &str, arguments: &[&str]) -> HttpResponse {
        let mut all = self.arguments(path);
        all.extend(arguments.iter().map(ToString::to_string));
        curl(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn arguments(&self, path: &str) -> Vec<String> {
        let headers = self.headers.iter().flat_map(|header| ["--header".to_owned(), header.clone()]);
        let authority = ["--cacert".to_owned(), self.authority.display().to_string()];
        let url = format!("https://{}{path}", self.address);
        headers.chain(authority).chain([url]).collect()
    }

    /// Starts a request of a path of the cluster whose body does not end.
    pub(crate) fn follow(&self, path: &str) -> Process {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--no-buffer", "--fail-with-body", "--user-agent", "e2e"]);
        command.args(self.arguments(&format!("{}{path}", self.kubernetes)));
        Process::start("curl", &mut command)
    }

    /// Runs a command in a container by a WebSocket, as a page does, with this standard input. Returns the standard
    /// output once it has this length.
    pub(crate) fn exec(&self, path: &str, input: &[u8], expected: usize) -> Result<Vec<u8>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.exec_in_runtime(path, input, expected))
    }

    async fn exec_in_runtime(&self, path: &str, input: &[u8], expected: usize) -> Result<Vec<u8>, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&self.authority).unwrap() {
            roots.add(certificate.unwrap()).unwrap();
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::from(self.address.ip());
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let stream = connector.connect(name, stream).await.unwrap();
        let url = format!("wss://{}{}{path}", self.address, self.kubernetes);
        let mut request = url.into_client_request().unwrap();
        for header in &self.headers {
            let (name, value) = header.split_once(": ").unwrap();
            let name = HeaderName::try_from(name).unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let protocol = "v5.channel.k8s.io".parse().unwrap();
        request.headers_mut().entry("sec-websocket-protocol").or_insert(protocol);
        let (mut socket, _) = match tokio_tungstenite::client_async(request, stream).await {
            Ok(opened) => opened,
            Err(tokio_tungstenite::tungstenite::Error::Http(response)) => {
                let body = response.body().clone().unwrap_or_default();
                return Err(format!("{} {}", response.status(), String::from_utf8_lossy(&body)));
            }
            Err(error) => return Err(error.to_string()),
        };
        // The first byte of a message is the channel: 0 to 3 are the streams and the status, and 255 closes one.
        for chunk in input.chunks(32 << 10) {
            let message = Message::binary([&[0], chunk].concat());
            socket.send(message).await.map_err(|error| error.to_string())?;
        }
        if !input.is_empty() {
            socket.send(Message::binary(vec![255, 0])).await.map_err(|error| error.to_string())?;
        }
        let (mut output, mut has_status) = (Vec::new(), false);
        // The kubelet may send the status before the rest of the output.
        while !has_status || output.len() < expected {
            let message = timeout(Duration::from_secs(30), socket.next()).await;
            match message.map_err(|_| format!("nothing came after {} bytes", output.len()))? {
                Some(Ok(Message::Binary(data))) if data.first() == Some(&1) => {
                    output.extend_from_slice(&data[1..])
                }
                Some(Ok(Message::Binary(data))) if data.first() == Some(&3) => has_status = true,
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(format!("{error} after {} bytes", output.len())),
                None => break,
            }
        }
        Ok(output)
    }
}
