//! agentk's end of a tunnel: the HTTP/2 server.

use std::{future::poll_fn, sync::Arc, time::Duration};

use bytes::Bytes;
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
    time::{Instant, sleep, timeout},
};

use crate::{
    Body, Ended, Keepalive, Settings, Stalls,
    drain::{self, DrainHandle, DrainSignal},
    keepalive::Liveness,
    send_body::{SendBody, Sent},
    settings,
    upgrade::{self, Outside, Upgraded},
    websocket::WebSocket,
};

/// How long kas may take for the preface of HTTP/2, which it sends right after its 101.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of a whole body that h2 queues without a wait for flow control.
const SMALL_BODY: usize = 16 << 10;

/// The connection over which kas sends requests. Nothing moves unless [`Session::run`] is polled.
#[must_use = "a tunnel serves nothing unless its session runs"]
pub struct Session<S> {
    handshake: Handshake<S, Bytes>,
    keepalive: Keepalive,
    liveness: Arc<Liveness>,
    drain: DrainSignal,
    stalls: Stalls,
}

/// A request and the means to respond to it.
pub struct IncomingRequest {
    pub(crate) request: Request<Body>,
    pub(crate) respond: SendResponse<Bytes>,
    /// The caller's half of the raw stream, if the request is an extended CONNECT.
    pub(crate) raw: Option<RecvStream>,
    pub(crate) stalls: Stalls,
}

/// Starts HTTP/2 on a WebSocket that kas accepted.
pub fn accept<T>(socket: WebSocket<T>, settings: &Settings) -> (Session<WebSocket<T>>, DrainHandle)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let liveness = socket.liveness();
    start(socket, liveness, settings)
}

/// Starts HTTP/2 on a byte stream that counts what it receives in `liveness`.
pub(crate) fn start<S>(stream: S, liveness: Arc<Liveness>, settings: &Settings) -> (Session<S>, DrainHandle)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (handle, drain) = drain::channel();
    let session = Session {
        handshake: settings.server().handshake(stream),
        keepalive: settings.keepalive,
        liveness,
        drain,
        stalls: settings.stalls.clone(),
    };
    (session, handle)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Passes every request to `on_request`, which should spawn [`IncomingRequest::answer`], until the tunnel ends.
    ///
    /// Dropping the future closes the tunnel.
    pub async fn run(self, mut on_request: impl FnMut(IncomingRequest)) -> Ended {
        let Self { handshake, keepalive, liveness, drain, stalls } = self;
        let mut connection: Connection<S, Bytes> = match timeout(PREFACE_TIMEOUT, handshake).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return error.into(),
            Err(_) => return Ended::Silent,
        };
        let pings = connection.ping_pong().expect("nothing else takes it");
        let silence = keepalive.watch(pings, liveness);
        let drain_started = drain.started();
        let mut draining = false;
        let deadline = sleep(Duration::MAX);
        tokio::pin!(silence, drain_started, deadline);
        loop {
            tokio::select! {
                biased;
                accepted = connection.accept() => match accepted {
                    Some(Ok((request, respond))) => {
                        on_request(IncomingRequest::new(request, respond, stalls.clone()));
                    }
                    // kas may close as soon as it has the last response, before it reads our last frame.
                    Some(Err(_)) if draining && !connection.has_streams() => return Ended::Gracefully,
                    Some(Err(error)) => return error.into(),
                    None => return Ended::Gracefully,
                },
                () = &mut silence => return Ended::Silent,
                // h2 sends a GOAWAY that excludes no stream, and the real one a round trip later (RFC 9113 section 6.8):
                // a request that crosses it is still served.
                grace = &mut drain_started, if !draining => {
                    draining = true;
                    connection.graceful_shutdown();
                    deadline.as_mut().reset(Instant::now() + grace);
                }
                () = &mut deadline, if draining => return Ended::Cut,
            }
        }
    }
}

impl IncomingRequest {
    fn new(request: Request<RecvStream>, respond: SendResponse<Bytes>, stalls: Stalls) -> Self {
        let (mut head, received) = request.into_parts();
        head.version = Version::HTTP_11;
        // HTTP/2 requires a scheme and an authority; the handler knows the real ones.
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

        let request = Request::from_parts(head, Body::from_stream(received));
        Self { request, respond, raw: None, stalls }
    }

    /// Returns the request.
    pub fn request(&self) -> &Request<Body> {
        &self.request
    }

    /// Returns the request, to be changed before it is passed on.
    pub fn request_mut(&mut self) -> &mut Request<Body> {
        &mut self.request
    }

    /// Runs the handler and sends its response, to the last byte.
    ///
    /// The handler answers an upgrade with a 101 that holds an [`Outside`]. When kas resets the stream, the handler's
    /// future or the body of its response is dropped. A stream that was reset before this is polled for the first time
    /// never reaches the handler (CVE-2023-44487).
    pub async fn answer<F>(self, handler: impl FnOnce(Request<Body>) -> F)
    where
        F: Future<Output = Response<Body>>,
    {
        let Self { request, mut respond, raw, stalls } = self;
        let response = tokio::select! {
            biased;
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
            response = async { handler(request).await } => response,
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return send_upgrade(response, respond, raw).await;
        }

        send_response(response, respond, stalls).await;
    }

    /// Refuses the request: kas learns that nothing has processed it.
    pub fn refuse(mut self) {
        self.respond.send_reset(Reason::REFUSED_STREAM);
    }
}

/// Sends a response to the last byte of its body.
pub(crate) async fn send_response(
    response: Response<Body>,
    mut respond: SendResponse<Bytes>,
    stalls: Stalls,
) {
    let (head, body) = response.into_parts();
    let mut head = Response::from_parts(head, ());
    *head.version_mut() = Version::HTTP_2;
    for name in [&CONNECTION, &UPGRADE, &TRANSFER_ENCODING] {
        head.headers_mut().remove(name);
    }
    settings::mark_unindexed(head.headers_mut());
    let full = body.into_full();
    let bodyless = full.as_ref().is_ok_and(Bytes::is_empty);
    let mut stream = match respond.send_response(head, bodyless) {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "a response could not be sent"),
    };
    let body = match full {
        Ok(_) if bodyless => return,
        // It leaves with the head, in one write.
        Ok(bytes) if bytes.len() <= SMALL_BODY => {
            // Fails only if the stream has ended.
            let _ = stream.send_data(bytes, true);
            return;
        }
        Ok(bytes) => bytes.into(),
        Err(body) => body,
    };
    let mut sending = SendBody::new(body, stream, stalls);
    if let Sent::Failed(error) = poll_fn(|cx| sending.poll(cx)).await {
        tracing::debug!(%error, "a response was aborted because its source was");
    }
}

async fn send_upgrade(
    mut response: Response<Body>,
    mut respond: SendResponse<Bytes>,
    raw: Option<RecvStream>,
) {
    let Some(raw) = raw else {
        tracing::warn!("the cluster switched protocols without a request to do so");
        return respond.send_reset(Reason::INTERNAL_ERROR);
    };
    let Some(outside) = Outside::take(&mut response) else {
        tracing::warn!("a handler answered 101 without a connection");
        return respond.send_reset(Reason::INTERNAL_ERROR);
    };

    let head = upgrade::accept(response.into_parts().0.headers);
    let Ok(stream) = respond.send_response(head, false) else {
        return;
    };
    if let Err(error) = upgrade::splice(Upgraded::new(stream, raw), outside).await {
        tracing::debug!(%error, "an upgraded connection was aborted");
    }
}
