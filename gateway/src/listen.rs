//! The accept loop, the same for every listener.

use std::{
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use cores::Cores;
use telemetry::log_limit::LogLimit;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, TlsStream};
use tunnel::ReadAhead;

use crate::{
    io::Io,
    metrics::{Limit, Metrics},
    tasks::TaskGroup,
};

/// How often one kind of trouble is logged: strangers can make any amount of it.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// After an error of `accept` that is not the connection's own, mostly too many open files: others may close theirs.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound address, ready to accept.
pub struct Listener {
    /// For logs: `agent`, `public`, `observability`.
    pub name: &'static str,
    socket: TcpListener,
    tls: Option<TlsAcceptor>,
    /// One for each connection that may be open.
    places: Arc<Semaphore>,
    handshake_timeout: Duration,
}

/// An address that cannot be bound.
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
    /// Binds an address. Connections beyond `max_connections` wait in the system's queue until others end. One that has
    /// not done its TLS handshake, or said its first byte, within `handshake_timeout` is closed.
    pub async fn bind(
        name: &'static str,
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
        max_connections: usize,
        handshake_timeout: Duration,
    ) -> Result<Self, BindError> {
        let socket =
            TcpListener::bind(address).await.map_err(|source| BindError { name, address, source })?;
        let places = Arc::new(Semaphore::new(max_connections));
        Ok(Self { name, socket, tls, places, handshake_timeout })
    }

    /// The address, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("it is bound")
    }

    /// Accepts until the group of its `connections` drains. Each connection is a task of that group on one of the `cores`.
    /// Errors of one connection are survived and logged.
    pub async fn serve<F>(
        self,
        connections: TaskGroup,
        cores: Cores,
        metrics: Metrics,
        handle: impl Fn(Io, SocketAddr) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { name, socket, tls, places, handshake_timeout } = self;
        // Tunnels are spread evenly, and callers are: a core without a tunnel would send all its callers to another one.
        let cores = cores.apart();
        let lines = Arc::new(LogLimit::new(LOG_PERIOD));
        loop {
            let accepting = async {
                let place = match Arc::clone(&places).try_acquire_owned() {
                    Ok(place) => place,
                    Err(_) => {
                        metrics.limit(Limit::Connections);
                        if let Some(suppressed) = lines.admit("full", Instant::now()) {
                            tracing::warn!(
                                listener = name,
                                suppressed,
                                "every connection that is allowed is open; new ones wait"
                            );
                        }
                        Arc::clone(&places).acquire_owned().await.expect("never closed")
                    }
                };
                let (connection, peer) = socket.accept().await?;
                // Whoever serves it waits for it elsewhere.
                Ok::<_, io::Error>((connection.into_std()?, peer, place))
            };
            let Some(accepted) = connections.draining.run_until_cancelled(accepting).await else {
                return;
            };
            let (connection, peer, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(suppressed) = lines.admit("accept", Instant::now()) {
                        tracing::warn!(listener = name, %error, suppressed, "a connection could not be accepted");
                    }
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (tls, handle, metrics) = (tls.clone(), handle.clone(), metrics.clone());
            let lines = Arc::clone(&lines);
            connections.spawn_on(cores.seat(), async move {
                match timeout(handshake_timeout, establish(connection, tls, place)).await {
                    Ok(Ok(io)) => handle(io, peer).await,
                    Ok(Err(error)) => {
                        if let Some(suppressed) = lines.admit("handshake", Instant::now()) {
                            tracing::info!(listener = name, %peer, %error, suppressed, "a connection was not established");
                        }
                    }
                    Err(_) => {
                        metrics.limit(Limit::Handshake);
                        tracing::debug!(listener = name, %peer, "a connection said nothing");
                    }
                }
            });
        }
    }
}

async fn establish(
    connection: std::net::TcpStream,
    tls: Option<TlsAcceptor>,
    place: OwnedSemaphorePermit,
) -> io::Result<Io> {
    let connection = TcpStream::from_std(connection)?;
    connection.set_nodelay(true)?;
    let mut first = [0];
    let read = connection.peek(&mut first).await?;
    // A TLS record of type handshake (RFC 8446 section 5.1), against the first letter of an HTTP method.
    let speaks_tls = read == 1 && first[0] == 22;
    match tls {
        None if speaks_tls => Err(io::Error::other("the other end speaks TLS, and this listener does not")),
        None => Ok(Io::plain(connection, place)),
        Some(_) if read == 1 && !speaks_tls => Err(answer_in_plain(connection).await),
        Some(tls) => Ok(Io::tls(TlsStream::Server(tls.accept(ReadAhead::new(connection)).await?), place)),
    }
}

/// What a browser or curl shows to somebody who forgot the `s` in `https`.
async fn answer_in_plain(mut connection: TcpStream) -> io::Error {
    let body = "this port speaks TLS: use https:// or wss://\n";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = connection.write_all(answer.as_bytes()).await;
    let _ = connection.shutdown().await;
    io::Error::other("the other end does not speak TLS, and this listener does")
}
