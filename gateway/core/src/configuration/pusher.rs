//! Sends the configuration of an agent through one of its tunnels.

use std::{sync::Arc, time::Duration};

use http::Method;
use http_body_util::{BodyExt as _, Limited};
use proto::{
    ServiceName,
    agent_configuration::{CONFIGURATION_PATH, ConfigurationResponse, ConfigurationUpdate},
    short_line,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tunnel::{Body, Tunnel};

use super::{ConfigurationMetrics, ConfigurationState, poller::Poller};
use crate::agent_requests::{AgentRequestError, json, request, send};

/// The time that an agent may take for the response.
const PUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which a new tunnel may wait for its configuration before it takes requests.
const FIRST_PUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a push that failed. It doubles up to five minutes.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause after a push that failed.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// The largest response of an agent, in bytes.
const MAX_REFUSED: usize = 64 << 10;

/// Sends the configuration of an agent through one tunnel. The poller of the agent runs while a pusher exists.
#[derive(Debug)]
pub struct ConfigurationPusher {
    poller: Arc<Poller>,
    /// False if the agent does not accept its configuration, which kas reads for others then, such as GitLab.
    accepted: bool,
    state: watch::Receiver<ConfigurationState>,
    metrics: ConfigurationMetrics,
}

/// The result of one push.
enum PushResult {
    /// The agent uses the configuration, without the keys in these sentences, or one that another replica has read later.
    Accepted(ConfigurationResponse),
    /// The agent does not accept this configuration.
    Refused(String),
    /// The agent did not respond.
    Failed(AgentRequestError),
}

impl ConfigurationPusher {
    pub(super) fn new(poller: Arc<Poller>, accepted: bool, metrics: ConfigurationMetrics) -> Self {
        let mut state = poller.state();
        // The first reading may be complete.
        state.mark_changed();
        Self { poller, accepted, state, metrics }
    }

    /// Returns a receiver of the configuration.
    pub fn state(&self) -> watch::Receiver<ConfigurationState> {
        self.state.clone()
    }

    /// Sends the configuration if it is known already, so that it is in force before the first request of a caller.
    ///
    /// This takes a second at most. [`Self::run`] sends it again if it fails.
    pub async fn send_current(&mut self, tunnel: &Tunnel) {
        if !self.accepted {
            return;
        }
        let update = self.state.borrow_and_update().update(self.poller.agent());
        let Some(update) = update else { return };
        let sent = timeout(FIRST_PUSH_TIMEOUT, push(tunnel, &update)).await;
        if let Ok(PushResult::Accepted(response)) = sent {
            self.accept(response);
        } else {
            self.state.mark_changed();
        }
    }

    fn accept(&self, ConfigurationResponse { refused, ignored }: ConfigurationResponse) {
        self.metrics.count_push(if ignored { "ignored" } else { "ok" });
        self.poller.set_refused(refused);
    }

    /// Sends each version of the configuration through the tunnel. The future completes only if the agent does not accept it.
    pub async fn run(&mut self, tunnel: &Tunnel) {
        let mut pause = FIRST_PAUSE;
        while self.accepted && self.state.changed().await.is_ok() {
            let update = self.state.borrow_and_update().update(self.poller.agent());
            let Some(update) = update else { continue };
            let name = &self.poller.agent().name;
            match Box::pin(push(tunnel, &update)).await {
                PushResult::Accepted(response) => {
                    self.accept(response);
                    pause = FIRST_PAUSE;
                }
                PushResult::Refused(error) => {
                    self.metrics.count_push("refused");
                    tracing::warn!(agent.name = %name, error, "configuration refused by agentk");
                }
                PushResult::Failed(error) => {
                    self.metrics.count_push("failed");
                    tracing::debug!(agent.name = %name, %error, "configuration not sent to agentk");
                    self.state.mark_changed();
                    sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
            }
        }
    }
}

/// Reads which keys agentk refuses. The response has no body if it uses all of them.
async fn response_of(body: Body) -> ConfigurationResponse {
    let body = timeout(PUSH_TIMEOUT, Limited::new(body, MAX_REFUSED).collect()).await;
    let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let response: ConfigurationResponse = serde_json::from_slice(&body).unwrap_or_default();
    let shown = response.refused.into_iter().take(100);
    let refused = shown.map(|sentence| short_line(sentence.as_bytes())).collect();
    ConfigurationResponse { refused, ..response }
}

async fn push(tunnel: &Tunnel, update: &ConfigurationUpdate) -> PushResult {
    let request = request(Method::PUT, ServiceName::CONFIGURATION, CONFIGURATION_PATH, json(update));
    match send(tunnel, request, PUSH_TIMEOUT).await {
        Ok(response) => PushResult::Accepted(response_of(response.into_body()).await),
        Err(error @ AgentRequestError::Refused(status, _)) if status.is_client_error() => {
            PushResult::Refused(error.to_string())
        }
        Err(error) => PushResult::Failed(error),
    }
}
