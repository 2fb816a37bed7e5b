//! Agents that accept connections and open none: kas dials them.
//!
//! ```text
//!   identity file, GitLab ──► targets ──► leases in the store ──► slots: dial ──► admit ──► serve, as every tunnel
//!                                              ▲                           │
//!                                              └── every 3 s, and after ───┘ failures (backoff), ends, drains
//! ```
//!
//! One task of a replica, [`ReceptiveAgents::run`], supervises the slots of all such agents. Each slot is a task that dials once and
//! serves its tunnel. The leases limit the slots: one replica at a time dials each tunnel, and the tunnels of an agent are spread over
//! the replicas. From the 101 on, a tunnel is served by the code for agents that connect.

mod connect;
mod error;
mod slot;
mod targets;

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use access::DialTarget;
use backoff::Backoff;
use cores::Cores;
use parking_lot::Mutex;
use process::LogLimiter;
use proto::{AgentId, AgentName, Epoch};
use store::{LEASE_TTL, LeaseRequest};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub use self::connect::{AgentDialer, DIAL_ALPN};
pub(crate) use self::slot::DialledTunnel;
pub use self::targets::DialSource;
use self::{
    error::DialError,
    slot::{SlotEvent, SlotEventKind, SlotId},
    targets::DialTargets,
};
use super::AgentServer;

/// The interval in which leases are renewed, a quarter of [`LEASE_TTL`]. A free lease is taken within this time.
const LEASE_INTERVAL: Duration = Duration::from_secs(3);

/// The time after a failed dial in which other replicas keep tunnels that this one could have. Later it tries again.
const FAILURE_MEMORY: Duration = Duration::from_secs(600);

/// A tunnel that agentk drains earlier counts as a failed dial.
const MIN_LIFETIME: Duration = Duration::from_secs(1);

/// The period in which failed dials of one kind are logged once.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// The reasons for which kas cannot dial agents, for the list of agents and for callers.
#[derive(Debug, Default)]
pub struct DialErrors(Mutex<HashMap<AgentId, (&'static str, String)>>);

/// Dials the agents of the identity file that have a URL, and those of another source.
#[derive(Debug)]
pub struct ReceptiveAgents {
    server: Arc<AgentServer>,
    dialer: Arc<AgentDialer>,
    /// The cores that run the tunnels.
    cores: Cores,
    targets: DialTargets,
    agents: HashMap<AgentId, DialledAgent>,
    /// Agents that are no longer dialled, whose leases are given up.
    released: Vec<AgentId>,
    events: (UnboundedSender<SlotEvent>, UnboundedReceiver<SlotEvent>),
    epoch: u64,
    last_slot: u64,
    /// The time of the last answer of the store about leases, or of the start.
    answered: Instant,
    log_limit: LogLimiter<&'static str>,
}

/// An agent that kas dials.
#[derive(Debug)]
struct DialledAgent {
    name: AgentName,
    target: DialTarget,
    /// The tunnels that this replica may have.
    granted: u16,
    slots: HashMap<SlotId, Slot>,
    backoff: Backoff,
    /// The time of the next dial, if it has to wait.
    retry_at: Option<Instant>,
    /// The time of the last failed dial since the last success.
    failed_at: Option<Instant>,
    /// The leases should be renewed now.
    due: bool,
}

#[derive(Debug)]
struct Slot {
    leave: CancellationToken,
    replaced: CancellationToken,
    opened: Option<Instant>,
    /// Another slot takes the place of this one.
    leaving: bool,
}

impl DialErrors {
    /// Returns why the last dial of an agent failed, for operators. `None` if this replica does not dial it, or has dialled it.
    pub(crate) fn get(&self, agent: AgentId) -> Option<String> {
        self.0.lock().get(&agent).map(|(_, error)| error.clone())
    }

    /// Returns the kind of this error, for callers: the text has addresses, files and names of other agents.
    pub fn kind(&self, agent: AgentId) -> Option<&'static str> {
        self.0.lock().get(&agent).map(|(kind, _)| *kind)
    }

    fn set(&self, agent: AgentId, error: &DialError) {
        self.0.lock().insert(agent, (error.label(), error.to_string()));
    }

    fn remove(&self, agent: AgentId) {
        self.0.lock().remove(&agent);
    }
}

impl ReceptiveAgents {
    /// Creates the task of a replica. Its tunnels run on the `cores`. `others` has agents that are not in the identity file.
    pub fn new(
        server: Arc<AgentServer>,
        dialer: AgentDialer,
        cores: Cores,
        others: Option<DialSource>,
    ) -> Self {
        Self {
            targets: DialTargets::new(server.identities.clone(), others),
            server,
            dialer: Arc::new(dialer),
            // The tunnels are spread evenly, like those of agents that connect.
            cores: cores.with_own_counts(),
            agents: HashMap::new(),
            released: Vec::new(),
            events: unbounded_channel(),
            epoch: 0,
            last_slot: 0,
            answered: Instant::now(),
            log_limit: LogLimiter::new(LOG_PERIOD),
        }
    }

    /// Dials agents until the replica stops, and then gives up the leases. The tunnels drain by themselves.
    pub async fn run(mut self) {
        let draining = self.server.connections.draining.clone();
        let mut ticks = interval(LEASE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.update_targets();
        loop {
            let retry_at = self.agents.values().filter_map(|agent| agent.retry_at).min();
            let retry = async {
                match retry_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = draining.cancelled() => break,
                _ = ticks.tick() => self.agents.values_mut().for_each(|agent| agent.due = true),
                Some(event) = self.events.1.recv() => self.on_event(event),
                () = self.targets.changed() => self.update_targets(),
                () = retry => self.agents.values_mut().for_each(DialledAgent::end_wait),
            }
            if draining.run_until_cancelled(self.renew_leases()).await.is_none() {
                break;
            }
            self.fill_slots();
        }
        self.released.extend(self.agents.keys());
        self.agents.values_mut().for_each(|agent| agent.due = false);
        self.renew_leases().await;
    }

    /// Takes over the current agents.
    fn update_targets(&mut self) {
        let targets = self.targets.current();
        let errors = &self.server.dial_errors;
        self.agents.retain(|id, agent| {
            let stays = targets.contains_key(id);
            if !stays {
                agent.slots.values_mut().for_each(Slot::leave);
                errors.remove(*id);
                self.released.push(*id);
            }
            stays
        });
        for (id, (name, target)) in targets {
            match self.agents.get_mut(&id) {
                Some(agent) if agent.target == target => agent.name = name,
                Some(agent) => {
                    errors.remove(id);
                    agent.slots.values_mut().for_each(Slot::leave);
                    let (granted, slots) = (agent.granted, mem::take(&mut agent.slots));
                    *agent = DialledAgent { granted, slots, ..DialledAgent::new(name, target) };
                }
                None => {
                    self.released.retain(|released| *released != id);
                    self.agents.insert(id, DialledAgent::new(name, target));
                }
            }
        }
    }

    fn on_event(&mut self, SlotEvent { agent: id, slot, kind }: SlotEvent) {
        // Slots of agents that are no longer dialled end by themselves.
        let Some(agent) = self.agents.get_mut(&id) else { return };
        match kind {
            SlotEventKind::Opened => {
                if let Some(slot) = agent.slots.get_mut(&slot) {
                    slot.opened = Some(Instant::now());
                }
                (agent.retry_at, agent.failed_at) = (None, None);
                self.server.dial_errors.remove(id);
                let mut replaced = agent.slots.values().filter(|slot| slot.leaving);
                if let Some(replaced) = replaced.find(|slot| !slot.replaced.is_cancelled()) {
                    replaced.replaced.cancel();
                }
            }
            SlotEventKind::Leaving => {
                let Some(slot) = agent.slots.get_mut(&slot) else { return };
                slot.leaving = true;
                let Some(age) = slot.opened.map(|opened| opened.elapsed()) else { return };
                // An agentk that drains each tunnel at once is not dialled again at once.
                if age < MIN_LIFETIME {
                    agent.retry_at = Some(Instant::now() + agent.backoff.lost(age, rand::random()));
                } else {
                    agent.backoff.replaced(age);
                }
            }
            SlotEventKind::Ended(error) => {
                let Some(slot) = agent.slots.remove(&slot) else { return };
                match (error, slot.opened) {
                    (Some(error), _) => self.on_failure(id, &error),
                    (None, Some(opened)) if !slot.leaving => {
                        let wait = agent.backoff.lost(opened.elapsed(), rand::random());
                        agent.retry_at = Some(Instant::now() + wait);
                    }
                    (None, _) => {}
                }
            }
        }
    }

    fn on_failure(&mut self, id: AgentId, error: &DialError) {
        self.server.metrics.count_dial(error.label());
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let now = Instant::now();
        agent.failed_at = Some(now);
        // Several slots that fail together are one failure.
        if agent.retry_at.is_none() {
            let wait = if error.is_refused_connection() {
                agent.backoff.refused(rand::random())
            } else {
                agent.backoff.failed(error.retry_after(), rand::random())
            };
            agent.retry_at = Some(now + wait);
        }
        let retry_in = agent.retry_at.map(|at| at - now);
        let (name, url) = (&agent.name, &agent.target.url);
        self.server.dial_errors.set(id, error);
        match self.log_limit.admit(error.label(), now.into_std()) {
            Some(suppressed) => {
                tracing::warn!(agent.id = %id, agent.name = %name, %url, %error, ?retry_in, suppressed, "cannot dial an agent");
            }
            None => {
                tracing::debug!(agent.id = %id, agent.name = %name, %error, ?retry_in, "cannot dial an agent")
            }
        }
    }

    /// Renews the leases of the agents that are due, with one request.
    async fn renew_leases(&mut self) {
        let due = self.agents.iter_mut().filter(|(_, agent)| agent.due);
        let mut requests: Vec<LeaseRequest> = Vec::new();
        self.epoch += 1;
        let epoch = Epoch(self.epoch);
        for (id, agent) in due {
            agent.due = false;
            requests.push(agent.lease_request(*id, epoch));
        }
        for agent in self.released.drain(..) {
            requests.push(LeaseRequest {
                agent,
                tunnels: 0,
                open: 0,
                may_dial: false,
                reliable: false,
                epoch,
            });
        }
        if requests.is_empty() {
            return;
        }
        let now = Instant::now();
        match self.server.store.renew_leases(self.server.replica, &requests).await {
            Ok(granted) => {
                self.answered = now;
                for (request, granted) in requests.iter().zip(granted) {
                    if let Some(agent) = self.agents.get_mut(&request.agent) {
                        agent.granted = granted;
                        // Other replicas have the tunnels: an earlier error of this one says nothing about the agent now.
                        if granted == 0 && request.may_dial {
                            self.server.dial_errors.remove(request.agent);
                        }
                    }
                }
            }
            // Without the store, each replica keeps what it has. It dials one tunnel rather than none, since the agent may have no
            // other; the tunnels that are too many drain once the store answers again.
            Err(error) => {
                tracing::debug!(%error, "leases not renewed");
                if now > self.answered + LEASE_TTL {
                    self.agents.values_mut().for_each(|agent| agent.granted = agent.granted.max(1));
                }
            }
        }
    }

    /// Starts and stops slots until each agent has as many as granted.
    fn fill_slots(&mut self) {
        for (id, agent) in &mut self.agents {
            let granted = usize::from(agent.granted);
            while agent.active() > granted {
                agent.leave_one();
            }
            while agent.active() < granted && agent.retry_at.is_none() {
                self.last_slot += 1;
                let slot = SlotId(self.last_slot);
                let (leave, replaced) = (CancellationToken::new(), CancellationToken::new());
                let dialled =
                    DialledTunnel::new((*id, slot), self.events.0.clone(), leave.clone(), replaced.clone());
                agent.slots.insert(slot, Slot { leave, replaced, opened: None, leaving: false });
                let (server, dialer) = (Arc::clone(&self.server), Arc::clone(&self.dialer));
                let running = slot::run(server, dialer, agent.target.clone(), dialled);
                self.server.connections.spawn_on(self.cores.reserve(), running);
            }
        }
    }
}

impl DialledAgent {
    fn new(name: AgentName, target: DialTarget) -> Self {
        Self {
            name,
            target,
            granted: 0,
            slots: HashMap::new(),
            backoff: Backoff::default(),
            retry_at: None,
            failed_at: None,
            due: true,
        }
    }

    /// Allows the next dial if its time has come.
    fn end_wait(&mut self) {
        if self.retry_at.take_if(|at| *at <= Instant::now()).is_some() {
            self.due = true;
        }
    }

    fn lease_request(&self, agent: AgentId, epoch: Epoch) -> LeaseRequest {
        let open = self.slots.values().filter(|slot| !slot.leaving && slot.opened.is_some()).count();
        LeaseRequest {
            agent,
            tunnels: self.target.tunnels,
            open: u16::try_from(open).unwrap_or(u16::MAX),
            may_dial: self.retry_at.is_none(),
            reliable: self.failed_at.is_none_or(|at| Instant::now() > at + FAILURE_MEMORY),
            epoch,
        }
    }

    /// Returns the number of slots that dial or have a tunnel, and stay.
    fn active(&self) -> usize {
        self.slots.values().filter(|slot| !slot.leaving).count()
    }

    /// Ends a slot: one that dials before one with a tunnel, and a newer one before an older one.
    fn leave_one(&mut self) {
        let staying = self.slots.iter_mut().filter(|(_, slot)| !slot.leaving);
        if let Some((_, slot)) = staying.max_by_key(|(id, slot)| (slot.opened.is_none(), **id)) {
            slot.leave();
        }
    }
}

impl Slot {
    /// Ends the slot: its dial at once, its tunnel after a drain.
    fn leave(&mut self) {
        self.leaving = true;
        self.leave.cancel();
    }
}
