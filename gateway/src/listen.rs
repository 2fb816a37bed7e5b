//! Listeners: the accept loop, connection limits, and the TLS handshake.

use std::{
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use cores::Cores;
use process::LogLimiter;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_rustls::TlsStream;
use tunnel::ReadAhead;

use crate::{
    io::Io,
    metrics::{Limit, Metrics},
    tasks::TaskGroup,
    tls::Acceptor,
};

/// The time between two log lines of one kind. Clients without a credential can cause any number of errors.
pub(crate) const LOG_PERIOD: Duration = Duration::from_secs(10);

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
    tls: Option<Acceptor>,
    /// One permit for each connection that may be open.
    permits: Arc<Semaphore>,
    handshake_timeout: Duration,
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
    /// Connections beyond `max_connections` wait in the backlog of the system until others end. A connection is closed if its
    /// TLS handshake, or its first byte, takes longer than `handshake_timeout`.
    pub async fn bind(
        name: &'static str,
        address: SocketAddr,
        tls: Option<Acceptor>,
        max_connections: usize,
        handshake_timeout: Duration,
    ) -> Result<Self, BindError> {
        let socket = TcpListener::bind(address).await.and_then(TcpListener::into_std);
        let socket = socket.map_err(|source| BindError { name, address, source })?;
        let permits = Arc::new(Semaphore::new(max_connections));
        Ok(Self { name, socket, tls, permits, handshake_timeout })
    }

    /// Returns the bound address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("it is bound")
    }

    /// Accepts connections until the group `connections` drains. Each connection is a task of that group on one of the
    /// `cores`. The error of a connection is logged and does not affect others.
    pub async fn serve<F>(
        self,
        connections: TaskGroup,
        cores: Cores,
        metrics: Metrics,
        handle: impl Fn(Io, SocketAddr) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { name, socket, tls, permits, handshake_timeout } = self;
        let socket = TcpListener::from_std(socket).expect("the system has resources for a listener");
        // Both tunnels and callers are spread evenly over the cores: the callers of a core without a tunnel would all use another
        // core.
        let cores = cores.with_own_counts();
        let log_limit = Arc::new(LogLimiter::new(LOG_PERIOD));
        loop {
            let accepting = async {
                let permit = match Arc::clone(&permits).try_acquire_owned() {
                    Ok(permit) => permit,
                    Err(_) => {
                        metrics.count_limit(Limit::Connections);
                        if let Some(suppressed) = log_limit.admit("full", Instant::now()) {
                            tracing::warn!(
                                listener = name,
                                suppressed,
                                "connection limit reached, new connections wait"
                            );
                        }
                        Arc::clone(&permits).acquire_owned().await.expect("never closed")
                    }
                };
                let (connection, peer) = socket.accept().await?;
                // The task that serves it polls it on another runtime.
                Ok::<_, io::Error>((connection.into_std()?, peer, permit))
            };
            let Some(accepted) = connections.draining.run_until_cancelled(accepting).await else {
                return;
            };
            let (connection, peer, permit) = match accepted {
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
            let (tls, handle, metrics) = (tls.clone(), handle.clone(), metrics.clone());
            let log_limit = Arc::clone(&log_limit);
            connections.spawn_on(cores.reserve(), async move {
                match timeout(handshake_timeout, establish(connection, tls, permit)).await {
                    Ok(Ok(io)) => handle(io, peer).await,
                    Ok(Err(error)) => {
                        if let Some(suppressed) = log_limit.admit("handshake", Instant::now()) {
                            tracing::info!(listener = name, %peer, %error, suppressed, "handshake failed");
                        }
                    }
                    Err(_) => {
                        metrics.count_limit(Limit::Handshake);
                        tracing::debug!(listener = name, %peer, "handshake timed out");
                    }
                }
            });
        }
    }
}

async fn establish(
    connection: std::net::TcpStream,
    tls: Option<Acceptor>,
    permit: OwnedSemaphorePermit,
) -> io::Result<Io> {
    let connection = TcpStream::from_std(connection)?;
    connection.set_nodelay(true)?;
    let mut first = [0];
    let read = connection.peek(&mut first).await?;
    // The type of a TLS handshake record (RFC 8446 section 5.1), which is no letter of an HTTP method.
    let is_tls = read == 1 && first[0] == 22;
    match tls {
        None if is_tls => Err(io::Error::other("the peer uses TLS, but this listener does not")),
        None => Ok(Io::plain(connection, permit)),
        Some(_) if read == 1 && !is_tls => Err(respond_in_plain(connection).await),
        Some(tls) => Ok(Io::tls(TlsStream::Server(tls.accept(ReadAhead::new(connection)).await?), permit)),
    }
}

/// Sends a response that a browser or curl shows for `http` in place of `https`.
async fn respond_in_plain(mut connection: TcpStream) -> io::Error {
    let body = "this port speaks TLS: use https:// or wss://\n";
    let response = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = connection.write_all(response.as_bytes()).await;
    let _ = connection.shutdown().await;
    io::Error::other("the peer does not use TLS, but this listener does")
}
