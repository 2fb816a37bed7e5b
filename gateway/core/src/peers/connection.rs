//! Other replicas: their HTTP/2 connections, and which of them fail.
//!
//! The first request that needs a connection opens it, and later requests share it. Each core has its own connections, as it
//! has its own tunnels: a request that changes cores has to wake another thread twice.

use std::{fmt, io, sync::Arc, time::Duration};

use cores::PerCore;
use futures_util::future::BoxFuture;
use kas_listen::tls::Connector;
use parking_lot::Mutex;
use router::RequestClass;
use rustls::pki_types::ServerName;
use store::Replica;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
    time::{Instant, timeout},
};
use tokio_rustls::client::TlsStream;
use tunnel::{CloseReason, Tunnel, TunnelConfig, direct};

use super::{PeerError, PeerUrl};
use crate::metrics::PeerMetrics;

/// The time after a response in which requests are sent on a connection without a probe.
const ANSWER_TTL: Duration = Duration::from_secs(1);

/// The time that a connection may take from the first packet to the SETTINGS frame of the other replica.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The duration of the first ejection. Each further failure in a row doubles it.
const MIN_EJECTION: Duration = Duration::from_millis(500);
/// The duration of the longest ejection. After it the replica is used like the others again.
const MAX_EJECTION: Duration = Duration::from_secs(30);

/// The future that drives a connection. It has to be polled until it ends.
pub type DriverFuture = BoxFuture<'static, CloseReason>;

/// The future of a new connection.
pub type ConnectFuture = BoxFuture<'static, Result<(Tunnel, DriverFuture), PeerError>>;

/// Opens connections to replicas.
pub trait PeerConnector: fmt::Debug + Send + Sync + 'static {
    /// Opens a connection, and waits for the SETTINGS frame of the replica.
    fn connect(&self, replica: &Replica) -> ConnectFuture;
}

/// Connects over TCP, and over TLS if the replicas have certificates.
#[derive(Debug)]
pub(super) struct TcpConnector {
    /// The limits of HTTP/2.
    pub(super) settings: TunnelConfig,
    /// Mutual TLS, if the replicas have certificates.
    pub(super) tls: Option<PeerTls>,
    /// Requests may be sent without TLS beyond loopback.
    pub(super) allow_plaintext: bool,
}

/// The client's part of mutual TLS.
#[derive(Clone, Debug)]
pub(super) struct PeerTls {
    /// Presents the certificate of this replica, and verifies that of the other one.
    pub(super) connector: Connector,
    /// The name in the certificates of all replicas. Without it, the name is the host of the address.
    pub(super) server_name: Option<ServerName<'static>>,
}

/// Another replica with its connections and its recent failures.
#[derive(Debug)]
pub(super) struct PeerReplica {
    /// Its id and address.
    pub(super) replica: Replica,
    outlier: Mutex<OutlierDetector>,
    /// One slot for each [`RequestClass`], so that bulk data does not delay short requests.
    slots: PerCore<[Arc<ConnectionSlot>; 2]>,
}

/// Ejects one replica after a failure. An ejected replica is still used if all others decline.
#[derive(Clone, Copy, Debug, Default)]
struct OutlierDetector {
    failures: u32,
    ejected_until: Option<Instant>,
}

/// The place of at most one connection.
#[derive(Debug)]
struct ConnectionSlot(watch::Sender<SlotState>);

#[derive(Clone, Debug)]
enum SlotState {
    Idle,
    Connecting,
    Open(PeerConnection),
    Failed(PeerError),
}

/// An open connection. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct PeerConnection {
    /// Sends requests.
    pub(super) tunnel: Tunnel,
    last_answer: Arc<Mutex<Option<Instant>>>,
}

impl PeerReplica {
    /// Creates a replica without connections and failures.
    pub(super) fn new(replica: Replica) -> Self {
        let slot = || Arc::new(ConnectionSlot(watch::Sender::new(SlotState::Idle)));
        Self { replica, outlier: Mutex::default(), slots: PerCore::new(|| [slot(), slot()]) }
    }

    /// Returns true if the replica is used only after all others.
    pub(super) fn is_ejected(&self) -> bool {
        self.outlier.lock().is_ejected(Instant::now())
    }

    /// Records that the replica did not respond as it should.
    pub(super) fn record_failure(&self, error: &dyn fmt::Display, metrics: &PeerMetrics) {
        if self.outlier.lock().record_failure(Instant::now()) {
            metrics.outliers.inc();
            let Replica { id, url } = &self.replica;
            tracing::warn!(replica = %id, url, %error, "another replica failed and is used only after all others for a while");
        }
    }

    /// Records that the replica responded.
    pub(super) fn record_success(&self) {
        self.outlier.lock().record_success();
    }

    /// Returns the open connection for requests of the class, if the replica has responded on it in the last second.
    pub(super) fn recent_connection(&self, class: RequestClass) -> Option<PeerConnection> {
        match &*self.slot(class).0.borrow() {
            SlotState::Open(connection) if connection.answered_recently() => Some(connection.clone()),
            _ => None,
        }
    }

    /// Returns the connection for requests of the class, and opens it if there is none.
    ///
    /// A task of its own opens the connection. If this future is dropped, a later request uses the connection.
    pub(super) async fn connection(
        &self,
        class: RequestClass,
        connector: &Arc<dyn PeerConnector>,
        metrics: &PeerMetrics,
    ) -> Result<PeerConnection, PeerError> {
        let slot = self.slot(class);
        let mut states = slot.0.subscribe();
        let first = slot.0.send_if_modified(|state| {
            let closed = matches!(state, SlotState::Idle | SlotState::Failed(_));
            if closed {
                *state = SlotState::Connecting;
            }
            closed
        });
        if first {
            tokio::spawn(Arc::clone(slot).run(connector.connect(&self.replica), metrics.clone()));
        }
        let state = states.wait_for(|state| !matches!(state, SlotState::Connecting)).await;
        match &*state.expect("the slot has the sender") {
            SlotState::Open(connection) => Ok(connection.clone()),
            SlotState::Failed(error) => Err(error.clone()),
            SlotState::Idle | SlotState::Connecting => {
                Err(PeerError::Unreachable("it closed the connection".to_owned()))
            }
        }
    }

    /// Makes the next request open a new connection. Requests in flight on this one continue.
    pub(super) fn retire(&self, class: RequestClass, connection: &PeerConnection) {
        self.slot(class).remove(connection);
    }

    fn slot(&self, class: RequestClass) -> &Arc<ConnectionSlot> {
        let [short, long] = self.slots.current();
        match class {
            RequestClass::Short => short,
            RequestClass::Streaming => long,
        }
    }
}

impl OutlierDetector {
    /// Records that the replica did not respond. Returns true if that ejects it; it is false if it was ejected before.
    fn record_failure(&mut self, now: Instant) -> bool {
        if self.is_ejected(now) {
            // When a replica stops, many requests fail at once: they count as one failure.
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        let factor = 1u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX);
        self.ejected_until = Some(now + MIN_EJECTION.saturating_mul(factor).min(MAX_EJECTION));
        true
    }

    /// Records that the replica responded.
    fn record_success(&mut self) {
        *self = Self::default();
    }

    /// Returns true if the replica is used only after all others.
    fn is_ejected(&self, now: Instant) -> bool {
        self.ejected_until.is_some_and(|until| now < until)
    }
}

impl ConnectionSlot {
    /// Opens a connection and drives it until it ends.
    async fn run(self: Arc<Self>, connecting: ConnectFuture, metrics: PeerMetrics) {
        let connected = timeout(CONNECT_TIMEOUT, connecting).await;
        let (tunnel, driver) = match connected.unwrap_or(Err(PeerError::Timeout)) {
            Ok(connected) => connected,
            Err(error) => {
                self.0.send_replace(SlotState::Failed(error));
                return;
            }
        };
        let connection = PeerConnection { tunnel, last_answer: Arc::default() };
        self.0.send_replace(SlotState::Open(connection.clone()));
        metrics.connections.inc();
        let ended = driver.await;
        metrics.connections.dec();
        tracing::debug!(reason = %ended, "connection to another replica ended");
        self.remove(&connection);
    }

    fn remove(&self, connection: &PeerConnection) {
        self.0.send_if_modified(|state| {
            let current = matches!(state, SlotState::Open(open) if Arc::ptr_eq(&open.last_answer, &connection.last_answer));
            if current {
                *state = SlotState::Idle;
            }
            current
        });
    }
}

impl PeerConnection {
    /// Records that the replica responded now.
    pub(super) fn record_answer(&self) {
        *self.last_answer.lock() = Some(Instant::now());
    }

    /// Makes the next request send a probe first.
    pub(super) fn clear_answer(&self) {
        *self.last_answer.lock() = None;
    }

    fn answered_recently(&self) -> bool {
        self.last_answer.lock().is_some_and(|at| at.elapsed() < ANSWER_TTL)
    }
}

impl PeerConnector for TcpConnector {
    fn connect(&self, replica: &Replica) -> ConnectFuture {
        let (url, settings, tls) = (replica.url.clone(), self.settings.clone(), self.tls.clone());
        let allow_plaintext = self.allow_plaintext;
        Box::pin(async move {
            let url: PeerUrl = url.parse().map_err(|error| PeerError::Unreachable(format!("{error}")))?;
            match (url.tls, tls) {
                // The other replica publishes such an address because its own configuration allows it.
                (false, None) if !allow_plaintext && !url.is_loopback() => {
                    Err(PeerError::Unreachable(format!(
                        "{url} has no TLS, which private_api.allow_plaintext of this replica does not allow"
                    )))
                }
                (false, None) => handshake(connect_tcp(&url).await?, &settings).await,
                (true, Some(tls)) => handshake(tls.connect(&url).await?, &settings).await,
                // An attacker who can write an address into the route store must not be able to turn TLS off.
                (false, Some(_)) => {
                    Err(PeerError::Unreachable(format!("{url} has no TLS, but this replica requires it")))
                }
                (true, None) => Err(PeerError::Unreachable(format!(
                    "{url} requires TLS, but this replica has no certificate"
                ))),
            }
        })
    }
}

impl PeerTls {
    async fn connect(self, url: &PeerUrl) -> Result<TlsStream<TcpStream>, PeerError> {
        let name = match self.server_name {
            Some(name) => name,
            None => ServerName::try_from(url.host.clone()).map_err(|_| {
                PeerError::Unreachable(format!("the host of {url} is not a name that a certificate can have"))
            })?,
        };
        let connection = connect_tcp(url).await?;
        self.connector.connect(name, connection).await.map_err(|error| match rustls_error(&error) {
            Some(rustls::Error::InvalidCertificate(why)) => PeerError::Certificate(format!("{url}: {why}")),
            _ => unreachable(url, &error),
        })
    }
}

async fn connect_tcp(url: &PeerUrl) -> Result<TcpStream, PeerError> {
    let connection = TcpStream::connect((url.host.as_str(), url.port)).await;
    let connection = connection.map_err(|error| unreachable(url, &error))?;
    connection.set_nodelay(true).map_err(|error| unreachable(url, &error))?;
    Ok(connection)
}

/// Returns the error of rustls that tokio-rustls puts into an I/O error.
fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn unreachable(url: &PeerUrl, error: &io::Error) -> PeerError {
    PeerError::Unreachable(format!("{url}: {error}"))
}

/// Starts HTTP/2 on a connection, and waits for the SETTINGS frame of the other end.
pub async fn handshake<T>(io: T, settings: &TunnelConfig) -> Result<(Tunnel, DriverFuture), PeerError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (tunnel, driver) =
        direct::open(io, settings).await.map_err(|error| PeerError::InvalidResponse(error.to_string()))?;
    let mut driver: DriverFuture = Box::pin(driver.run());
    tokio::select! {
        () = tunnel.ready() => {}
        ended = &mut driver => return Err(PeerError::InvalidResponse(ended.to_string())),
    }
    Ok((tunnel, driver))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn plaintext_beyond_loopback_is_refused_before_the_connection() {
        let connector =
            |allow_plaintext| TcpConnector { settings: TunnelConfig::default(), tls: None, allow_plaintext };
        let refusal = async |url: &str, allow_plaintext| {
            let replica = Replica { id: "0".repeat(32).parse().unwrap(), url: url.to_owned() };
            // A connection to these addresses is refused by the system, or never answered.
            let connecting =
                timeout(Duration::from_millis(100), connector(allow_plaintext).connect(&replica));
            match connecting.await {
                Ok(Err(error)) => error.to_string().contains("private_api.allow_plaintext"),
                Ok(Ok(_)) => panic!("{url} is connected"),
                Err(_) => false,
            }
        };
        for url in ["http://192.0.2.1:1", "http://[2001:db8::1]:1", "http://127.0.0.1.example.com:1"] {
            assert!(refusal(url, false).await, "{url}");
        }
        assert!(!refusal("http://192.0.2.1:1", true).await);
        assert!(!refusal("http://127.0.0.1:1", false).await);
    }

    #[test]
    fn failures_in_a_row_double_the_ejection_up_to_thirty_seconds() {
        let mut outlier = OutlierDetector::default();
        let mut now = Instant::now();
        assert!(!outlier.is_ejected(now));
        for expected in [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            assert!(outlier.record_failure(now));
            let expected = Duration::from_millis(expected);
            assert!(outlier.is_ejected(now + expected - Duration::from_millis(1)));
            assert!(!outlier.is_ejected(now + expected), "{expected:?}");
            now += expected;
        }
    }

    #[test]
    fn failures_during_an_ejection_count_as_one() {
        let (mut outlier, now) = (OutlierDetector::default(), Instant::now());
        assert!(outlier.record_failure(now));
        assert!(!(0..50).any(|_| outlier.record_failure(now)));
        assert!(!outlier.is_ejected(now + MIN_EJECTION));
    }

    #[test]
    fn success_ends_the_ejection() {
        let (mut outlier, now) = (OutlierDetector::default(), Instant::now());
        outlier.record_failure(now);
        outlier.record_success();
        assert!(!outlier.is_ejected(now));
        assert!(outlier.record_failure(now) && !outlier.is_ejected(now + MIN_EJECTION));
    }
}
