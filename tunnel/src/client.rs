//! The end of a tunnel at kas: the handle, which sends requests, and the driver of its HTTP/2 connection.

use std::{fmt, io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use cores::poll_on_wake;
use h2::client::Connection;
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::{
    Body, CallError, CallErrorKind, CloseReason, KeepaliveConfig, TunnelConfig, keepalive::KeepaliveState,
    monitor::FinishedStreams, overhead::OverheadCounter, request_sender::RequestSender, websocket::WebSocket,
};

/// A handle to send requests to one agentk. Cheap to clone; all clones share the connection.
#[derive(Clone, Debug)]
pub struct Tunnel {
    requests: Requests,
    keepalive_state: Arc<KeepaliveState>,
    closing: CancellationToken,
}

/// The way of a request to agentk.
#[derive(Clone, Debug)]
pub(crate) enum Requests {
    /// agentk is an HTTP/2 server.
    Http2(RequestSender),
    /// agentk speaks another protocol.
    Handler(RequestHandler),
}

/// Carries a request in another protocol. Clones share the function.
#[derive(Clone)]
pub(crate) struct RequestHandler(pub(crate) Arc<dyn Fn(Request<Body>) -> CallFuture + Send + Sync>);

/// The result of [`Tunnel::call`] in another protocol.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, CallError>> + Send>>;

/// The connection of a [`Tunnel`]. It makes progress only while [`Driver::run`] is polled.
#[must_use = "a tunnel makes no progress unless its driver runs"]
pub struct Driver<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<S, Bytes>,
    keepalive: KeepaliveConfig,
    keepalive_state: Arc<KeepaliveState>,
    overhead: OverheadCounter,
    closing: CancellationToken,
}

/// Starts HTTP/2 on an accepted WebSocket. Returns the handle, and the driver, which must run.
///
/// It writes the preface of HTTP/2 and does not wait for the other end.
///
/// # Errors
///
/// If the preface cannot be written.
pub fn open<T>(
    socket: WebSocket<T>,
    config: &TunnelConfig,
) -> impl Future<Output = io::Result<(Tunnel, Driver<WebSocket<T>>)>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (keepalive_state, overhead) = (socket.keepalive_state(), socket.overhead());
    start(socket, keepalive_state, overhead, config)
}

/// Starts HTTP/2 on a byte stream that counts the received bytes in `keepalive_state`, and those without effect in `overhead`.
pub(crate) fn start<S>(
    stream: S,
    keepalive_state: Arc<KeepaliveState>,
    overhead: OverheadCounter,
    config: &TunnelConfig,
) -> impl Future<Output = io::Result<(Tunnel, Driver<S>)>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Outside of the future, which would have room for the stream twice.
    let handshake = config.client().handshake(stream);
    async move {
        let started = handshake.await;
        let (sender, connection) =
            started.map_err(|error| error.into_io().unwrap_or_else(|| io::ErrorKind::InvalidData.into()))?;
        let closing = CancellationToken::new();
        let (stalls, finished) = (config.stalls.clone(), FinishedStreams::default());
        let sender = RequestSender { sender, overhead: overhead.clone(), stalls, finished };
        let tunnel = Tunnel::new(Requests::Http2(sender), Arc::clone(&keepalive_state), closing.clone());
        Ok((tunnel, Driver { connection, keepalive: config.keepalive, keepalive_state, overhead, closing }))
    }
}

impl Tunnel {
    pub(crate) fn new(
        requests: Requests,
        keepalive_state: Arc<KeepaliveState>,
        closing: CancellationToken,
    ) -> Self {
        Self { requests, keepalive_state, closing }
    }

    /// Sends a request and waits for the head of its response.
    ///
    /// A request with an `Upgrade` header is sent as extended CONNECT (RFC 8441). If the cluster accepted the upgrade, the
    /// response has status 101 and [`upgrade::take`](crate::upgrade::take) returns the raw stream.
    ///
    /// Dropping the future, or the body of the response, resets the stream, which cancels the request at the other end.
    ///
    /// # Errors
    ///
    /// If there is no response. [`CallError::delivery`] is the basis of the decision about a retry.
    pub async fn call(&self, request: Request<Body>) -> Result<Response<Body>, CallError> {
        match &self.requests {
            Requests::Http2(sender) => sender.call(request).await,
            Requests::Handler(_) if self.closing.is_cancelled() => {
                let (head, body) = request.into_parts();
                Err(CallError::unsent(CallErrorKind::Closed, head, body))
            }
            Requests::Handler(RequestHandler(handle)) => handle(request).await,
        }
    }

    /// Waits for the first pong of agentk, if it is an HTTP/2 server. Its SETTINGS have arrived by then; before, an upgrade would fail
    /// for want of extended CONNECT.
    ///
    /// Never completes if the tunnel ends first.
    pub async fn ready(&self) {
        if let Requests::Http2(_) = self.requests {
            self.keepalive_state.first_pong().await;
        }
    }

    /// Returns true if agentk accepts no more requests: it drains the tunnel, or the tunnel has ended.
    pub fn is_closed(&self) -> bool {
        match &self.requests {
            Requests::Http2(sender) => sender.is_closed(),
            Requests::Handler(_) => self.closing.is_cancelled(),
        }
    }

    /// Completes when agentk begins to drain the tunnel. Never completes if the tunnel ends first, or if agentk is no HTTP/2 server.
    pub async fn goaway_received(&self) {
        self.keepalive_state.goaway_received().await;
    }

    /// Closes the tunnel, and aborts the requests in flight.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Returns the round-trip time that the keepalive measured last.
    pub fn round_trip(&self) -> Option<Duration> {
        self.keepalive_state.round_trip()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Reads from the connection and writes to it until the tunnel ends. Dropping the future closes the tunnel.
    #[expect(clippy::manual_async_fn, reason = "an async fn would have room for the connection twice")]
    pub fn run(mut self) -> impl Future<Output = CloseReason> {
        async move {
            let pings = self.connection.ping_pong().expect("it is taken only once");
            let end = poll_on_wake(async {
                tokio::select! {
                    () = self.keepalive.watch(pings, Arc::clone(&self.keepalive_state)) => CloseReason::TimedOut,
                    () = self.closing.cancelled() => CloseReason::LocallyClosed,
                }
            });
            tokio::select! {
                biased;
                result = &mut self.connection => match result {
                    Ok(()) => CloseReason::Graceful,
                    Err(error) => CloseReason::from_error(error, self.keepalive_state.silence(), &self.overhead),
                },
                ended = end => ended,
            }
        }
    }
}

impl fmt::Debug for RequestHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestHandler")
    }
}
