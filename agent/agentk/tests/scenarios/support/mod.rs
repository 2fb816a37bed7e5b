//! A scripted kas for tests, over in-memory pipes.
#![allow(clippy::unwrap_used, reason = "test support: a failure is a panic")]

pub(crate) mod gitlab_kas;
pub(crate) mod protobuf;
pub(crate) mod tls;

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use agentk_core::{Agent, AgentToken, Dial, DialError, KasAddress, Observability, Services, SessionConfig};
use agentk_gitlab::gitlab_protocol;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header::HeaderMap};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proto::{ReplicaId, TunnelId, TunnelLimits, TunnelProtocol, Welcome, header};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    sync::mpsc,
    task::JoinHandle,
    time::{Duration, Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tunnel::{
    Body, CloseReason, Tunnel, TunnelConfig, handshake,
    websocket::{Role, WebSocket},
};

/// The response of kas to a dial.
#[derive(Clone)]
pub(crate) enum DialResponse {
    /// Accept the tunnel, as this replica.
    Accept(ReplicaId),
    /// Accept the tunnel after this time.
    AcceptAfter(Duration, ReplicaId),
    /// Refuse it with a status, headers and a body.
    Refuse(u16, &'static [(&'static str, &'static str)], &'static str),
    /// Refuse the connection.
    NoRoute,
}

/// A tunnel that kas accepted, and its handshake.
pub(crate) struct OpenedTunnel {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) replica: ReplicaId,
    pub(crate) tunnel: Tunnel,
    pub(crate) driver: JoinHandle<CloseReason>,
}

/// A kas whose responses a test defines.
pub(crate) struct Kas {
    opened: mpsc::UnboundedReceiver<OpenedTunnel>,
    dials: Arc<Mutex<Vec<Instant>>>,
    replicas: Arc<AtomicU16>,
}

/// A running agent.
pub(crate) struct RunningAgent {
    pub(crate) observability: Observability,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Kas {
    /// Returns a kas and its dialer. `script` is called at every dial with its number, from 0.
    pub(crate) fn new(
        script: impl FnMut(usize) -> DialResponse + Send + 'static,
    ) -> (Self, impl Dial<Io = DuplexStream>) {
        let (sender, opened) = mpsc::unbounded_channel();
        let dials = Arc::new(Mutex::new(Vec::new()));
        let script = Arc::new(Mutex::new(script));
        let replicas = Arc::new(AtomicU16::new(2));
        let kas = Self { opened, dials: Arc::clone(&dials), replicas: Arc::clone(&replicas) };
        let dial = move || {
            let number = dials.lock().len();
            dials.lock().push(Instant::now());
            let answer = (script.lock())(number);
            let (sender, replicas) = (sender.clone(), replicas.load(Relaxed));
            async move {
                if let DialResponse::NoRoute = answer {
                    return Err(DialError::Io(io::ErrorKind::ConnectionRefused.into()));
                }
                let (near, far) = tokio::io::duplex(64 << 10);
                tokio::spawn(serve(far, answer, replicas, sender));
                Ok(near)
            }
        };
        (kas, dial)
    }

    /// Sets the number of replicas in the next welcomes, instead of two.
    pub(crate) fn set_replicas(&self, replicas: u16) {
        self.replicas.store(replicas, Relaxed);
    }

    /// Waits for the next tunnel.
    pub(crate) async fn opened(&mut self) -> OpenedTunnel {
        self.opened.recv().await.unwrap()
    }

    /// Returns the times between the dials so far.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.dials.lock().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    pub(crate) fn dials(&self) -> usize {
        self.dials.lock().len()
    }
}

pub(crate) async fn serve<T>(
    io: T,
    answer: DialResponse,
    replicas: u16,
    opened: mpsc::UnboundedSender<OpenedTunnel>,
) where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        let (answer, opened) = (answer.clone(), opened.clone());
        async move {
            let replica = match answer {
                DialResponse::Accept(replica) => replica,
                DialResponse::AcceptAfter(time, replica) => {
                    sleep(time).await;
                    replica
                }
                DialResponse::Refuse(status, headers, body) => return Ok(refusal(status, headers, body)),
                DialResponse::NoRoute => unreachable!("there is no connection"),
            };
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            (*response.headers_mut(), _) =
                handshake::response_headers(&request, &[TunnelProtocol::KasTunnel]).unwrap();
            let limits = TunnelLimits { max_concurrent_streams: 100, max_header_bytes: 1 << 16 };
            let welcome = Welcome { replica, replicas, tunnel: TunnelId::random(), limits };
            response.headers_mut().insert(header::WELCOME, welcome.encode().unwrap());
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let parts = upgrade.await.unwrap().downcast::<TokioIo<T>>().unwrap();
                let socket = WebSocket::new(parts.io.into_inner(), parts.read_buf, Role::Server);
                let (tunnel, driver) = tunnel::open(socket, &TunnelConfig::default()).await.unwrap();
                let driver = tokio::spawn(driver.run());
                // An agent that declines the replica has closed the tunnel by now.
                let probe = Request::get("/").body(Body::empty()).unwrap();
                if tunnel.call(probe).await.is_err() {
                    return;
                }
                let (head, _) = request.into_parts();
                let path = head.uri.to_string();
                // Fails if the test has ended.
                let _ = opened.send(OpenedTunnel { path, headers: head.headers, replica, tunnel, driver });
            });
            Ok::<_, Infallible>(response)
        }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(io), service).with_upgrades().await;
}

fn refusal(status: u16, headers: &[(&str, &str)], body: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Full::from(body)).unwrap()
}

impl OpenedTunnel {
    /// Sends a request of a caller.
    pub(crate) async fn get(&self, service: &str, path: &str) -> Response<Body> {
        let request = Request::get(path).header("kas-service", service).body(Body::empty()).unwrap();
        self.tunnel.call(request).await.unwrap()
    }

    /// Sends a drain request.
    pub(crate) async fn drain(&self, reason: &str, within: &str) -> Response<Body> {
        let body = format!(r#"{{"reason": "{reason}", "within": "{within}"}}"#);
        let request =
            Request::post("/drain").header("kas-service", "control").body(Body::from(body)).unwrap();
        self.tunnel.call(request).await.unwrap()
    }
}

impl RunningAgent {
    pub(crate) fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// Waits until the agent has ended.
    pub(crate) async fn ended(self) {
        self.task.await.unwrap();
    }

    /// Waits for the error of a dial.
    pub(crate) async fn dial_error(&self) -> String {
        let mut error = self.observability.health.dial_error();
        error.wait_for(Option::is_some).await.unwrap().clone().unwrap()
    }

    /// Waits until this number of tunnels is open.
    pub(crate) async fn tunnels(&self, number: usize) {
        self.observability.health.tunnels().wait_for(|tunnels| *tunnels == number).await.unwrap();
    }
}

pub(crate) fn options(tunnels: u16) -> SessionConfig {
    let kas: KasAddress = "ws://kas.test:8150/prefix".parse().unwrap();
    SessionConfig { tunnels, ..SessionConfig::new(kas, AgentToken::value("agent-token")) }
}

pub(crate) fn start(options: SessionConfig, dial: impl Dial, services: Services) -> RunningAgent {
    let observability = Observability::default();
    let agent = Agent::new(options, dial, services, observability.clone(), gitlab_protocol);
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(agent.run(shutdown.clone()));
    RunningAgent { observability, shutdown, task }
}

/// Returns a service `echo` that responds with the path.
pub(crate) fn echo() -> Services {
    Services::new().with_fn("echo", |request: Request<Body>| async move {
        Response::new(Body::from(request.uri().path().to_owned()))
    })
}

pub(crate) async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}
