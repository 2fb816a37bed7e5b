//! The events that kas itself notices: agents that come and go, and the rules of the kill switch.

mod kill_switch;
mod presence;

use std::{sync::Arc, time::SystemTime};

use access::{Identities, kill_switch::KillSwitch};
use proto::{
    AgentId, AgentName,
    events::{Event, EventAgent, EventContent},
};
use router::LocalTunnels;
use store::{NewEvent, SubjectState, redis::RedisStore};

use crate::{Events, agents::event_agent, unique_key};
use kas_core::{agents::AgentServer, tunnel_entry::TunnelEntry};

/// The parts of a replica in which kas notices events. Clones are cheap.
#[derive(Clone, Debug)]
pub(crate) struct EventSources {
    events: Events,
    /// The agents of the identity file.
    identities: Identities,
    /// The tunnels that end at this replica.
    tunnels: Arc<LocalTunnels<TunnelEntry>>,
    kill_switch: Arc<KillSwitch>,
    /// The store that replicas share, if there are several.
    redis: Option<RedisStore>,
}

impl EventSources {
    /// Returns the sources of the replica with this server of agents.
    pub(crate) fn new(events: Events, agents: &AgentServer, redis: Option<RedisStore>) -> Self {
        Self {
            events,
            identities: agents.identities.clone(),
            tunnels: Arc::clone(&agents.tunnels),
            kill_switch: Arc::clone(&agents.kill_switch),
            redis,
        }
    }

    /// Returns an agent as events name it. An agent of GitLab without a tunnel here may have no name.
    fn agent(&self, id: AgentId) -> EventAgent {
        let identity = self.identities.load_full();
        if let Some(name) = identity.name(id) {
            return EventAgent {
                id,
                name: name.clone(),
                project_id: identity.project(id),
                project_path: None,
            };
        }
        let local = self.tunnels.views_of(id).first().map(|view| view.handle().agent.clone());
        match local {
            Some(agent) => event_agent(&agent),
            None => EventAgent { id, name: AgentName::of_id(id), project_id: None, project_path: None },
        }
    }

    /// Reports an event unless the subject has this state already.
    fn emit(&self, agent: Option<EventAgent>, time: SystemTime, content: EventContent, state: SubjectState) {
        let event = Event { time, agent, content };
        let key = unique_key(&state.subject);
        self.events.emit(NewEvent { state: Some(state), ..NewEvent::new(key, event) });
    }
}
