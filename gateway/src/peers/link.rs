//! Connections to one replica: opened by the first request that needs one, shared by all of its core, and kept.
//!
//! Each core has its own, as it has its own tunnels: a request that changes cores wakes another thread, twice.

use std::{fmt, sync::Arc, time::Duration};

use cores::PerCore;
use parking_lot::Mutex;
use router::{BoxFuture, Class, Replica};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tunnel::{Ended, Tunnel};

use super::{standing::Standing, trouble::Trouble};
use crate::metrics::PeerMetrics;

/// For this long after it has answered, a replica is believed to live without being asked.
const FRESH: Duration = Duration::from_secs(1);

/// How long a connection may take to be open, from the first packet to the first word of HTTP/2.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// What must be polled for a connection to live.
pub type Driving = BoxFuture<'static, Ended>;

/// How a replica is reached.
pub trait Dial: fmt::Debug + Send + Sync + 'static {
    /// Opens a connection, and waits until the other end has spoken.
    fn dial(&self, replica: &Replica) -> BoxFuture<'static, Result<(Tunnel, Driving), Trouble>>;
}

/// Another replica, and how it behaved.
#[derive(Debug)]
pub struct Peer {
    /// Who it is, and where.
    pub replica: Replica,
    standing: Mutex<Standing>,
    /// One connection for each [`Class`]: what is bulk does not delay what somebody waits for.
    lanes: PerCore<[Arc<Lane>; 2]>,
}

/// At most one connection.
#[derive(Debug)]
struct Lane(watch::Sender<State>);

#[derive(Clone, Debug)]
enum State {
    Idle,
    Opening,
    Open(Link),
    Failed(Trouble),
}

/// An open connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Link {
    /// Sends requests.
    pub tunnel: Tunnel,
    answered: Arc<Mutex<Option<Instant>>>,
}

impl Peer {
    /// One that nothing is known of.
    pub fn new(replica: Replica) -> Self {
        let lane = || Arc::new(Lane(watch::Sender::new(State::Idle)));
        Self { replica, standing: Mutex::default(), lanes: PerCore::new(|| [lane(), lane()]) }
    }

    /// Whether others are asked before it.
    pub fn is_passed_over(&self) -> bool {
        self.standing.lock().is_passed_over(Instant::now())
    }

    /// It was good for nothing.
    pub fn failed(&self, why: &dyn fmt::Display, metrics: &PeerMetrics) {
        if self.standing.lock().fail(Instant::now()) {
            metrics.outliers.inc();
            let Replica { id, url } = &self.replica;
            tracing::warn!(replica = %id, url, reason = %why, "another replica is asked after all others for a while");
        }
    }

    /// It answered.
    pub fn succeeded(&self) {
        self.standing.lock().succeed();
    }

    /// The open connection for such requests, if it has just answered.
    pub fn fresh(&self, class: Class) -> Option<Link> {
        match &*self.lane(class).0.borrow() {
            State::Open(link) if link.is_fresh() => Some(link.clone()),
            _ => None,
        }
    }

    /// The connection for such requests. It is opened beside whoever needs it: one that gives up leaves it to the next.
    pub async fn link(
        &self,
        class: Class,
        dial: &Arc<dyn Dial>,
        metrics: &PeerMetrics,
    ) -> Result<Link, Trouble> {
        let lane = self.lane(class);
        let mut states = lane.0.subscribe();
        let first = lane.0.send_if_modified(|state| {
            let closed = matches!(state, State::Idle | State::Failed(_));
            if closed {
                *state = State::Opening;
            }
            closed
        });
        if first {
            tokio::spawn(Arc::clone(lane).keep(dial.dial(&self.replica), metrics.clone()));
        }
        let state = states.wait_for(|state| !matches!(state, State::Opening)).await;
        match &*state.expect("the lane is here") {
            State::Open(link) => Ok(link.clone()),
            State::Failed(trouble) => Err(trouble.clone()),
            State::Idle | State::Opening => Err(Trouble::Unreachable("it closed the connection".to_owned())),
        }
    }

    /// This connection takes no more requests: the next opens another. What it carries goes on.
    pub fn retire(&self, class: Class, link: &Link) {
        self.lane(class).leave(link);
    }

    fn lane(&self, class: Class) -> &Arc<Lane> {
        let [short, long] = self.lanes.here();
        match class {
            Class::Short => short,
            Class::Long => long,
        }
    }
}

impl Lane {
    async fn keep(
        self: Arc<Self>,
        dialling: BoxFuture<'static, Result<(Tunnel, Driving), Trouble>>,
        metrics: PeerMetrics,
    ) {
        let dialled = timeout(DIAL_TIMEOUT, dialling).await;
        let (tunnel, driving) = match dialled.unwrap_or(Err(Trouble::Silent)) {
            Ok(opened) => opened,
            Err(trouble) => {
                self.0.send_replace(State::Failed(trouble));
                return;
            }
        };
        let link = Link { tunnel, answered: Arc::default() };
        self.0.send_replace(State::Open(link.clone()));
        metrics.connections.inc();
        let ended = driving.await;
        metrics.connections.dec();
        tracing::debug!(reason = %ended, "a connection to a replica ended");
        self.leave(&link);
    }

    fn leave(&self, link: &Link) {
        self.0.send_if_modified(|state| {
            let current = matches!(state, State::Open(open) if Arc::ptr_eq(&open.answered, &link.answered));
            if current {
                *state = State::Idle;
            }
            current
        });
    }
}

impl Link {
    /// The other end has said something that was asked of it.
    pub fn answered(&self) {
        *self.answered.lock() = Some(Instant::now());
    }

    /// What it is believed to hold, it does not: the next request asks.
    pub fn doubt(&self) {
        *self.answered.lock() = None;
    }

    fn is_fresh(&self) -> bool {
        self.answered.lock().is_some_and(|at| at.elapsed() < FRESH)
    }
}
