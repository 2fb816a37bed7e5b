//! kas's end of a tunnel: the HTTP/2 client.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    client::{Connection, ResponseFuture, SendRequest},
};
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
    Body, CallError, CallErrorKind, Ended, Keepalive, Settings, Stalls,
    keepalive::Liveness,
    send_body::{SendBody, Sent},
    settings, upgrade,
    websocket::WebSocket,
};

/// HTTP/2 requires an authority. A request in the tunnel is for a service, whose handler knows the real one.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::from_static("agent"));

/// A connection to one agentk. Cheap to clone; all clones share the connection.
#[derive(Clone, Debug)]
pub struct Tunnel {
    sender: SendRequest<Bytes>,
    liveness: Arc<Liveness>,
    closing: CancellationToken,
    stalls: Stalls,
}

/// The connection behind a [`Tunnel`]. Nothing moves unless [`Driver::run`] is polled.
#[must_use = "a tunnel moves nothing unless its driver runs"]
pub struct Driver<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<S, Bytes>,
    keepalive: Keepalive,
    liveness: Arc<Liveness>,
    closing: CancellationToken,
}

/// Starts HTTP/2 on an accepted WebSocket. Returns the handle, and the driver that must run for anything to happen.
///
/// It writes HTTP/2's preface and waits for nothing.
pub async fn open<T>(socket: WebSocket<T>, settings: &Settings) -> io::Result<(Tunnel, Driver<WebSocket<T>>)>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let liveness = socket.liveness();
    start(socket, liveness, settings).await
}

/// Starts HTTP/2 on a byte stream that counts what it receives in `liveness`.
pub(crate) async fn start<S>(
    stream: S,
    liveness: Arc<Liveness>,
    settings: &Settings,
) -> io::Result<(Tunnel, Driver<S>)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let started = settings.client().handshake(stream).await;
    let (sender, connection) =
        started.map_err(|error| error.into_io().unwrap_or_else(|| io::ErrorKind::InvalidData.into()))?;
    let closing = CancellationToken::new();
    let tunnel = Tunnel {
        sender,
        liveness: Arc::clone(&liveness),
        closing: closing.clone(),
        stalls: settings.stalls.clone(),
    };
    Ok((tunnel, Driver { connection, keepalive: settings.keepalive, liveness, closing }))
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Moves bytes until the tunnel ends. Dropping the future closes it.
    pub async fn run(mut self) -> Ended {
        let pings = self.connection.ping_pong().expect("nothing else takes it");
        tokio::select! {
            biased;
            result = &mut self.connection => result.into(),
            () = self.keepalive.watch(pings, self.liveness) => Ended::Silent,
            () = self.closing.cancelled() => Ended::Cut,
        }
    }
}

impl Tunnel {
    /// Sends a request and waits for the head of its response.
    ///
    /// A request with an `Upgrade` header travels as extended CONNECT (RFC 8441). If the cluster accepted the upgrade, the
    /// response has status 101 and [`upgrade::take`] returns the raw stream. Dropping the future, or the body of the
    /// response, resets the stream, which cancels the request at the other end.
    pub async fn call(&self, request: Request<Body>) -> Result<Response<Body>, CallError> {
        let (head, body) = request.into_parts();
        let wire = match wire_request(&head) {
            Ok(wire) => wire,
            Err(what) => return Err(CallError::unsent(CallErrorKind::Unsupported(what), head, body)),
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
        let Ok((response, stream)) = sender.send_request(wire, bodyless) else {
            return Err(CallError::unsent(CallErrorKind::Closed, head, body));
        };
        drop(sender);
        match (upgrading, bodyless) {
            (true, _) => response_to_upgrade(response, stream, head, body).await,
            (false, true) => response_to_head(response, head, body).await,
            (false, false) => {
                let sending = SendBody::new(body, stream, self.stalls.clone());
                response_to_body(response, sending, head).await
            }
        }
    }

    /// Waits for agentk's first pong: its SETTINGS have arrived by then. Earlier, a request may be refused that would be
    /// accepted later. Never completes if the tunnel ends first.
    pub async fn ready(&self) {
        self.liveness.answered().await;
    }

    /// Closes the tunnel: everything in flight is aborted.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Returns the round-trip time that the keepalive measured last.
    pub fn round_trip(&self) -> Option<Duration> {
        self.liveness.round_trip()
    }
}

/// Waits for the response to a request without a body.
async fn response_to_head(
    mut response: ResponseFuture,
    head: Parts,
    body: Body,
) -> Result<Response<Body>, CallError> {
    let answered =
        poll_fn(|cx| Pin::new(&mut response).poll(cx).map_ok(|response| received(response, None, cx)));
    answered.await.map_err(|error| CallError::sent(error, head, Some(body)))
}

/// Sends the body while it waits for the response. A body that is not sent by then continues with the response's.
async fn response_to_body(
    mut response: ResponseFuture,
    sending: SendBody,
    head: Parts,
) -> Result<Response<Body>, CallError> {
    let mut sending = Some(sending);
    let mut complete = false;
    let answered = poll_fn(|cx| {
        if let Some(body) = &mut sending
            && !complete
        {
            match body.poll(cx) {
                Poll::Ready(Sent::Failed(error)) => return Poll::Ready(Err(CallError::body(error))),
                polled => complete = polled.is_ready(),
            }
        }
        Pin::new(&mut response).poll(cx).map(|answered| {
            Ok(answered.map(|response| {
                let unfinished = sending.take_if(|_| !complete).map(|mut body| {
                    body.forget_replay();
                    body
                });
                received(response, unfinished, cx)
            }))
        })
    });
    match answered.await? {
        Ok(response) => Ok(response),
        Err(error) => Err(CallError::sent(error, head, sending.and_then(SendBody::into_whole))),
    }
}

async fn response_to_upgrade(
    response: ResponseFuture,
    stream: SendStream<Bytes>,
    head: Parts,
    body: Body,
) -> Result<Response<Body>, CallError> {
    match response.await {
        Ok(response) => Ok(upgrade::accepted(response, stream)),
        Err(error) => Err(CallError::sent(error, head, Some(body))),
    }
}

/// Makes the response that the caller of [`Tunnel::call`] gets. HTTP/2 ends here: the version decides how a server of
/// HTTP/1.1 treats its connection.
fn received(
    response: Response<RecvStream>,
    sending: Option<SendBody>,
    cx: &mut Context<'_>,
) -> Response<Body> {
    let mut response = response.map(|stream| Body::received(stream, sending, cx));
    *response.version_mut() = Version::HTTP_11;
    response
}

/// Returns the head as HTTP/2 has it. It is a copy, since a retry needs the original.
fn wire_request(head: &Parts) -> Result<Request<()>, &'static str> {
    let mut headers = head.headers.clone();
    // RFC 9113 section 8.2.2: fields of the connection have no place in HTTP/2.
    for name in [&HOST, &CONNECTION, &UPGRADE, &TRANSFER_ENCODING] {
        headers.remove(name);
    }

    let mut wire = Request::new(());
    *wire.version_mut() = Version::HTTP_2;
    *wire.uri_mut() = wire_uri(&head.uri)?;
    *wire.method_mut() = head.method.clone();
    if let Some(protocol) = head.headers.get(UPGRADE) {
        let protocol = protocol.to_str().map_err(|_| "the Upgrade header is not ASCII")?;
        let method = head.method.as_str().parse().map_err(|_| "the method is no header value")?;
        headers.insert(header::UPGRADE_METHOD, method);
        headers.remove(CONTENT_LENGTH);
        *wire.method_mut() = Method::CONNECT;
        wire.extensions_mut().insert(h2::ext::Protocol::from(protocol));
    } else if head.method == Method::CONNECT {
        return Err("CONNECT is for forward proxies");
    }
    settings::mark_unindexed(&mut headers);
    *wire.headers_mut() = headers;
    Ok(wire)
}

fn wire_uri(uri: &Uri) -> Result<Uri, &'static str> {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(AUTHORITY.clone());
    let root = || PathAndQuery::from_static("/");
    parts.path_and_query = Some(uri.path_and_query().cloned().unwrap_or_else(root));
    Uri::from_parts(parts).map_err(|_| "the path has no form in HTTP/2")
}
