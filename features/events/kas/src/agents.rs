//! Follows the events of agentk, and reports errors of the configurations of agents.
//!
//! Each agentk process is followed through one tunnel to each replica that has some. The log recognizes the events that it has by the
//! process and the number, so that they are in it once. An agent that sends too many is read more slowly: its own memory is the buffer.

mod checked;
mod configuration;
mod open_alerts;

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use access::AgentIdentity;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Method};
use proto::{
    AgentId, InstanceId, ServiceName,
    events::{
        AgentEvent, AgentEventId, AgentEventLine, EVENT_LINES, EVENTS_PATH, EventAgent, MAX_EVENT_LINE,
        OPEN_ALERTS, OpenAlerts,
    },
};
use store::NewEvent;
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};
use tunnel::{Body, Tunnel};

use self::checked::EventChecker;
pub(crate) use self::configuration::ConfigurationReports;
use crate::{AgentEventResult, Events};
use kas_core::{
    agent_requests::request,
    attachments::{AgentSubscription, Attachment, OpeningTunnel, SubscriptionConfig, TunnelFeature},
    configuration::ConfigurationState,
    throttle::Throttle,
    weak_map::WeakMap,
};

const SUBSCRIPTION: SubscriptionConfig = SubscriptionConfig {
    disabled_as: ServiceName::EVENTS,
    head_timeout: Duration::from_secs(30),
    line_timeout: None,
    max_line: MAX_EVENT_LINE,
};
/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_secs(5);
/// The time in which an agent may send one event, and the events that it may send at once.
const RATE: (Duration, u32) = (Duration::from_secs(1), 100);

/// The most alerts that are ended in one write to the log.
const MAX_ENDS: usize = 50;
/// The most events that one line counts as missed, so that the counter does not overflow.
const MAX_MISSED: u64 = 1_000_000;

/// Follows the events of the agents with tunnels to this replica. Clones are cheap, and share their state.
#[derive(Clone, Debug)]
pub(crate) struct AgentEvents(Arc<Shared>);

struct Shared {
    events: Events,
    /// Lets one tunnel of each agent report its configuration.
    reporters: WeakMap<AgentId, Semaphore>,
    /// Limits how fast the events of an agent are read.
    throttles: WeakMap<AgentId, Throttle>,
}

/// Follows the events of one agentk process through one of its tunnels.
#[derive(Debug)]
struct EventsFeed {
    service: AgentEvents,
    agent: EventAgent,
    instance: InstanceId,
    throttle: Arc<Throttle>,
    configuration: watch::Receiver<ConfigurationState>,
    subscription: AgentSubscription,
}

impl AgentEvents {
    /// Builds the service of a replica.
    pub(crate) fn new(events: Events) -> Self {
        Self(Arc::new(Shared { events, reporters: WeakMap::default(), throttles: WeakMap::default() }))
    }
}

impl TunnelFeature for AgentEvents {
    fn attach(&self, opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>> {
        if !opening.hello.serves(ServiceName::AGENT_EVENTS) {
            return None;
        }
        Some(Box::new(EventsFeed {
            service: self.clone(),
            agent: event_agent(opening.agent),
            instance: opening.hello.instance,
            throttle: self
                .0
                .throttles
                .get_or_insert_with(opening.agent.id, || Throttle::with_burst(RATE.0, RATE.1)),
            configuration: opening.configuration.clone(),
            subscription: AgentSubscription::new(&SUBSCRIPTION, opening),
        }))
    }
}

impl Attachment for EventsFeed {
    fn run<'a>(&'a mut self, tunnel: &'a Tunnel) -> BoxFuture<'a, ()> {
        Box::pin(async { match self.follow(tunnel).await {} })
    }
}

pub(crate) fn event_agent(AgentIdentity { id, name, project, project_path }: &AgentIdentity) -> EventAgent {
    let project_path = project_path.as_deref().map(str::to_owned);
    EventAgent { id: *id, name: name.clone(), project_id: *project, project_path }
}

impl EventsFeed {
    /// Follows the events of the process.
    async fn follow(&self, tunnel: &Tunnel) -> Infallible {
        let follow = || Box::pin(self.subscription.until_disabled(self.read_stream(tunnel)));
        self.subscription.repeat([PAUSE, PAUSE], follow).await
    }

    async fn read_stream(&self, tunnel: &Tunnel) -> Result<(), String> {
        let events = &self.service.0.events;
        let last = events.store().last_event_of(self.agent.id, self.instance).await;
        let mut checker = EventChecker::new(self.agent.clone(), self.instance, last.unwrap_or_default());
        let path = match checker.last() {
            0 => EVENTS_PATH.to_owned(),
            sequence => format!("{EVENTS_PATH}?after={}", AgentEventId { instance: self.instance, sequence }),
        };
        let mut request = request(Method::GET, ServiceName::AGENT_EVENTS, &path, Body::empty());
        request.headers_mut().insert(EVENT_LINES, HeaderValue::from_static(OPEN_ALERTS));
        // The parts of the future that are rare are boxed: it exists for as long as agentk is connected.
        let mut lines = Box::pin(self.subscription.open(tunnel, request)).await?;
        while let Some(line) = lines.next::<AgentEventLine>().await? {
            match line {
                AgentEventLine::Missed(count) => {
                    Box::pin(self.throttle.wait()).await;
                    events.metrics().count_of_agent(AgentEventResult::Missed, count.min(MAX_MISSED));
                }
                AgentEventLine::Event(event) => Box::pin(self.accept(&mut checker, *event)).await?,
                AgentEventLine::OpenAlerts(open) => Box::pin(self.end_alerts(&open)).await,
            }
        }
        Ok(())
    }

    async fn accept(&self, checker: &mut EventChecker, event: AgentEvent) -> Result<(), String> {
        let metrics = self.service.0.events.metrics();
        let project = environment_project(&self.configuration.borrow(), &event);
        let event = checker.check(event, project).inspect_err(|_| {
            metrics.count_of_agent(AgentEventResult::Invalid, 1);
        })?;
        if self.throttle.wait().await {
            metrics.count_of_agent(AgentEventResult::Delayed, 1);
        }
        self.append(&[event]).await;
        metrics.count_of_agent(AgentEventResult::Accepted, 1);
        Ok(())
    }

    /// Ends the alerts of the agent that are open in the log, and are not among those that agentk lists.
    async fn end_alerts(&self, open: &OpenAlerts) {
        self.throttle.wait().await;
        let events = &self.service.0.events;
        if let Some(missing) = events.missing() {
            // Ends of alerts may be among the missing events. The next list comes in a quarter of an hour.
            tracing::debug!(agent.name = %self.agent.name, missing, "no alert is ended");
            return;
        }
        // kas makes them itself, so that their number is no rate of the agent.
        for batch in open_alerts::ended(events, &self.agent, open).chunks(MAX_ENDS) {
            self.append(batch).await;
        }
    }

    /// Appends events, as soon as the store responds. Meanwhile, no other event of the agent is read.
    async fn append(&self, new: &[NewEvent]) {
        while let Err(error) = self.service.0.events.append(new.to_vec()).await {
            tracing::debug!(agent.name = %self.agent.name, %error, "an event of an agent waits");
            sleep(PAUSE).await;
        }
    }
}

/// Returns the project of the environment that an event is about, as the configuration of the agent names it.
fn environment_project(state: &ConfigurationState, event: &AgentEvent) -> Option<String> {
    let subject = &event.event.content.subject;
    let environments = state.configuration()?.get("environments")?.as_array()?;
    let is_subject = |environment: &&serde_json::Value| {
        environment["slug"] == *subject.environment && environment["namespace"] == *subject.namespace
    };
    let named = environments.iter().find(is_subject)?.get("project").and_then(|project| project.as_str());
    named.or_else(|| state.project()).map(str::to_owned)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("events", &self.events).finish_non_exhaustive()
    }
}
