//! The work of features in each tunnel of an agent, besides the requests of callers.

mod lines;
mod subscription;

use std::{fmt::Debug, sync::Arc};

use access::{AgentIdentity, kill_switch::KillSwitch};
use futures_util::future::BoxFuture;
use proto::Hello;
use secrecy::SecretString;
use tokio::sync::watch;
use tunnel::Tunnel;

pub use self::lines::Lines;
pub use self::subscription::{AgentSubscription, SubscriptionConfig};
use crate::{agent_memory::AgentMemory, configuration::ConfigurationState};

/// A tunnel that an agent opens.
#[derive(Debug)]
pub struct OpeningTunnel<'a> {
    /// The agent.
    pub agent: &'a AgentIdentity,
    /// The token of the agent, with which GitLab is asked what the agent may read.
    pub token: &'a SecretString,
    /// The hello of the agent, which lists the services that agentk accepts.
    pub hello: &'a Hello,
    /// The configuration of the agent.
    pub configuration: watch::Receiver<ConfigurationState>,
    /// The memory that the agent may occupy.
    pub(crate) memory: &'a AgentMemory,
    /// The rules by which the operator disables requests.
    pub(crate) kill_switch: &'a Arc<KillSwitch>,
}

/// A feature that does something in tunnels by itself.
pub trait TunnelFeature: Debug + Send + Sync {
    /// Returns what runs while the tunnel is open, or `None` if agentk does not accept it.
    fn attach(&self, opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>>;

    /// An agent describes itself in a tunnel: when the tunnel is open, and GitLab's agentk also later.
    fn on_description(&self, _agent: &AgentIdentity, _hello: &Hello) {}
}

/// The work of a feature in one tunnel.
pub trait Attachment: Debug + Send {
    /// Serves the tunnel. The future never completes, and is dropped at any time.
    fn run<'a>(&'a mut self, tunnel: &'a Tunnel) -> BoxFuture<'a, ()>;
}
