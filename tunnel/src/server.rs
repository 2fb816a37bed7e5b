//! The end of a tunnel that serves requests: the HTTP/2 server of agentk, and that of kas for other replicas and GitLab's agentk.

use std::{future::poll_fn, mem, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use cores::poll_on_wake;
use h2::{
    Reason, RecvStream,
    server::{Connection, Handshake, SendResponse},
};
use http::{
    Method, Request, Response, StatusCode, Uri, Version,
    header::{CONNECTION, HeaderValue, TRANSFER_ENCODING, UPGRADE},
};
use proto::header;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::coop::has_budget_remaining,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Body, CloseReason, KeepaliveConfig, StallCounter, StreamMonitor, Tunnel, TunnelConfig,
    client::{CallFuture, RequestHandler, Requests},
    config,
    drain::{self, DrainHandle, DrainSignal},
    keepalive::KeepaliveState,
    monitor::{COMPACT_PERIOD, ReceiveStream, ReceivedStreams},
    overhead::OverheadCounter,
    send_body::{SendBody, SendOutcome},
    upgrade::{self, UpgradedConnection},
    websocket::WebSocket,
};

/// Time that the client has for the preface of HTTP/2, which kas sends right after its 101.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest whole body that is given to h2 at once, in bytes, so that it is written together with the head.
const SMALL_BODY: usize = 16 << 10;

/// Serves the requests that kas sends. The connection makes progress only while [`TunnelServer::run`] is polled.
#[must_use = "a tunnel makes no progress unless its server runs"]
pub struct TunnelServer<S> {
    /// Boxed: its memory is free after the handshake, and a future that moves the server stays small.
    handshake: Box<Handshake<S, Bytes>>,
    keepalive: KeepaliveConfig,
    keepalive_state: Arc<KeepaliveState>,
    overhead: OverheadCounter,
    drain: DrainSignal,
    closing: CancellationToken,
    stalls: StallCounter,
    /// Small frames of requests that are not read are joined.
    is_compacting: bool,
}

/// A request from the other end, to which one of its methods responds.
pub struct IncomingRequest {
    pub(crate) request: Request<Body>,
    pub(crate) respond: SendResponse<Bytes>,
    /// The receiving half of the raw stream, if the request is an extended CONNECT.
    pub(crate) raw: Option<ReceiveStream>,
    pub(crate) stalls: StallCounter,
}

/// Starts HTTP/2 on a WebSocket with kas, whichever end has opened it.
pub fn accept<T>(mut socket: WebSocket<T>, config: &TunnelConfig) -> (TunnelServer<WebSocket<T>>, DrainHandle)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    socket.expect_preface();
    let (keepalive_state, overhead) = (socket.keepalive_state(), socket.overhead());
    start(socket, keepalive_state, overhead, config)
}

/// Starts HTTP/2 with kas, on a byte stream that counts the received bytes in `keepalive_state`, and those without effect in `overhead`.
pub(crate) fn start<S>(
    stream: S,
    keepalive_state: Arc<KeepaliveState>,
    overhead: OverheadCounter,
    config: &TunnelConfig,
) -> (TunnelServer<S>, DrainHandle)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = config.server().handshake(stream);
    let (mut server, drain) = TunnelServer::new(handshake, keepalive_state, overhead, config);
    server.is_compacting = true;
    (server, drain)
}

impl<S> TunnelServer<S> {
    pub(crate) fn new(
        handshake: Handshake<S, Bytes>,
        keepalive_state: Arc<KeepaliveState>,
        overhead: OverheadCounter,
        config: &TunnelConfig,
    ) -> (Self, DrainHandle) {
        let (handle, drain) = drain::channel();
        let server = Self {
            handshake: Box::new(handshake),
            keepalive: config.keepalive,
            keepalive_state,
            overhead,
            drain,
            closing: CancellationToken::new(),
            stalls: config.stalls.clone(),
            is_compacting: false,
        };
        (server, handle)
    }

    /// Returns the counter of the bytes without effect that the other end has sent.
    pub fn overhead(&self) -> OverheadCounter {
        self.overhead.clone()
    }

    /// Returns a tunnel to the other end of this connection, if it speaks another protocol: `handler` carries the requests in the calls
    /// of the other end. The tunnel ends with the connection.
    pub fn tunnel(&self, handler: impl Fn(Request<Body>) -> CallFuture + Send + Sync + 'static) -> Tunnel {
        let requests = Requests::Handler(RequestHandler(Arc::new(handler)));
        Tunnel::new(requests, Arc::clone(&self.keepalive_state), self.closing.clone())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TunnelServer<S> {
    /// Reads from the connection and writes to it until the tunnel ends. `on_request` gets each request, and should spawn a
    /// task that runs [`IncomingRequest::respond`].
    ///
    /// Dropping the future closes the tunnel.
    pub async fn run(self, mut on_request: impl FnMut(IncomingRequest)) -> CloseReason {
        let Self { handshake, keepalive, keepalive_state, overhead, drain, closing, stalls, is_compacting } =
            self;
        let from_error = |error| CloseReason::from_error(error, keepalive_state.silence(), &overhead);
        // The tunnels of this connection accept no more requests once it has ended.
        let _closing = closing.clone().drop_guard();
        let handshake = closing.run_until_cancelled(timeout(PREFACE_TIMEOUT, handshake));
        let mut connection: Connection<S, Bytes> = match handshake.await {
            Some(Ok(Ok(connection))) => connection,
            Some(Ok(Err(error))) => return from_error(error),
            Some(Err(_)) => return CloseReason::TimedOut,
            None => return CloseReason::LocallyClosed,
        };
        let pings = connection.ping_pong().expect("it is taken only once");
        let mut end = poll_on_wake(async {
            tokio::select! {
                () = keepalive.watch(pings, Arc::clone(&keepalive_state)) => CloseReason::TimedOut,
                () = closing.cancelled() => CloseReason::LocallyClosed,
            }
        });
        let mut drain_started = poll_on_wake(drain.started());
        let mut draining = false;
        let mut streams = ReceivedStreams::default();
        let mut compact_ticks = interval(COMPACT_PERIOD);
        compact_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let deadline = sleep(Duration::MAX);
        tokio::pin!(deadline);
        let (mut requests, mut is_last) = (0, false);
        loop {
            // h2 polls the whole connection for each request. It has done so for the last one, and has no other.
            let accept = poll_fn(|cx| {
                if mem::take(&mut is_last) {
                    return Poll::Pending;
                }
                connection.poll_accept(cx)
            });
            tokio::select! {
                biased;
                accepted = accept => match accepted {
                    Some(Ok((request, respond))) => {
                        requests += 1;
                        let incoming = IncomingRequest::new(request, respond, stalls.clone(), &overhead);
                        if is_compacting {
                            streams.add(incoming.monitor());
                        }
                        on_request(incoming);
                        // Without a budget, `select!` would not poll `accept` in this poll of the task, but in the next one, for which
                        // the connection may have woken it.
                        is_last = requests == keepalive_state.heads() && has_budget_remaining();
                    }
                    // kas may close as soon as it has the last response, before it reads the last frame of this end.
                    Some(Err(_)) if draining && !connection.has_streams() => return CloseReason::Graceful,
                    Some(Err(error)) => return from_error(error),
                    None => return CloseReason::Graceful,
                },
                _ = compact_ticks.tick(), if !streams.is_empty() => streams.compact(),
                ended = &mut end => return ended,
                // h2 sends a GOAWAY that excludes no stream, and the final one a round trip later (RFC 9113 section 6.8):
                // a request that kas sends in between is still served.
                grace = &mut drain_started, if !draining => {
                    draining = true;
                    connection.graceful_shutdown();
                    deadline.as_mut().reset(Instant::now() + grace);
                }
                () = &mut deadline, if draining => return CloseReason::LocallyClosed,
            }
        }
    }
}

impl IncomingRequest {
    fn new(
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        stalls: StallCounter,
        overhead: &OverheadCounter,
    ) -> Self {
        let (mut head, received) = request.into_parts();
        overhead.subtract_received_request(&head.uri, &head.headers);
        head.version = Version::HTTP_11;
        // The handler sets scheme and authority, which only HTTP/2 requires.
        head.uri = head.uri.path_and_query().cloned().map(Uri::from).unwrap_or_default();
        let protocol = head.extensions.remove::<h2::ext::Protocol>();
        if let Some(protocol) = protocol
            && head.method == Method::CONNECT
        {
            let method = head.headers.remove(header::UPGRADE_METHOD);
            head.method = method.and_then(|m| Method::from_bytes(m.as_bytes()).ok()).unwrap_or(Method::GET);
            let protocol = HeaderValue::from_str(protocol.as_str());
            head.headers.insert(UPGRADE, protocol.unwrap_or_else(|_| HeaderValue::from_static("")));
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            let request = Request::from_parts(head, Body::empty());
            let raw = Some(ReceiveStream::new(received, None, overhead));
            return Self { request, respond, raw, stalls };
        }

        let request = Request::from_parts(head, Body::from_stream(received, overhead));
        Self { request, respond, raw: None, stalls }
    }

    /// Returns a monitor of the body, or of the raw stream.
    fn monitor(&self) -> Option<StreamMonitor> {
        self.raw.as_ref().map(ReceiveStream::monitor).or_else(|| self.request.body().monitor())
    }

    /// Returns the request.
    pub fn request(&self) -> &Request<Body> {
        &self.request
    }

    /// Returns the request, which may be changed before it is forwarded.
    pub fn request_mut(&mut self) -> &mut Request<Body> {
        &mut self.request
    }

    /// Runs the handler and sends its response, to the last byte.
    ///
    /// The handler accepts an upgrade with a 101 whose extensions hold an [`UpgradedConnection`].
    ///
    /// When kas resets the stream, the future of the handler or the body of its response is dropped. The handler does not
    /// run if the stream was reset before the first poll (CVE-2023-44487).
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an async function has room for its arguments twice"
    )]
    pub fn respond<F>(mut self, handler: impl FnOnce(Request<Body>) -> F) -> impl Future<Output = ()>
    where
        F: Future<Output = Response<Body>>,
    {
        // A stream may wait for hours, and holds the memory of all variables that live until then. So the fields are used where they are,
        // and the response ends with its block.
        async move {
            if poll_fn(|cx| Poll::Ready(self.respond.poll_reset(cx).is_ready())).await {
                return;
            }
            let monitor = self.monitor();
            let sending = {
                let response = tokio::select! {
                    biased;
                    response = handler(self.request) => response,
                    _ = poll_fn(|cx| self.respond.poll_reset(cx)) => return,
                };
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    // Boxed: the future of an ordinary request stays small.
                    return Box::pin(send_upgrade(response, self.respond, self.raw)).await;
                }
                send_response(response, self.respond, self.stalls)
            };
            let reset =
                poll_fn(|cx| monitor.as_ref().map_or(Poll::Pending, |monitor| monitor.poll_reset(cx)));
            tokio::select! {
                biased;
                () = sending => {}
                // The response of a request that is still being read ends with it.
                () = reset => {}
            }
        }
    }

    /// Refuses the request with REFUSED_STREAM: it was not processed (RFC 9113 section 8.7).
    pub fn refuse(mut self) {
        self.respond.send_reset(Reason::REFUSED_STREAM);
    }
}

/// Sends the head of a response, and returns a future that sends its body to the last byte.
pub(crate) fn send_response(
    response: Response<Body>,
    respond: SendResponse<Bytes>,
    stalls: StallCounter,
) -> impl Future<Output = ()> {
    let mut body = send_head(response, respond, stalls);
    async move {
        if let Some(body) = &mut body
            && let SendOutcome::Failed(error) = poll_fn(|cx| body.poll(cx)).await
        {
            tracing::debug!(%error, "a response was aborted because its source failed");
        }
    }
}

/// Sends the head of a response, with its body if that is small. Returns the other bodies.
fn send_head(
    response: Response<Body>,
    mut respond: SendResponse<Bytes>,
    stalls: StallCounter,
) -> Option<SendBody> {
    let (head, body) = response.into_parts();
    let mut head = Response::from_parts(head, ());
    *head.version_mut() = Version::HTTP_2;
    for name in [&CONNECTION, &UPGRADE, &TRANSFER_ENCODING] {
        head.headers_mut().remove(name);
    }
    config::mark_unindexed(head.headers_mut(), &config::UNIQUE_IN_RESPONSES);
    let full = body.into_full();
    let bodyless = full.as_ref().is_ok_and(Bytes::is_empty);
    let mut stream = match respond.send_response(head, bodyless) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "a response could not be sent");
            return None;
        }
    };
    let body = match full {
        Ok(_) if bodyless => return None,
        // The body is written together with the head.
        Ok(bytes) if bytes.len() <= SMALL_BODY => {
            // Fails only if the stream has ended.
            let _ = stream.send_data(bytes, true);
            return None;
        }
        Ok(bytes) => bytes.into(),
        Err(body) => body,
    };
    Some(SendBody::new(body, stream, stalls))
}

async fn send_upgrade(
    mut response: Response<Body>,
    mut respond: SendResponse<Bytes>,
    raw: Option<ReceiveStream>,
) {
    let Some(raw) = raw else {
        tracing::warn!("the cluster switched protocols without a request to do so");
        return respond.send_reset(Reason::INTERNAL_ERROR);
    };
    let Some(outside) = UpgradedConnection::take(&mut response) else {
        tracing::warn!("a handler answered 101 without a connection");
        return respond.send_reset(Reason::INTERNAL_ERROR);
    };

    let head = upgrade::connect_response(response.into_parts().0.headers);
    let Ok(stream) = respond.send_response(head, false) else {
        return;
    };
    if let Err(error) = upgrade::splice_cluster(stream, raw, outside).await {
        tracing::debug!(%error, "an upgraded connection was aborted");
    }
}
