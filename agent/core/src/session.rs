//! An agent: keeps its tunnels open and serves the requests that arrive through them.
//!
//! ```text
//!          ┌── lost ──────────────────────────────┐
//!          ▼                                      │
//!   connect (backoff, spread) ──► serve ──► drain request ──► connect the next tunnel, then drain this one
//!                                   │                         (which completes its streams meanwhile)
//!                                   └── shutdown ──► drain, complete the streams, end
//! ```
//! Each slot runs one such loop; see `slot`. With GitLab's kas, one slot has a connection of the `ClientProtocol` instead of a tunnel, and
//! the others wait.

mod active_tunnel;
mod listener;
mod slot;
mod spread;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use cores::Cores;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use process::LogLimiter;
use proto::{Hello, InstanceId, ScopeSummary};
use telemetry::Tracer;
use tokio::{sync::Semaphore, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::listener::{
    ListenConfig, ListenConfigError, ListenKey, ListenPublicKey, ListenTls, ListeningAgent,
};
use self::{slot::TunnelSlot, spread::ReplicaSpread};
use crate::{
    AgentToken, Dial, KasAddress, Observability, Services,
    client_protocol::{ClientProtocol, NewProtocol},
    connect::{KasHeader, KasTarget, ProtocolChoice},
    tunnel_context::{Pod, ServeConfig, TunnelContext},
};

/// The pause after a panic of a slot, so that a slot that panics each time does not keep a core busy.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// The period in which failed dials of one kind are logged once.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The address of kas.
    pub kas: KasAddress,
    /// The agent token.
    pub token: AgentToken,
    /// The id of this process.
    pub instance: InstanceId,
    /// The protocol with kas.
    pub protocol: ProtocolChoice,
    /// Headers to add to the requests that open tunnels.
    pub headers: Vec<KasHeader>,
    /// The number of tunnels to keep open. With GitLab's kas there is one connection.
    pub tunnels: u16,
    /// The cores that run the tunnels, in turn, and the requests of each tunnel.
    pub cores: Cores,
    /// The time that requests in flight may take after the shutdown begins. The rest is cut.
    pub grace: Duration,
    /// The pod that agentk runs in.
    pub pod: Pod,
    /// The part of the cluster that agentk serves, which the hello reports.
    pub scope: Option<ScopeSummary>,
    /// The settings of HTTP/2 and WebSocket.
    pub tunnel: tunnel::TunnelConfig,
    /// Creates the spans of requests, if they are traced.
    pub tracer: Option<Tracer>,
}

/// Keeps tunnels to kas open and serves their requests.
#[must_use = "an agent does nothing unless it runs"]
pub struct Agent<D> {
    context: Arc<AgentContext<D>>,
}

/// The state that the slots of an agent share.
struct AgentContext<D> {
    config: SessionConfig,
    dialer: D,
    /// The state that all tunnels share.
    tunnel: Arc<TunnelContext>,
    observability: Observability,
    spread: Mutex<ReplicaSpread>,
    /// Limits the log lines of failed dials, by the label of their error.
    dial_errors: LogLimiter<&'static str>,
    shutdown: CancellationToken,
    protocol: Arc<dyn ClientProtocol>,
    /// The permit of the slot that has the connection to GitLab's kas.
    client_slot: Arc<Semaphore>,
}

impl SessionConfig {
    /// Returns the default configuration: two tunnels, and 25 s to shut down.
    pub fn new(kas: KasAddress, token: AgentToken) -> Self {
        Self {
            kas,
            token,
            instance: InstanceId::random(),
            protocol: ProtocolChoice::default(),
            headers: Vec::new(),
            tunnels: 2,
            cores: Cores::default(),
            grace: Duration::from_secs(25),
            pod: Pod::default(),
            scope: None,
            tunnel: tunnel::TunnelConfig::default(),
            tracer: None,
        }
    }

    /// Returns the kas to connect to.
    fn target(&self) -> KasTarget<'_> {
        KasTarget { kas: &self.kas, protocol: self.protocol, token: &self.token, headers: &self.headers }
    }

    /// Returns the number of slots.
    fn slots(&self) -> u16 {
        if self.protocol.is_gitlab(&self.kas) { 1 } else { self.tunnels }
    }

    fn serve_config(&self) -> ServeConfig {
        ServeConfig {
            token: self.token.clone(),
            instance: self.instance,
            cores: self.cores.clone(),
            grace: self.grace,
            pod: self.pod.clone(),
            scope: self.scope.clone(),
            tunnel: self.tunnel.clone(),
            tracer: self.tracer.clone(),
        }
    }
}

impl<D: Dial> Agent<D> {
    /// Returns an agent that has no tunnel until it runs. `protocol` takes the place of tunnels where kas has no other one.
    pub fn new(
        config: SessionConfig,
        dialer: D,
        services: Services,
        observability: Observability,
        protocol: NewProtocol,
    ) -> Self {
        let tunnel = Arc::new(TunnelContext::new(config.serve_config(), services, observability.clone()));
        let context = AgentContext {
            spread: Mutex::new(ReplicaSpread::new(usize::from(config.tunnels))),
            dialer,
            shutdown: tunnel.shutdown.clone(),
            protocol: protocol(Arc::clone(&tunnel)),
            client_slot: Arc::new(Semaphore::new(1)),
            tunnel,
            config,
            observability,
            dial_errors: LogLimiter::new(LOG_PERIOD),
        };
        Self { context: Arc::new(context) }
    }

    /// Returns the id of this process, which kas logs.
    pub fn instance(&self) -> InstanceId {
        self.context.config.instance
    }

    /// Runs until `shutdown`, and then drains all tunnels: they accept no new requests, and those in flight complete or,
    /// after the grace period, are cut. Completes less than a second after the grace period.
    pub async fn run(self, shutdown: CancellationToken) {
        let context = self.context;
        let slots = TaskTracker::new();
        for index in 0..context.config.slots() {
            let core = context.config.cores.reserve_at(usize::from(index));
            core.spawn(&slots, run_slot(Arc::clone(&context), index));
        }
        // Ends the tasks even if this future is dropped.
        let _stop = context.shutdown.clone().drop_guard();
        shutdown.cancelled().await;
        context.tunnel.drain(&slots).await;
    }
}

/// Runs one slot until the shutdown, and again if it panics.
async fn run_slot<D: Dial>(context: Arc<AgentContext<D>>, index: u16) {
    loop {
        let slot = TunnelSlot::new(Arc::clone(&context), index);
        // Unwind-safe: the next slot shares only state behind locks that do not poison.
        if AssertUnwindSafe(slot.run()).catch_unwind().await.is_ok() || !context.pause(PANIC_PAUSE).await {
            return;
        }
    }
}

impl<D> AgentContext<D> {
    fn hello(&self, index: u16) -> Hello {
        self.tunnel.hello(index)
    }

    /// Waits. Returns false at once if the agent is stopping.
    async fn pause(&self, wait: Duration) -> bool {
        self.shutdown.run_until_cancelled(sleep(wait)).await.is_some()
    }
}
