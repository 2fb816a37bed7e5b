//! The configuration of agents: reads it from files and repositories, and sends it to agentk.
//!
//! ```text
//!   file ───────────┐                        ┌─► pusher: PUT to each process ─► agentk
//!   Git, Gitaly ────┴─► source ─► poller ─► state ─► observers (GitLab)
//!                                  ▲         └─► `kas agents show`, internal API
//!              push event, first tunnel
//! ```
//!
//! One poller serves all tunnels of an agent at this replica, and lives as long as there is one. No request of a caller waits
//! for it. A configuration that cannot be used leaves the last good one in force.

mod config;
mod configured;
mod metrics;
mod poller;
mod pusher;
mod state;

use std::{fmt, future::pending, sync::Arc, time::Duration};

use access::{AgentIdentity, ConfigurationObserver, ConfigurationSource, Identities};
use parking_lot::{Mutex, RwLock};
use prometheus_client::registry::Registry;
use proto::{AgentId, Hello, ServiceName};
use store::GitPush;
use tokio::sync::{
    broadcast::{self, error::RecvError},
    watch,
};

pub use self::config::AgentConfigurationConfig;
use self::configured::ConfiguredSource;
use self::poller::Poller;
pub use self::state::{ConfigurationState, ConfigurationStatus, TemplateCheck};
pub(crate) use self::{metrics::ConfigurationMetrics, pusher::ConfigurationPusher};
use crate::weak_map::WeakMap;

/// Reads the configurations of the agents with tunnels to this replica. Clones are cheap, and share their state.
#[derive(Clone, Debug)]
pub struct ConfigurationService(Arc<Shared>);

/// The state of the service.
pub(crate) struct Shared {
    poll_period: Duration,
    sources: RwLock<Vec<Arc<dyn ConfigurationSource>>>,
    observers: RwLock<Vec<ConfigurationObserver>>,
    pollers: WeakMap<AgentId, Poller>,
    template_check: TemplateCheck,
    metrics: ConfigurationMetrics,
}

impl ConfigurationService {
    /// Returns a service whose first source is the identity file.
    pub fn new(
        settings: &AgentConfigurationConfig,
        identities: &Identities,
        template_check: TemplateCheck,
        registry: &mut Registry,
    ) -> Self {
        let max_bytes = settings.max_configuration_file_size;
        let configured = ConfiguredSource::new(identities.clone(), settings.settings.clone(), max_bytes);
        Self(Arc::new(Shared {
            poll_period: settings.poll_period,
            sources: RwLock::new(vec![Arc::new(configured)]),
            observers: RwLock::default(),
            pollers: WeakMap::default(),
            template_check,
            metrics: ConfigurationMetrics::register(registry),
        }))
    }

    /// Adds a source. The first source that knows an agent determines its configuration.
    pub fn add_source(&self, source: Arc<dyn ConfigurationSource>) {
        self.0.sources.write().push(source);
    }

    /// Adds an observer of the configurations that come into force after this call.
    pub fn add_observer(&self, observer: ConfigurationObserver) {
        self.0.observers.write().push(observer);
    }

    /// Reads the configurations from the repository of a project again, because it has received a push.
    pub fn wake(&self, project_path: &str) {
        self.0.pollers.for_each(|poller| poller.wake(project_path));
    }

    /// Reads the configurations of projects again when they receive a push. The future never completes.
    pub async fn follow_pushes(&self, mut pushes: broadcast::Receiver<GitPush>) {
        loop {
            match pushes.recv().await {
                Ok(push) => self.wake(push.path()),
                Err(RecvError::Lagged(_)) => self.0.pollers.for_each(Poller::wake_always),
                Err(RecvError::Closed) => pending().await,
            }
        }
    }

    /// Returns the pusher of the agent's configuration to one of its tunnels. The first one starts the poller.
    pub fn subscribe(&self, agent: &AgentIdentity, hello: &Hello) -> ConfigurationPusher {
        let accepted = hello.serves(ServiceName::CONFIGURATION);
        let start = || Poller::start(Arc::clone(&self.0), agent.clone());
        let poller = self.0.pollers.get_or_insert_with(agent.id, start);
        ConfigurationPusher::new(poller, accepted, self.0.metrics.clone())
    }

    /// Returns a receiver of the configuration of an agent, or `None` if it has no tunnel to this replica.
    pub fn state(&self, agent: AgentId) -> Option<watch::Receiver<ConfigurationState>> {
        Some(self.0.pollers.get(agent)?.state())
    }

    /// Returns the agents with tunnels to this replica, in no order.
    pub fn agents(&self) -> Vec<AgentId> {
        let agents = Mutex::new(Vec::new());
        self.0.pollers.for_each(|poller| agents.lock().push(poller.agent().id));
        agents.into_inner()
    }

    /// Returns the configuration of an agent for operators, or `None` if it has no tunnel to this replica.
    pub fn status(&self, agent: AgentId) -> Option<ConfigurationStatus> {
        Some(self.0.pollers.get(agent)?.state().borrow().status())
    }
}

/// Completes when the configuration of an agent fulfils a condition, at once if it does. Never completes after kas has stopped reading it.
pub async fn wait_for_configuration(
    configuration: &mut watch::Receiver<ConfigurationState>,
    condition: impl FnMut(&ConfigurationState) -> bool,
) {
    if configuration.wait_for(condition).await.is_err() {
        pending().await
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("sources", &*self.sources.read()).finish_non_exhaustive()
    }
}
