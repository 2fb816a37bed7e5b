//! The direction from agentk to kas in a `Connect` stream: the descriptor, then the response to one request.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::{Stream, stream};
use gitlab_tunnel::{
    KUBERNETES_SERVICE, MAX_CHUNK, encode_response,
    messages::{
        AgentDescriptor, AgentStep, Chunk, ConnectRequest, Descriptor, Empty, ErrorStatus, HttpResponse,
        Metadata, Method, Payload, ResponsePart, Service, Status, ValueMap, Values,
    },
};
use http::Response;
use http_body_util::BodyExt as _;
use prost::Message as _;
use tokio::{
    io::{AsyncWrite, join},
    sync::mpsc,
};
use tokio_util::{
    io::StreamReader,
    sync::{CancellationToken, DropGuard, PollSender},
};
use tonic::Code;
use tunnel::{Body, upgrade, upgrade::UpgradedStream};

use super::upload::UpgradeData;

/// Messages that wait for the network. A message has at most [`MAX_CHUNK`] bytes of a body.
const QUEUE: usize = 1;

/// Sends the messages of agentk in one stream.
pub(super) struct ResponseWriter {
    messages: PollSender<ConnectRequest>,
    /// The first message of the response was sent.
    begun: bool,
}

/// kas receives no more messages in the stream.
#[derive(Debug, thiserror::Error)]
#[error("kas ended the stream")]
pub(super) struct StreamClosed;

impl ResponseWriter {
    /// Returns a writer with its messages, the first of which is the descriptor. The token is cancelled when the messages are
    /// dropped before the last one: kas has reset the stream.
    pub(super) fn new() -> (Self, impl Stream<Item = ConnectRequest> + Send + 'static, CancellationToken) {
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let closed = CancellationToken::new();
        let mut guard = Some(closed.clone().drop_guard());
        let mut first = Some(descriptor());
        let messages = stream::poll_fn(move |cx| {
            if let Some(descriptor) = first.take() {
                return Poll::Ready(Some(descriptor));
            }
            let message = ready!(receiver.poll_recv(cx));
            if message.is_none() {
                guard.take().map(DropGuard::disarm);
            }
            Poll::Ready(message)
        });
        (Self { messages: PollSender::new(sender), begun: false }, messages, closed)
    }

    /// Sends a response to the last byte of its body.
    pub(super) async fn send_response(&mut self, response: Response<Body>) -> Result<(), StreamClosed> {
        let (head, mut body) = response.into_parts();
        self.begin(content_type()).await?;
        self.send_part(ResponsePart::Header(encode_response(&head))).await?;
        while let Some(frame) = body.frame().await {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(mut data)) => {
                    while !data.is_empty() {
                        let data = data.split_to(data.len().min(MAX_CHUNK));
                        self.send_part(ResponsePart::Data(Chunk { data })).await?;
                    }
                }
                // The messages have no trailers of HTTP.
                Ok(Err(_)) => {}
                Err(error) => {
                    let what = format!("the response of the cluster ended early: {error}");
                    return self.send_error(Code::Cancelled, what).await;
                }
            }
        }
        self.send_part(ResponsePart::Trailer(Empty {})).await?;
        self.end().await
    }

    /// Sends a 101, and copies both ways until both directions have ended. The end of the cluster's direction ends the response.
    pub(super) async fn send_upgrade(
        &mut self,
        response: Response<Body>,
        upgraded: UpgradedStream,
        data: UpgradeData,
    ) -> Result<(), StreamClosed> {
        self.begin(content_type()).await?;
        self.send_part(ResponsePart::Header(encode_response(&response.into_parts().0))).await?;
        self.send_part(ResponsePart::Trailer(Empty {})).await?;
        let outside = join(StreamReader::new(data), UpgradeWriter(self));
        if let Err(error) = upgrade::splice(upgraded, outside).await
            && !self.messages.is_closed()
        {
            let what = format!("the upgraded connection was aborted: {error}");
            return self.send_error(Code::Cancelled, what).await;
        }
        Ok(())
    }

    /// Ends the response with an error.
    pub(super) async fn send_error(
        &mut self,
        code: Code,
        message: impl ToString,
    ) -> Result<(), StreamClosed> {
        if !self.begun {
            self.begin(ValueMap::new()).await?;
        }
        self.send(AgentStep::Trailer(Metadata { meta: content_type() })).await?;
        let status = Status { code: code.into(), message: message.to_string(), details: Vec::new() };
        self.send(AgentStep::Error(ErrorStatus { status: Some(status) })).await?;
        self.messages.close();
        Ok(())
    }

    async fn begin(&mut self, meta: ValueMap) -> Result<(), StreamClosed> {
        self.begun = true;
        self.send(AgentStep::Header(Metadata { meta })).await
    }

    async fn end(&mut self) -> Result<(), StreamClosed> {
        self.send(AgentStep::Trailer(Metadata::default())).await?;
        self.messages.close();
        Ok(())
    }

    async fn send_part(&mut self, part: ResponsePart) -> Result<(), StreamClosed> {
        self.send(message(part)).await
    }

    async fn send(&mut self, step: AgentStep) -> Result<(), StreamClosed> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        self.push(step)
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamClosed>> {
        self.messages.poll_reserve(cx).map_err(|_| StreamClosed)
    }

    /// Queues a message, for which [`Self::poll_ready`] has found room.
    fn push(&mut self, step: AgentStep) -> Result<(), StreamClosed> {
        self.messages.send_item(ConnectRequest { step: Some(step) }).map_err(|_| StreamClosed)
    }
}

/// Sends the bytes of the cluster in an upgraded connection.
struct UpgradeWriter<'a>(&'a mut ResponseWriter);

impl AsyncWrite for UpgradeWriter<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.0.poll_ready(cx)).map_err(io::Error::other)?;
        let length = bytes.len().min(MAX_CHUNK);
        let data = Bytes::copy_from_slice(&bytes[..length]);
        self.0.push(message(ResponsePart::UpgradeData(Chunk { data }))).map_err(io::Error::other)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.0.messages.is_closed() {
            ready!(self.0.poll_ready(cx)).map_err(io::Error::other)?;
            self.0.push(AgentStep::Trailer(Metadata::default())).map_err(io::Error::other)?;
            self.0.messages.close();
        }
        Poll::Ready(Ok(()))
    }
}

fn message(part: ResponsePart) -> AgentStep {
    let data = HttpResponse { part: Some(part) }.encode_to_vec().into();
    AgentStep::Message(Payload { data })
}

fn descriptor() -> ConnectRequest {
    let method = Method { name: "MakeRequest".to_owned() };
    let service = Service { name: KUBERNETES_SERVICE.to_owned(), methods: vec![method] };
    let agent_descriptor = Some(AgentDescriptor { services: vec![service] });
    ConnectRequest { step: Some(AgentStep::Descriptor(Descriptor { agent_descriptor })) }
}

fn content_type() -> ValueMap {
    let value = vec!["application/grpc+proto".to_owned()];
    ValueMap::from([("content-type".to_owned(), Values { value })])
}
