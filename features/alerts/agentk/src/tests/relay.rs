//! A stand-in for Hubble Relay by tonic. Each call of `GetFlows` gets the messages that a script returns for it.

use std::{net::SocketAddr, sync::Arc};

use bytes::{BufMut as _, Bytes};
use cluster_alerts::messages::{
    FlowsContent, GET_FLOWS, GetFlowsRequest, GetFlowsResponse, SERVER_STATUS, ServerStatus,
};
use futures_util::{Stream, StreamExt as _, stream, stream::BoxStream};
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http2::Builder, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
    server::Grpc,
};
use tonic_prost::{ProstCodec, ProstDecoder};

/// The encoded messages of a call, and how it ends.
pub(super) type Messages = BoxStream<'static, Result<Bytes, Status>>;

type Script = dyn Fn(usize) -> Messages + Send + Sync;

/// A running relay.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    calls: Arc<Mutex<Vec<GetFlowsRequest>>>,
    _accepting: AbortOnDropHandle<()>,
}

struct State {
    script: Box<Script>,
    calls: Arc<Mutex<Vec<GetFlowsRequest>>>,
}

/// Encodes bytes as they are, so that a message may be none of Hubble.
struct RawCodec;

struct RawEncoder;

impl Relay {
    /// Listens on a port of loopback. The script gets the number of the call, from 0 on.
    pub(super) async fn start(script: impl Fn(usize) -> Messages + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let calls = Arc::<Mutex<Vec<_>>>::default();
        let state = Arc::new(State { script: Box::new(script), calls: Arc::clone(&calls) });
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((io, _)) = listener.accept().await {
                let state = Arc::clone(&state);
                let service = service_fn(move |request| respond(Arc::clone(&state), request));
                let connection =
                    Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(io), service);
                connections.spawn(connection);
            }
        });
        Self { address, calls, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Returns the requests so far.
    pub(super) fn calls(&self) -> Vec<GetFlowsRequest> {
        self.calls.lock().clone()
    }
}

async fn respond(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, std::convert::Infallible> {
    if request.uri().path() == SERVER_STATUS {
        let service = tower::service_fn(async |_: tonic::Request<ServerStatus>| {
            Ok::<_, Status>(tonic::Response::new(ServerStatus {}))
        });
        return Ok(Grpc::new(ProstCodec::default()).unary(service, request).await);
    }
    if request.uri().path() != GET_FLOWS {
        let mut response = Response::new(tonic::body::Body::empty());
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    }
    let service = tower::service_fn(move |request: tonic::Request<GetFlowsRequest>| {
        let number = {
            let mut calls = state.calls.lock();
            calls.push(request.into_inner());
            calls.len() - 1
        };
        let messages = (state.script)(number);
        async move { Ok::<_, Status>(tonic::Response::new(messages)) }
    });
    Ok(Grpc::new(RawCodec).server_streaming(service, request).await)
}

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = GetFlowsRequest;
    type Encoder = RawEncoder;
    type Decoder = ProstDecoder<GetFlowsRequest>;

    fn encoder(&mut self) -> RawEncoder {
        RawEncoder
    }

    fn decoder(&mut self) -> ProstDecoder<GetFlowsRequest> {
        ProstDecoder::new(BufferSettings::default())
    }
}

impl Encoder for RawEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

/// Returns a message.
pub(super) fn message(content: FlowsContent) -> Bytes {
    GetFlowsResponse { content: Some(content) }.encode_to_vec().into()
}

/// Returns messages that come at once, after which the call stays open.
pub(super) fn open(messages: impl IntoIterator<Item = Bytes, IntoIter: Send + 'static>) -> Messages {
    stream::iter(messages).map(Ok).chain(stream::pending()).boxed()
}

/// Returns messages after which the call ends with an error.
pub(super) fn failing(messages: Vec<Bytes>, error: Status) -> Messages {
    let end: std::pin::Pin<Box<dyn Stream<Item = _> + Send>> = Box::pin(stream::iter([Err(error)]));
    stream::iter(messages).map(Ok).chain(end).boxed()
}
