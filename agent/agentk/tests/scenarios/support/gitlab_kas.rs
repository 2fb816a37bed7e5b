//! A kas of GitLab for tests: a raw HTTP/2 server over in-memory pipes. It sends no response head before its first message.

use std::{convert::Infallible, io, sync::Arc};

use agentk_core::{Dial, DialError};
use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    server::{Connection, SendResponse},
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proto::TunnelProtocol;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    net::TcpListener,
    sync::{mpsc, oneshot},
    time::{Duration, Instant, timeout},
};
use tokio_rustls::TlsAcceptor;
use tunnel::{
    handshake,
    websocket::{Role, WebSocket},
};

use super::protobuf::{Message, grpc_message, take_grpc_message};

pub(crate) const MAKE_REQUEST: &str = "/gitlab.agent.kubernetes_api.rpc.KubernetesApi/MakeRequest";

/// A kas of GitLab whose responses a test defines.
pub(crate) struct GitLabKas {
    connections: mpsc::UnboundedReceiver<KasConnection>,
    pub(crate) dials: Arc<Mutex<Vec<Instant>>>,
    /// The status of gRPC that a registration gets.
    pub(crate) status: Arc<Mutex<u32>>,
}

/// One connection of agentk.
pub(crate) struct KasConnection {
    /// The headers of the WebSocket handshake.
    pub(crate) handshake: HeaderMap,
    streams: mpsc::UnboundedReceiver<AgentStream>,
    pub(crate) configurations: mpsc::UnboundedReceiver<AgentStream>,
    pub(crate) registrations: mpsc::UnboundedReceiver<(HeaderMap, Message)>,
    commands: mpsc::UnboundedSender<Command>,
    /// Completes at the end of the connection.
    pub(crate) ended: oneshot::Receiver<()>,
}

enum Command {
    GoAway,
    Cut,
    Freeze,
}

/// One RPC of agentk whose response has not begun.
pub(crate) struct AgentStream {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// The first message.
    pub(crate) first: Message,
    received: Vec<u8>,
    body: RecvStream,
    respond: SendResponse<Bytes>,
    sending: Option<SendStream<Bytes>>,
}

/// A step of agentk in a `Connect` stream.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Header(Message),
    Message(Message),
    Trailer(Message),
    Error {
        code: u64,
        message: String,
    },
    /// agentk has ended its direction.
    End,
    /// agentk has reset the stream, or the connection is lost.
    Reset,
}

impl GitLabKas {
    /// Returns a kas for addresses of gRPC, and its dialer.
    pub(crate) fn grpc() -> (Self, impl Dial<Io = DuplexStream>) {
        Self::new(false)
    }

    /// Returns a kas for WebSockets, and its dialer.
    pub(crate) fn websocket() -> (Self, impl Dial<Io = DuplexStream>) {
        Self::new(true)
    }

    fn new(websocket: bool) -> (Self, impl Dial<Io = DuplexStream>) {
        let (sender, connections) = mpsc::unbounded_channel();
        let dials = Arc::new(Mutex::new(Vec::new()));
        let status = Arc::new(Mutex::new(0));
        let kas = Self { connections, dials: Arc::clone(&dials), status: Arc::clone(&status) };
        let dial = move || {
            dials.lock().push(Instant::now());
            let (near, far) = tokio::io::duplex(64 << 10);
            let (sender, status) = (sender.clone(), Arc::clone(&status));
            if websocket {
                tokio::spawn(serve_websocket(far, sender, status));
            } else {
                tokio::spawn(serve(far, HeaderMap::new(), sender, status));
            }
            async { Ok::<_, DialError>(near) }
        };
        (kas, dial)
    }

    /// Waits for the next connection.
    pub(crate) async fn connection(&mut self) -> KasConnection {
        self.connections.recv().await.unwrap()
    }

    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.dials.lock().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// Starts a kas of GitLab with TLS on a real socket, which accepts only HTTP/2. Returns its port.
pub(crate) async fn listen_tls(mut tls: rustls::ServerConfig) -> (u16, GitLabKas) {
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, connections) = mpsc::unbounded_channel();
    let kas = GitLabKas { connections, dials: Arc::default(), status: Arc::default() };
    let status = Arc::clone(&kas.status);
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let Ok(io) = acceptor.accept(io).await else { continue };
            tokio::spawn(serve(io, HeaderMap::new(), sender.clone(), Arc::clone(&status)));
        }
    });
    (port, kas)
}

/// Starts a kas of GitLab on a real socket, which responds to a registration with a status. Returns its port.
pub(crate) async fn listen(websocket: bool, status: u32) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (sender, _connections) = mpsc::unbounded_channel();
        while let Ok((io, _)) = listener.accept().await {
            let (sender, status) = (sender.clone(), Arc::new(Mutex::new(status)));
            if websocket {
                tokio::spawn(serve_websocket(io, sender, status));
            } else {
                tokio::spawn(serve(io, HeaderMap::new(), sender, status));
            }
        }
    });
    port
}

async fn serve_websocket<T>(io: T, sender: mpsc::UnboundedSender<KasConnection>, status: Arc<Mutex<u32>>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        let (sender, status) = (sender.clone(), Arc::clone(&status));
        async move {
            let mut response = Response::new(Empty::<Bytes>::new());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let accepted = handshake::response_headers(&request, &[TunnelProtocol::GitLab]);
            // Without its subprotocol, GitLab's kas accepts the WebSocket, and closes it.
            let headers = accepted.or_else(|_| {
                let other = handshake::response_headers(&request, &[TunnelProtocol::KasTunnel]);
                other.map(|(mut headers, protocol)| {
                    headers.remove("sec-websocket-protocol");
                    (headers, protocol)
                })
            });
            (*response.headers_mut(), _) = headers.unwrap();
            response.headers_mut().insert("server", "gitlab-kas/v16.5.0-8daa08cc/8daa08cc".parse().unwrap());
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let parts = upgrade.await.unwrap().downcast::<TokioIo<T>>().unwrap();
                let socket =
                    WebSocket::new(parts.io.into_inner(), parts.read_buf, Role::Server).with_gitlab_roles();
                serve(socket, request.headers().clone(), sender, status).await;
            });
            Ok::<_, Infallible>(response)
        }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(io), service).with_upgrades().await;
}

async fn serve<T>(
    io: T,
    handshake: HeaderMap,
    sender: mpsc::UnboundedSender<KasConnection>,
    status: Arc<Mutex<u32>>,
) where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let built: io::Result<Connection<T, Bytes>> = h2::server::Builder::new()
        .max_concurrent_streams(1000)
        .max_frame_size(16 << 10)
        .max_header_list_size(16 << 10)
        .handshake(io)
        .await
        .map_err(io::Error::other);
    let Ok(mut connection) = built else { return };
    let (streams_sender, streams) = mpsc::unbounded_channel();
    let (configurations_sender, configurations) = mpsc::unbounded_channel();
    let (registrations_sender, registrations) = mpsc::unbounded_channel();
    let (commands, mut commanded) = mpsc::unbounded_channel();
    let (_end, ended) = oneshot::channel();
    let kas = KasConnection { handshake, streams, configurations, registrations, commands, ended };
    // Fails if the test has ended.
    let _ = sender.send(kas);
    loop {
        let (request, respond) = tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok(accepted)) => accepted,
                _ => return,
            },
            command = commanded.recv() => match command {
                Some(Command::GoAway) => {
                    connection.graceful_shutdown();
                    continue;
                }
                Some(Command::Cut) => return,
                Some(Command::Freeze) | None => std::future::pending().await,
            },
        };
        let (streams, configurations) = (streams_sender.clone(), configurations_sender.clone());
        let (registrations, status) = (registrations_sender.clone(), *status.lock());
        tokio::spawn(async move {
            let mut stream = AgentStream::new(request, respond);
            let Some(first) = stream.read().await else { return };
            stream.first = first;
            match stream.path.rsplit('/').next().unwrap() {
                "Register" => {
                    let _ = registrations.send((stream.headers.clone(), stream.first.clone()));
                    if status == 0 {
                        stream.send(Message::new());
                    }
                    stream.end(status);
                }
                "GetConfiguration" => drop(configurations.send(stream)),
                "Connect" => drop(streams.send(stream)),
                other => panic!("unknown method {other}"),
            }
        });
    }
}

impl KasConnection {
    /// Waits for the next stream. Its descriptor has arrived.
    pub(crate) async fn stream(&mut self) -> AgentStream {
        self.streams.recv().await.unwrap()
    }

    /// Returns the streams that arrive within a second.
    pub(crate) async fn streams(&mut self) -> Vec<AgentStream> {
        let mut streams = Vec::new();
        while let Ok(Some(stream)) = timeout(Duration::from_millis(500), self.streams.recv()).await {
            streams.push(stream);
        }
        streams
    }

    pub(crate) fn go_away(&self) {
        self.commands.send(Command::GoAway).unwrap();
    }

    /// Stops reading and writing.
    pub(crate) fn freeze(&self) {
        self.commands.send(Command::Freeze).unwrap();
    }

    pub(crate) fn cut(&self) {
        self.commands.send(Command::Cut).unwrap();
    }
}

impl AgentStream {
    fn new(request: Request<RecvStream>, respond: SendResponse<Bytes>) -> Self {
        let (head, body) = request.into_parts();
        let first = Message::new();
        let path = head.uri.path().to_owned();
        Self { path, headers: head.headers, first, received: Vec::new(), body, respond, sending: None }
    }

    /// Reads a message, or returns `None` at the end.
    async fn read(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = take_grpc_message(&mut self.received) {
                return Some(message);
            }
            let data = self.body.data().await?.ok()?;
            self.body.flow_control().release_capacity(data.len()).unwrap();
            self.received.extend(data);
        }
    }

    /// Sends a message, and the response head before the first one.
    pub(crate) fn send(&mut self, message: Message) {
        let respond = &mut self.respond;
        let sending = self.sending.get_or_insert_with(|| {
            let head = Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-encoding", "gzip")
                .body(())
                .unwrap();
            respond.send_response(head, false).unwrap()
        });
        sending.send_data(grpc_message(&message), false).unwrap();
    }

    /// Ends the stream, as gRPC servers do while the client may still send.
    pub(crate) fn end(mut self, status: u32) {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.into());
        trailers.insert("grpc-message", "from the test".parse().unwrap());
        match &mut self.sending {
            Some(sending) => sending.send_trailers(trailers).unwrap(),
            None => {
                let mut head = Response::new(());
                *head.headers_mut() = trailers;
                head.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
                self.respond.send_response(head, true).unwrap();
            }
        }
    }

    pub(crate) fn reset(mut self) {
        self.respond.send_reset(h2::Reason::CANCEL);
    }

    /// Begins a request of a method.
    pub(crate) fn request_info(&mut self, method: &str) {
        let secret = ["Bearer token-of-kas"];
        let info = Message::new().bytes(1, method).values(2, "authorization", &secret);
        self.send(Message::new().message(1, info));
    }

    /// Sends a part of the request: a field of `HttpRequest`.
    pub(crate) fn part(&mut self, field: u64, part: Message) {
        let part = Message::new().message(field, part);
        self.send(Message::new().message(2, Message::new().message(1, part)));
    }

    pub(crate) fn data(&mut self, data: impl AsRef<[u8]>) {
        self.part(2, Message::new().bytes(1, data));
    }

    pub(crate) fn trailer(&mut self) {
        self.part(3, Message::new());
    }

    pub(crate) fn upgrade_data(&mut self, data: impl AsRef<[u8]>) {
        self.part(4, Message::new().bytes(1, data));
    }

    pub(crate) fn close_send(&mut self) {
        self.send(Message::new().message(3, Message::new()));
    }

    /// Begins a request to the Kubernetes API. The body follows.
    pub(crate) fn head(&mut self, method: &str, path: &str, headers: &[(&str, &str)], length: i64) {
        self.request_info(MAKE_REQUEST);
        let mut request = Message::new().bytes(1, method);
        for (name, value) in headers {
            request = request.values(2, name, &[value]);
        }
        let request = request.bytes(3, path).values(4, "q", &["a b"]);
        self.part(1, Message::new().message(1, request).number(3, length));
    }

    /// Sends a whole request without a body.
    pub(crate) fn get(&mut self, path: &str) {
        self.head("GET", path, &[], 0);
        self.trailer();
        self.close_send();
    }

    /// Waits for the next step of agentk.
    pub(crate) async fn step(&mut self) -> Step {
        loop {
            if let Some(message) = take_grpc_message(&mut self.received) {
                let (field, _) = message.0[0];
                let inner = message.get_message(field);
                return match field {
                    2 => Step::Header(inner),
                    3 => Step::Message(inner.get_message(1)),
                    4 => Step::Trailer(inner),
                    5 => {
                        let status = inner.get_message(1);
                        Step::Error { code: status.get_number(1), message: status.get_text(2) }
                    }
                    other => panic!("step {other}"),
                };
            }
            match self.body.data().await {
                Some(Ok(data)) => {
                    self.body.flow_control().release_capacity(data.len()).unwrap();
                    self.received.extend(data);
                }
                Some(Err(_)) => return Step::Reset,
                None => return Step::End,
            }
        }
    }

    /// Waits for the next part of the response: the field of `HttpResponse`, and its message.
    pub(crate) async fn response_part(&mut self) -> (u64, Message) {
        match self.step().await {
            Step::Message(response) => (response.0[0].0, response.get_message(response.0[0].0)),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the head of the response. Returns its status and head.
    pub(crate) async fn response_head(&mut self) -> (u64, Message) {
        match self.step().await {
            Step::Header(header) => {
                assert_eq!(header.get_values(1, "content-type"), ["application/grpc+proto"]);
            }
            other => panic!("{other:?}"),
        }
        let (field, header) = self.response_part().await;
        assert_eq!(field, 1);
        let head = header.get_message(1);
        (head.get_number(1), head)
    }

    /// Waits for bytes of the body, or of the upgraded connection.
    pub(crate) async fn response_data(&mut self, field: u64) -> Vec<u8> {
        let (actual, data) = self.response_part().await;
        assert_eq!(actual, field);
        data.get_bytes(1).to_vec()
    }

    /// Reads a whole response, to the end of agentk's direction. Returns its status and body.
    pub(crate) async fn response(&mut self) -> (u64, String) {
        let (status, _) = self.response_head().await;
        let mut body = Vec::new();
        loop {
            match self.response_part().await {
                (2, data) => {
                    assert!(data.get_bytes(1).len() <= 32 << 10);
                    body.extend(data.get_bytes(1));
                }
                (3, trailer) => {
                    assert_eq!(trailer, Message::new());
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(self.step().await, Step::Trailer(Message::new()));
        assert_eq!(self.step().await, Step::End);
        (status, String::from_utf8(body).unwrap())
    }

    /// Reads an error, to the end of agentk's direction. Returns its code and message.
    pub(crate) async fn error(&mut self) -> (u64, String) {
        assert_eq!(self.step().await, Step::Header(Message::new()));
        self.error_after_header().await
    }

    /// The same if the header has arrived.
    pub(crate) async fn error_after_header(&mut self) -> (u64, String) {
        match self.step().await {
            Step::Trailer(trailer) => {
                assert_eq!(trailer.get_values(1, "content-type"), ["application/grpc+proto"]);
            }
            other => panic!("{other:?}"),
        }
        let Step::Error { code, message } = self.step().await else { panic!("no error") };
        assert_eq!(self.step().await, Step::End);
        (code, message)
    }
}
