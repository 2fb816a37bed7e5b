//! Subscriptions at agentk: requests whose responses are lines of JSON, for as long as the tunnel is open.

use std::{convert::Infallible, sync::Arc, time::Duration};

use access::{
    AgentIdentity, RequestError,
    kill_switch::{KillSwitch, RequestAttributes},
};
use http::{Request, Response};
use proto::ServiceName;
use tokio::time::{Instant, sleep};
use tunnel::{Body, Tunnel};

use super::{Lines, OpeningTunnel};
use crate::{
    agent_memory::AgentMemory,
    agent_requests::{AgentRequestError, send},
};

/// The properties of all subscriptions of one feature.
#[derive(Debug)]
pub struct SubscriptionConfig {
    /// The service that rules of the kill switch name.
    pub disabled_as: &'static str,
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
            service: config.disabled_as.parse().expect("a constant that is a service name"),
            config,
            memory: opening.memory.clone(),
            kill_switch: Arc::clone(opening.kill_switch),
        }
    }

    /// Follows the subscription again and again. `follow` completes when the subscription has ended. The pause after an end that is no
    /// error is the first one of `pauses`; after an error it doubles, up to the second one. A subscription that was open for longer than
    /// the second one ends the series of errors before it.
    ///
    /// `follow` boxes what it needs while the subscription is open, so that a tunnel reserves no memory for one that is not.
    pub async fn repeat<F>(&self, pauses: [Duration; 2], follow: impl Fn() -> F) -> Infallible
    where
        F: Future<Output = Result<(), String>>,
    {
        let mut pauses = Pauses::new(pauses);
        loop {
            let begun = Instant::now();
            let ended = follow().await;
            if let Err(error) = &ended {
                tracing::debug!(agent.name = %self.agent.name, service = %self.service, error, "subscription at agentk ended");
            }
            sleep(pauses.next(begun.elapsed(), ended.is_err())).await;
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

    /// Returns the lines of the response to another request, which have at most `max` bytes. They count in the memory of the agent, too.
    pub fn lines_of(&self, response: Response<Body>, max: usize) -> Lines<Body> {
        Lines::new(response.into_body(), max).counted(&self.memory)
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

/// The pauses between the ends of a subscription and its repetitions.
#[derive(Debug)]
struct Pauses {
    first: Duration,
    longest: Duration,
    after_error: Duration,
}

impl Pauses {
    fn new([first, longest]: [Duration; 2]) -> Self {
        Self { first, longest, after_error: first }
    }

    /// Returns the pause after a subscription that lasted for `open`.
    fn next(&mut self, open: Duration, failed: bool) -> Duration {
        if !failed || open > self.longest {
            self.after_error = self.first;
        }
        if !failed {
            return self.first;
        }
        let pause = self.after_error;
        self.after_error = (pause * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pauses, in seconds, after subscriptions that were open for some seconds and failed, or ended.
    fn pauses(ends: &[(u64, bool)]) -> Vec<u64> {
        let mut pauses = Pauses::new([1, 30].map(Duration::from_secs));
        ends.iter().map(|(open, failed)| pauses.next(Duration::from_secs(*open), *failed).as_secs()).collect()
    }

    #[test]
    fn pause_doubles_with_each_error_until_it_is_the_longest() {
        assert_eq!(pauses(&[(0, true); 7]), [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn subscription_that_ended_or_lasted_begins_again_with_the_first_pause() {
        assert_eq!(pauses(&[(0, true), (0, true), (0, false), (0, true)]), [1, 2, 1, 1]);
        assert_eq!(pauses(&[(0, true), (0, true), (3600, true), (0, true)]), [1, 2, 1, 2]);
    }
}
