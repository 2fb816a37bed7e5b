//! The other replicas: who of them holds an agent, and how a request gets there.
//!
//! ```text
//!  this replica                                    an owner
//!    │  ask: do you hold agent 42?                    │  Host: local tunnels, and nothing else
//!    │───────────────────────────────────────────────►│
//!    │◄────────────────────────────── holds, sealed ──│
//!    │  pass: the request                             │
//!    │───────────────────────────────────────────────►│═══► tunnel ═══► agentk
//! ```
//!
//! * **The replica that took a request decides.** An owner answers, passes on, or refuses unseen; it never asks others.
//! * **A question does no harm**, so that the next owner is asked when the first is slow: one of them gets the request.
//! * **Nobody is given a request who has not proved who it is**: by TLS, or by the seal of its first answer.
//! * An owner that has just answered is not asked again before a request without a body, which comes back whole if it is
//!   refused: most requests take one round trip.
//!
//! [`stamp`] and [`verdict`] are the words on the wire, [`seal`] and [`replay`] what they prove, [`link`] and [`dial`] the
//! connections, [`standing`] who is asked last, [`host`] the other side. [`address`] is where all of this is found,
//! and [`reach`] whether it is.

pub mod address;
pub mod dial;
mod fleet;
pub mod host;
pub mod link;
pub mod reach;
pub mod replay;
pub mod seal;
pub mod setup;
pub mod stamp;
pub mod standing;
pub mod trouble;
pub mod verdict;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use http::{Request, Response};
use parking_lot::Mutex;
use proto::{AgentId, ReplicaId, header};
use router::{Replica, RouteStore};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tunnel::{Body, CallError, CallErrorKind};

pub use self::fleet::Fleet;
use self::{
    link::{Dial, Link, Peer},
    seal::{Seal, Secret, Subject},
    stamp::{Kind, STAMP, Stamp},
    trouble::Trouble,
    verdict::{Doubt, Verdict},
};
use crate::{
    forward::Destination,
    metrics::{Asked, Passed, PeerMetrics},
};

/// How long a replica may take to answer a question, the connection to it included.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections that one question tries: the one that is open may be about to be left.
const CONNECTIONS: usize = 2;

/// After this the next owner is asked too.
const HEDGE: Duration = Duration::from_millis(10);

/// Finds owners and sends them requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Peers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    me: ReplicaId,
    dial: Arc<dyn Dial>,
    secret: Option<Secret>,
    peers: Mutex<HashMap<ReplicaId, Arc<Peer>>>,
    /// Of what is sent, whatever it is and to whomever.
    number: AtomicU64,
    /// Owners take turns.
    turn: AtomicUsize,
    metrics: PeerMetrics,
}

/// A replica that holds the agent, and a connection to it.
#[derive(Debug)]
pub struct Owner {
    peers: Peers,
    peer: Arc<Peer>,
    link: Link,
}

/// An owner that the directory names, and that does not take the request.
#[derive(Debug)]
pub struct Declined {
    /// Which.
    pub replica: ReplicaId,
    /// Why.
    pub trouble: Trouble,
}

impl Peers {
    /// Reaches replicas through `dial`, and proves itself with the secret if there is one.
    pub fn new(me: ReplicaId, dial: Arc<dyn Dial>, secret: Option<Secret>, metrics: PeerMetrics) -> Self {
        Self(Arc::new(Shared {
            me,
            dial,
            secret,
            peers: Mutex::default(),
            number: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
            metrics,
        }))
    }

    /// The best owner, if it has just answered. A request that is whole for as long as nobody has answered it is sent there
    /// unasked.
    pub async fn fresh(&self, store: &dyn RouteStore, to: &Destination) -> Option<Owner> {
        let turn = &self.0.turn;
        let peer = self.owners(store, to.agent, turn.load(Relaxed)).await.into_iter().next()?;
        let link = peer.fresh(to.class)?;
        turn.fetch_add(1, Relaxed);
        Some(Owner { peers: self.clone(), peer, link })
    }

    /// An owner that takes the request, or why none does.
    pub async fn find(&self, store: &dyn RouteStore, to: &Destination) -> Result<Owner, Vec<Declined>> {
        let owners = self.owners(store, to.agent, self.0.turn.fetch_add(1, Relaxed)).await;
        let (sender, mut answers) = mpsc::channel(owners.len().max(1));
        let mut waiting = owners.into_iter();
        let (mut asked, mut declined) = (0usize, Vec::new());
        loop {
            match waiting.next() {
                Some(peer) => {
                    asked += 1;
                    // A task of its own: one that loses goes on, so that what it says of the replica's health is heard.
                    let (peers, to, sender) = (self.clone(), to.clone(), sender.clone());
                    tokio::spawn(async move {
                        let answer = peers.ask(&peer, &to).await;
                        // Fails when another owner was faster.
                        let _ = sender.try_send((peer, answer));
                    });
                }
                None if asked == 0 => return Err(declined),
                None => {}
            }
            let more = waiting.len() > 0;
            tokio::select! {
                Some((peer, answer)) = answers.recv() => {
                    asked -= 1;
                    match answer {
                        Ok(link) => return Ok(Owner { peers: self.clone(), peer, link }),
                        Err(trouble) => declined.push(Declined { replica: peer.replica.id, trouble }),
                    }
                }
                () = sleep(HEDGE), if more => {
                    self.0.metrics.hedges.inc();
                }
            }
        }
    }

    /// Whom the directory names, the best first; equals take turns.
    async fn owners(&self, store: &dyn RouteStore, agent: AgentId, turn: usize) -> Vec<Arc<Peer>> {
        let Ok(record) = store.lookup(agent).await else {
            return Vec::new();
        };
        let others = record.routes.iter().filter(|route| route.replica != self.0.me);
        let mut owners: Vec<Arc<Peer>> = others
            .filter_map(|route| store.replica(route.replica))
            .map(|replica| self.peer(replica, store))
            .collect();
        if !owners.is_empty() {
            let turn = turn % owners.len();
            owners.rotate_left(turn);
            owners.sort_by_key(|owner| owner.is_passed_over());
        }
        owners
    }

    fn peer(&self, replica: Replica, store: &dyn RouteStore) -> Arc<Peer> {
        let mut peers = self.0.peers.lock();
        match peers.get(&replica.id) {
            Some(peer) if peer.replica == replica => Arc::clone(peer),
            _ => {
                // A replica has a new id at each start: those of the past leave.
                peers.retain(|id, _| store.replica(*id).is_some());
                let peer = Arc::new(Peer::new(replica));
                peers.insert(peer.replica.id, Arc::clone(&peer));
                peer
            }
        }
    }

    async fn ask(&self, peer: &Peer, to: &Destination) -> Result<Link, Trouble> {
        let answer = timeout(ASK_TIMEOUT, self.question(peer, to)).await.unwrap_or(Err(Trouble::Silent));
        let metrics = &self.0.metrics;
        match &answer {
            Ok(_) => {
                metrics.asked(Asked::Holds);
                peer.succeeded();
            }
            Err(trouble) => {
                metrics.asked(trouble.asked());
                let replica = &peer.replica;
                tracing::debug!(replica = %replica.id, url = replica.url, %trouble, agent.id = %to.agent, "a replica does not take a request");
                if trouble.is_healthy() { peer.succeeded() } else { peer.failed(trouble, metrics) }
            }
        }
        answer
    }

    async fn question(&self, peer: &Peer, to: &Destination) -> Result<Link, Trouble> {
        for _ in 0..CONNECTIONS {
            let link = peer.link(to.class, &self.0.dial, &self.0.metrics).await?;
            let mut question = Request::new(Body::empty());
            question
                .headers_mut()
                .insert(header::SERVICE, to.service.as_str().parse().expect("it is a word"));
            let seal = self.stamp(&mut question, Kind::Ask, &peer.replica, to);
            let answer = link.tunnel.call(question).await;
            if matches!(&answer, Err(error) if matches!(error.kind, CallErrorKind::Closed)) {
                peer.retire(to.class, &link);
                continue;
            }
            self.verdict(answer, seal.as_ref())?;
            link.answered();
            return Ok(link);
        }
        Err(Trouble::Unreachable("it takes no more requests".to_owned()))
    }

    /// What the answer to a question comes to. `seal`: that of the question.
    fn verdict(&self, answer: Result<Response<Body>, CallError>, seal: Option<&Seal>) -> Result<(), Trouble> {
        let response = answer.map_err(|error| match error.kind {
            CallErrorKind::Closed => Trouble::Unreachable("it takes no more requests".to_owned()),
            CallErrorKind::Refused => Trouble::Untrusted,
            CallErrorKind::Lost(error) => Trouble::Unreachable(error.to_string()),
            kind => Trouble::Garbage(kind.to_string()),
        })?;
        match Verdict::decode(response.headers(), self.0.secret.as_ref().zip(seal)) {
            Ok(Verdict::Holds) => Ok(()),
            Ok(Verdict::Declines { reason, message }) => Err(Trouble::Declines { reason, message }),
            Err(Doubt::Untrusted) => Err(Trouble::Untrusted),
            Err(Doubt::Garbage) => Err(Trouble::Garbage(format!("{} without a verdict", response.status()))),
        }
    }

    /// Says what a request is, and proves it.
    fn stamp(&self, request: &mut Request<Body>, kind: Kind, to: &Replica, of: &Destination) -> Option<Seal> {
        let mut stamp = Stamp {
            kind,
            from: self.0.me,
            agent: of.agent,
            class: of.class,
            sent: milliseconds(SystemTime::now()),
            number: self.0.number.fetch_add(1, Relaxed),
            seal: None,
        };
        stamp.seal = self.0.secret.as_ref().map(|secret| {
            let (method, uri) = (request.method(), request.uri());
            secret.seal(Subject { stamp: &stamp, to: to.id, service: of.service.as_str(), method, uri })
        });
        request.headers_mut().insert(STAMP, stamp.encode());
        stamp.seal
    }
}

impl Owner {
    /// Which replica it is.
    pub fn replica(&self) -> ReplicaId {
        self.peer.replica.id
    }

    /// Sends the request to where it holds the agent.
    pub async fn call(
        &self,
        to: &Destination,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, CallError> {
        self.peers.stamp(&mut request, Kind::Pass, &self.peer.replica, to);
        let metrics = &self.peers.0.metrics;
        let mut error = match self.link.tunnel.call(request).await {
            Ok(response) => {
                metrics.passed(Passed::Answered);
                self.link.answered();
                return Ok(response);
            }
            Err(error) => error,
        };
        if let Some(request) = &mut error.request {
            request.headers_mut().remove(STAMP);
        }
        match error.kind {
            CallErrorKind::Closed => self.peer.retire(to.class, &self.link),
            CallErrorKind::Refused => self.link.doubt(),
            CallErrorKind::Lost(_) => self.peer.failed(&error.kind, metrics),
            CallErrorKind::Reset(_) | CallErrorKind::Body(_) | CallErrorKind::Unsupported(_) => {}
        }
        metrics.passed(match error.kind {
            CallErrorKind::Closed | CallErrorKind::Refused => Passed::Refused,
            _ => Passed::Lost,
        });
        Err(error)
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
