//! Agents without clusters: real tunnels, as agentk opens them, thousands in one process.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use agent::{
    Address, Agent, Dial as _, Options, Pod, Services, TcpDial, Telemetry, Token,
    health::Check,
    upstream::{Pem, TlsOptions},
};
use anyhow::ensure;
use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tunnel::Body;

/// Where the agents dial, and who they are.
pub struct Crowd {
    /// The replicas of kas, to which dials go in turn, as a load balancer deals them out; at least one.
    pub kas: Vec<Address>,
    /// Trusted for `wss://` instead of the system's roots.
    pub cacert: Option<PathBuf>,
    /// Dealt out in turn; kas limits the tunnels of each agent.
    pub tokens: Vec<String>,
    /// How many agents.
    pub count: usize,
    /// How many tunnels each of them has.
    pub tunnels: u16,
    /// How many begin in a second.
    pub per_second: f64,
    /// Length of the answer to whatever is asked of their clusters.
    pub answer: usize,
}

/// Running agents. Dropping it ends them at once.
pub struct Fleet {
    telemetry: Telemetry,
    balancer: Arc<Balancer>,
    /// Of tunnels.
    count: usize,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Deals dials out.
struct Balancer {
    replicas: Mutex<Vec<(Address, Arc<TcpDial>)>>,
    next: AtomicUsize,
}

/// How long it took until so many tunnels were up.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Arrival {
    /// Tunnels that are up.
    pub up: usize,
    /// Seconds until half of them were; `null` if they never were.
    pub half: Option<f64>,
    /// Until 95 % were.
    pub most: Option<f64>,
    /// Until all were.
    pub all: Option<f64>,
}

impl Crowd {
    /// Starts the agents; it reads the certificates, and dials later.
    pub fn start(self) -> anyhow::Result<Fleet> {
        ensure!(!self.tokens.is_empty(), "there is no agent token");
        let balancer = Arc::new(Balancer::new(&self.kas, self.cacert.as_ref())?);
        let (telemetry, stop, tasks) = (Telemetry::default(), CancellationToken::new(), TaskTracker::new());
        telemetry.cluster_checked(Check::Up { version: Some("v1.33.1".to_owned()) });
        let answer = Bytes::from(vec![b'x'; self.answer]);
        let begin = Instant::now();
        for index in 0..self.count {
            let token = Token::Value(self.tokens[index % self.tokens.len()].clone().into());
            // As long as those that Kubernetes makes.
            let pod = Pod {
                name: Some(format!(
                    "agentk-{:010x}-{:05x}",
                    index.wrapping_mul(0x9e37_79b9),
                    index & 0xf_ffff
                )),
                namespace: Some("agentk".to_owned()),
            };
            let options = Options {
                tunnels: self.tunnels,
                grace: Duration::ZERO,
                pod,
                ..Options::new(self.kas[0].clone(), token)
            };
            let answer = answer.clone();
            let echo = move |_: Request<Body>| {
                let response = Response::new(Body::from(answer.clone()));
                async move { response }
            };
            let dials = Arc::clone(&balancer);
            let dial = move || {
                let dial = dials.next();
                async move { dial.dial().await }
            };
            let agent =
                Agent::new(options, dial, Services::new().with_fn("kubernetes", echo), telemetry.clone());
            let due = begin + Duration::from_secs_f64(index as f64 / self.per_second);
            let stop = stop.clone();
            tasks.spawn(async move {
                let wait = sleep_until(due.into());
                if stop.run_until_cancelled(wait).await.is_some() {
                    agent.run(stop).await;
                }
            });
        }
        tasks.close();
        let count = self.count * usize::from(self.tunnels);
        Ok(Fleet { telemetry, balancer, count, stop, tasks })
    }
}

impl Fleet {
    /// Waits until all tunnels are up, at most for `within`. Time counts from `since`.
    pub async fn arrive(&self, since: Instant, within: Duration, stop: &CancellationToken) -> Arrival {
        let mut tunnels = self.telemetry.health.tunnels();
        let mut arrival = Arrival::default();
        let waiting = async {
            for (share, reached) in
                [(0.5, &mut arrival.half), (0.95, &mut arrival.most), (1.0, &mut arrival.all)]
            {
                let enough = (self.count as f64 * share).ceil() as usize;
                // The sender lives in self.
                let _ = tunnels.wait_for(|up| *up >= enough).await;
                *reached = Some(since.elapsed().as_secs_f64());
            }
        };
        let _ = timeout(within, stop.run_until_cancelled(waiting)).await;
        arrival.up = self.up();
        arrival
    }

    /// Waits until kas is gone for every agent.
    pub async fn lost(&self, within: Duration) -> bool {
        let mut tunnels = self.telemetry.health.tunnels();
        timeout(within, tunnels.wait_for(|up| *up == 0)).await.is_ok()
    }

    /// No more dials go to this replica.
    pub fn leave_out(&self, kas: &Address) {
        self.balancer.replicas.lock().retain(|(address, _)| address.to_string() != kas.to_string());
    }

    /// Tunnels that are up, whenever their number changes.
    pub fn changes(&self) -> watch::Receiver<usize> {
        self.telemetry.health.tunnels()
    }

    /// Tunnels that are up.
    pub fn up(&self) -> usize {
        *self.telemetry.health.tunnels().borrow()
    }

    /// Why the last attempt that failed did so.
    pub fn last_failure(&self) -> Option<String> {
        self.telemetry.health.dial_failure().borrow().clone()
    }

    /// Lets all agents leave.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

impl Balancer {
    fn new(replicas: &[Address], cacert: Option<&PathBuf>) -> anyhow::Result<Self> {
        ensure!(!replicas.is_empty(), "there is no kas");
        let dial = |address: &Address| {
            let tls = TlsOptions { ca: cacert.cloned().map(Pem::File), ..TlsOptions::default() };
            anyhow::Ok((address.clone(), Arc::new(TcpDial::new(address.clone(), tls)?)))
        };
        let replicas = replicas.iter().map(dial).collect::<Result<_, _>>()?;
        Ok(Self { replicas: Mutex::new(replicas), next: AtomicUsize::new(0) })
    }

    fn next(&self) -> Arc<TcpDial> {
        let replicas = self.replicas.lock();
        let turn = self.next.fetch_add(1, Relaxed) % replicas.len();
        Arc::clone(&replicas[turn].1)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
