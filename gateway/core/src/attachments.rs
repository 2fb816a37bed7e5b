//! The work of features in the tunnels of an agent, besides the requests of callers.

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

/// A tunnel that begins to serve a process of agentk.
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

/// A feature that does something in tunnels by itself: in one tunnel of each process of agentk. When this tunnel ends or drains, it is
/// attached to the next one.
pub trait TunnelFeature: Debug + Send + Sync {
    /// Returns whether an agent with this configuration needs the feature. Once it does, the feature stays attached.
    fn is_needed(&self, _configuration: &ConfigurationState) -> bool {
        true
    }

    /// Returns what runs in the tunnel, or `None` if agentk does not accept it.
    fn attach(&self, opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>>;

    /// An agent describes itself in a tunnel: when the tunnel is open, and GitLab's agentk also later.
    fn on_description(&self, _agent: &AgentIdentity, _hello: &Hello) {}
}

/// The work of a feature in one tunnel.
pub trait Attachment: Debug + Send {
    /// Serves the agent through the tunnel. The future never completes, and is dropped at any time.
    fn run<'a>(&'a mut self, tunnel: &'a Tunnel) -> BoxFuture<'a, ()>;
}
