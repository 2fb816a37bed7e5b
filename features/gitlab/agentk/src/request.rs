//! The direction from kas to agentk in a `Connect` stream: the request, and the rest of its body.

use bytes::Bytes;
use gitlab_tunnel::{
    MalformedHead, Order, OrderError, decode_request,
    messages::{Chunk, ConnectResponse, HttpRequest, KasStep, RequestHeader, RequestInfo, RequestPart},
};
use http::{
    HeaderValue,
    header::{CONNECTION, UPGRADE},
    request::Parts,
};
use prost::Message as _;
use proto::{ServiceName, header, hop_by_hop};
use tonic::{Status, Streaming};

use super::upload::Upload;

/// Reads the messages of kas, and checks their order.
pub(super) struct RequestReader {
    messages: Streaming<ConnectResponse>,
    steps: Order,
    parts: Order,
}

/// An event of a request.
pub(super) enum RequestEvent {
    /// The head.
    Head(RequestHeader),
    /// Bytes of the body.
    Data(Bytes),
    /// The end of the body.
    BodyEnd,
    /// Bytes of an upgraded connection.
    UpgradeData(Bytes),
    /// The caller sends nothing more.
    CloseSend,
}

/// The reason why kas sends no more of a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestEnd {
    /// kas has ended the stream, or the connection is lost. The request is cancelled, unless its response is complete.
    #[error("kas ended the stream")]
    Ended,
    /// kas sent a message at the wrong place.
    #[error("the order of messages is wrong: {0}")]
    Order(#[from] OrderError),
    /// kas sent a message that is no part of a request.
    #[error("the request is malformed: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// kas sent a body, although the head has none, or asks for an upgrade.
    #[error("the request has a body, and its head says that it has none")]
    UnexpectedBody,
}

impl RequestReader {
    /// Reads the first message, once kas has one. Returns `None` if kas ends the stream before it has a request.
    pub(super) async fn open(
        mut messages: Streaming<ConnectResponse>,
    ) -> Result<Option<(Self, ConnectResponse)>, Status> {
        let first = messages.message().await?;
        let reader = Self { messages, steps: Order::of_kas(), parts: Order::of_http() };
        Ok(first.map(|first| (reader, first)))
    }

    /// Checks the first message.
    pub(super) fn request_info(&mut self, first: ConnectResponse) -> Result<RequestInfo, OrderError> {
        self.steps.kas_step(first.step.as_ref())?;
        match first.step {
            Some(KasStep::RequestInfo(info)) => Ok(info),
            _ => unreachable!("the order has no other first step"),
        }
    }

    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> Result<RequestEvent, RequestEnd> {
        loop {
            let message = self.messages.message().await;
            let Ok(Some(message)) = message else { return Err(RequestEnd::Ended) };
            self.steps.kas_step(message.step.as_ref())?;
            let payload = match message.step {
                Some(KasStep::Message(payload)) => payload.data,
                Some(KasStep::CloseSend(_)) => {
                    self.parts.end()?;
                    return Ok(RequestEvent::CloseSend);
                }
                _ => continue,
            };
            let part = HttpRequest::decode(payload)?.part;
            self.parts.request_part(part.as_ref())?;
            return Ok(match part {
                Some(RequestPart::Header(header)) => RequestEvent::Head(header),
                Some(RequestPart::Data(Chunk { data })) => RequestEvent::Data(data),
                Some(RequestPart::Trailer(_)) => RequestEvent::BodyEnd,
                Some(RequestPart::UpgradeData(Chunk { data })) => RequestEvent::UpgradeData(data),
                None => continue,
            });
        }
    }

    /// Discards the rest of the request, until kas ends the stream.
    pub(super) async fn discard(&mut self) {
        while let Ok(Some(_)) = self.messages.message().await {}
    }

    /// Passes the rest of the request on, until kas ends the stream.
    pub(super) async fn forward(&mut self, mut upload: Upload) -> RequestEnd {
        loop {
            match self.next().await {
                Ok(RequestEvent::Head(_)) => {}
                Ok(RequestEvent::Data(data)) if !data.is_empty() && !upload.has_body() => {
                    return RequestEnd::UnexpectedBody;
                }
                Ok(RequestEvent::Data(data)) => upload.send_data(data).await,
                Ok(RequestEvent::BodyEnd) => upload.end_body().await,
                Ok(RequestEvent::UpgradeData(data)) => upload.send_upgrade_data(data).await,
                Ok(RequestEvent::CloseSend) => upload.close(),
                Err(end) => return end,
            }
        }
    }
}

/// Makes the head of a request for the service `kubernetes`. Returns it with true if it asks for an upgrade.
pub(super) fn head(header: RequestHeader) -> Result<(Parts, bool), MalformedHead> {
    let mut head = decode_request(header)?;
    let upgrade = hop_by_hop::upgrade_protocol(&head.headers);
    // This also removes the fields between kas and agentk, which a caller of GitLab's kas may send.
    hop_by_hop::strip(&mut head.headers);
    let is_upgrade = upgrade.is_some();
    if let Some(protocol) = upgrade {
        head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, protocol);
    }
    head.headers.insert(header::SERVICE, HeaderValue::from_static(ServiceName::KUBERNETES));
    Ok((head, is_upgrade))
}
