//! Accepts connections. All listeners of agentk have a limit, at which a new connection replaces one of a client without a credential.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use process::LogLimiter;
use prometheus_client::metrics::counter::Counter;
use strangers::{ConnectionLimit, ConnectionPermit, Stranger};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

/// The pause after a failed accept, whose most likely cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time between two log lines of one kind. Clients without a credential can cause any number of them.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Accepts the connections of one address.
#[derive(Debug)]
pub struct LimitedListener {
    /// The name in logs.
    name: &'static str,
    socket: TcpListener,
    limit: ConnectionLimit,
    /// Counts the connections that found no room at once.
    full: Counter,
    log_limit: LogLimiter<&'static str>,
}

/// A connection, which counts in the limit of its listener until its permit is dropped.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) tcp: TcpStream,
    pub(crate) peer: SocketAddr,
    /// The client, until it is admitted.
    pub(crate) stranger: Arc<Stranger>,
    pub(crate) permit: ConnectionPermit,
}

impl LimitedListener {
    /// Returns a listener with at most so many connections. `full` counts those that find no room at once.
    pub fn new(name: &'static str, socket: TcpListener, max_connections: usize, full: Counter) -> Self {
        let log_limit = LogLimiter::new(LOG_PERIOD);
        Self { name, socket, limit: ConnectionLimit::new(max_connections), full, log_limit }
    }

    /// Waits for the next connection, and for room for it. Errors are logged. If it is cancelled, it may drop a connection.
    pub(crate) async fn accept(&self) -> Accepted {
        loop {
            match self.socket.accept().await {
                Ok((tcp, peer)) => {
                    // A socket of both families shows IPv4 as IPv6.
                    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                    let (permit, stranger) = self.limit.acquire(peer.ip(), |_| self.on_full()).await;
                    return Accepted { tcp, peer, stranger: Arc::new(stranger), permit };
                }
                Err(error) => {
                    if let Some(suppressed) = self.log_limit.admit("accept", Instant::now()) {
                        tracing::warn!(listener = self.name, %error, suppressed, "a connection was not accepted");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves connections until `shutdown`. Each is a task, which ends when another connection replaces it. Returns those that are open
    /// at the end.
    pub async fn serve<F>(
        self,
        shutdown: &CancellationToken,
        serve: impl Fn(TcpStream, SocketAddr, Arc<Stranger>) -> F,
    ) -> JoinSet<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Some(accepted) = shutdown.run_until_cancelled(self.accept()).await else {
                return connections;
            };
            let Accepted { tcp, peer, stranger, permit } = accepted;
            let (replaced, serving) = (stranger.replaced(), serve(tcp, peer, stranger));
            connections.spawn(async move {
                replaced.run_until_cancelled(serving).await;
                drop(permit);
            });
        }
    }

    fn on_full(&self) {
        self.full.inc();
        if let Some(suppressed) = self.log_limit.admit("full", Instant::now()) {
            tracing::warn!(
                listener = self.name,
                suppressed,
                "connection limit reached, new connections replace those without a credential, or wait"
            );
        }
    }
}

/// Parses an address. `:8080` is `[::]:8080`, which accepts IPv4, too.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let whole = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    let whole = whole.replacen("localhost:", "127.0.0.1:", 1);
    whole.parse().map_err(|_| "write it like :8080, 127.0.0.1:8080 or [::1]:8080".to_owned())
}
