//! agentk's end of a tunnel: serve the requests that come in.

use std::{future::poll_fn, io, sync::Arc, time::Duration};

use bytes::Bytes;
use h2::{
    Reason, RecvStream,
    server::{Connection, SendResponse},
};
use http::{
    Method, Request, Response, StatusCode, Uri, Version,
    header::{CONNECTION, HeaderValue, UPGRADE},
};
use http_body::Body as _;
use proto::header;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};

use crate::{
    Body, CallError, Delivery, Ended, Keepalive, Settings, Stalls, Tunnel,
    keepalive::Liveness,
    pump::{Pump, Sent},
    settings,
    upgrade::{self, Outside, Upgraded},
    websocket::WebSocket,
};

/// The connection over which kas sends requests. Nothing moves unless [`Session::run`] is polled.
#[must_use = "a tunnel serves nothing unless its session runs"]
pub struct Session<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<S, Bytes>,
    keepalive: Keepalive,
    liveness: Arc<Liveness>,
    leave: watch::Receiver<Option<Duration>>,
    stalls: Stalls,
}

/// Ends a [`Session`] in good order. Dropping it does nothing.
#[derive(Clone, Debug)]
pub struct Leave(watch::Sender<Option<Duration>>);

/// One request, and the way to answer it.
pub struct Exchange {
    request: Request<Body>,
    respond: SendResponse<Bytes>,
    /// Set for an extended CONNECT: the caller's half of the raw stream.
    raw: Option<RecvStream>,
    stalls: Stalls,
}

/// Starts HTTP/2 on a WebSocket that kas accepted.
pub async fn accept<T>(
    socket: WebSocket<T>,
    settings: &Settings,
) -> io::Result<(Session<WebSocket<T>>, Leave)>
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
) -> io::Result<(Session<S>, Leave)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let connection = settings.server().handshake(stream).await.map_err(|error| match error.into_io() {
        Some(error) => error,
        None => io::Error::other("the other end does not speak HTTP/2"),
    })?;
    let (sender, leave) = watch::channel(None);

    let stalls = settings.stalls.clone();
    Ok((Session { connection, keepalive: settings.keepalive, liveness, leave, stalls }, Leave(sender)))
}

impl Leave {
    /// Takes no new requests, finishes those in flight, and cuts what is left after `within`.
    pub fn within(&self, within: Duration) {
        self.0.send_replace(Some(within));
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Hands every request to `on_request`, which should spawn [`Exchange::answer`], until the tunnel ends.
    ///
    /// Dropping the future cuts the tunnel.
    pub async fn run(mut self, mut on_request: impl FnMut(Exchange)) -> Ended {
        let pings = self.connection.ping_pong().expect("taken once, here");
        let silent = self.keepalive.watch(pings, self.liveness);
        tokio::pin!(silent);
        let mut leaving = false;
        let deadline = tokio::time::sleep(Duration::MAX);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                accepted = self.connection.accept() => match accepted {
                    Some(Ok((request, respond))) => on_request(Exchange::new(request, respond, self.stalls.clone())),
                    // kas may hang up as soon as it has the last answer, before it takes our last frame.
                    Some(Err(_)) if leaving && !self.connection.has_streams() => return Ended::Gracefully,
                    Some(Err(error)) => return Err(error).into(),
                    None => return Ended::Gracefully,
                },
                () = &mut silent => return Ended::Silent,
                Ok(within) = async { self.leave.wait_for(Option::is_some).await.map(|within| *within) }, if !leaving => {
                    leaving = true;
                    // GOAWAY first with no last stream, then after a round trip with the real one (RFC 9113 6.8):
                    // a request that crosses it on the way is still served.
                    self.connection.graceful_shutdown();
                    let within = within.unwrap_or_default();
                    deadline.as_mut().reset(tokio::time::Instant::now() + within);
                }
                () = &mut deadline, if leaving => return Ended::Cut,
            }
        }
    }
}

impl Exchange {
    fn new(request: Request<RecvStream>, respond: SendResponse<Bytes>, stalls: Stalls) -> Self {
        let (mut head, received) = request.into_parts();
        head.version = Version::HTTP_11;
        // The scheme and authority are there because HTTP/2 wants some; the handler knows the real ones.
        head.uri = head.uri.path_and_query().cloned().map(Uri::from).unwrap_or_default();
        let method = head.headers.remove(header::UPGRADE_METHOD);
        let protocol = head.extensions.remove::<h2::ext::Protocol>();
        if let Some(protocol) = protocol
            && head.method == Method::CONNECT
        {
            head.method = method.and_then(|m| Method::from_bytes(m.as_bytes()).ok()).unwrap_or(Method::GET);
            let protocol = HeaderValue::from_str(protocol.as_str());
            head.headers.insert(UPGRADE, protocol.unwrap_or_else(|_| HeaderValue::from_static("")));
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            let request = Request::from_parts(head, Body::empty());
            return Self { request, respond, raw: Some(received), stalls };
        }

        let request = Request::from_parts(head, Body::received(received, None));
        Self { request, respond, raw: None, stalls }
    }

    /// What is asked for.
    pub fn request(&self) -> &Request<Body> {
        &self.request
    }

    /// The same, for whoever passes it on.
    pub fn request_mut(&mut self) -> &mut Request<Body> {
        &mut self.request
    }

    /// Runs the handler and sends its response, to the last byte.
    ///
    /// The handler answers an upgrade with a 101 that holds an [`Outside`]. When the caller leaves, the handler's
    /// future or its response's body is dropped at once.
    pub async fn answer<F>(self, handler: impl FnOnce(Request<Body>) -> F)
    where
        F: Future<Output = Response<Body>>,
    {
        let Self { request, mut respond, raw, stalls } = self;
        let response = tokio::select! {
            response = handler(request) => response,
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return answer_upgrade(response, respond, raw).await;
        }

        send(response, respond, stalls).await;
    }

    /// Passes the request on into another connection, and its answer back.
    ///
    /// A request that was not answered is reset, so that the sender knows how far it got: refused unseen, or not. When
    /// the sender leaves, so do we.
    pub async fn relay(self, into: &Tunnel) -> Result<(), CallError> {
        let Self { request, mut respond, raw, stalls } = self;
        let answer = tokio::select! {
            answer = into.call(request) => answer,
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return Ok(()),
        };
        let mut response = match answer {
            Ok(response) => response,
            Err(error) => {
                respond.send_reset(match error.delivery {
                    Delivery::NotProcessed => Reason::REFUSED_STREAM,
                    Delivery::Unknown => Reason::INTERNAL_ERROR,
                });
                return Err(error);
            }
        };

        let Some(inner) = upgrade::take(&mut response) else {
            send(response, respond, stalls).await;
            return Ok(());
        };
        let raw = raw.expect("nothing else than an upgrade is answered with one");
        if let Ok(stream) = respond.send_response(upgrade::accept(response.into_parts().0.headers), false)
            && let Err(error) = upgrade::join(Upgraded::new(stream, raw), inner).await
        {
            tracing::debug!(%error, "an upgraded connection was aborted");
        }
        Ok(())
    }

    /// Refuses the request: its sender knows that nobody has looked at it.
    pub fn refuse(mut self) {
        self.respond.send_reset(Reason::REFUSED_STREAM);
    }
}

/// Sends a response to the last byte of its body.
async fn send(response: Response<Body>, mut respond: SendResponse<Bytes>, stalls: Stalls) {
    let (head, body) = response.into_parts();
    let bodyless = body.is_end_stream();
    let mut answer = Response::from_parts(head, ());
    *answer.version_mut() = Version::HTTP_2;
    for name in [&CONNECTION, &UPGRADE, &http::header::TRANSFER_ENCODING] {
        answer.headers_mut().remove(name);
    }
    settings::unindexed(answer.headers_mut());
    let stream = match respond.send_response(answer, bodyless) {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "a response could not be sent"),
    };
    if bodyless {
        return;
    }
    let mut pump = Pump::new(body, stream, stalls);
    if let Sent::Broken(error) = poll_fn(|cx| pump.poll(cx)).await {
        tracing::debug!(%error, "a response was aborted because its source was");
    }
}

async fn answer_upgrade(
    mut response: Response<Body>,
    mut respond: SendResponse<Bytes>,
    raw: Option<RecvStream>,
) {
    let Some(raw) = raw else {
        tracing::warn!("the upstream switched protocols although nobody asked it to");
        return respond.send_reset(Reason::INTERNAL_ERROR);
    };
    let Some(outside) = Outside::take(&mut response) else {
        tracing::warn!("a handler answered 101 without a connection");
        return respond.send_reset(Reason::INTERNAL_ERROR);
    };

    let answer = upgrade::accept(response.into_parts().0.headers);
    let Ok(stream) = respond.send_response(answer, false) else {
        return;
    };
    if let Err(error) = upgrade::splice(Upgraded::new(stream, raw), outside).await {
        tracing::debug!(%error, "an upgraded connection was aborted");
    }
}
