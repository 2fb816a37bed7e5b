//! Reports errors of the configuration of an agent.

use std::{future::pending, time::SystemTime};

use proto::events::{Event, EventAgent, EventContent, EventKind, Severity};
use router::{NewEvent, StateScope, SubjectState};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, watch};

use super::AgentEvents;
use crate::{
    events::unique_key,
    services::{configuration::ConfigurationState, shared::shared},
};

/// The state of a configuration that is valid.
const VALID: &str = "valid";

/// Reports the errors of the configuration of one agent while one of its tunnels is open.
#[derive(Debug)]
pub(in crate::services) struct ConfigurationReporter {
    pub(super) service: AgentEvents,
    pub(super) agent: EventAgent,
    pub(super) configuration: watch::Receiver<ConfigurationState>,
}

impl ConfigurationReporter {
    /// Reports each error of the configuration, and that it is valid again, unless another tunnel of the agent does. The future never
    /// completes.
    pub(in crate::services) async fn run(&mut self) {
        let reporter = shared(&self.service.0.reporters, self.agent.id, || Semaphore::new(1));
        let _permit = reporter.acquire().await;
        let mut reported = None;
        loop {
            let described = describe(&self.configuration.borrow_and_update());
            if let Some((content, state)) = described
                && reported.as_ref() != Some(&state)
            {
                reported = Some(state.clone());
                let (time, agent) = (SystemTime::now(), Some(self.agent.clone()));
                let subject = "configuration".to_owned();
                let (scope, quiet) = (StateScope::Agent, state == VALID);
                let event = NewEvent::new(unique_key(&subject), Event { time, agent, content });
                self.service
                    .0
                    .events
                    .emit(NewEvent { state: Some(SubjectState { scope, subject, state, quiet }), ..event });
            }
            if self.configuration.changed().await.is_err() {
                return pending().await;
            }
        }
    }
}

/// Returns the event about a configuration, and its state. There is none before the first reading, and while its source does not respond,
/// which is no error of the configuration.
fn describe(state: &ConfigurationState) -> Option<(EventContent, String)> {
    let version = state.status().version.unwrap_or_default();
    match state.fault() {
        Some(error) => {
            let content = EventContent::new(EventKind::ConfigurationError, Severity::Error, error.to_owned())
                .with_detail("version_in_force", version);
            let digest = Sha256::digest(error);
            Some((content, digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()))
        }
        None if state.error().is_some() || state.configuration().is_none() => None,
        None => {
            let message = "the configuration is valid again".to_owned();
            let content = EventContent::new(EventKind::ConfigurationValid, Severity::Info, message);
            Some((content.with_detail("version_in_force", version), VALID.to_owned()))
        }
    }
}
