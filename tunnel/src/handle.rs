//! The handle of kas to one tunnel.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use http::{Request, Response};
use tokio_util::sync::CancellationToken;

use crate::{Body, CallError, CallErrorKind, keepalive::KeepaliveState, request_sender::RequestSender};

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

    /// Closes the tunnel, and aborts the requests in flight.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Returns the round-trip time that the keepalive measured last.
    pub fn round_trip(&self) -> Option<Duration> {
        self.keepalive_state.round_trip()
    }
}

impl fmt::Debug for RequestHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestHandler")
    }
}
