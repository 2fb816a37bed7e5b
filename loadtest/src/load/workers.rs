//! The threads and connections that send requests. Each core has a thread with its own runtime, so that threads do not
//! wake each other.

use std::{
    cell::RefCell,
    num::NonZero,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tokio::{
    task::LocalSet,
    time::{sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    LoadError, LoadTarget, Tally,
    client::LoadConnection,
    progress::Counter,
    schedule::{Due, Schedule},
    session::Session,
};

/// The pause after a failed connection attempt, so that an unreachable target is not flooded.
const RECONNECT: Duration = Duration::from_millis(100);

/// The time after which a request is cancelled, if it is one of those that are.
const CANCEL_AFTER: Duration = Duration::from_millis(20);

/// The load of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Connections, each with one request at a time.
    pub connections: usize,
    /// The measured time.
    pub duration: Duration,
    /// The time before that, whose requests are not counted.
    pub warm_up: Duration,
    /// Requests per second over all connections (open loop). Without it, each connection sends its next request after the
    /// last response (closed loop).
    pub rate: Option<f64>,
    /// The timeout of a response.
    pub timeout: Duration,
    /// The seed of the choice among several requests, and of when each connection begins.
    pub seed: u64,
    /// The number of threads; 0 for one per core.
    pub threads: usize,
    /// The size of one read and the size limit of a response head, in bytes.
    pub buffer: usize,
    /// If true, each request opens a new connection.
    pub fresh: bool,
    /// The only status that is no error. Without it, all below 400 are none.
    pub expected: Option<u16>,
    /// If set, one of this many requests is cancelled after 20 ms, and counts as a failure.
    pub cancelled: Option<u32>,
    /// If set, each connection opens an upgraded session and sends this many bytes again and again, which the far end echoes.
    pub echo: Option<usize>,
}

/// The connection that is kept between two exchanges.
#[derive(Default)]
pub(crate) enum KeptConnection {
    /// No connection is open.
    #[default]
    None,
    Requests(LoadConnection),
    Session(Box<Session>),
}

impl Default for Plan {
    /// The defaults of `loadtest http`: 64 connections for 30 s.
    fn default() -> Self {
        Self {
            connections: 64,
            duration: Duration::from_secs(30),
            warm_up: Duration::from_secs(1),
            rate: None,
            timeout: Duration::from_secs(10),
            seed: 1,
            threads: 0,
            buffer: 16 * 1024,
            fresh: false,
            expected: None,
            cancelled: None,
            echo: None,
        }
    }
}

/// One thread with its part of the connections.
struct Worker {
    target: Arc<LoadTarget>,
    plan: Plan,
    begin: Instant,
    start: Instant,
    end: Instant,
    tally: RefCell<Tally>,
    counter: Counter,
}

impl Plan {
    /// Returns whether a status is no error.
    pub fn accepts(&self, status: u16) -> bool {
        self.expected.map_or(status < 400, |expected| status == expected)
    }

    /// Sends a request and reads its response, or sends bytes through a session and reads their echo. Returns the status.
    ///
    /// `link` is set to the connection if it can be used again.
    pub(crate) async fn exchange(
        &self,
        target: &LoadTarget,
        link: &mut KeptConnection,
        request: &[u8],
        counter: &Counter,
    ) -> Result<u16, LoadError> {
        let before = std::mem::take(link);
        if let Some(bytes) = self.echo {
            let mut session = match before {
                KeptConnection::Session(session) => session,
                _ => Box::new(Session::open(target, request, counter.clone()).await?),
            };
            session.echo(bytes).await?;
            *link = KeptConnection::Session(session);
            return Ok(101);
        }
        let mut connection = match before {
            KeptConnection::Requests(connection) => connection,
            _ => LoadConnection::open(target, self.buffer, counter.clone()).await?,
        };
        let (head, _) = connection.exchange(request).await?;
        if head.reusable && !self.fresh {
            *link = KeptConnection::Requests(connection);
        }
        Ok(head.status)
    }

    /// Sends the requests, and returns after the last response, or at once when `stop` is cancelled. Requests that were in
    /// flight then are not counted.
    pub async fn run(
        &self,
        target: Arc<LoadTarget>,
        counter: Counter,
        stop: CancellationToken,
    ) -> anyhow::Result<Tally> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = if self.threads == 0 { cores } else { self.threads }.min(self.connections).max(1);
        let begin = Instant::now();
        let start = begin + self.warm_up;
        let end = start + self.duration;
        let mut sum = Tally::new(start, end);
        let handles = (0..threads).map(|thread| {
            let tally = RefCell::new(Tally::new(start, end));
            let (target, counter, plan) = (Arc::clone(&target), counter.clone(), self.clone());
            let (stop, mine) = (stop.clone(), (thread..self.connections).step_by(threads));
            let work = move || {
                let worker = Worker { target, plan, begin, start, end, tally, counter };
                worker.run(mine, &stop)
            };
            tokio::task::spawn_blocking(work)
        });
        let handles: Vec<_> = handles.collect();
        // Bytes count when they arrive, also those of responses that are incomplete at the end.
        let mut bytes = [0; 2];
        for (moment, bytes) in [start, end].into_iter().zip(&mut bytes) {
            stop.run_until_cancelled(sleep_until(moment.into())).await;
            *bytes = counter.bytes();
        }
        for handle in handles {
            sum.add(&handle.await??);
        }
        sum.bytes = bytes[1] - bytes[0];
        Ok(sum)
    }
}

impl Worker {
    fn run(
        self,
        connections: impl Iterator<Item = usize>,
        stop: &CancellationToken,
    ) -> std::io::Result<Tally> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tasks = LocalSet::new();
        let worker = Rc::new(self);
        for index in connections {
            let (worker, stop) = (Rc::clone(&worker), stop.clone());
            tasks.spawn_local(async move { stop.run_until_cancelled(worker.connection(index)).await });
        }
        runtime.block_on(tasks);
        let tally = worker.tally.borrow().clone();
        Ok(tally)
    }

    async fn connection(&self, index: usize) {
        let mut random = SmallRng::seed_from_u64(self.plan.seed.wrapping_add(index as u64));
        let mut schedule = Schedule::new(self.plan.rate, self.plan.connections, self.begin, random.random());
        let mut link = KeptConnection::None;
        loop {
            let now = Instant::now();
            if now >= self.end {
                break;
            }
            let since = match schedule.next(now) {
                Due::Now(since) => since,
                Due::At(due) if due >= self.end => break,
                Due::At(due) => {
                    sleep_until(due.into()).await;
                    // The delay of this timer is no latency of the target.
                    let woken = Instant::now();
                    self.tally.borrow_mut().record_timer_delay(woken.saturating_duration_since(due));
                    woken
                }
            };
            let requests = self.target.requests();
            let request = if requests.len() == 1 {
                &requests[0]
            } else {
                &requests[random.random_range(0..requests.len())]
            };
            let exchange = self.plan.exchange(&self.target, &mut link, request, &self.counter);
            let limit = match self.plan.cancelled {
                Some(share) if random.random_range(0..share) == 0 => CANCEL_AFTER,
                _ => self.plan.timeout,
            };
            let exchange = timeout(limit, exchange).await;
            let result = exchange.unwrap_or(Err(LoadError::TimedOut));
            let now = Instant::now();
            match result {
                Ok(status) => {
                    self.counter.answered();
                    self.tally.borrow_mut().answered(since, now, status, self.plan.accepts(status));
                }
                Err(failure) => {
                    link = KeptConnection::None;
                    self.counter.failed();
                    self.tally.borrow_mut().failed(now, &failure);
                    if matches!(failure, LoadError::Connect(_) | LoadError::NotUpgraded(_)) {
                        sleep(RECONNECT.min(self.end.saturating_duration_since(now))).await;
                    }
                }
            }
        }
        for due in schedule.unsent(self.end).filter(|due| *due >= self.start) {
            self.tally.borrow_mut().record_unsent(due);
        }
    }
}
