//! A cluster of a test: an HTTP server that the test writes, as agentk's connection to the cluster.

use std::{convert::Infallible, fs, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::task::AbortOnDropHandle;

use super::KubernetesService;
use crate::cluster::{Cluster, KubeconfigOptions};

/// A running server, and a kubeconfig with its address. Dropping it ends the server.
pub(crate) struct TestCluster {
    directory: TempDir,
    _accepting: AbortOnDropHandle<()>,
}

impl TestCluster {
    /// Starts a server that answers each request with `respond`.
    pub(crate) async fn start<F, R, B>(respond: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
        R: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
        });
        fs::write(directory.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((io, _)) = listener.accept().await {
                let service = service_fn(respond.clone());
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(io), service));
            }
        });
        Self { directory, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Returns agentk's service for it.
    pub(crate) fn service(&self) -> KubernetesService {
        let file = Some(self.directory.path().join("kubeconfig"));
        let options = KubeconfigOptions { file, context: None };
        KubernetesService::new(Arc::new(Cluster::load(&options).unwrap()))
    }
}
