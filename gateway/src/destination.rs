//! The agent and the service to which a request goes.

use proto::{AgentId, AgentName, ServiceName};
use router::RequestClass;

/// The destination of a request.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The agent.
    pub agent: AgentId,
    /// The agent's name, for messages and logs.
    pub name: AgentName,
    /// The service of the agent.
    pub service: ServiceName,
    /// The kind of the response: a short one, or a stream that stays open.
    pub class: RequestClass,
}
