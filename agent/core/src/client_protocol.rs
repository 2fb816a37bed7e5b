//! A protocol that takes the place of tunnels: agentk is the client on its connection to kas, and not the server.
//!
//! A session serves its tunnels itself. It gives a connection on which kas has chosen another protocol to the [`ClientProtocol`].

use std::{pin::Pin, sync::Arc, time::Duration};

use http::HeaderValue;
use proto::{TunnelId, control::DrainRequest};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    DialError,
    connect::{BoxIo, KasTarget},
    tunnel_context::TunnelContext,
};

/// Creates the protocol of an agent, whose state its connections share.
pub type NewProtocol = fn(Arc<TunnelContext>) -> Arc<dyn ClientProtocol>;

/// A future of a protocol.
pub type ProtocolFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Serves requests until the connection ends, and reports its end. The id names the connection in the log.
pub type ServeProtocol = Box<dyn FnOnce(TunnelId, DrainSignals) -> ProtocolFuture<'static, ()> + Send>;

/// A protocol that takes the place of tunnels, with the state that all its connections share.
pub trait ClientProtocol: Send + Sync {
    /// Begins the protocol on a connection whose handshake is complete. `authorization` is the credential of this agentk.
    ///
    /// # Errors
    ///
    /// kas does not answer, or refuses this agentk.
    fn open<'a>(
        self: Arc<Self>,
        io: BoxIo,
        authorization: HeaderValue,
        target: KasTarget<'a>,
    ) -> ProtocolFuture<'a, Result<ServeProtocol, DialError>>;
}

/// The signals between a connection and its slot.
pub struct DrainSignals {
    /// Starts the drain, with the time that requests in flight may take.
    pub drain: oneshot::Receiver<Duration>,
    /// Starts the drain of all connections.
    pub shutdown: CancellationToken,
    /// The time that requests in flight may take after the shutdown begins.
    pub grace: Duration,
    /// Receives a request for another connection when kas has sent GOAWAY.
    pub goaway: watch::Sender<Option<DrainRequest>>,
}
