//! One connection of a caller, and its requests in flight.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::sleep,
};
use tower::Service as _;

use super::{Callers, ProxyRequest, protocol, stack};
use crate::{
    headers::Peer,
    io::{LingeringClose, StallGuard},
    metrics::Limit,
};

/// How long a connection that is asked to close may stay without a request.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The state that all requests of one connection share.
#[derive(Debug)]
struct ConnectionState {
    started: AtomicU64,
    ended: AtomicU64,
    /// Set once the connection has switched protocols.
    upgraded: Arc<AtomicBool>,
    _guard: ConnectionGuard,
}

/// Counts a connection until it and its last request have ended.
#[derive(Debug)]
struct ConnectionGuard(Gauge);

/// Counts a request as in flight on its connection until its response has ended.
#[derive(Debug)]
pub(super) struct RequestGuard(Arc<ConnectionState>);

impl Callers {
    /// Serves one connection until it ends.
    pub async fn serve<T>(self: &Arc<Self>, io: T, peer: SocketAddr)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (limits, metrics) = (&self.limits, &self.forwarder.metrics);
        let state = Arc::new(ConnectionState::new(&metrics.connections));
        let from = Peer::new(peer.ip());
        let stack = stack();
        let service = service_fn(|request| {
            let request = ProxyRequest::new(self, &from, RequestGuard::new(&state), request);
            stack.clone().call(request)
        });
        let io = StallGuard::new(io, limits.write_stall_timeout, metrics.write_stalls.clone());
        let io = LingeringClose::new(io, Arc::clone(&state.upgraded));
        let builder = protocol::builder(limits);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        tokio::pin!(connection);
        let mut closing = false;
        let served = loop {
            let idle_timeout = if closing { CLOSE_TIMEOUT } else { limits.idle_timeout };
            tokio::select! {
                biased;
                served = connection.as_mut() => break served,
                () = self.leaving.cancelled(), if !closing => {}
                () = state.idle(idle_timeout) => {
                    if closing {
                        break Ok(());
                    }
                    metrics.limit(Limit::Idle);
                }
            }
            closing = true;
            connection.as_mut().graceful_shutdown();
        };
        if let Err(error) = served {
            if let Some(limit) = Limit::met_by(&*error) {
                metrics.limit(limit);
            }
            tracing::debug!(%peer, error, "a caller's connection failed");
        }
    }
}

impl ConnectionState {
    fn new(connections: &Gauge) -> Self {
        connections.inc();
        Self {
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            upgraded: Arc::default(),
            _guard: ConnectionGuard(connections.clone()),
        }
    }

    /// Completes when no request was in flight for `limit`, and before half as long again. It samples the counts, so that
    /// no request has to wake a task or to set a timer.
    async fn idle(&self, limit: Duration) {
        let mut samples = 0;
        while samples < 2 {
            let started = self.started.load(Relaxed);
            let idle = started == self.ended.load(Relaxed);
            sleep(limit / 2).await;
            samples = if idle && started == self.started.load(Relaxed) { samples + 1 } else { 0 };
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl RequestGuard {
    fn new(state: &Arc<ConnectionState>) -> Self {
        state.started.fetch_add(1, Relaxed);
        Self(Arc::clone(state))
    }

    /// Marks the connection as one that has switched protocols.
    pub(super) fn set_upgraded(&self) {
        self.0.upgraded.store(true, Relaxed);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Relaxed);
    }
}
