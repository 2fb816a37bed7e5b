//! Connections that send requests: a thread per core with its own runtime, so that none wakes another.

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
    Failure, Tally, Target,
    client::Connection,
    progress::Counter,
    schedule::{Due, Schedule},
    session::Session,
};

/// Whoever cannot connect waits before it tries again: a dead target is not to be hammered.
const RECONNECT: Duration = Duration::from_millis(100);

/// How much is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Connections, each with one request at a time.
    pub connections: usize,
    /// How long requests are sent and counted.
    pub duration: Duration,
    /// How long they are sent before that, and not counted.
    pub warm_up: Duration,
    /// Requests a second over all connections; without it, each connection sends when it has its answer.
    pub rate: Option<f64>,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Of the choice among several requests, and of when each connection begins.
    pub seed: u64,
    /// Threads; 0 for one per core.
    pub threads: usize,
    /// The most that a connection reads at once.
    pub buffer: usize,
    /// Do not reuse connections: a new one for each request.
    pub fresh: bool,
    /// The only status that is no error; without it, all below 400.
    pub expected: Option<u16>,
    /// Instead of asking again and again, ask for an upgrade, and send so many bytes through it, which come back.
    pub echo: Option<usize>,
}

/// What a connection is between two exchanges.
#[derive(Default)]
pub(crate) enum Link {
    /// It has to be opened.
    #[default]
    None,
    Requests(Connection),
    Session(Box<Session>),
}

impl Default for Plan {
    /// 64 connections for 30 s.
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
            echo: None,
        }
    }
}

/// One thread's share.
struct Worker {
    target: Arc<Target>,
    plan: Plan,
    begin: Instant,
    start: Instant,
    end: Instant,
    tally: RefCell<Tally>,
    counter: Counter,
}

impl Plan {
    /// Whether an answer is what was asked for.
    pub fn accepts(&self, status: u16) -> bool {
        self.expected.map_or(status < 400, |expected| status == expected)
    }

    /// One request and its answer, or what is sent through a session and comes back. The status of the answer. `link`
    /// is kept for the next one if it can be.
    pub(crate) async fn exchange(
        &self,
        target: &Target,
        link: &mut Link,
        request: &[u8],
        counter: &Counter,
    ) -> Result<u16, Failure> {
        let before = std::mem::take(link);
        if let Some(bytes) = self.echo {
            let mut session = match before {
                Link::Session(session) => session,
                _ => Box::new(Session::open(target, request, counter.clone()).await?),
            };
            session.echo(bytes).await?;
            *link = Link::Session(session);
            return Ok(101);
        }
        let mut connection = match before {
            Link::Requests(connection) => connection,
            _ => Connection::open(target, self.buffer, counter.clone()).await?,
        };
        let (head, _) = connection.exchange(request).await?;
        if head.reusable && !self.fresh {
            *link = Link::Requests(connection);
        }
        Ok(head.status)
    }

    /// Sends the requests, and returns after the last answer, or at once when `stop` is cancelled. What was under way
    /// then is not counted.
    pub async fn run(
        &self,
        target: Arc<Target>,
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
        // Bytes are those that arrived in the measured time, also of answers that were not whole by then.
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
        let mut link = Link::None;
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
                    // The timer's own lateness is not the target's.
                    let woken = Instant::now();
                    self.tally.borrow_mut().lagged(woken.saturating_duration_since(due));
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
            let exchange = timeout(self.plan.timeout, exchange).await;
            let result = exchange.unwrap_or(Err(Failure::TimedOut));
            let now = Instant::now();
            match result {
                Ok(status) => {
                    self.counter.answered();
                    self.tally.borrow_mut().answered(since, now, status, self.plan.accepts(status));
                }
                Err(failure) => {
                    link = Link::None;
                    self.counter.failed();
                    self.tally.borrow_mut().failed(now, &failure);
                    if matches!(failure, Failure::Connect(_) | Failure::NotUpgraded(_)) {
                        sleep(RECONNECT.min(self.end.saturating_duration_since(now))).await;
                    }
                }
            }
        }
        for due in schedule.unsent(self.end).filter(|due| *due >= self.start) {
            self.tally.borrow_mut().not_sent(due);
        }
    }
}
