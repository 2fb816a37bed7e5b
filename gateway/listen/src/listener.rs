//! Listeners: the accept loop, connection limits, and the handshakes before a server gets a connection.

mod handshake;
pub mod proxy_header;

use std::{
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use cores::{Cores, TaskGroup, poll_on_wake};
use process::LogLimiter;
use socket2::{SockRef, TcpKeepalive};
use strangers::ConnectionLimit;
use tokio::{net::TcpListener, time::sleep};

use self::handshake::{Handshake, HandshakeError};
use crate::{
    addresses::{AddressRules, canonical},
    io::Io,
    metrics::{Limit, ListenerMetrics},
    tls::Acceptor,
};

/// The time between two log lines of one kind. Clients without a credential can cause any number of errors.
pub const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The silence after which the system probes the other end of a connection, and the time between two probes. Without probes, the
/// connections of machines that are gone stay open for hours, and devices on the way forget idle ones.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The pause after an error of `accept`, mostly because of too many open files: connections may close in the meantime.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// `EMFILE` and `ENFILE`: the process, or the system, has reached its limit of open files.
const OUT_OF_FILES: [Option<i32>; 2] = [Some(24), Some(23)];

/// A bound address, ready to accept.
pub struct Listener {
    /// The name in logs: `agent`, `public`, `observability`.
    pub name: &'static str,
    /// Polled by the runtime that serves it.
    socket: std::net::TcpListener,
    limit: ConnectionLimit,
    handshake: Handshake,
}

/// The error of an address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {name}: {source}")]
pub struct BindError {
    name: &'static str,
    address: SocketAddr,
    source: io::Error,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Listener {
    /// Binds an address.
    ///
    /// A connection beyond `max_connections` replaces one of a [`Stranger`](strangers::Stranger), or else waits until another
    /// one ends. A connection is closed if its PROXY header and TLS handshake, or its first byte, take longer than
    /// `handshake_timeout`.
    pub async fn bind(
        name: &'static str,
        address: SocketAddr,
        addresses: AddressRules,
        tls: Option<Acceptor>,
        max_connections: usize,
        handshake_timeout: Duration,
    ) -> Result<Self, BindError> {
        let bind = async {
            let socket = process::listen(address)?;
            // Accepted connections inherit these options.
            let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
            SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
            socket.into_std()
        };
        let socket = bind.await.map_err(|source| BindError { name, address, source })?;
        let limit = ConnectionLimit::new(max_connections);
        let handshake = Handshake { tls, addresses, timeout: handshake_timeout };
        Ok(Self { name, socket, limit, handshake })
    }

    /// Returns the bound address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("it is bound")
    }

    /// Accepts connections until the group `connections` drains. Each connection is a task of that group on one of the
    /// `cores`. `handle` gets it with the address of its client. The error of a connection is logged and does not affect others.
    pub async fn serve<F>(
        self,
        connections: TaskGroup,
        cores: Cores,
        metrics: ListenerMetrics,
        handle: impl Fn(Io, SocketAddr) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { name, socket, limit, handshake } = self;
        // Shared: a clone has a reference to each of some twenty metrics.
        let metrics = Arc::new(metrics);
        let socket = TcpListener::from_std(socket).expect("the system has resources for a listener");
        let handshake = Arc::new(handshake);
        metrics.create_refused_connections(name);
        // Both tunnels and callers are spread evenly over the cores: the callers of a core without a tunnel would all use another
        // core.
        let cores = cores.with_own_counts();
        let log_limit = Arc::new(LogLimiter::new(LOG_PERIOD));
        loop {
            let accepting = async {
                let (connection, peer) = socket.accept().await?;
                let peer = canonical(peer);
                let acquired = limit.acquire(peer.ip(), |replaces| {
                    metrics.count_limit(if replaces { Limit::Strangers } else { Limit::Connections });
                    if let Some(suppressed) = log_limit.admit("full", Instant::now()) {
                        tracing::warn!(
                            listener = name,
                            suppressed,
                            "connection limit reached, new connections replace those without a credential, or wait"
                        );
                    }
                });
                // The task that serves it polls it on another runtime.
                Ok::<_, io::Error>((connection.into_std()?, peer, acquired.await))
            };
            let Some(accepted) = connections.draining.run_until_cancelled(accepting).await else {
                return;
            };
            let (connection, peer, (permit, stranger)) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if OUT_OF_FILES.contains(&error.raw_os_error()) {
                        metrics.count_limit(Limit::OpenFiles);
                    }
                    if let Some(suppressed) = log_limit.admit("accept", Instant::now()) {
                        tracing::warn!(listener = name, %error, suppressed, "accepting a connection failed");
                    }
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (handshake, handle, metrics) = (Arc::clone(&handshake), handle.clone(), Arc::clone(&metrics));
            let log_limit = Arc::clone(&log_limit);
            connections.spawn_on(cores.reserve(), async move {
                let replaced = stranger.replaced();
                let serving = async move {
                    match handshake.run(connection, peer, permit, stranger).await {
                        Ok((io, client)) => handle(io, client).await,
                        Err(error) => report(name, &error, peer, &metrics, &log_limit),
                    }
                };
                tokio::select! {
                    biased;
                    () = serving => {}
                    () = poll_on_wake(replaced.cancelled()) => {}
                }
            });
        }
    }
}

/// Counts and logs a connection that ended before its server got it.
fn report(
    listener: &'static str,
    error: &HandshakeError,
    peer: SocketAddr,
    metrics: &ListenerMetrics,
    log_limit: &LogLimiter<&'static str>,
) {
    if let Some(refusal) = error.refusal() {
        metrics.count_refused_connection(listener, refusal);
        let reason: &str = refusal.into();
        if let Some(suppressed) = log_limit.admit(reason, Instant::now()) {
            tracing::warn!(listener, %peer, reason, suppressed, %error, "connection refused");
        }
    } else if let HandshakeError::Tls(error) = error {
        if let Some(suppressed) = log_limit.admit("handshake", Instant::now()) {
            tracing::info!(listener, %peer, %error, suppressed, "handshake failed");
        }
    } else {
        tracing::debug!(listener, %peer, %error, "connection closed during its handshake");
    }
    if let HandshakeError::Timeout | HandshakeError::ProxyHeaderTimeout = error {
        metrics.count_limit(Limit::Handshake);
    }
}

#[cfg(test)]
mod tests;
