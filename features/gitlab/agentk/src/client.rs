//! The gRPC client: the RPCs of GitLab's kas on one connection.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use agentk_core::connect::{KasTarget, USER_AGENT_VALUE};
use futures_util::{Stream, TryFutureExt as _};
use gitlab_tunnel::{
    MAX_MESSAGE,
    messages::{
        ConfigurationRequest, ConfigurationResponse, ConnectRequest, ConnectResponse, Empty, RegisterRequest,
    },
};
use http::{
    HeaderMap, HeaderValue, Request, Response, Uri,
    header::{AUTHORIZATION, USER_AGENT},
    uri::PathAndQuery,
};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use prost::Message;
use tonic::{
    Status, Streaming,
    body::Body,
    client::Grpc,
    codec::{BufferSettings, Codec, CompressionEncoding},
};
use tonic_prost::{ProstDecoder, ProstEncoder};
use tower::Service;
use tunnel::{CountedBody, OverheadCounter};

/// The path of the RPC that carries one request.
const CONNECT: &str = "/gitlab.agent.reverse_tunnel.rpc.ReverseTunnel/Connect";
/// The path of the RPC that registers the process.
const REGISTER: &str = "/gitlab.agent.agent_registrar.rpc.AgentRegistrar/Register";
/// The path of the RPC that receives the configuration.
const GET_CONFIGURATION: &str = "/gitlab.agent.agent_configuration.rpc.AgentConfiguration/GetConfiguration";
/// The buffers of one stream, in bytes. Most streams wait for a request, and hold them meanwhile.
const BUFFER: usize = 1 << 10;
/// The bytes of messages that are joined for one frame.
const JOINED: usize = 32 << 10;

/// Sends RPCs. Clones share the connection.
#[derive(Clone)]
pub(super) struct GrpcClient {
    channel: Channel,
    origin: Uri,
}

/// Adds the headers of each RPC, and sends it on one connection of HTTP/2.
#[derive(Clone)]
struct Channel {
    sender: SendRequest<Body>,
    headers: Arc<HeaderMap>,
    overhead: OverheadCounter,
}

/// The codec of protobuf with small buffers.
struct SmallBufferCodec<Q, R>(PhantomData<(Q, R)>);

impl GrpcClient {
    /// Returns a client that adds the credential to each RPC.
    pub(super) fn new(
        sender: SendRequest<Body>,
        overhead: OverheadCounter,
        target: KasTarget<'_>,
        authorization: &HeaderValue,
    ) -> Self {
        let headers = Arc::new(headers(target, authorization));
        Self { channel: Channel { sender, headers, overhead }, origin: origin(target) }
    }

    /// Registers the process.
    pub(super) async fn register(&self, request: RegisterRequest) -> Result<(), Status> {
        let codec = SmallBufferCodec::<_, Empty>(PhantomData);
        let path = PathAndQuery::from_static(REGISTER);
        self.grpc().unary(tonic::Request::new(request), path, codec).await.map(drop)
    }

    /// Opens the stream of configurations. GitLab's kas responds when it has the first one.
    pub(super) async fn get_configuration(
        &self,
        request: ConfigurationRequest,
    ) -> Result<Streaming<ConfigurationResponse>, Status> {
        let path = PathAndQuery::from_static(GET_CONFIGURATION);
        let codec = SmallBufferCodec(PhantomData);
        let response = self.grpc().server_streaming(tonic::Request::new(request), path, codec).await?;
        Ok(response.into_inner())
    }

    /// Opens a stream for a request. GitLab's kas responds when it has one.
    pub(super) async fn connect(
        &self,
        messages: impl Stream<Item = ConnectRequest> + Send + 'static,
    ) -> Result<Streaming<ConnectResponse>, Status> {
        let path = PathAndQuery::from_static(CONNECT);
        let codec = SmallBufferCodec(PhantomData);
        let response = self.grpc().streaming(tonic::Request::new(messages), path, codec).await?;
        Ok(response.into_inner())
    }

    /// GitLab's kas compresses all messages. Those of agentk are not: API servers compress long responses themselves.
    fn grpc(&self) -> Grpc<Channel> {
        Grpc::with_origin(self.channel.clone(), self.origin.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(MAX_MESSAGE)
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<CountedBody<Incoming>>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Response<CountedBody<Incoming>>>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request.headers_mut().extend(HeaderMap::clone(&self.headers));
        self.overhead.subtract_request();
        let (responding, overhead) = (self.sender.send_request(request), self.overhead.clone());
        Box::pin(responding.map_ok(move |response| {
            overhead.subtract_fields(response.headers());
            response.map(|body| CountedBody::new(body, overhead))
        }))
    }
}

impl<Q, R> Codec for SmallBufferCodec<Q, R>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    type Encode = Q;
    type Decode = R;
    type Encoder = ProstEncoder<Q>;
    type Decoder = ProstDecoder<R>;

    fn encoder(&mut self) -> ProstEncoder<Q> {
        ProstEncoder::new(BufferSettings::new(BUFFER, JOINED))
    }

    fn decoder(&mut self) -> ProstDecoder<R> {
        ProstDecoder::new(BufferSettings::new(BUFFER, JOINED))
    }
}

/// Returns the scheme and the authority of RPCs.
fn origin(target: KasTarget<'_>) -> Uri {
    let url = target.kas.url();
    let host = if url.host().contains(':') { format!("[{}]", url.host()) } else { url.host().to_owned() };
    let origin = format!("{}://{host}:{}", url.scheme(), url.port());
    origin.parse().expect("the parts of a URL")
}

/// Returns the headers of each RPC.
fn headers(target: KasTarget<'_>, authorization: &HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // In a WebSocket, they are in the handshake only.
    if target.kas.is_grpc() {
        headers.extend(target.headers.iter().map(|header| (header.name.clone(), header.value.clone())));
    }
    headers.insert(USER_AGENT, USER_AGENT_VALUE);
    headers.insert(AUTHORIZATION, authorization.clone());
    headers
}
