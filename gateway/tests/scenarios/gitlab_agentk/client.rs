//! An independent GitLab agentk: HTTP/2 by h2, gRPC by hand.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    io::{Read as _, Write as _},
    sync::Arc,
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use h2::{
    Reason, RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::{HeaderMap, Method, Request};
use kas_testing::world::{AGENT_ADDRESS, World};
use prost::Message;
use secrecy::ExposeSecret as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;
use tunnel::websocket::{Role, WebSocket};

use super::messages::{
    AgentMeta, AgentStep, CONNECT, ConfigurationRequest, ConnectRequest, ConnectResponse, Empty,
    GET_CONFIGURATION, HttpRequest, KasStep, KubernetesVersion, Payload, REGISTER, RegisterRequest,
    RequestHeader, RequestInfo, RequestPart, descriptor,
};

/// Longer than any time limit of kas that a test waits for. The clock of the tests is paused.
const PATIENCE: Duration = Duration::from_secs(1000);

/// One connection of GitLab's agentk.
pub(crate) struct Agentk {
    pub(crate) calls: SendRequest<Bytes>,
    pub(crate) token: String,
    connection: AbortOnDropHandle<Result<(), h2::Error>>,
}

/// One call of GitLab's agentk.
pub(crate) struct Call {
    requests: SendStream<Bytes>,
    responses: Responses,
    received: BytesMut,
    /// kas may send more before these bytes are released.
    held: usize,
    hold: bool,
}

enum Responses {
    Awaited(ResponseFuture),
    Open(RecvStream),
    /// The call was refused in its head.
    Refused(HeaderMap),
}

/// The end of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The code and the message of gRPC.
    Status(i32, String),
    Reset(Reason),
    /// The connection ended first.
    Lost,
}

/// A request as GitLab's agentk receives it.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) info: RequestInfo,
    pub(crate) header: RequestHeader,
    /// The pieces of the body.
    pub(crate) data: Vec<Vec<u8>>,
}

impl Received {
    pub(crate) fn path(&self) -> &str {
        &self.header.request.as_ref().unwrap().url_path
    }

    pub(crate) fn values(&self, name: &str) -> Vec<String> {
        let fields = &self.header.request.as_ref().unwrap().header;
        fields.get(name).map(|values| values.value.clone()).unwrap_or_default()
    }
}

/// Opens a connection to the listener for agents.
pub(crate) fn dial(world: &World) -> DuplexStream {
    let (near, far) = tokio::io::duplex(64 << 10);
    let agents = Arc::clone(&world.kas.agents);
    tokio::spawn(async move { agents.serve(far, AGENT_ADDRESS, Arc::default()).await });
    near
}

/// Returns the handshake of a WebSocket with this subprotocol.
pub(crate) fn websocket_handshake(subprotocol: &str) -> String {
    format!(
        "GET / HTTP/1.1\r\nHost: kas\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
    )
}

/// Sends the handshake of a WebSocket, and returns the head of the response.
pub(crate) async fn shake_hands(io: &mut DuplexStream, subprotocol: &str) -> String {
    io.write_all(websocket_handshake(subprotocol).as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

impl Agentk {
    /// Connects without a WebSocket.
    pub(crate) async fn connect(world: &World) -> Self {
        Self::over(dial(world), world.agent_token.expose_secret()).await
    }

    /// Connects with a WebSocket.
    pub(crate) async fn connect_websocket(world: &World) -> Self {
        let mut io = dial(world);
        let head = shake_hands(&mut io, "ws-tunnel").await;
        assert!(head.starts_with("http/1.1 101"), "{head}");
        assert!(head.contains("sec-websocket-protocol: ws-tunnel\r\n"), "{head}");
        let socket = WebSocket::new(io, Bytes::new(), Role::Client).with_gitlab_roles();
        Self::over(socket, world.agent_token.expose_secret()).await
    }

    pub(crate) async fn over<T>(io: T, token: &str) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (calls, connection) = h2::client::handshake(io).await.unwrap();
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        Self { calls, token: token.to_owned(), connection }
    }

    /// Connects and opens two idle streams, as GitLab's agentk starts.
    pub(crate) async fn start(world: &World) -> (Self, [Call; 2]) {
        Self::connect(world).await.started(world, "agentk-1").await
    }

    /// Opens the calls of a new agentk in the order of the recordings, and waits until kas has its tunnel.
    pub(crate) async fn started(mut self, world: &World, pod: &str) -> (Self, [Call; 2]) {
        let tunnels = world.kas.agents.metrics.tunnels.get();
        let mut configuration = self.call(GET_CONFIGURATION).await;
        let agent_meta =
            Some(AgentMeta { kubernetes_version: Some(KubernetesVersion::default()), ..meta(pod) });
        configuration.send(&ConfigurationRequest { agent_meta, skip_register: true, ..Default::default() });
        configuration.half_close();
        tokio::spawn(async move { while let Ok(Some(_)) = configuration.chunk().await {} });
        let streams = [self.idle().await, self.idle().await];
        self.register(pod).await;
        world.tunnels(tunnels + 1).await;
        (self, streams)
    }

    pub(crate) async fn register(&mut self, pod: &str) {
        let mut call = self.call(REGISTER).await;
        call.send(&RegisterRequest { agent_meta: Some(meta(pod)), pod_id: 7 });
        call.half_close();
        assert_eq!(call.next::<Empty>().await, Some(Empty {}));
        assert_eq!(call.end().await, ok());
    }

    /// Opens a stream that waits for a request.
    pub(crate) async fn idle(&mut self) -> Call {
        let mut call = self.call(CONNECT).await;
        call.step(descriptor());
        call
    }

    /// Opens a stream that waits for a request, or fails if kas drains the connection.
    pub(crate) async fn try_idle(&mut self) -> Result<Call, h2::Error> {
        let bearer = format!("Bearer {}", self.token);
        let mut call = self.try_call(CONNECT, &[("authorization", &bearer)]).await?;
        call.step(descriptor());
        Ok(call)
    }

    pub(crate) async fn call(&mut self, method: &str) -> Call {
        self.call_with(method, &[("authorization", &format!("Bearer {}", self.token))]).await
    }

    /// Begins a call with these fields and those of gRPC.
    pub(crate) async fn call_with(&mut self, method: &str, fields: &[(&str, &str)]) -> Call {
        self.try_call(method, fields).await.expect("kas accepts calls")
    }

    pub(crate) async fn try_call(
        &mut self,
        method: &str,
        fields: &[(&str, &str)],
    ) -> Result<Call, h2::Error> {
        let mut request =
            Request::builder().method(Method::POST).uri(format!("http://127.0.0.1:27120{method}"));
        let grpc = [
            ("content-type", "application/grpc"),
            ("user-agent", "gitlab-agent/v16.5.0-8daa08cc/00000000 grpc-go/1.58.3"),
            ("te", "trailers"),
            ("grpc-encoding", "gzip"),
            ("grpc-accept-encoding", "gzip"),
        ];
        for (name, value) in grpc.iter().chain(fields) {
            request = request.header(*name, *value);
        }
        let mut calls = self.calls.clone().ready().await?;
        let (response, requests) = calls.send_request(request.body(()).unwrap(), false)?;
        let responses = Responses::Awaited(response);
        Ok(Call { requests, responses, received: BytesMut::new(), held: 0, hold: false })
    }

    /// Returns whether kas has sent GOAWAY, or has closed the connection.
    pub(crate) async fn is_leaving(&self) -> bool {
        self.calls.clone().ready().await.is_err()
    }

    /// Waits until kas has closed the connection.
    pub(crate) async fn closed(self) {
        let Self { calls, connection, .. } = self;
        drop(calls);
        let _ = timeout(PATIENCE, connection).await.expect("kas closes the connection");
    }

    /// Cuts the connection, as SIGKILL does.
    pub(crate) fn cut(self) {
        self.connection.abort();
    }
}

fn meta(pod: &str) -> AgentMeta {
    let kubernetes = KubernetesVersion {
        major: "1".to_owned(),
        minor: "37".to_owned(),
        git_version: "v1.37.2".to_owned(),
        platform: "linux/amd64".to_owned(),
    };
    AgentMeta {
        version: "v16.5.0-8daa08cc".to_owned(),
        commit_id: "00000000".to_owned(),
        pod_namespace: "exchanges".to_owned(),
        pod_name: pod.to_owned(),
        kubernetes_version: Some(kubernetes),
    }
}

/// The end of a call that succeeded.
pub(crate) fn ok() -> End {
    End::Status(0, String::new())
}

impl Call {
    /// Sends a message in gzip, as GitLab's agentk sends each.
    pub(crate) fn send(&mut self, message: &impl Message) {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&message.encode_to_vec()).unwrap();
        self.send_raw(1, &gzip.finish().unwrap());
    }

    /// Sends the bytes of a message with this flag of gRPC.
    pub(crate) fn send_raw(&mut self, flag: u8, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        let framed = [&[flag][..], &length, bytes].concat();
        // Fails if kas has ended the call, which the test then finds.
        let _ = self.requests.send_data(framed.into(), false);
    }

    /// Sends only so many bytes of a message that has this length.
    pub(crate) fn send_beginning(&mut self, length: u32, sent: usize) {
        let beginning = [&[0][..], &length.to_be_bytes(), &vec![0; sent]].concat();
        let _ = self.requests.send_data(beginning.into(), false);
    }

    pub(crate) fn step(&mut self, step: AgentStep) {
        self.send(&ConnectRequest { step: Some(step) });
    }

    /// Sends steps and the end of the stream.
    pub(crate) fn finish(&mut self, steps: Vec<AgentStep>) {
        steps.into_iter().for_each(|step| self.step(step));
        self.half_close();
    }

    /// Ends the direction to kas.
    pub(crate) fn half_close(&mut self) {
        let _ = self.requests.send_data(Bytes::new(), true);
    }

    pub(crate) fn reset(&mut self, reason: Reason) {
        self.requests.send_reset(reason);
    }

    /// Does not let kas send more than the first window from now on.
    pub(crate) fn stop_reading(&mut self) {
        self.hold = true;
    }

    /// Reads again.
    pub(crate) fn go_on(&mut self) {
        self.hold = false;
        let held = std::mem::take(&mut self.held);
        self.release(held);
    }

    fn release(&mut self, length: usize) {
        if self.hold {
            self.held += length;
        } else if let Responses::Open(body) = &mut self.responses {
            body.flow_control().release_capacity(length).unwrap();
        }
    }

    /// Waits for the head of the responses.
    pub(crate) async fn open(&mut self) -> Result<(), End> {
        if let Responses::Awaited(response) = &mut self.responses {
            let (head, body) = response.await.map_err(lost)?.into_parts();
            assert_eq!(
                (head.status.as_u16(), &head.headers["content-type"]),
                (200, &"application/grpc".parse().unwrap())
            );
            self.responses = if head.headers.contains_key("grpc-status") {
                Responses::Refused(head.headers)
            } else {
                Responses::Open(body)
            };
        }
        Ok(())
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, End> {
        self.open().await?;
        let Responses::Open(body) = &mut self.responses else { return Ok(None) };
        let chunk = body.data().await.transpose().map_err(lost)?;
        self.release(chunk.as_ref().map_or(0, Bytes::len));
        Ok(chunk)
    }

    /// Returns the next message, or `None` at the end of the call.
    pub(crate) async fn try_next<M: Message + Default>(&mut self) -> Result<Option<M>, End> {
        loop {
            if let Some(head) = self.received.first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if self.received.len() >= 5 + length {
                    let compressed = head[0] == 1;
                    self.received.advance(5);
                    let bytes = self.received.split_to(length);
                    return Ok(Some(decode(compressed, &bytes)));
                }
            }
            let chunk =
                timeout(PATIENCE, self.chunk()).await.expect("kas sends a message, or ends the call")?;
            let Some(chunk) = chunk else {
                assert_eq!(self.received.len(), 0, "the end of a call in the middle of a message");
                return Ok(None);
            };
            self.received.extend_from_slice(&chunk);
        }
    }

    pub(crate) async fn next<M: Message + Default>(&mut self) -> Option<M> {
        self.try_next().await.unwrap()
    }

    /// Waits for the end of a call without further messages.
    pub(crate) async fn end(&mut self) -> End {
        match self.try_next::<ConnectResponse>().await {
            Ok(None) => self.status().await,
            Ok(Some(more)) => panic!("kas sends more: {more:?}"),
            Err(end) => end,
        }
    }

    /// Waits for the end of a call and leaves out messages before it.
    pub(crate) async fn any_end(&mut self) -> End {
        loop {
            match self.try_next::<ConnectResponse>().await {
                Ok(Some(_)) => {}
                Ok(None) => return self.status().await,
                Err(end) => return end,
            }
        }
    }

    async fn status(&mut self) -> End {
        let trailers = match &mut self.responses {
            Responses::Refused(head) => head.clone(),
            Responses::Open(body) => match body.trailers().await {
                Ok(trailers) => trailers.expect("a call ends with a status"),
                Err(error) => return lost(error),
            },
            Responses::Awaited(_) => unreachable!("the head was read"),
        };
        let text = |name: &str| trailers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        let message = text("grpc-message");
        let message = percent_encoding::percent_decode_str(&message).decode_utf8().unwrap().into_owned();
        End::Status(text("grpc-status").parse().unwrap(), message)
    }

    pub(crate) async fn next_step(&mut self) -> KasStep {
        let message: ConnectResponse = self.next().await.expect("kas sends another step");
        message.step.expect("the step is not empty")
    }

    pub(crate) async fn next_part(&mut self) -> RequestPart {
        match self.next_step().await {
            KasStep::Message(Payload { data }) => HttpRequest::decode(&data[..]).unwrap().part.unwrap(),
            other => panic!("{other:?} is no part of a request"),
        }
    }

    /// Waits for a request until its head has arrived.
    pub(crate) async fn request_head(&mut self) -> (RequestInfo, RequestHeader) {
        let KasStep::RequestInfo(info) = self.next_step().await else {
            panic!("the first step is RequestInfo")
        };
        let RequestPart::Header(header) = self.next_part().await else {
            panic!("the first part is the head")
        };
        (info, header)
    }

    /// Waits for a request until its body has ended.
    pub(crate) async fn request_body(&mut self) -> Received {
        let (info, header) = self.request_head().await;
        let mut data = Vec::new();
        loop {
            match self.next_part().await {
                RequestPart::Data(piece) => data.push(piece.data),
                RequestPart::Trailer(_) => return Received { info, header, data },
                other => panic!("{other:?} in the body"),
            }
        }
    }

    /// Waits for a complete request.
    pub(crate) async fn request(&mut self) -> Received {
        let received = self.request_body().await;
        assert_eq!(self.next_step().await, KasStep::CloseSend(Empty {}));
        received
    }

    /// Waits for a complete request, and responds with its path.
    pub(crate) async fn serve(mut self) -> Received {
        let received = self.request().await;
        self.finish(super::messages::response(200, &[], received.path().as_bytes()));
        assert_eq!(self.end().await, ok());
        received
    }

    /// Serves one request in a task.
    pub(crate) fn serve_later(self) -> JoinHandle<Received> {
        tokio::spawn(self.serve())
    }
}

fn lost(error: h2::Error) -> End {
    match error.reason() {
        Some(reason) if error.is_reset() => End::Reset(reason),
        _ => End::Lost,
    }
}

fn decode<M: Message + Default>(compressed: bool, bytes: &[u8]) -> M {
    let mut inflated = Vec::new();
    let bytes = if compressed {
        GzDecoder::new(bytes).read_to_end(&mut inflated).unwrap();
        &inflated
    } else {
        bytes
    };
    M::decode(bytes).unwrap()
}
