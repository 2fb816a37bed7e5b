//! Callers behind a load balancer: an open loop of requests, each to a replica that is ready.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
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

use super::outcome::SentRequest;
use crate::load::{
    LoadError, Target,
    client::{self, Connection},
    progress::Counter,
};

/// The interval and the timeout of the load balancer's readiness probes.
const CHECK: Duration = Duration::from_secs(1);
/// The size limit of the response head of a readiness probe, in bytes.
const HEAD: usize = 16 * 1024;

/// A replica behind the load balancer.
#[derive(Debug)]
pub(super) struct Backend {
    /// The address for agents.
    pub(super) agents: SocketAddr,
    ready: AtomicBool,
}

/// A replica with the connections of callers to it.
pub(super) struct Endpoint {
    /// The requests, one for each agent.
    pub(super) target: Target,
    /// The readiness of the replica.
    pub(super) backend: Arc<Backend>,
    /// The number of the replica; 0 is the affected one.
    replica: usize,
    /// Idle connections that can be used again.
    idle: Mutex<Vec<Connection>>,
}

/// The load of the callers.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerConfig {
    /// Requests per second.
    pub(super) rate: f64,
    /// The timeout of a response.
    pub(super) timeout: Duration,
    /// The seed of the choice among agents.
    pub(super) seed: u64,
}

impl Backend {
    /// Creates a backend that is ready until a probe of `readiness` fails.
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
                    Ok::<_, LoadError>(head.status == 200)
                };
                backend.ready.store(matches!(timeout(CHECK, asking).await, Ok(Ok(true))), Relaxed);
            }
        });
        backend
    }

    /// Returns the result of the last probe.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }
}

impl Endpoint {
    /// Creates an endpoint without connections.
    pub(super) fn new(target: Target, backend: Arc<Backend>, replica: usize) -> Self {
        Self { target, backend, replica, idle: Mutex::default() }
    }

    /// Sends a request, reads the whole response and returns its status.
    async fn send(&self, request: &[u8]) -> Result<u16, LoadError> {
        let used = self.idle.lock().pop();
        let (head, connection) = client::send_over(used, &self.target, request).await?;
        self.idle.lock().extend(connection);
        Ok(head.status)
    }
}

/// Sends requests until `until` is cancelled, and waits for the responses.
pub(super) async fn send_requests(
    endpoints: Vec<Endpoint>,
    config: CallerConfig,
    until: CancellationToken,
) -> Vec<SentRequest> {
    let endpoints: Arc<[Endpoint]> = endpoints.into();
    let mut random = SmallRng::seed_from_u64(config.seed);
    let (begin, mut requests, mut done) = (Instant::now(), JoinSet::new(), Vec::new());
    for number in 0usize.. {
        let due = begin + Duration::from_secs_f64(number as f64 / config.rate);
        if until.run_until_cancelled(sleep_until(due.into())).await.is_none() {
            break;
        }
        let agent = random.random_range(0..endpoints[0].target.requests().len());
        let endpoints = Arc::clone(&endpoints);
        requests.spawn(async move {
            let asked = AtomicUsize::new(0);
            let answer = timeout(config.timeout, send_to_any(&endpoints, number, agent, &asked)).await;
            let replica = asked.into_inner();
            let failure = match answer.unwrap_or(Err(LoadError::TimedOut)) {
                Ok(status) if status < 400 => None,
                Ok(status) => Some(format!("status {status}")),
                Err(failure) => Some(failure.to_string()),
            };
            SentRequest { at: due, took: due.elapsed(), replica, failure }
        });
        while let Some(sent) = requests.try_join_next() {
            done.extend(sent);
        }
    }
    done.extend(requests.join_all().await);
    done
}

/// Sends a request to one replica after the other, ready ones first, until one accepts the connection. Sets `asked` to the
/// number of the last replica.
async fn send_to_any(
    endpoints: &[Endpoint],
    turn: usize,
    agent: usize,
    asked: &AtomicUsize,
) -> Result<u16, LoadError> {
    let mut order: Vec<_> =
        (0..endpoints.len()).map(|nth| &endpoints[(turn + nth) % endpoints.len()]).collect();
    order.sort_by_key(|endpoint| !endpoint.backend.is_ready());
    let mut last = LoadError::Connect("there is no replica".to_owned());
    for endpoint in order {
        asked.store(endpoint.replica, Relaxed);
        match endpoint.send(&endpoint.target.requests()[agent]).await {
            Err(failure @ LoadError::Connect(_)) => last = failure,
            answer => return answer,
        }
    }
    Err(last)
}
