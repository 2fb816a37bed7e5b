//! An agent: keeps its tunnels up, and serves what comes through them.
//!
//! ```text
//!          ┌── lost ──────────────────────────────┐
//!          ▼                                      │
//!   connect (backoff, spread) ──► serve ──► drain asked ──► connect the next, then leave this one
//!                                   │                       (which finishes its streams beside it)
//!                                   └── shutdown ──► leave, finish streams, end
//! ```
//! One such loop per slot; see `slot`.

mod slot;
mod tunnels;

use std::{sync::Arc, time::Duration};

use cores::Cores;
use parking_lot::Mutex;
use proto::{Hello, InstanceId, ServiceName};
use telemetry::Tracer;
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::slot::Slot;
use crate::{
    Address, Dial, Services, Telemetry, Token, connect::ExtraHeader, dispatch::Dispatch, health::Check,
    repeats::Repeats, spread::Spread,
};

/// How long tasks may take to notice that the grace period is over and their tunnel is cut.
pub(crate) const AFTERMATH: Duration = Duration::from_millis(400);

/// What an agent is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where kas is.
    pub kas: Address,
    /// What kas knows us by.
    pub token: Token,
    /// Names this process.
    pub instance: InstanceId,
    /// Added to the requests that open tunnels.
    pub headers: Vec<ExtraHeader>,
    /// How many tunnels are kept.
    pub tunnels: u16,
    /// Where they live, one after the other, with the requests that come through them.
    pub cores: Cores,
    /// How long requests in flight may take after a shutdown was asked for; what is left then is cut.
    pub grace: Duration,
    /// Where we run.
    pub pod: Pod,
    /// How tunnels are set up.
    pub tunnel: tunnel::Settings,
    /// Makes the spans of requests, if they are traced.
    pub tracer: Option<Tracer>,
}

/// The pod that agentk runs in, for kas's tables and logs.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// Its name.
    pub name: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
}

/// Keeps tunnels to kas and serves requests. Nothing happens until it runs.
#[must_use = "an agent does nothing unless it runs"]
pub struct Agent<D> {
    shared: Arc<Shared<D>>,
}

/// What the slots of one agent share.
struct Shared<D> {
    options: Options,
    dial: D,
    names: Vec<ServiceName>,
    dispatch: Arc<Dispatch>,
    telemetry: Telemetry,
    spread: Mutex<Spread>,
    failures: Mutex<Repeats>,
    shutdown: CancellationToken,
    tunnels: TaskTracker,
    requests: TaskTracker,
}

impl Options {
    /// Two tunnels, and 25 s to shut down.
    pub fn new(kas: Address, token: Token) -> Self {
        Self {
            kas,
            token,
            instance: InstanceId::random(),
            headers: Vec::new(),
            tunnels: 2,
            cores: Cores::default(),
            grace: Duration::from_secs(25),
            pod: Pod::default(),
            tunnel: tunnel::Settings::default(),
            tracer: None,
        }
    }
}

impl<D: Dial> Agent<D> {
    /// Connects to nothing yet.
    pub fn new(options: Options, dial: D, services: Services, telemetry: Telemetry) -> Self {
        let shared = Shared {
            spread: Mutex::new(Spread::new(usize::from(options.tunnels))),
            dial,
            names: services.names(),
            dispatch: Arc::new(Dispatch::new(services, &telemetry.metrics, options.tracer.clone())),
            options,
            telemetry,
            failures: Mutex::default(),
            shutdown: CancellationToken::new(),
            tunnels: TaskTracker::new(),
            requests: TaskTracker::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The name of this instance in kas's logs.
    pub fn instance(&self) -> InstanceId {
        self.shared.options.instance
    }

    /// Runs until `shutdown`, then leaves all tunnels: no new requests, those in flight are finished or, after the
    /// grace period, cut. Ends less than a second after the grace period, whatever hangs.
    pub async fn run(self, shutdown: CancellationToken) {
        let shared = self.shared;
        let slots = TaskTracker::new();
        for index in 0..shared.options.tunnels {
            let seat = shared.options.cores.seat_at(usize::from(index));
            seat.spawn(&slots, Slot::new(Arc::clone(&shared), index).run());
        }
        // Ends the tasks even if this future is dropped.
        let _stop = shared.shutdown.clone().drop_guard();
        shutdown.cancelled().await;

        let grace = shared.options.grace;
        tracing::info!(?grace, "leaving all tunnels");
        shared.shutdown.cancel();
        let trackers = [&slots, &shared.tunnels, &shared.requests];
        let ended = async {
            for tracker in trackers {
                tracker.close();
                tracker.wait().await;
            }
        };
        if timeout(grace + AFTERMATH, ended).await.is_err() {
            let [_, tunnels, requests] = trackers.map(TaskTracker::len);
            tracing::warn!(tunnels, requests, "some tasks did not notice that they were cut");
        }
    }
}

impl<D> Shared<D> {
    fn hello(&self, index: u16) -> Hello {
        let kubernetes_version = match self.telemetry.health.cluster() {
            Check::Up { version } => version,
            Check::Unknown | Check::Down(_) => None,
        };
        Hello {
            instance: self.options.instance,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pod_name: self.options.pod.name.clone(),
            pod_namespace: self.options.pod.namespace.clone(),
            kubernetes_version,
            services: self.names.clone(),
            tunnel_index: index,
        }
    }

    /// False if the agent is stopping.
    async fn pause(&self, wait: Duration) -> bool {
        self.shutdown.run_until_cancelled(sleep(wait)).await.is_some()
    }
}
