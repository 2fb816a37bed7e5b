//! kas's end of a tunnel: send it a request.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, LazyLock},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{
    Method, Request, Response, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE},
    request::Parts,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body::Body as _;
use proto::header;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::{
    Body, BodyError, Driver, Settings, Stalls,
    keepalive::Liveness,
    pump::{Pump, Sent},
    settings, upgrade,
    websocket::WebSocket,
};

/// HTTP/2 wants an authority; a request in the tunnel is for its service, whose handler knows the real one.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::from_static("agent"));

/// A connection to one agentk. Cheap to clone; all clones share the connection.
#[derive(Clone, Debug)]
pub struct Tunnel {
    sender: SendRequest<Bytes>,
    liveness: Arc<Liveness>,
    closing: CancellationToken,
    stalls: Stalls,
}

/// A request that got no response.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub struct CallError {
    /// What happened.
    pub kind: CallErrorKind,
    /// How far the request got.
    pub delivery: Delivery,
    /// The request as it was given, if its body is still whole.
    pub request: Option<Box<Request<Body>>>,
}

/// What happened to a request that got no response.
#[derive(Debug, thiserror::Error)]
pub enum CallErrorKind {
    /// The tunnel was gone, or leaving, before the request was sent.
    #[error("the tunnel takes no more requests")]
    Closed,
    /// agentk refused the stream without looking at it.
    #[error("the agent refused the request unseen")]
    Refused,
    /// The connection was lost while the request was under way.
    #[error("the tunnel was lost before the agent answered: {0}")]
    Lost(#[source] h2::Error),
    /// agentk gave this one request up.
    #[error("the agent aborted the request ({0})")]
    Reset(h2::Reason),
    /// The request's own body failed; the other end sees an abort.
    #[error("the request's body did not arrive whole: {0}")]
    Body(#[source] BodyError),
    /// The request cannot be expressed in HTTP/2, or agentk does not speak what its hello promised.
    #[error("the request cannot travel through the tunnel: {0}")]
    Unsupported(&'static str),
}

/// How far a failed request got: what a retry may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The other end has certainly not acted on it.
    NotProcessed,
    /// It may have been acted on.
    Unknown,
}

/// Starts HTTP/2 on an accepted WebSocket: the handle, and the driver that must be run for anything to happen.
pub async fn open<T>(socket: WebSocket<T>, settings: &Settings) -> io::Result<(Tunnel, Driver<WebSocket<T>>)>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let liveness = socket.liveness();
    start(socket, liveness, settings).await
}

/// Starts HTTP/2 on a stream of bytes whose `liveness` counts what is heard on it.
pub(crate) async fn start<S>(
    stream: S,
    liveness: Arc<Liveness>,
    settings: &Settings,
) -> io::Result<(Tunnel, Driver<S>)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (sender, connection) =
        settings.client().handshake(stream).await.map_err(|error| match error.into_io() {
            Some(error) => error,
            None => io::Error::other("the other end does not speak HTTP/2"),
        })?;
    let closing = CancellationToken::new();
    let driver = Driver::new(connection, settings.keepalive, Arc::clone(&liveness), closing.clone());

    Ok((Tunnel { sender, liveness, closing, stalls: settings.stalls.clone() }, driver))
}

impl Tunnel {
    /// Sends a request and waits for the head of its response.
    ///
    /// A request with an `Upgrade` header travels as extended CONNECT; where the cluster agreed, the response has status
    /// 101 and [`upgrade::take`] gives the raw stream. Dropping the future, or the response's body, cancels the
    /// request at the other end at once.
    pub async fn call(&self, request: Request<Body>) -> Result<Response<Body>, CallError> {
        let (head, body) = request.into_parts();
        let wire = match wire_request(&head) {
            Ok(wire) => wire,
            Err(what) => {
                return Err(CallError::unsent(CallErrorKind::Unsupported(what), head, body));
            }
        };
        let upgrading = wire.method() == Method::CONNECT;
        let mut sender = self.sender.clone();
        if poll_fn(|cx| sender.poll_ready(cx)).await.is_err() {
            return Err(CallError::unsent(CallErrorKind::Closed, head, body));
        }
        if upgrading && !sender.is_extended_connect_protocol_enabled() {
            let what = "the agent has not enabled extended CONNECT (RFC 8441)";
            return Err(CallError::unsent(CallErrorKind::Unsupported(what), head, body));
        }

        let bodyless = !upgrading && body.is_end_stream();
        let Ok((mut response, stream)) = sender.send_request(wire, bodyless) else {
            return Err(CallError::unsent(CallErrorKind::Closed, head, body));
        };
        drop(sender);
        if upgrading {
            return match response.await {
                Ok(response) => Ok(upgrade::accepted(response, stream)),
                Err(error) => Err(CallError::sent(error, head, Some(body))),
            };
        }

        // The request's body moves while the response is awaited, and afterwards along with the response's.
        let (mut sending, untouched) = match bodyless {
            true => (None, Some(body)),
            false => (Some(Pump::new(body, stream, self.stalls.clone())), None),
        };
        let mut sent = bodyless;
        let answer = poll_fn(|cx| {
            if let Some(pump) = &mut sending
                && !sent
            {
                match pump.poll(cx) {
                    Poll::Ready(Sent::Broken(error)) => return Poll::Ready(Err(error)),
                    polled => sent = polled.is_ready(),
                }
            }
            Pin::new(&mut response).poll(cx).map(Ok)
        })
        .await;

        match answer {
            Err(error) => Err(CallError {
                kind: CallErrorKind::Body(error),
                delivery: Delivery::Unknown,
                request: None,
            }),
            Ok(Ok(answer)) => {
                let mut sending = sending.filter(|_| !sent);
                if let Some(pump) = &mut sending {
                    pump.forget();
                }
                Ok(answer.map(|received| Body::received(received, sending)))
            }
            Ok(Err(error)) => {
                let body = untouched.or_else(|| sending.and_then(Pump::into_whole));
                Err(CallError::sent(error, head, body))
            }
        }
    }

    /// Waits until agentk has answered for the first time: its limits and what it supports are known then. Before that, a
    /// request may be refused that would not be later. Never completes if the tunnel ends first.
    pub async fn ready(&self) {
        self.liveness.answered().await;
    }

    /// Cuts the tunnel: everything in flight is aborted.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// The round trip that the keepalive measured last.
    pub fn round_trip(&self) -> Option<Duration> {
        self.liveness.round_trip()
    }
}

impl CallError {
    fn unsent(kind: CallErrorKind, head: Parts, body: Body) -> Self {
        let request = Some(Box::new(Request::from_parts(head, body)));
        Self { kind, delivery: Delivery::NotProcessed, request }
    }

    fn sent(error: h2::Error, head: Parts, body: Option<Body>) -> Self {
        let (kind, delivery) = match error.reason() {
            // RFC 9113 section 8.7: both guarantee that the request was not processed.
            Some(h2::Reason::REFUSED_STREAM) => (CallErrorKind::Refused, Delivery::NotProcessed),
            Some(h2::Reason::NO_ERROR) if error.is_go_away() => {
                (CallErrorKind::Closed, Delivery::NotProcessed)
            }
            Some(reason) if error.is_reset() => (CallErrorKind::Reset(reason), Delivery::Unknown),
            _ => (CallErrorKind::Lost(error), Delivery::Unknown),
        };
        let request = body.map(|body| Box::new(Request::from_parts(head, body)));
        Self { kind, delivery, request }
    }
}

/// The request as HTTP/2 says it; a copy, since the original is needed for a retry.
fn wire_request(head: &Parts) -> Result<Request<()>, &'static str> {
    let mut headers = head.headers.clone();
    // RFC 9113 section 8.2.2: what is about the connection has no place in HTTP/2.
    for name in [&HOST, &CONNECTION, &UPGRADE, &TRANSFER_ENCODING] {
        headers.remove(name);
    }

    let mut wire = Request::new(());
    *wire.version_mut() = Version::HTTP_2;
    *wire.uri_mut() = wire_uri(&head.uri)?;
    *wire.method_mut() = head.method.clone();
    if let Some(protocol) = head.headers.get(UPGRADE) {
        let protocol = protocol.to_str().map_err(|_| "the Upgrade header is not ASCII")?;
        headers.insert(
            header::UPGRADE_METHOD,
            head.method.as_str().parse().map_err(|_| "the method is no header value")?,
        );
        headers.remove(CONTENT_LENGTH);
        *wire.method_mut() = Method::CONNECT;
        wire.extensions_mut().insert(h2::ext::Protocol::from(protocol));
    }
    settings::unindexed(&mut headers);
    *wire.headers_mut() = headers;
    Ok(wire)
}

fn wire_uri(uri: &Uri) -> Result<Uri, &'static str> {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(AUTHORITY.clone());
    parts.path_and_query =
        Some(uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
    Uri::from_parts(parts).map_err(|_| "the path is not one of HTTP/2")
}
