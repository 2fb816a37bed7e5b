//! A kas that does what a test says, over in-memory pipes.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "test support: each file uses its own part, and a failure is a panic"
)]

pub(crate) mod tls;

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use agent::{Address, Agent, Dial, DialError, Options, Services, Telemetry, Token};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header::HeaderMap};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proto::{Limits, ReplicaId, TunnelId, Welcome, header};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    sync::mpsc,
    task::JoinHandle,
    time::{Duration, Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tunnel::{
    Body, Ended, Settings, Tunnel,
    websocket::{Role, WebSocket, handshake},
};

/// How kas takes a dial.
#[derive(Clone)]
pub(crate) enum Answer {
    /// A tunnel to this replica.
    Accept(ReplicaId),
    /// The same, but only after this time.
    AcceptAfter(Duration, ReplicaId),
    /// A status, with headers and a body.
    Refuse(u16, &'static [(&'static str, &'static str)], &'static str),
    /// Nothing listens.
    NoRoute,
}

/// A tunnel that kas accepted, and the request that asked for it.
pub(crate) struct Opened {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) replica: ReplicaId,
    pub(crate) tunnel: Tunnel,
    pub(crate) driver: JoinHandle<Ended>,
}

pub(crate) struct Kas {
    opened: mpsc::UnboundedReceiver<Opened>,
    dials: Arc<Mutex<Vec<Instant>>>,
    replicas: Arc<AtomicU16>,
}

/// An agent in a task of its own.
pub(crate) struct Running {
    pub(crate) telemetry: Telemetry,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Kas {
    /// `script` is asked at every dial, with its number from 0.
    pub(crate) fn new(
        script: impl FnMut(usize) -> Answer + Send + 'static,
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
            let (sender, said) = (sender.clone(), replicas.load(Relaxed));
            async move {
                if let Answer::NoRoute = answer {
                    return Err(DialError::Io(io::ErrorKind::ConnectionRefused.into()));
                }
                let (near, far) = tokio::io::duplex(64 << 10);
                tokio::spawn(serve(far, answer, said, sender));
                Ok(near)
            }
        };
        (kas, dial)
    }

    /// Says so many replicas from now on, instead of two.
    pub(crate) fn says(&self, replicas: u16) {
        self.replicas.store(replicas, Relaxed);
    }

    /// The next tunnel.
    pub(crate) async fn opened(&mut self) -> Opened {
        self.opened.recv().await.unwrap()
    }

    /// The times between the dials so far.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.dials.lock().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    pub(crate) fn dials(&self) -> usize {
        self.dials.lock().len()
    }
}

pub(crate) async fn serve<T>(io: T, answer: Answer, replicas: u16, opened: mpsc::UnboundedSender<Opened>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        let (answer, opened) = (answer.clone(), opened.clone());
        async move {
            let replica = match answer {
                Answer::Accept(replica) => replica,
                Answer::AcceptAfter(time, replica) => {
                    sleep(time).await;
                    replica
                }
                Answer::Refuse(status, headers, body) => return Ok(refusal(status, headers, body)),
                Answer::NoRoute => unreachable!("was never connected"),
            };
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            *response.headers_mut() = handshake::accept(&request).unwrap();
            let limits = Limits { max_concurrent_streams: 100, max_header_bytes: 1 << 16 };
            let welcome = Welcome { replica, replicas, tunnel: TunnelId::random(), limits };
            response.headers_mut().insert(header::WELCOME, welcome.encode().unwrap());
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let parts = upgrade.await.unwrap().downcast::<TokioIo<T>>().unwrap();
                let socket = WebSocket::new(parts.io.into_inner(), parts.read_buf, Role::Server);
                let (tunnel, driver) = tunnel::open(socket, &Settings::default()).await.unwrap();
                let driver = tokio::spawn(driver.run());
                // An agent that wants another replica has hung up by now.
                let nothing = Request::get("/").body(Body::empty()).unwrap();
                if tunnel.call(nothing).await.is_err() {
                    return;
                }
                let (head, _) = request.into_parts();
                let path = head.uri.to_string();
                // The test may be over.
                let _ = opened.send(Opened { path, headers: head.headers, replica, tunnel, driver });
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

impl Opened {
    /// A request of a caller.
    pub(crate) async fn get(&self, service: &str, path: &str) -> Response<Body> {
        let request = Request::get(path).header("kas-service", service).body(Body::empty()).unwrap();
        self.tunnel.call(request).await.unwrap()
    }

    /// kas asks the agent to leave.
    pub(crate) async fn drain(&self, reason: &str, within: &str) -> Response<Body> {
        let body = format!(r#"{{"reason": "{reason}", "within": "{within}"}}"#);
        let request =
            Request::post("/drain").header("kas-service", "control").body(Body::from(body)).unwrap();
        self.tunnel.call(request).await.unwrap()
    }
}

impl Running {
    pub(crate) fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// The agent has ended by itself.
    pub(crate) async fn ended(self) {
        self.task.await.unwrap();
    }

    /// Waits for the reason of a dial that fails.
    pub(crate) async fn dial_failure(&self) -> String {
        let mut failure = self.telemetry.health.dial_failure();
        failure.wait_for(Option::is_some).await.unwrap().clone().unwrap()
    }

    pub(crate) async fn tunnels(&self, number: usize) {
        self.telemetry.health.tunnels().wait_for(|tunnels| *tunnels == number).await.unwrap();
    }
}

pub(crate) fn options(tunnels: u16) -> Options {
    let kas: Address = "ws://kas.test:8150/prefix".parse().unwrap();
    Options { tunnels, ..Options::new(kas, Token::Value("agent-token".into())) }
}

pub(crate) fn start(options: Options, dial: impl Dial, services: Services) -> Running {
    let telemetry = Telemetry::default();
    let agent = Agent::new(options, dial, services, telemetry.clone());
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(agent.run(shutdown.clone()));
    Running { telemetry, shutdown, task }
}

/// Answers with the path.
pub(crate) fn echo() -> Services {
    Services::new().with_fn("echo", |request: Request<Body>| async move {
        Response::new(Body::from(request.uri().path().to_owned()))
    })
}

pub(crate) async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}
