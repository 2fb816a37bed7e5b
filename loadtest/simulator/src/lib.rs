//! A simulated Kubernetes cluster: an API server, a deployment controller and a Prometheus in this process.
//!
//! It keeps all objects in memory, serves plain HTTP/1.1, accepts every caller, and marks each response with
//! the header `kas-simulator`. Real `kubectl`, `promtool` and Grafana work with the implemented parts; requests for
//! other parts are refused.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use self::cluster::Cluster;
use self::controller::Controller;

mod admission;
mod clock;
mod cluster;
mod controller;
mod discovery;
mod error;
mod exec;
mod fields;
mod identity;
mod json_patch;
mod logs;
mod merge;
mod objects;
mod openapi;
mod pods;
mod port_forward;
mod prometheus;
mod request;
mod resources;
mod response;
mod routes;
mod scale;
mod seed;
mod selector;
mod store;
mod table;
mod view;
mod watcher;
mod websocket;

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
        seed::plant(&cluster.store).map_err(io::Error::other)?;
        let mut controller = Controller::new(Arc::clone(&cluster));
        controller.settle();
        cluster.tasks.spawn(controller.run());
        cluster.tasks.spawn(accept(listener, Arc::clone(&cluster)));
        Ok(Self { address, cluster })
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

async fn serve(
    cluster: Arc<Cluster>,
    request: Request<Incoming>,
) -> Result<response::ApiResponse, Infallible> {
    const NAME: HeaderName = HeaderName::from_static("kas-simulator");
    const NOTICE: HeaderValue = HeaderValue::from_static("this is not a real cluster");
    let mut reply = routes::route(request::ApiRequest::new(cluster, request)).await;
    reply.headers_mut().insert(NAME, NOTICE);
    Ok(reply)
}
