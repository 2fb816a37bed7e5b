//! Subscriptions at agentk: requests whose responses are lines of JSON, for as long as the tunnel is open.

use std::{convert::Infallible, sync::Arc, time::Duration};

use access::{AgentIdentity, RequestError};
use http::{Request, Response};
use proto::ServiceName;
use tokio::time::sleep;
use tunnel::{Body, Tunnel};

use super::{Lines, OpeningTunnel};
use crate::{
    agent_memory::AgentMemory,
    agent_requests::{AgentRequestError, send},
    kill_switch::{KillSwitch, RequestAttributes},
};

/// The properties of all subscriptions of one feature.
#[derive(Debug)]
pub struct SubscriptionConfig {
    /// The service that rules of the kill switch name.
    pub service: &'static str,
    /// The time that agentk may take for the head of the response.
    pub head_timeout: Duration,
    /// The time without a line after which agentk is taken for dead.
    pub line_timeout: Option<Duration>,
    /// The longest line, in bytes.
    pub max_line: usize,
}

/// The subscription of one feature at one agent, through one of its tunnels.
#[derive(Debug)]
pub struct AgentSubscription {
    /// The agent.
    pub agent: AgentIdentity,
    service: ServiceName,
    config: &'static SubscriptionConfig,
    memory: AgentMemory,
    kill_switch: Arc<KillSwitch>,
}

impl AgentSubscription {
    /// Returns a subscription that is not open yet.
    pub fn new(config: &'static SubscriptionConfig, opening: &OpeningTunnel<'_>) -> Self {
        Self {
            agent: opening.agent.clone(),
            service: config.service.parse().expect("a constant that is a service name"),
            config,
            memory: opening.memory.clone(),
            kill_switch: Arc::clone(opening.kill_switch),
        }
    }

    /// Follows the subscription again and again. `follow` completes when the subscription has ended. The pause after an end that is no
    /// error is the first one of `pauses`; after an error it doubles, up to the second one.
    ///
    /// `follow` boxes what it needs while the subscription is open, so that a tunnel reserves no memory for one that is not.
    pub async fn repeat<F>(&self, pauses: [Duration; 2], follow: impl Fn() -> F) -> Infallible
    where
        F: Future<Output = Result<(), String>>,
    {
        let [first, longest] = pauses;
        let mut pause = first;
        loop {
            match follow().await {
                Ok(()) => {
                    pause = first;
                    sleep(pause).await;
                }
                Err(error) => {
                    tracing::debug!(agent.name = %self.agent.name, service = %self.service, error, "subscription at agentk ended");
                    sleep(pause).await;
                    pause = (pause * 2).min(longest);
                }
            }
        }
    }

    /// Opens the subscription.
    pub async fn open(
        &self,
        tunnel: &Tunnel,
        request: Request<Body>,
    ) -> Result<Lines<Body>, AgentRequestError> {
        send(tunnel, request, self.config.head_timeout).await.map(|response| self.lines(response))
    }

    /// Returns the lines of a response.
    pub fn lines(&self, response: Response<Body>) -> Lines<Body> {
        let lines = Lines::new(response.into_body(), self.config.max_line).counted(&self.memory);
        lines.with_timeout(self.config.line_timeout)
    }

    /// Follows an open subscription until it ends, or until a rule of the kill switch matches it.
    pub async fn until_disabled(
        &self,
        followed: impl Future<Output = Result<(), String>>,
    ) -> Result<(), String> {
        tokio::select! {
            biased;
            error = self.kill_switch.disabled(self.attributes()) => Err(error.message),
            ended = followed => ended,
        }
    }

    /// Completes when no rule of the kill switch matches the subscription, at once if none does.
    pub async fn enabled(&self) {
        self.kill_switch.enabled(&self.attributes()).await;
    }

    /// Returns the error of the rule of the kill switch that matches the subscription.
    pub fn check_enabled(&self) -> Result<(), RequestError> {
        self.kill_switch.check(&self.attributes())
    }

    fn attributes(&self) -> RequestAttributes<'_> {
        RequestAttributes::of_kas(&self.service, self.agent.attributes())
    }
}
