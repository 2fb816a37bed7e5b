//! Callers behind a load balancer: an open loop of requests, each at a replica that is ready.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tokio::{
    task::JoinSet,
    time::{interval, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::outcome::Sent;
use crate::load::{Failure, Target, client::Connection, progress::Counter};

/// How often a load balancer looks whether a replica is ready, and how long that may take.
const CHECK: Duration = Duration::from_secs(1);
/// The longest head of an answer.
const HEAD: usize = 16 * 1024;

/// A replica, as a load balancer sees it.
#[derive(Debug)]
pub(super) struct Backend {
    /// For agents.
    pub(super) agents: SocketAddr,
    ready: AtomicBool,
}

/// A replica, as callers see it.
pub(super) struct Door {
    /// A request for each agent.
    pub(super) target: Target,
    /// Whether it should be sent any.
    pub(super) backend: Arc<Backend>,
    /// Connections that have been used and may be used again.
    idle: Mutex<Vec<Connection>>,
}

/// What they send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Requests a second.
    pub(super) rate: f64,
    /// How long an answer may take.
    pub(super) timeout: Duration,
    /// Of the choice among agents.
    pub(super) seed: u64,
}

impl Backend {
    /// One that is ready, until `readiness` says that it is not.
    pub(super) fn watch(agents: SocketAddr, readiness: Target) -> Arc<Self> {
        let backend = Arc::new(Self { agents, ready: AtomicBool::new(true) });
        let watched = Arc::downgrade(&backend);
        tokio::spawn(async move {
            let mut ticks = interval(CHECK);
            loop {
                ticks.tick().await;
                let Some(backend) = watched.upgrade() else { return };
                let asking = async {
                    let mut connection = Connection::open(&readiness, HEAD, Counter::default()).await?;
                    let (head, _) = connection.exchange(&readiness.requests()[0]).await?;
                    Ok::<_, Failure>(head.status == 200)
                };
                backend.ready.store(matches!(timeout(CHECK, asking).await, Ok(Ok(true))), Relaxed);
            }
        });
        backend
    }

    /// What the last look said.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }
}

impl Door {
    /// Nobody has used it yet.
    pub(super) fn new(target: Target, backend: Arc<Backend>) -> Self {
        Self { target, backend, idle: Mutex::default() }
    }

    /// One request and its whole answer: its status.
    async fn ask(&self, request: &[u8]) -> Result<u16, Failure> {
        loop {
            let used = self.idle.lock().pop();
            let is_used = used.is_some();
            let mut connection = match used {
                Some(connection) => connection,
                None => Connection::open(&self.target, HEAD, Counter::default()).await?,
            };
            let asking = async {
                connection.send(request).await?;
                connection.head().await
            };
            let head = match asking.await {
                Ok(head) => head,
                // The other end has closed it meanwhile: any HTTP client tries another connection then.
                Err(Failure::Closed) if is_used => continue,
                Err(failure) => return Err(failure),
            };
            connection.body(head).await?;
            if head.reusable {
                self.idle.lock().push(connection);
            }
            return Ok(head.status);
        }
    }
}

/// Sends requests until `until`, and waits for what is under way then.
pub(super) async fn call(doors: Vec<Door>, pace: Pace, until: CancellationToken) -> Vec<Sent> {
    let doors: Arc<[Door]> = doors.into();
    let mut random = SmallRng::seed_from_u64(pace.seed);
    let (begin, mut requests, mut done) = (Instant::now(), JoinSet::new(), Vec::new());
    for number in 0usize.. {
        let due = begin + Duration::from_secs_f64(number as f64 / pace.rate);
        if until.run_until_cancelled(sleep_until(due.into())).await.is_none() {
            break;
        }
        let agent = random.random_range(0..doors[0].target.requests().len());
        let doors = Arc::clone(&doors);
        requests.spawn(async move {
            let answer = timeout(pace.timeout, anywhere(&doors, number, agent)).await;
            let failure = match answer.unwrap_or(Err(Failure::TimedOut)) {
                Ok(status) if status < 400 => None,
                Ok(status) => Some(format!("status {status}")),
                Err(failure) => Some(failure.to_string()),
            };
            Sent { at: due, took: due.elapsed(), failure }
        });
        while let Some(sent) = requests.try_join_next() {
            done.extend(sent);
        }
    }
    done.extend(requests.join_all().await);
    done
}

/// At one replica after the other, those that are ready first, until one accepts the connection.
async fn anywhere(doors: &[Door], turn: usize, agent: usize) -> Result<u16, Failure> {
    let mut order: Vec<_> = (0..doors.len()).map(|nth| &doors[(turn + nth) % doors.len()]).collect();
    order.sort_by_key(|door| !door.backend.is_ready());
    let mut last = Failure::Connect("there is no replica".to_owned());
    for door in order {
        match door.ask(&door.target.requests()[agent]).await {
            Err(failure @ Failure::Connect(_)) => last = failure,
            answer => return answer,
        }
    }
    Err(last)
}
