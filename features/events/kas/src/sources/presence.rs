//! Reports agents that come and go.
//!
//! An agent is gone when no replica has held a tunnel of it for ten seconds: tunnels are replaced, and replicas are restarted, all the
//! time. Every replica looks at the agents whose routes have changed; the state that the store remembers lets one of them report it.

use std::{
    collections::HashMap,
    future::pending,
    time::{Duration, SystemTime},
};

use proto::{
    AgentId,
    events::{EventContent, EventKind, Severity},
};
use store::{EventPosition, InstanceList, ReportedInfo, RouteChange, StateScope, SubjectState};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, sleep_until},
};

use super::EventSources;

/// The time between a change of the routes of an agent and the look at it.
const SETTLE: Duration = Duration::from_secs(1);
/// The time after which an agent without a tunnel is gone.
const GONE: Duration = Duration::from_secs(10);
/// The time after the start of this replica in which agents may come back.
const STARTUP: Duration = Duration::from_secs(60);
/// The pause after a look that failed.
const PAUSE: Duration = Duration::from_secs(5);
/// The time for which a state that was reported is not reported again.
const CONFIRMED: Duration = Duration::from_secs(86_400);
/// The most agents whose changes are remembered. Whoever can write to Redis can invent agents.
const MAX_AGENTS: usize = 100_000;
/// The events of the log that are read at once.
const PAGE: usize = 500;

/// The agents that have to be looked at, and those that were.
#[derive(Debug)]
struct PresenceTracker {
    /// The time before which no agent is gone: the agents of a replica that was restarted come back.
    settled: Instant,
    due: HashMap<AgentId, Instant>,
    /// The time since which an agent was seen without a tunnel.
    away: HashMap<AgentId, Instant>,
    /// Whether an agent was connected, and the time at which that was reported.
    confirmed: HashMap<AgentId, (bool, Instant)>,
}

/// The state of an agent, as the route store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Observation {
    Connected,
    /// It has no tunnel.
    Away,
    /// It has not connected for a week.
    Never,
}

impl PresenceTracker {
    /// Returns a tracker without agents, of which none is gone before a time.
    fn new(settled: Instant) -> Self {
        Self { settled, due: HashMap::new(), away: HashMap::new(), confirmed: HashMap::new() }
    }

    /// Looks at an agent at this time, or earlier if it has to be looked at earlier anyway.
    fn schedule(&mut self, agent: AgentId, at: Instant) {
        if self.due.len() < MAX_AGENTS || self.due.contains_key(&agent) {
            let due = self.due.entry(agent).or_insert(at);
            *due = at.min(*due);
        }
    }

    fn next(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    fn take_due(&mut self, now: Instant) -> Vec<AgentId> {
        let due: Vec<AgentId> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(agent, _)| *agent).collect();
        for agent in &due {
            self.due.remove(agent);
        }
        due
    }

    /// Notes a look. Returns whether the agent is connected, if that should be reported.
    fn observe(&mut self, agent: AgentId, observation: Observation, now: Instant) -> Option<bool> {
        let connected = match observation {
            Observation::Connected => {
                self.away.remove(&agent);
                true
            }
            Observation::Away => {
                if self.away.len() >= MAX_AGENTS {
                    self.away.clear();
                }
                // By the clock of this replica: that of the one which has lost the tunnel may differ.
                let gone = (*self.away.entry(agent).or_insert(now) + GONE).max(self.settled);
                if now < gone {
                    self.schedule(agent, gone);
                    return None;
                }
                false
            }
            Observation::Never => return None,
        };
        let known = self.confirmed.get(&agent);
        if known.is_some_and(|(known, at)| *known == connected && now < *at + CONFIRMED) {
            return None;
        }
        if self.confirmed.len() >= MAX_AGENTS {
            self.confirmed.clear();
        }
        self.confirmed.insert(agent, (connected, now));
        Some(connected)
    }

    /// Looks again at an agent about which another replica has reported something else: it may have been late.
    fn note_logged(&mut self, agent: AgentId, connected: bool, now: Instant) {
        if self.confirmed.get(&agent).is_none_or(|(known, _)| *known != connected) {
            self.confirmed.remove(&agent);
            self.schedule(agent, self.settled.max(now + SETTLE));
        }
    }
}

impl EventSources {
    /// Reports agents that come and go. The future never completes.
    pub(crate) async fn follow_agents(&self) {
        let (mut routes, mut log) = (self.events.store().route_changes(), self.events.changes());
        let settled = Instant::now() + STARTUP;
        let mut tracker = PresenceTracker::new(settled);
        let mut position = EventPosition::START;
        self.schedule_all(&mut tracker, settled);
        loop {
            let next = tracker.next();
            let look = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                change = routes.recv() => match change {
                    Ok(RouteChange::Agent(agent)) => tracker.schedule(agent, Instant::now() + SETTLE),
                    // The agents of a replica that was stopped come back within some seconds.
                    Ok(RouteChange::All) | Err(RecvError::Lagged(_)) => {
                        self.schedule_all(&mut tracker, settled.max(Instant::now() + SETTLE));
                    }
                    Err(RecvError::Closed) => pending().await,
                },
                // The sender lives as long as the store.
                _ = log.changed() => position = self.read_log(&mut tracker, position),
                () = look => self.look_at_agents(&mut tracker).await,
            }
        }
    }

    /// Looks at the agents of the identity file, and at those that this replica has seen.
    fn schedule_all(&self, tracker: &mut PresenceTracker, at: Instant) {
        let identity = self.identities.load_full();
        let seen: Vec<AgentId> = tracker.confirmed.keys().copied().collect();
        let known = identity.agents().into_iter().map(|(_, id)| id);
        known.chain(seen).for_each(|agent| tracker.schedule(agent, at));
    }

    fn read_log(&self, tracker: &mut PresenceTracker, mut position: EventPosition) -> EventPosition {
        loop {
            let page = self.events.read(position, PAGE);
            let Some(last) = page.events.last() else { return position };
            position = last.position;
            for event in &page.events {
                let connected = match event.event.content.kind {
                    EventKind::AgentConnected => true,
                    EventKind::AgentDisconnected => false,
                    _ => continue,
                };
                if let Some(agent) = &event.event.agent {
                    tracker.note_logged(agent.id, connected, Instant::now());
                }
            }
        }
    }

    async fn look_at_agents(&self, tracker: &mut PresenceTracker) {
        let agents = tracker.take_due(Instant::now());
        let list = self.events.store().list_instances(&agents).await;
        if list.error.is_some() {
            // An agent that is connected to another replica must not be taken for one that is gone.
            agents.iter().for_each(|agent| tracker.schedule(*agent, Instant::now() + PAUSE));
            return;
        }
        let now = SystemTime::now();
        for agent in agents {
            let (observation, since) = observe(&list, agent, now);
            if let Some(connected) = tracker.observe(agent, observation, Instant::now()) {
                let content = if connected {
                    describe_connected(&list, agent)
                } else {
                    let message = "no replica of kas has a tunnel of this agent any more".to_owned();
                    EventContent::new(EventKind::AgentDisconnected, Severity::Warning, message)
                };
                let state = if connected { "connected" } else { "away" };
                let state = SubjectState {
                    scope: StateScope::Agent,
                    subject: "presence".to_owned(),
                    state: state.to_owned(),
                    quiet: !connected,
                };
                self.emit(Some(self.agent(agent)), since, content, state);
            }
        }
    }
}

/// Returns the state of an agent, and the time since which it is so, as far as known.
fn observe(list: &InstanceList, agent: AgentId, now: SystemTime) -> (Observation, SystemTime) {
    if list.connected.iter().any(|entry| entry.agent == agent) {
        return (Observation::Connected, now);
    }
    match list.disconnected.get(&agent) {
        Some(since) => (Observation::Away, *since),
        None => (Observation::Never, now),
    }
}

fn describe_connected(list: &InstanceList, agent: AgentId) -> EventContent {
    let instances =
        list.connected.iter().filter(|entry| entry.agent == agent).flat_map(|entry| &entry.instances);
    let reported: Option<&ReportedInfo> = instances.map(|instance| &instance.reported).next();
    let message = match reported {
        Some(ReportedInfo { version, .. }) => format!("the agent has connected with agentk {version}"),
        None => "the agent has connected".to_owned(),
    };
    let content = EventContent::new(EventKind::AgentConnected, Severity::Info, message);
    let Some(ReportedInfo { version, kubernetes_version, .. }) = reported else { return content };
    let content = content.with_detail("version", &**version);
    content.with_detail("kubernetes_version", kubernetes_version.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: AgentId = AgentId(7);

    #[test]
    fn agent_is_gone_after_ten_seconds_without_a_tunnel() {
        let start = Instant::now();
        let mut tracker = PresenceTracker::new(start);
        tracker.schedule(AGENT, start + SETTLE);
        tracker.schedule(AGENT, start + GONE);
        assert_eq!(tracker.next(), Some(start + SETTLE), "the earlier time");
        assert!(tracker.take_due(start).is_empty());
        assert_eq!(tracker.take_due(start + SETTLE), [AGENT]);
        assert_eq!(tracker.observe(AGENT, Observation::Connected, start), Some(true));
        assert_eq!(tracker.observe(AGENT, Observation::Away, start), None);
        assert_eq!(tracker.next(), Some(start + GONE), "it is looked at again");
        assert_eq!(tracker.observe(AGENT, Observation::Connected, start + SETTLE), None, "it is back");
        assert_eq!(tracker.observe(AGENT, Observation::Away, start + GONE), None, "it was back meanwhile");
        assert_eq!(tracker.observe(AGENT, Observation::Away, start + GONE * 2), Some(false));
        assert_eq!(tracker.observe(AGENT, Observation::Away, start + GONE * 3), None, "it was reported");
        assert_eq!(tracker.observe(AGENT, Observation::Away, start + GONE * 3 + CONFIRMED), Some(false));
        assert_eq!(tracker.observe(AgentId(8), Observation::Never, start), None);
    }

    #[test]
    fn agents_of_a_restarted_replica_have_time_to_come_back() {
        let start = Instant::now();
        let settled = start + STARTUP;
        let mut tracker = PresenceTracker::new(settled);
        tracker.note_logged(AGENT, true, start);
        assert_eq!(tracker.next(), Some(settled), "an event before the start is no reason to look early");
        tracker.schedule(AGENT, start + SETTLE);
        for after in [SETTLE, SETTLE + GONE, STARTUP - SETTLE] {
            assert!(tracker.take_due(settled) == [AGENT]);
            assert_eq!(tracker.observe(AGENT, Observation::Away, start + after), None, "{after:?}");
        }
        assert_eq!(tracker.observe(AGENT, Observation::Away, settled), Some(false));
    }

    #[test]
    fn report_of_another_replica_that_is_late_is_corrected() {
        let now = Instant::now();
        let mut tracker = PresenceTracker::new(now);
        assert_eq!(tracker.observe(AGENT, Observation::Connected, now), Some(true));
        tracker.note_logged(AGENT, true, now);
        assert_eq!(tracker.next(), None, "that is so");
        tracker.note_logged(AGENT, false, now);
        assert_eq!(tracker.next(), Some(now + SETTLE));
        assert_eq!(tracker.observe(AGENT, Observation::Connected, now), Some(true));
    }

    #[test]
    fn invented_agents_are_bounded() {
        let now = Instant::now();
        let mut tracker = PresenceTracker::new(now);
        (0..MAX_AGENTS as u64 + 9).for_each(|agent| tracker.schedule(AgentId(agent), now));
        assert_eq!(tracker.due.len(), MAX_AGENTS);
        (0..MAX_AGENTS as u64 + 9).for_each(|agent| {
            tracker.observe(AgentId(agent), Observation::Connected, now);
        });
        assert!(tracker.confirmed.len() <= MAX_AGENTS);
    }
}
