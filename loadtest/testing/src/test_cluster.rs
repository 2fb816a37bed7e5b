//! A cluster of a test: an HTTP server that the test writes, and a kubeconfig with its address.

use std::{convert::Infallible, fs, path::PathBuf};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::task::AbortOnDropHandle;

/// A running server, and a kubeconfig with its address. Dropping it ends the server.
pub struct TestCluster {
    directory: TempDir,
    _accepting: AbortOnDropHandle<()>,
}

impl TestCluster {
    /// Starts a server that answers each request with `respond`.
    ///
    /// # Panics
    ///
    /// The server cannot listen, or the kubeconfig cannot be written.
    pub async fn start<F, R, B>(respond: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
        R: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound address"));
        let directory = tempfile::tempdir().expect("a temporary folder");
        let kubeconfig = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
        });
        fs::write(directory.path().join("kubeconfig"), kubeconfig.to_string())
            .expect("a file in a temporary folder");
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((io, _)) = listener.accept().await {
                let service = service_fn(respond.clone());
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(io), service));
            }
        });
        Self { directory, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Returns the path of the kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }
}
