//! Reports errors of the configuration of an agent.

use std::time::SystemTime;

use futures_util::future::BoxFuture;
use proto::events::{Event, EventAgent, EventContent, EventKind, Severity};
use sha2::{Digest as _, Sha256};
use store::{NewEvent, StateScope, SubjectState};
use tokio::sync::{Semaphore, watch};
use tunnel::Tunnel;

use super::{AgentEvents, event_agent};
use crate::unique_key;
use kas_core::{
    attachments::{Attachment, OpeningTunnel, TunnelFeature},
    configuration::{ConfigurationState, wait_for_configuration},
};

/// The state of a configuration that is valid.
const VALID: &str = "valid";

/// Reports the errors of the configuration of each agent while one of its tunnels is open.
#[derive(Debug)]
pub(crate) struct ConfigurationReports(pub(crate) AgentEvents);

/// Reports the errors of the configuration of one agent.
#[derive(Debug)]
struct ConfigurationReporter {
    service: AgentEvents,
    agent: EventAgent,
    configuration: watch::Receiver<ConfigurationState>,
}

impl TunnelFeature for ConfigurationReports {
    fn attach(&self, opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>> {
        Some(Box::new(ConfigurationReporter {
            service: self.0.clone(),
            agent: event_agent(opening.agent),
            configuration: opening.configuration.clone(),
        }))
    }
}

impl Attachment for ConfigurationReporter {
    fn run<'a>(&'a mut self, _: &'a Tunnel) -> BoxFuture<'a, ()> {
        Box::pin(self.report())
    }
}

impl ConfigurationReporter {
    /// Reports each error of the configuration, and that it is valid again, unless another tunnel of the agent does. The future never
    /// completes.
    async fn report(&mut self) {
        let reporter = self.service.0.reporters.get_or_insert_with(self.agent.id, || Semaphore::new(1));
        let _permit = reporter.acquire().await;
        let mut reported = None;
        loop {
            let mut new = None;
            wait_for_configuration(&mut self.configuration, |state| {
                new = describe(state).filter(|(_, state)| reported.as_ref() != Some(state));
                new.is_some()
            })
            .await;
            let Some((content, state)) = new else { continue };
            reported = Some(state.clone());
            let (time, agent) = (SystemTime::now(), Some(self.agent.clone()));
            let subject = "configuration".to_owned();
            let (scope, quiet) = (StateScope::Agent, state == VALID);
            let event = NewEvent::new(unique_key(&subject), Event { time, agent, content });
            let state = Some(SubjectState { scope, subject, state, quiet });
            self.service.0.events.emit(NewEvent { state, ..event });
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
