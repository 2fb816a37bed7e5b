//! The details of one agent beside its tunnels: its configuration, and the reasons why it cannot be dialled and why it is away.

use std::{sync::Arc, time::SystemTime};

use proto::AgentId;
use serde::Serialize;
use settings::rfc3339;

use kas_core::{
    agents::{AgentConflicts, AgentServer, DialErrors, TunnelEnd, TunnelEnds},
    configuration::{ConfigurationService, ConfigurationStatus},
};

/// Knows the details of the agents of this replica.
#[derive(Debug)]
pub(super) struct AgentInspector {
    configuration: ConfigurationService,
    dial_errors: Arc<DialErrors>,
    conflicts: Arc<AgentConflicts>,
    ends: Arc<TunnelEnds>,
}

/// The details of an agent, seen from this replica. Texts with addresses or names of other agents are for operators only, who have
/// `kas agents show`: callers get the kind of these errors.
#[derive(Debug, Serialize)]
pub(super) struct AgentDetails {
    /// The configuration, if the agent has a tunnel to this replica.
    configuration: Option<ConfigurationStatus>,
    /// The kind of the reason for which this replica cannot dial the agent.
    dial_error: Option<&'static str>,
    /// The last tunnel that this replica has refused in the last minutes.
    refused: Option<Refusal>,
    /// The end of the last tunnel to this replica.
    last_end: Option<TunnelEnd>,
}

#[derive(Debug, Serialize)]
struct Refusal {
    /// The label of `kas_handshakes_total`.
    reason: String,
    #[serde(with = "rfc3339")]
    time: SystemTime,
}

impl AgentInspector {
    pub(super) fn new(agents: &AgentServer) -> Self {
        Self {
            configuration: agents.configuration.clone(),
            dial_errors: Arc::clone(&agents.dial_errors),
            conflicts: Arc::clone(&agents.conflicts),
            ends: Arc::clone(&agents.ends),
        }
    }

    pub(super) fn inspect(&self, agent: AgentId) -> AgentDetails {
        let refused = self.conflicts.refused(agent, SystemTime::now());
        AgentDetails {
            configuration: self.configuration.status(agent),
            dial_error: self.dial_errors.kind(agent),
            refused: refused.map(|refused| Refusal { reason: refused.reason, time: refused.time }),
            last_end: self.ends.last(agent),
        }
    }
}
