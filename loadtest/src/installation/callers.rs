//! Callers whose every request is recorded, of one kas or of replicas behind a load balancer.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proto::Reason;
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tokio::{
    task::JoinSet,
    time::{interval, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::load::{
    LoadError, LoadTarget,
    client::{self, LoadConnection, ResponseHead},
    progress::Counter,
};

/// The interval and the timeout of the load balancer's readiness probes.
const CHECK: Duration = Duration::from_secs(1);
/// The size limit of the response head of a readiness probe, in bytes.
const HEAD: usize = 16 * 1024;

/// A replica behind the load balancer.
#[derive(Debug)]
pub(crate) struct Backend {
    /// The address for agents.
    pub(crate) agents: SocketAddr,
    ready: AtomicBool,
}

/// A replica with the connections of callers to it.
pub(crate) struct Endpoint {
    /// The requests, one for each agent.
    pub(crate) target: LoadTarget,
    /// The readiness of the replica.
    pub(crate) backend: Arc<Backend>,
    /// The number of the replica; 0 is the affected one.
    replica: usize,
    /// Idle connections that can be used again.
    idle: Mutex<Vec<LoadConnection>>,
}

/// One request.
#[derive(Debug)]
pub(crate) struct SentRequest {
    /// The moment when it was sent.
    pub(crate) at: Instant,
    /// The time until the response was complete or the request failed.
    pub(crate) took: Duration,
    /// The number of the replica that the last attempt went to.
    pub(crate) replica: usize,
    /// The reason of the failure, if the request failed.
    pub(crate) failure: Option<RequestFailure>,
}

/// The reason why a request failed.
#[derive(Debug)]
pub(crate) enum RequestFailure {
    /// A status of 400 and above, with the reason of kas if the response is an error of kas.
    Status(u16, Option<Reason>),
    /// No complete response.
    NoResponse(LoadError),
}

/// The load of the callers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerConfig {
    /// Requests per second.
    pub(crate) rate: f64,
    /// The timeout of a response.
    pub(crate) timeout: Duration,
    /// The seed of the choice among agents.
    pub(crate) seed: u64,
}

impl Backend {
    /// Creates a backend that is ready until a probe of `readiness` fails.
    pub(crate) fn watch(agents: SocketAddr, readiness: LoadTarget) -> Arc<Self> {
        let backend = Arc::new(Self { agents, ready: AtomicBool::new(true) });
        let watched = Arc::downgrade(&backend);
        tokio::spawn(async move {
            let mut ticks = interval(CHECK);
            loop {
                ticks.tick().await;
                let Some(backend) = watched.upgrade() else { return };
                let asking = async {
                    let mut connection = LoadConnection::open(&readiness, HEAD, Counter::default()).await?;
                    let (head, _) = connection.exchange(&readiness.requests()[0]).await?;
                    Ok::<_, LoadError>(head.status == 200)
                };
                backend.ready.store(matches!(timeout(CHECK, asking).await, Ok(Ok(true))), Relaxed);
            }
        });
        backend
    }

    /// Returns the result of the last probe.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }
}

impl Endpoint {
    /// Creates an endpoint without connections.
    pub(crate) fn new(target: LoadTarget, backend: Arc<Backend>, replica: usize) -> Self {
        Self { target, backend, replica, idle: Mutex::default() }
    }

    /// Sends a request, reads the whole response and returns its head.
    async fn send(&self, request: &[u8]) -> Result<ResponseHead, LoadError> {
        let used = self.idle.lock().pop();
        let (head, connection) = client::send_over(used, &self.target, request).await?;
        self.idle.lock().extend(connection);
        Ok(head)
    }
}

impl SentRequest {
    /// Records a request that was sent at `at` and ends now. A result of `None` is a timeout.
    fn new(at: Instant, replica: usize, result: Option<Result<ResponseHead, LoadError>>) -> Self {
        let failure = match result.unwrap_or(Err(LoadError::TimedOut)) {
            Ok(head) if head.status < 400 => None,
            Ok(head) => Some(RequestFailure::Status(head.status, head.reason)),
            Err(error) => Some(RequestFailure::NoResponse(error)),
        };
        Self { at, took: at.elapsed(), replica, failure }
    }
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status, Some(reason)) => write!(f, "status {status} ({reason})"),
            Self::Status(status, None) => write!(f, "status {status}"),
            Self::NoResponse(error) => error.fmt(f),
        }
    }
}

/// Sends the first request of a target again and again over a kept connection, with a pause after each response, until `until`
/// is cancelled.
pub(crate) async fn send_repeatedly(
    target: Arc<LoadTarget>,
    pause: Duration,
    limit: Duration,
    until: CancellationToken,
) -> Vec<SentRequest> {
    let (mut kept, mut done) = (None, Vec::new());
    while !until.is_cancelled() {
        let at = Instant::now();
        let sending = client::send_over(kept.take(), &target, &target.requests()[0]);
        let result = match timeout(limit, sending).await {
            Ok(Ok((head, connection))) => {
                kept = connection;
                Some(Ok(head))
            }
            Ok(Err(error)) => Some(Err(error)),
            Err(_) => None,
        };
        done.push(SentRequest::new(at, 0, result));
        until.run_until_cancelled(sleep(pause)).await;
    }
    done
}

/// Sends an open loop of requests, each to a replica that is ready, until `until` is cancelled. Waits for the responses.
pub(crate) async fn send_requests(
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
            let result = timeout(config.timeout, send_to_any(&endpoints, number, agent, &asked)).await;
            SentRequest::new(due, asked.into_inner(), result.ok())
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
) -> Result<ResponseHead, LoadError> {
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
