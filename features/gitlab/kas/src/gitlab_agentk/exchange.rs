//! One request in one `Connect` stream: its head and body to agentk, and the response back.

use std::{
    error::Error as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use gitlab_tunnel::{
    KUBERNETES_METHOD, MAX_CHUNK, Order, decode_response,
    messages::{
        AgentStep, Chunk, ConnectResponse, Empty, HttpRequest, HttpResponse, KasStep, Payload, RequestHeader,
        RequestInfo, RequestPart, ResponsePart, ValueMap, Values,
    },
};
use http::{HeaderMap, Response, StatusCode, header::CONTENT_LENGTH};
use http_body::Frame;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    sync::mpsc,
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, Status};
use tunnel::{Body, BodyError, upgrade::UpgradedStream};

use super::{
    metrics::RpcMetrics,
    pool::{OpenStream, ReadyStream},
};

/// The time in which a reset of agentk may cross a request on its way.
const CROSSING_TIME: Duration = Duration::from_secs(1);
/// The time that agentk has for the end of its stream after the end of its response.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which an upgraded connection stays open after the caller has ended its direction, if agentk sends nothing. GitLab's
/// agentk does not tell the API server that the caller has ended, and the connection would stay open for ever.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);
/// The bytes of an upgraded connection that wait in kas, in each direction.
const UPGRADE_BUFFER: usize = 64 << 10;
/// The most bytes of a body that are kept until the response, so that another stream or tunnel can carry the request. Tunnels of kas
/// keep as many.
const MAX_KEPT: usize = 64 << 10;

/// The failure of an exchange before its response.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// agentk has not processed the request. It is returned if all of its body is still there.
    NotProcessed(Option<Body>),
    /// The stream ended before its response. agentk may have processed the request. Its body is returned if all of it is still there.
    Lost(Option<Body>),
    /// agentk reports an error.
    Status(Status),
    /// agentk breaks the protocol.
    Protocol(String),
    /// The body of the request failed.
    Body(BodyError),
}

/// The limits of a response, with the metrics of their violations.
#[derive(Clone, Debug)]
pub(super) struct ResponseLimits {
    /// The longest headers in bytes, as HTTP/2 counts them.
    pub(super) max_header_bytes: usize,
    pub(super) metrics: RpcMetrics,
}

/// A stream with its request.
pub(super) struct Exchange {
    stream: OpenStream,
    agent_order: Order,
    http_order: Order,
    upload: Upload,
    /// The response is a reply to HEAD, which has no body.
    is_head: bool,
    /// The bytes of the response's body that have not arrived, if its length is known.
    remaining: Option<u64>,
    started: Instant,
    /// agentk has sent a step.
    has_begun: bool,
    /// agentk has sent its last step.
    is_complete: bool,
    limits: ResponseLimits,
}

/// The request that is still to be sent.
struct Upload {
    body: Body,
    /// A part of a chunk that is longer than a message may be.
    rest: Bytes,
    /// The parts that were sent, until they are too many or the response has begun.
    sent: Option<Vec<Bytes>>,
    state: UploadState,
    /// agentk has ended the stream.
    is_stopped: bool,
    /// The request asks for an upgrade, after which further bytes follow.
    upgrading: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadState {
    Body,
    /// The end of the body is sent, and that of the request is not.
    End,
    /// The request is sent.
    Complete,
}

/// An event of a stream.
enum Event {
    Part(ResponsePart),
    /// agentk has ended the stream.
    End,
}

impl Exchange {
    /// Sends the head of a request. Returns the request if agentk has ended the stream before.
    pub(super) fn start(
        stream: ReadyStream,
        header: &RequestHeader,
        body: Body,
        upgrading: bool,
        limits: ResponseLimits,
    ) -> Result<Self, Body> {
        let info = RequestInfo {
            method_name: KUBERNETES_METHOD.to_owned(),
            meta: ValueMap::from([
                meta("content-type", "application/grpc+proto"),
                meta("user-agent", concat!("kas/", env!("CARGO_PKG_VERSION"))),
            ]),
        };
        let head = message(RequestPart::Header(header.clone()));
        let Some(stream) = stream.open() else { return Err(body) };
        for next in [KasStep::RequestInfo(info), head] {
            // The channel has room for both.
            let _ = stream.outgoing.try_send(step(next));
        }
        let upload = Upload {
            body,
            rest: Bytes::new(),
            sent: Some(Vec::new()),
            state: UploadState::Body,
            is_stopped: false,
            upgrading,
        };
        let mut agent_order = Order::of_agent();
        let described = agent_order.agent_step(Some(&AgentStep::Descriptor(Default::default())));
        described.expect("it is the first step, which the pool has read");
        let http_order = Order::of_http();
        let is_head = header.request.as_ref().is_some_and(|request| request.method == "HEAD");
        Ok(Self {
            stream,
            agent_order,
            http_order,
            upload,
            is_head,
            remaining: None,
            started: Instant::now(),
            has_begun: false,
            is_complete: false,
            limits,
        })
    }

    /// Waits for the head of the response, and returns the response, whose body is the rest of the exchange.
    pub(super) async fn response(mut self) -> Result<Response<Body>, ExchangeError> {
        let header = match self.next_event().await {
            Ok(Event::Part(ResponsePart::Header(header))) => header,
            Ok(Event::Part(_)) => return Err(self.violation("the response has no head")),
            Ok(Event::End) if self.has_begun => return Err(self.violation("the response has no head")),
            Ok(Event::End) => return Err(ExchangeError::NotProcessed(self.upload.take_whole())),
            Err(ExchangeError::Lost(_)) => return Err(ExchangeError::Lost(self.upload.take_whole())),
            Err(error) => return Err(error),
        };
        self.upload.sent = None;
        let head = decode_response(header)
            .map_err(|error| self.violation(format!("the head of the response: {error}")))?;
        if header_bytes(&head.headers) > self.limits.max_header_bytes {
            return Err(self.violation("the head of the response is too long"));
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.upgrade(head).await;
        }
        self.remaining = match head.status {
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => Some(0),
            _ if self.is_head => Some(0),
            _ => content_length(&head.headers)
                .map_err(|()| self.violation("the response has no valid Content-Length"))?,
        };
        Ok(Response::from_parts(head, self.into_body()))
    }

    /// Returns the body of the response. One that has arrived whole becomes plain bytes.
    fn into_body(mut self) -> Body {
        if self.remaining == Some(0) {
            self.end();
            return Body::empty();
        }
        let first = match self.next_chunk().now_or_never() {
            Some(Ok(chunk)) if chunk.is_none() || self.remaining == Some(0) => {
                self.end();
                return chunk.unwrap_or_default().into();
            }
            first => first.and_then(Result::transpose),
        };
        let monitor = self.stream.monitor.clone();
        let rest = stream::unfold(Some((first, self)), async |exchange| {
            let (first, mut exchange) = exchange?;
            let chunk = match first {
                Some(chunk) => Some(chunk),
                None => exchange.next_chunk().await.transpose(),
            };
            let rest = match &chunk {
                Some(Ok(_)) if exchange.remaining != Some(0) => Some((None, exchange)),
                Some(Err(_)) => {
                    // At an error, the reader may discard data that it has not written yet, even the head.
                    yield_now().await;
                    None
                }
                _ => {
                    exchange.end();
                    None
                }
            };
            Some((chunk?.map(Frame::data).map_err(|error| BodyError::Other(error.into())), rest))
        });
        Body::with_monitor(StreamBody::new(rest), monitor)
    }

    /// Returns the next bytes of the body, or `None` at its end. Cancel-safe.
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, std::io::Error> {
        loop {
            match self.next_event().await.map_err(|error| error.into_io())? {
                Event::Part(ResponsePart::Data(Chunk { data })) if data.is_empty() => {}
                Event::Part(ResponsePart::Data(Chunk { data })) => {
                    if let Some(remaining) = &mut self.remaining {
                        let left = remaining.checked_sub(data.len() as u64);
                        let longer =
                            || self.violation("the body is longer than its Content-Length").into_io();
                        self.remaining = Some(left.ok_or_else(longer)?);
                    }
                    return Ok(Some(data));
                }
                Event::Part(ResponsePart::Trailer(_)) if self.remaining.is_some() => {
                    return Err(self.violation("the body is shorter than its Content-Length").into_io());
                }
                Event::Part(ResponsePart::Trailer(_)) => {
                    self.remaining = Some(0);
                    return Ok(None);
                }
                Event::Part(_) => return Err(self.violation("an unexpected part of the response").into_io()),
                Event::End => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    /// Waits for the end of the stream after the end of the response, so that it ends without an error. The stream of a request that
    /// was not read to its end is given up.
    fn end(mut self) {
        if self.upload.state != UploadState::Complete {
            return;
        }
        if self.upload.upgrading {
            // GitLab's agentk would wait for it for ever after an upgrade that the API server has refused.
            let _ = self.stream.outgoing.try_send(step(KasStep::CloseSend(Empty {})));
        }
        let mut end = Box::pin(async move {
            // An error is of no interest: the response is complete.
            while let Ok(Event::Part(part)) = self.next_event().await {
                if !matches!(part, ResponsePart::Trailer(_)) {
                    self.violation("a part after the end of the response");
                    return;
                }
            }
        });
        if end.as_mut().now_or_never().is_none() {
            tokio::spawn(timeout(END_TIMEOUT, end));
        }
    }

    /// Returns the next part of the response, and sends the body of the request meanwhile. Cancel-safe.
    async fn next_event(&mut self) -> Result<Event, ExchangeError> {
        loop {
            let received = tokio::select! {
                received = self.stream.incoming.message() => received,
                uploaded = self.upload.advance(&self.stream.outgoing), if self.upload.is_running() => {
                    uploaded.map_err(ExchangeError::Body)?;
                    continue;
                }
            };
            let step = match received {
                Ok(Some(request)) => request.step,
                Ok(None) => {
                    // Without a step, agentk has not accepted the request: it resets only streams that wait for one, and the reset,
                    // which tonic reports as an end, crossed the request on its way.
                    // A proxy in between resets streams of an agentk that is gone, too, and later.
                    if self.agent_order.end().is_ok()
                        && (self.has_begun || self.started.elapsed() < CROSSING_TIME)
                    {
                        self.is_complete = true;
                        return Ok(Event::End);
                    }
                    return Err(ExchangeError::Lost(None));
                }
                // An error of the connection has a source; that of a message has none.
                Err(status) if status.source().is_some() => return Err(ExchangeError::Lost(None)),
                Err(status) => return Err(self.violation(status.message())),
            };
            self.agent_order.agent_step(step.as_ref()).map_err(|error| self.violation(error.to_string()))?;
            self.has_begun = true;
            match step.expect("an empty step is not allowed") {
                AgentStep::Message(Payload { data }) => {
                    let part =
                        HttpResponse::decode(data).map_err(|error| self.violation(error.to_string()))?;
                    let accepted = self.http_order.response_part(part.part.as_ref());
                    accepted.map_err(|error| self.violation(error.to_string()))?;
                    return Ok(Event::Part(part.part.expect("an empty part is not allowed")));
                }
                AgentStep::Error(error) => {
                    self.is_complete = true;
                    let status = error.status.unwrap_or_default();
                    return Err(ExchangeError::Status(Status::new(Code::from(status.code), status.message)));
                }
                AgentStep::Header(_) | AgentStep::Trailer(_) | AgentStep::Descriptor(_) => {}
            }
        }
    }

    /// Counts a violation of the protocol, with which the stream ends.
    fn violation(&self, what: impl Into<String>) -> ExchangeError {
        let what = what.into();
        self.limits.metrics.count_violation();
        let _ = self.stream.end.set(Status::invalid_argument(&what));
        tracing::debug!(error = what, "GitLab's agentk breaks the protocol");
        ExchangeError::Protocol(what)
    }

    /// Accepts an upgrade: the task of the returned connection moves its bytes.
    async fn upgrade(mut self, head: http::response::Parts) -> Result<Response<Body>, ExchangeError> {
        if !self.upload.upgrading {
            let what = "it switches protocols although the request did not ask for it";
            return Err(self.violation(what));
        }
        match self.next_event().await? {
            Event::Part(ResponsePart::Trailer(_)) => {}
            _ => return Err(self.violation("an accepted upgrade has a body")),
        }
        let (inside, outside) = tokio::io::duplex(UPGRADE_BUFFER);
        let upgraded = UpgradedStream::from_io(outside, self.stream.monitor.clone());
        tokio::spawn(self.run_upgraded(inside));
        let mut response = Response::from_parts(head, Body::empty());
        upgraded.put_into(&mut response);
        Ok(response)
    }

    /// Moves bytes in both directions until agentk ends the stream, or the connection of the caller is gone.
    async fn run_upgraded(mut self, connection: DuplexStream) {
        let (mut reader, mut writer) = tokio::io::split(connection);
        let outgoing = self.stream.outgoing.clone();
        let received = AtomicU64::new(0);
        let downward = async {
            while let Ok(Event::Part(ResponsePart::UpgradeData(Chunk { data }))) = self.next_event().await {
                received.fetch_add(1, Relaxed);
                // Fails if the caller is gone.
                if writer.write_all(&data).await.is_err() {
                    return;
                }
            }
            let _ = writer.shutdown().await;
        };
        let upward = async {
            send_upgrade_data(&mut reader, &outgoing).await;
            // The caller has ended its direction, or is gone.
            let mut before = u64::MAX;
            while before != received.load(Relaxed) {
                before = received.load(Relaxed);
                sleep(HALF_CLOSED_TIMEOUT).await;
            }
        };
        tokio::select! {
            () = downward => {}
            () = upward => {}
        }
    }
}

/// Ends the stream with an error if the response is not complete, so that agentk gives up its request to the API server.
impl Drop for Exchange {
    fn drop(&mut self) {
        // The response to the caller ends with its last byte, which may be before the stream of agentk ends.
        if !self.is_complete && self.remaining != Some(0) {
            // Fails if it ends with another error.
            let _ = self.stream.end.set(Status::cancelled("the caller is gone"));
        }
    }
}

/// Sends the bytes of a caller until it ends its direction.
async fn send_upgrade_data(reader: &mut (impl AsyncRead + Unpin), outgoing: &mpsc::Sender<ConnectResponse>) {
    let mut buffer = BytesMut::new();
    // Fails if agentk has ended the stream.
    while let Ok(permit) = outgoing.reserve().await {
        buffer.reserve(MAX_CHUNK);
        let read = reader.read_buf(&mut buffer).await.unwrap_or(0);
        if read == 0 {
            return permit.send(step(KasStep::CloseSend(Empty {})));
        }
        let data = buffer.split().freeze();
        permit.send(step(message(RequestPart::UpgradeData(Chunk { data }))));
    }
}

impl Upload {
    /// Sends the next part of the request. Cancel-safe.
    async fn advance(&mut self, outgoing: &mpsc::Sender<ConnectResponse>) -> Result<(), BodyError> {
        let Ok(permit) = outgoing.reserve().await else {
            self.is_stopped = true;
            return Ok(());
        };
        if self.state == UploadState::End {
            permit.send(step(KasStep::CloseSend(Empty {})));
            self.state = UploadState::Complete;
            return Ok(());
        }
        while self.rest.is_empty() {
            match self.body.frame().await {
                // The protocol has no trailers.
                Some(frame) => self.rest = frame?.into_data().unwrap_or_default(),
                None => {
                    permit.send(step(message(RequestPart::Trailer(Empty {}))));
                    // The bytes of an upgrade follow.
                    self.state = if self.upgrading { UploadState::Complete } else { UploadState::End };
                    return Ok(());
                }
            }
        }
        let data = self.rest.split_to(self.rest.len().min(MAX_CHUNK));
        self.keep(&data);
        permit.send(step(message(RequestPart::Data(Chunk { data }))));
        Ok(())
    }

    /// Keeps a part that is sent, unless all parts would be too long.
    fn keep(&mut self, data: &Bytes) {
        let Some(sent) = &mut self.sent else { return };
        if sent.iter().map(Bytes::len).sum::<usize>() + data.len() > MAX_KEPT {
            self.sent = None;
        } else {
            sent.push(data.clone());
        }
    }

    /// Returns the body of the request if all of it is still there.
    fn take_whole(&mut self) -> Option<Body> {
        let mut sent = self.sent.take()?;
        sent.push(std::mem::take(&mut self.rest));
        sent.retain(|data| !data.is_empty());
        let body = std::mem::take(&mut self.body);
        // A body that has ended must not be polled again.
        let rest = (self.state == UploadState::Body).then_some(body);
        Some(match (rest, sent.len()) {
            (Some(body), 0) => body,
            (None, 0 | 1) => sent.pop().unwrap_or_default().into(),
            (rest, _) => {
                let sent = stream::iter(sent).map(|data| Ok(Frame::data(data)));
                Body::new(StreamBody::new(sent.chain(stream::iter(rest.map(BodyStream::new)).flatten())))
            }
        })
    }

    fn is_running(&self) -> bool {
        !self.is_stopped && self.state != UploadState::Complete
    }
}

impl ExchangeError {
    fn into_io(self) -> std::io::Error {
        std::io::Error::other(match self {
            Self::NotProcessed(_) | Self::Lost(_) => {
                "the stream of agentk ended in the middle of the response".to_owned()
            }
            Self::Status(status) => format!("agentk reports {:?}: {}", status.code(), status.message()),
            Self::Protocol(what) => format!("agentk breaks the protocol: {what}"),
            Self::Body(what) => format!("the body of the request failed: {what}"),
        })
    }
}

/// Returns the length that a response announces, if it does.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, ()> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(None),
        (Some(length), None) => {
            let length = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            length.and_then(|text| text.parse().ok()).map(Some).ok_or(())
        }
        (Some(_), Some(_)) => Err(()),
    }
}

/// Returns the size of headers (RFC 9113 section 6.5.2).
fn header_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

fn meta(name: &str, value: &str) -> (String, Values) {
    (name.to_owned(), Values { value: vec![value.to_owned()] })
}

fn message(part: RequestPart) -> KasStep {
    KasStep::Message(Payload { data: HttpRequest { part: Some(part) }.encode_to_vec().into() })
}

fn step(step: KasStep) -> ConnectResponse {
    ConnectResponse { step: Some(step) }
}
