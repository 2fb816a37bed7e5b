//! A simulated Kubernetes cluster: an API server, a deployment controller and a Prometheus in this process.
//!
//! It keeps all objects in memory, serves plain HTTP/1.1, accepts every caller, and marks each response with
//! the header `kas-simulator`. Real `kubectl`, `promtool` and Grafana work with the implemented parts; requests for
//! other parts are refused.

mod activity;
mod admission;
mod clock;
mod cluster;
mod controller;
mod discovery;
mod exec;
mod fill;
mod objects;
mod patch;
mod pods;
mod prometheus;
mod query;
mod request;
mod resources;
mod response;
mod selector;
mod store;
mod view;
mod watcher;
mod websocket;

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
};

pub use self::fill::LABEL;
use self::{
    cluster::Cluster,
    controller::Controller,
    query::decode,
    request::ApiRequest,
    resources::Resource,
    response::{ApiResponse, StatusError},
};

/// A running simulated cluster. Dropping it stops it without waiting; [`Self::shutdown`] waits.
#[derive(Debug)]
pub struct Simulator {
    address: SocketAddr,
    cluster: Arc<Cluster>,
}

impl Simulator {
    /// Listens on `listen` (port 0 picks a free one) with the seeded pods already running.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, which runs the accept loop and the controller.
    pub fn start(listen: SocketAddr) -> io::Result<Self> {
        let listener = bind(listen)?;
        let address = listener.local_addr()?;
        let cluster = Arc::new(Cluster::default());
        cluster::plant(&cluster.store).map_err(io::Error::other)?;
        let mut controller = Controller::new(Arc::clone(&cluster));
        controller.reconcile_all();
        cluster.tasks.spawn(controller.run());
        cluster.tasks.spawn(accept(listener, Arc::clone(&cluster)));
        Ok(Self { address, cluster })
    }

    /// Adds objects that change by themselves, as those of a real cluster do: a Deployment with a rollout every minute, one whose
    /// container crashes, and a certificate that expires.
    pub fn spawn_activity(&self) -> io::Result<()> {
        activity::plant(&self.cluster.store).map_err(io::Error::other)?;
        self.cluster.tasks.spawn(activity::run(Arc::clone(&self.cluster)));
        Ok(())
    }

    /// Returns the address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a kubeconfig with the only context `simulated-cluster`.
    pub fn kubeconfig(&self) -> String {
        let address = self.address;
        format!(
            "# A simulated cluster: nothing here is real.\n\
             apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: simulated-cluster\n  cluster:\n    server: http://{address}\n\
             contexts:\n\
             - name: simulated-cluster\n  context:\n    cluster: simulated-cluster\n    user: simulated-user\n    namespace: demo\n\
             current-context: simulated-cluster\n\
             users:\n\
             - name: simulated-user\n  user: {{}}\n"
        )
    }

    /// Returns the base URL of the simulated Prometheus for Grafana and `promtool`.
    pub fn prometheus_url(&self) -> String {
        format!("http://{}{}", self.address, prometheus::PREFIX)
    }

    /// Returns the number of open watches, followed logs, exec sessions and forwarded ports, with which tests check that
    /// a closed connection arrives here.
    pub fn open_streams(&self) -> watch::Receiver<usize> {
        self.cluster.open_streams()
    }

    /// Ends every stream, waits for requests in flight, and returns when all tasks have ended.
    pub async fn shutdown(self) {
        self.cluster.stop.cancel();
        self.cluster.tasks.close();
        self.cluster.tasks.wait().await;
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.cluster.stop.cancel();
    }
}

/// The time that a client may keep its connection after a stop.
const GRACE: Duration = Duration::from_secs(1);

/// The pause after a failed accept, usually because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

fn bind(listen: SocketAddr) -> io::Result<TcpListener> {
    let socket = if listen.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(listen)?;
    socket.listen(1024)
}

async fn accept(listener: TcpListener, cluster: Arc<Cluster>) {
    loop {
        let accepted = tokio::select! {
            () = cluster.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                cluster.tasks.spawn(connection(stream, Arc::clone(&cluster)));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, cluster: Arc<Cluster>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let service = service_fn(|request| serve(Arc::clone(&cluster), request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cluster.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

async fn serve(cluster: Arc<Cluster>, request: Request<Incoming>) -> Result<ApiResponse, Infallible> {
    const NAME: HeaderName = HeaderName::from_static("kas-simulator");
    const NOTICE: HeaderValue = HeaderValue::from_static("this is not a real cluster");
    let mut reply = route(ApiRequest::new(cluster, request)).await;
    reply.headers_mut().insert(NAME, NOTICE);
    Ok(reply)
}

/// The target of a path: an object, a collection or a subresource.
#[derive(Debug)]
pub(crate) struct Target {
    pub resource: &'static Resource,
    /// `None` for objects outside namespaces, and for a collection across all of them.
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

/// Handles a request.
pub(crate) async fn route(call: ApiRequest) -> ApiResponse {
    let path = call.request.uri().path().to_owned();
    if let Some(path) = path.strip_prefix(prometheus::PREFIX) {
        return prometheus::answer(call, path).await;
    }
    match answer(call, &path).await {
        Ok(reply) => reply,
        Err(failure) => response::failure(&failure),
    }
}

async fn answer(call: ApiRequest, path: &str) -> Result<ApiResponse, StatusError> {
    let segments: Vec<String> =
        path.split('/').filter(|segment| !segment.is_empty()).map(|segment| decode(segment).into()).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match segments.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => reading(&call).map(|()| response::text(StatusCode::OK, "ok")),
        ["openapi", "v3", document @ ..] => reading(&call).and_then(|()| discovery::open_api(document)),
        ["version"] | ["api"] | ["apis"] | ["api", _] | ["apis", _] | ["apis", _, _] => {
            reading(&call).and_then(|()| discovery::answer(&segments))
        }
        ["apis", "authentication.k8s.io", "v1", "selfsubjectreviews"] => discovery::review(call).await,
        ["api", version, rest @ ..] => objects::answer(call, target("", version, rest)?).await,
        ["apis", group, version, rest @ ..] => objects::answer(call, target(group, version, rest)?).await,
        _ => Err(StatusError::no_such_path()),
    }
}

fn reading(call: &ApiRequest) -> Result<(), StatusError> {
    match *call.request.method() {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(StatusError::method_not_allowed()),
    }
}

fn target(group: &str, version: &str, path: &[&str]) -> Result<Target, StatusError> {
    let (namespace, path) = match path {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
        _ => (None, path),
    };
    let (plural, rest) = path.split_first().ok_or_else(StatusError::no_such_path)?;
    let resource = Resource::find(group, version, plural).ok_or_else(StatusError::no_such_path)?;
    let (name, subresource) = match rest {
        [] => (None, None),
        [name] => (Some((*name).to_owned()), None),
        [name, subresource] => (Some((*name).to_owned()), Some((*subresource).to_owned())),
        _ => return Err(StatusError::no_such_path()),
    };
    // Only paths of namespaced objects contain a namespace.
    let misplaced =
        if resource.namespaced { namespace.is_none() && name.is_some() } else { namespace.is_some() };
    if misplaced {
        return Err(StatusError::no_such_path());
    }
    Ok(Target { resource, namespace, name, subresource })
}
