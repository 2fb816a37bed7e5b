//! The client: asks other replicas for an agent, and sends them requests.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, Response};
use parking_lot::Mutex;
use proto::{AgentId, ReplicaId, header};
use settings::Secret;
use store::{Replica, RouteStore};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tunnel::{Body, CallError, CallErrorKind};

use super::{
    auth::{ResponseKey, SignedRequest},
    connection::{ConnectFuture, PeerConnection, PeerConnector, PeerReplica},
    header::{DecodeError, Mac, PEER_HEADER, PeerHeader, PeerRequestKind, now_ms},
    response::{PeerError, ProbeResponse},
};
use crate::{
    destination::Destination,
    metrics::{ForwardResult, PeerMetrics, ProbeResult},
};

/// The time that a probe may take, including the time to connect.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The connections that one probe tries: the replica may just be closing the first one.
const MAX_CONNECTIONS_PER_PROBE: usize = 2;

/// The time after which the next owner gets a probe too.
const HEDGE_DELAY: Duration = Duration::from_millis(10);

/// Finds owners of an agent and sends them requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PeerClient(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    replica: ReplicaId,
    connector: Arc<dyn PeerConnector>,
    secret: Option<Secret>,
    peers: Mutex<HashMap<ReplicaId, Arc<PeerReplica>>>,
    /// The sequence number of the next request, whatever its kind and receiver.
    sequence: AtomicU64,
    /// The number of searches so far: the owners of an agent take turns.
    turn: AtomicUsize,
    metrics: PeerMetrics,
}

/// An owner of an agent, and a connection to it.
#[derive(Debug)]
pub struct OwnerConnection {
    client: PeerClient,
    peer: Arc<PeerReplica>,
    connection: PeerConnection,
}

/// An owner in the route store that does not take the request.
#[derive(Debug)]
pub struct OwnerError {
    /// The owner.
    pub replica: ReplicaId,
    /// The reason.
    pub error: PeerError,
}

impl PeerClient {
    /// Creates the client of `replica`. It signs its requests if there is a secret.
    pub fn new(
        replica: ReplicaId,
        connector: Arc<dyn PeerConnector>,
        secret: Option<Secret>,
        metrics: PeerMetrics,
    ) -> Self {
        Self(Arc::new(Inner {
            replica,
            connector,
            secret,
            peers: Mutex::default(),
            sequence: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
            metrics,
        }))
    }

    /// Returns the metrics of requests between replicas.
    pub(super) fn metrics(&self) -> &PeerMetrics {
        &self.0.metrics
    }

    /// Returns the replica that sends the requests.
    pub fn replica(&self) -> ReplicaId {
        self.0.replica
    }

    /// Returns the secret of all replicas.
    pub(super) fn secret(&self) -> Option<&Secret> {
        self.0.secret.as_ref()
    }

    /// Opens a connection that no other request uses.
    pub(super) fn connect(&self, replica: &Replica) -> ConnectFuture {
        self.0.connector.connect(replica)
    }

    /// Returns the best owner if it has responded in the last second, so that it needs no probe.
    ///
    /// This is for requests without a body: if the owner refuses one, the request comes back and can be sent elsewhere.
    pub async fn recent_owner(&self, store: &dyn RouteStore, to: &Destination) -> Option<OwnerConnection> {
        let turn = &self.0.turn;
        let peer = self.ranked_owners(store, to.agent, turn.load(Relaxed)).await.into_iter().next()?;
        let connection = peer.recent_connection(to.class)?;
        turn.fetch_add(1, Relaxed);
        Some(OwnerConnection { client: self.clone(), peer, connection })
    }

    /// Probes the owners in the route store, and returns the first one that accepts the request.
    ///
    /// The next owner gets its probe when the one before declines, or after 10 ms.
    ///
    /// # Errors
    ///
    /// Returns the error of each owner if no owner accepts the request. There are none if the route store has no owner.
    pub async fn find_owner(
        &self,
        store: &dyn RouteStore,
        to: &Destination,
    ) -> Result<OwnerConnection, Vec<OwnerError>> {
        let owners = self.ranked_owners(store, to.agent, self.0.turn.fetch_add(1, Relaxed)).await;
        let (sender, mut results) = mpsc::channel(owners.len().max(1));
        let mut waiting = owners.into_iter();
        let (mut pending, mut errors) = (0usize, Vec::new());
        loop {
            match waiting.next() {
                Some(peer) => {
                    pending += 1;
                    // A task of its own continues if another owner is faster, so that its result reaches the outlier
                    // detector.
                    let (client, to, sender) = (self.clone(), to.clone(), sender.clone());
                    tokio::spawn(async move {
                        let result = client.probe(&peer, &to).await;
                        // Fails if another owner was faster.
                        let _ = sender.try_send((peer, result));
                    });
                }
                None if pending == 0 => return Err(errors),
                None => {}
            }
            let more = waiting.len() > 0;
            tokio::select! {
                Some((peer, result)) = results.recv() => {
                    pending -= 1;
                    match result {
                        Ok(connection) => return Ok(OwnerConnection { client: self.clone(), peer, connection }),
                        Err(error) => errors.push(OwnerError { replica: peer.replica.id, error }),
                    }
                }
                () = sleep(HEDGE_DELAY), if more => {
                    self.0.metrics.hedges.inc();
                }
            }
        }
    }

    /// Returns the owners in the route store without this replica, ejected ones last. The others take turns.
    async fn ranked_owners(
        &self,
        store: &dyn RouteStore,
        agent: AgentId,
        turn: usize,
    ) -> Vec<Arc<PeerReplica>> {
        let Ok(record) = store.lookup(agent).await else {
            return Vec::new();
        };
        let others = record.routes.iter().filter(|route| route.replica != self.0.replica);
        let mut owners: Vec<Arc<PeerReplica>> = others
            .filter_map(|route| store.replica(route.replica))
            .map(|replica| self.peer(replica, store))
            .collect();
        if !owners.is_empty() {
            let turn = turn % owners.len();
            owners.rotate_left(turn);
            owners.sort_by_key(|owner| owner.is_ejected());
        }
        owners
    }

    fn peer(&self, replica: Replica, store: &dyn RouteStore) -> Arc<PeerReplica> {
        let mut peers = self.0.peers.lock();
        match peers.get(&replica.id) {
            Some(peer) if peer.replica == replica => Arc::clone(peer),
            _ => {
                // A replica has a new id after each start, so the ids of earlier processes are removed here.
                peers.retain(|id, _| store.replica(*id).is_some());
                let peer = Arc::new(PeerReplica::new(replica));
                peers.insert(peer.replica.id, Arc::clone(&peer));
                peer
            }
        }
    }

    /// Sends a probe, and records the result.
    async fn probe(&self, peer: &PeerReplica, to: &Destination) -> Result<PeerConnection, PeerError> {
        let probing = timeout(PROBE_TIMEOUT, self.send_probe(peer, to)).await;
        let result = probing.unwrap_or(Err(PeerError::Timeout));
        let metrics = &self.0.metrics;
        match &result {
            Ok(_) => {
                metrics.record_probe(ProbeResult::Accepted);
                peer.record_success();
            }
            Err(error) => {
                metrics.record_probe(error.result());
                let replica = &peer.replica;
                tracing::debug!(replica = %replica.id, url = replica.url, %error, agent.id = %to.agent, "another replica does not take a request");
                if error.is_healthy() {
                    peer.record_success();
                } else {
                    peer.record_failure(error, metrics);
                }
            }
        }
        result
    }

    async fn send_probe(&self, peer: &PeerReplica, to: &Destination) -> Result<PeerConnection, PeerError> {
        for _ in 0..MAX_CONNECTIONS_PER_PROBE {
            let connection = peer.connection(to.class, &self.0.connector, &self.0.metrics).await?;
            let mut request = Request::new(Body::empty());
            let service = to.service.as_str().parse().expect("a service name is a header value");
            request.headers_mut().insert(header::SERVICE, service);
            let mac = self.sign(&mut request, PeerRequestKind::Probe, &peer.replica, to);
            let result = connection.tunnel.call(request).await;
            if matches!(&result, Err(error) if matches!(error.kind, CallErrorKind::Closed)) {
                peer.retire(to.class, &connection);
                continue;
            }
            self.check_response(result, mac.as_ref())?;
            connection.record_answer();
            return Ok(connection);
        }
        Err(PeerError::Unreachable("it takes no more requests".to_owned()))
    }

    /// Checks the response to a probe or a ping with the MAC `request_mac`.
    pub(super) fn check_response(
        &self,
        result: Result<Response<Body>, CallError>,
        request_mac: Option<&Mac>,
    ) -> Result<(), PeerError> {
        let response = result.map_err(|error| match error.kind {
            CallErrorKind::Closed => PeerError::Unreachable("it takes no more requests".to_owned()),
            CallErrorKind::Refused => PeerError::Untrusted,
            CallErrorKind::Lost(error) => PeerError::Unreachable(error.to_string()),
            kind => PeerError::InvalidResponse(kind.to_string()),
        })?;
        let key = ResponseKey::new(self.0.secret.as_ref(), request_mac);
        match ProbeResponse::decode(response.headers(), key) {
            Ok(ProbeResponse::Accepted) => Ok(()),
            Ok(ProbeResponse::Declined { reason, message }) => Err(PeerError::Declined { reason, message }),
            Ok(ProbeResponse::ClockSkew { now_ms: theirs }) => {
                let ahead_ms = theirs.cast_signed().saturating_sub(now_ms().cast_signed());
                Err(PeerError::ClockSkew { ahead_ms })
            }
            Err(DecodeError::InvalidMac) => Err(PeerError::Untrusted),
            Err(DecodeError::Malformed) => Err(PeerError::InvalidResponse(format!(
                "{} without a valid header kas-peer",
                response.status()
            ))),
        }
    }

    /// Adds the `Kas-Peer` header to a request, and returns its MAC if there is a secret.
    pub(super) fn sign(
        &self,
        request: &mut Request<Body>,
        kind: PeerRequestKind,
        to: &Replica,
        destination: &Destination,
    ) -> Option<Mac> {
        let mut header = PeerHeader {
            kind,
            from: self.0.replica,
            agent: destination.agent,
            class: destination.class,
            sent_ms: now_ms(),
            sequence: self.0.sequence.fetch_add(1, Relaxed),
            mac: None,
        };
        header.mac = self.0.secret.as_ref().map(|secret| {
            let (method, uri, headers) = (request.method(), request.uri(), request.headers());
            let service = destination.service.as_str();
            SignedRequest { header: &header, to, service, method, uri, headers }.sign(secret)
        });
        request.headers_mut().insert(PEER_HEADER, header.encode());
        header.mac
    }
}

impl OwnerConnection {
    /// Returns the id of the owner.
    pub fn replica(&self) -> ReplicaId {
        self.peer.replica.id
    }

    /// Sends a request to the owner.
    ///
    /// Dropping the future cancels the request.
    ///
    /// # Errors
    ///
    /// The error holds the request if its body is still complete.
    pub async fn call(
        &self,
        to: &Destination,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, CallError> {
        self.client.sign(&mut request, PeerRequestKind::Forward, &self.peer.replica, to);
        let metrics = &self.client.0.metrics;
        let mut error = match self.connection.tunnel.call(request).await {
            Ok(response) => {
                metrics.record_forward(ForwardResult::Answered);
                self.connection.record_answer();
                return Ok(response);
            }
            Err(error) => error,
        };
        if let Some(request) = &mut error.request {
            request.headers_mut().remove(PEER_HEADER);
        }
        match error.kind {
            CallErrorKind::Closed => self.peer.retire(to.class, &self.connection),
            CallErrorKind::Refused => self.connection.clear_answer(),
            CallErrorKind::Lost(_) => self.peer.record_failure(&error.kind, metrics),
            CallErrorKind::Busy
            | CallErrorKind::Reset(_)
            | CallErrorKind::Body(_)
            | CallErrorKind::Unsupported(_) => {}
        }
        metrics.record_forward(match error.kind {
            CallErrorKind::Closed | CallErrorKind::Refused => ForwardResult::Refused,
            _ => ForwardResult::Lost,
        });
        Err(error)
    }
}
