//! agentk's end of a tunnel: serve the requests that come in.

use std::{
    future::{pending, poll_fn},
    sync::Arc,
    time::Duration,
};

use http::{
    Method, Request, Response, StatusCode,
    header::{CONNECTION, HeaderValue, UPGRADE},
};
use http_body::Body as _;
use proto::header;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::sleep,
};

use crate::{
    Body, CallError, Delivery, Ended, Keepalive, Settings, Stalls, Tunnel,
    http2::{
        self, Arrived, Connection, Pings, Protocol, Reason, Receiving, Role, Sending, Shared, Transport,
    },
    keepalive::Liveness,
    pump::{Pump, Sent},
    upgrade::{self, Outside, Upgraded},
    websocket::WebSocket,
};

/// The connection over which kas sends requests. Nothing moves unless [`Session::run`] is polled.
#[must_use = "a tunnel serves nothing unless its session runs"]
pub struct Session<S> {
    connection: Connection<S>,
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
    respond: Sending,
    /// Set for an extended CONNECT: the caller's half of the raw stream.
    raw: Option<Receiving>,
    stalls: Stalls,
}

/// Starts HTTP/2 on a WebSocket that kas accepted.
pub fn accept<T>(socket: WebSocket<T>, settings: &Settings) -> (Session<WebSocket<T>>, Leave)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let liveness = socket.liveness();
    start(socket, liveness, settings)
}

/// Starts HTTP/2 on a stream of bytes whose `liveness` counts what is heard on it.
pub(crate) fn start<S>(stream: S, liveness: Arc<Liveness>, settings: &Settings) -> (Session<S>, Leave)
where
    S: Transport,
{
    let connection = Connection::new(stream, Role::Server, settings);
    let (sender, leave) = watch::channel(None);
    let stalls = settings.stalls.clone();
    (Session { connection, keepalive: settings.keepalive, liveness, leave, stalls }, Leave(sender))
}

impl Leave {
    /// Takes no new requests, finishes those in flight, and cuts what is left after `within`.
    pub fn within(&self, within: Duration) {
        self.0.send_replace(Some(within));
    }
}

impl<S: Transport> Session<S> {
    /// Hands every request to `on_request`, which should spawn [`Exchange::answer`], until the tunnel ends.
    ///
    /// Dropping the future cuts the tunnel.
    pub async fn run(self, mut on_request: impl FnMut(Exchange)) -> Ended {
        let Self { mut connection, keepalive, liveness, leave, stalls } = self;
        let shared = Arc::clone(connection.shared());
        let pings = Pings::of(&connection);
        let mut on_arrived = |arrived| on_request(Exchange::new(&shared, arrived, stalls.clone()));
        tokio::select! {
            biased;
            result = poll_fn(|cx| connection.poll(cx, &mut on_arrived)) => result.into(),
            () = keepalive.watch(pings, liveness) => Ended::Silent,
            () = cut_once_left(leave, &shared) => Ended::Cut,
        }
    }
}

/// Leaves when it is asked to, and completes when the time for that is over.
async fn cut_once_left(mut leave: watch::Receiver<Option<Duration>>, shared: &Shared) {
    let Ok(within) = leave.wait_for(Option::is_some).await.map(|within| within.unwrap_or_default()) else {
        return pending().await;
    };
    shared.leave();
    sleep(within).await;
}

impl Exchange {
    fn new(shared: &Arc<Shared>, arrived: Arrived, stalls: Stalls) -> Self {
        let Arrived { id, mut head, ended } = arrived;
        let (respond, receiving) = http2::arrived(shared, id, ended);
        let method = head.headers.remove(header::UPGRADE_METHOD);
        if let Some(Protocol(protocol)) = head.extensions.remove::<Protocol>() {
            head.method = method.and_then(|m| Method::from_bytes(m.as_bytes()).ok()).unwrap_or(Method::GET);
            head.headers.insert(UPGRADE, protocol);
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            let request = Request::from_parts(head, Body::empty());
            return Self { request, respond, raw: receiving, stalls };
        }

        let body = receiving.map_or_else(Body::empty, |receiving| Body::received(receiving, None));
        Self { request: Request::from_parts(head, body), respond, raw: None, stalls }
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
        let Self { request, respond, raw, stalls } = self;
        let response = tokio::select! {
            biased;
            response = handler(request) => response,
            _ = poll_fn(|cx| respond.poll_unwanted(cx)) => return,
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
        let Self { request, respond, raw, stalls } = self;
        let answer = tokio::select! {
            biased;
            answer = into.call(request) => answer,
            _ = poll_fn(|cx| respond.poll_unwanted(cx)) => return Ok(()),
        };
        let mut response = match answer {
            Ok(response) => response,
            Err(error) => {
                respond.abort(match error.delivery {
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
        if respond.answer(&upgrade::accept(response.into_parts().0), false).is_ok()
            && let Err(error) = upgrade::join(Upgraded::new(respond, raw), inner).await
        {
            tracing::debug!(%error, "an upgraded connection was aborted");
        }
        Ok(())
    }

    /// Refuses the request: its sender knows that nobody has looked at it.
    pub fn refuse(self) {
        self.respond.abort(Reason::REFUSED_STREAM);
    }
}

/// Sends a response to the last byte of its body.
async fn send(response: Response<Body>, respond: Sending, stalls: Stalls) {
    let (head, body) = response.into_parts();
    let bodyless = body.is_end_stream();
    if let Err(error) = respond.answer(&head, bodyless) {
        return tracing::debug!(%error, "a response could not be sent");
    }
    if bodyless {
        return;
    }
    let mut pump = Pump::new(body, respond, stalls);
    if let Sent::Broken(error) = poll_fn(|cx| pump.poll(cx)).await {
        tracing::debug!(%error, "a response was aborted because its source was");
    }
}

async fn answer_upgrade(mut response: Response<Body>, respond: Sending, raw: Option<Receiving>) {
    let Some(raw) = raw else {
        tracing::warn!("the upstream switched protocols although nobody asked it to");
        return respond.abort(Reason::INTERNAL_ERROR);
    };
    let Some(outside) = Outside::take(&mut response) else {
        tracing::warn!("a handler answered 101 without a connection");
        return respond.abort(Reason::INTERNAL_ERROR);
    };

    if respond.answer(&upgrade::accept(response.into_parts().0), false).is_err() {
        return;
    }
    if let Err(error) = upgrade::splice(Upgraded::new(respond, raw), outside).await {
        tracing::debug!(%error, "an upgraded connection was aborted");
    }
}
