//! Reads the configuration of one agent: at its start, at a push event, and periodically.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::AgentIdentity;
use access::{ReadError, Reading};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{ConfigurationState, Shared, state::ReadResult};
use telemetry::GaugeGuard;

/// The longest time of one reading. Repositories have shorter limits for their steps.
const READ_TIMEOUT: Duration = Duration::from_secs(90);
/// The pause after the first reading that failed. It doubles up to the poll period.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// The poller of one agent. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Poller {
    shared: Arc<PollerState>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct PollerState {
    agent: AgentIdentity,
    state: watch::Sender<ConfigurationState>,
    wake: Notify,
}

impl Poller {
    /// Starts a poller on the current runtime.
    pub(super) fn start(service: Arc<Shared>, agent: AgentIdentity) -> Self {
        let state = watch::Sender::new(ConfigurationState::default());
        let shared = Arc::new(PollerState { agent, state, wake: Notify::new() });
        let task = tokio::spawn(Arc::clone(&shared).run(service));
        Self { shared, _task: AbortOnDropHandle::new(task) }
    }

    /// Returns a receiver of the configuration.
    pub(super) fn state(&self) -> watch::Receiver<ConfigurationState> {
        self.shared.state.subscribe()
    }

    /// Returns the agent.
    pub(super) fn agent(&self) -> &AgentIdentity {
        &self.shared.agent
    }

    /// Notes the keys that agentk refuses, and logs them once.
    pub(super) fn set_refused(&self, refused: Vec<String>) {
        let (id, name) = (self.shared.agent.id, &self.shared.agent.name);
        self.shared.state.send_if_modified(|state| {
            if state.set_refused(refused.clone()) {
                for refused in &refused {
                    tracing::warn!(agent.id = %id, agent.name = %name, refused, "agentk refuses a key of its configuration");
                }
            }
            // The configuration is the same.
            false
        });
    }

    /// Reads at once if the configuration comes from the repository of this project.
    pub(super) fn wake(&self, project_path: &str) {
        if self.shared.state.borrow().project() == Some(project_path) {
            self.wake_always();
        }
    }

    /// Reads at once.
    pub(super) fn wake_always(&self) {
        self.shared.wake.notify_one();
    }
}

impl PollerState {
    async fn run(self: Arc<Self>, service: Arc<Shared>) {
        let mut pause = FIRST_PAUSE;
        let mut invalid = None;
        loop {
            let result = self.read(&service).await;
            service.metrics.count_read(result.label());
            if self.state.borrow().error().is_none() {
                invalid = None;
            } else {
                invalid.get_or_insert_with(|| GaugeGuard::new(&service.metrics.errors));
            }
            let wait = match result {
                ReadResult::Unavailable => {
                    let wait = pause.min(service.poll_period);
                    pause *= 2;
                    wait
                }
                _ => {
                    pause = FIRST_PAUSE;
                    service.poll_period
                }
            };
            // Spreads the readings of many agents that have connected at the same time.
            let wait = wait.mul_f64(rand::random_range(0.9..1.1));
            tokio::select! {
                () = sleep(wait) => {}
                () = self.wake.notified() => tracing::debug!(agent.name = %self.agent.name, "push event"),
            }
        }
    }

    async fn read(&self, service: &Shared) -> ReadResult {
        let reading = timeout(READ_TIMEOUT, self.read_sources(service)).await.unwrap_or_else(|_| {
            Err(ReadError::Unavailable(format!("no response within {} s", READ_TIMEOUT.as_secs())))
        });
        let before = self.state.borrow().clone();
        let mut after = before.clone();
        let result = after.apply(reading, SystemTime::now(), service.template_check);
        self.log(&before, &after);
        // Without a version there is no file: GitLab keeps what it has.
        if after.written() != before.written()
            && let Some(written) = after.written()
        {
            for observer in service.observers.read().clone() {
                observer(&self.agent, written);
            }
        }
        let differs = after.differs(&before);
        self.state.send_if_modified(|state| {
            *state = after;
            differs
        });
        result
    }

    async fn read_sources(&self, service: &Shared) -> Result<Option<Reading>, ReadError> {
        let known = self.state.borrow().last().cloned();
        let sources = service.sources.read().clone();
        for source in sources {
            if let Some(reading) = source.read(&self.agent, known.as_ref()).await? {
                return Ok(Some(reading));
            }
        }
        Ok(None)
    }

    fn log(&self, before: &ConfigurationState, after: &ConfigurationState) {
        let (id, name) = (self.agent.id, &self.agent.name);
        let version = after.status().version;
        match (before.error(), after.error()) {
            (last, Some(error)) if last != Some(error) => {
                let error = &error.message;
                tracing::warn!(agent.id = %id, agent.name = %name, version, error, "configuration of an agent not used");
            }
            (Some(_), None) => {
                tracing::info!(agent.id = %id, agent.name = %name, version, "configuration of an agent is valid again");
            }
            _ => {}
        }
        if version.is_some() && after.configuration() != before.configuration() {
            tracing::info!(agent.id = %id, agent.name = %name, version, "configuration of an agent read");
            for warning in after.warnings() {
                tracing::warn!(agent.id = %id, agent.name = %name, warning, "key of a configuration has no effect");
            }
        }
    }
}
