//! Sends the events of projects through one tunnel, while agentk wants them.

use std::{
    collections::BTreeSet,
    future::pending,
    pin::Pin,
    time::{Duration, SystemTime},
};

use access::AgentIdentity;
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use http::Method;
use proto::{
    ServiceName,
    notify::{
        EVENTS_PATH, MAX_PROJECTS, ProjectEvent, ProjectEventFields, SUBSCRIPTION_PATH, SUBSCRIPTION_PERIOD,
        Subscription, is_project_path,
    },
};
use secrecy::SecretString;
use tokio::{
    sync::{broadcast::error::RecvError, watch},
    time::{Instant, sleep},
};
use tunnel::{Body, Tunnel};

use super::{
    EventOrigin, NotifyService, WantedGuard, access::EventSections, commit_event_id, outbox::Outbox,
};
use kas_core::{
    agent_requests::{self, AgentRequestError, json, request},
    attachments::{AgentSubscription, Attachment, SubscriptionConfig},
    configuration::{ConfigurationState, wait_for_configuration},
};

/// The time that agentk may take for the response to an event, and for the head of a subscription.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before the next attempt after a request that failed. It doubles up to the second one.
const PAUSE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
/// The time after which kas checks again which events the agent may receive.
const ACCESS_TTL: Duration = Duration::from_secs(300);
/// The same while GitLab does not say.
const ACCESS_RETRY: Duration = Duration::from_secs(10);
pub(super) const SUBSCRIPTION: SubscriptionConfig = SubscriptionConfig {
    disabled_as: ServiceName::NOTIFY,
    head_timeout: REQUEST_TIMEOUT,
    line_timeout: Some(Duration::from_secs(3 * SUBSCRIPTION_PERIOD.as_secs())),
    max_line: 4 << 20,
};

/// Sends events through the tunnels of one agent.
#[derive(Debug)]
pub(super) struct NotifyFeed {
    pub(super) service: NotifyService,
    /// The token of the agent, with which GitLab is asked what the agent may read.
    pub(super) token: SecretString,
    pub(super) configuration: watch::Receiver<ConfigurationState>,
    pub(super) subscription: AgentSubscription,
}

type Sending<'a> = Pin<Box<dyn Future<Output = (ProjectEvent, Result<(), AgentRequestError>)> + Send + 'a>>;

impl Attachment for NotifyFeed {
    fn run<'a>(&'a mut self, tunnel: &'a Tunnel) -> BoxFuture<'a, ()> {
        Box::pin(self.serve(tunnel))
    }
}

impl NotifyFeed {
    /// Serves the tunnel. The future never completes.
    async fn serve(&self, tunnel: &Tunnel) {
        let mut configuration = self.configuration.clone();
        loop {
            let sections = EventSections::new(&configuration.borrow_and_update());
            let subscribe = async {
                if sections.is_empty() {
                    return pending().await;
                }
                self.subscription.repeat(PAUSE, || Box::pin(self.subscribe(tunnel, &sections))).await
            };
            tokio::select! {
                never = subscribe => match never {},
                () = wait_for_configuration(&mut configuration, |state| EventSections::new(state) != sections) => {}
            }
        }
    }

    pub(super) fn agent(&self) -> &AgentIdentity {
        &self.subscription.agent
    }

    /// Sends the events of the projects that agentk wants, until the subscription ends.
    async fn subscribe(&self, tunnel: &Tunnel, sections: &EventSections) -> Result<(), String> {
        // Before the latest events are read, so that none is missed in between.
        let mut live = self.service.0.live.subscribe();
        let path = format!("{SUBSCRIPTION_PATH}?agent={}", self.agent().id);
        let request = request(Method::GET, ServiceName::NOTIFY, &path, Body::empty());
        let mut lines = self.subscription.open(tunnel, request).await?;
        let mut outbox = Outbox::default();
        let mut guard = None;
        let mut asked = (Subscription::default(), Instant::now());
        let mut sending: Option<Sending<'_>> = None;
        let mut looks = FuturesUnordered::new();
        loop {
            if sending.is_none()
                && let Some((event, failures)) = outbox.next()
            {
                sending = Some(Box::pin(async move {
                    if failures > 0 {
                        sleep((PAUSE[0] * 2_u32.pow(failures.min(10))).min(PAUSE[1])).await;
                    }
                    let sent = self.send(tunnel, &event).await;
                    (event, sent)
                }));
            }
            let sent = async {
                match &mut sending {
                    Some(sending) => sending.await,
                    None => pending().await,
                }
            };
            tokio::select! {
                line = lines.next::<Subscription>() => {
                    let Some(line) = line? else { return Ok(()) };
                    if line == asked.0 && asked.1.elapsed() < ACCESS_TTL {
                        continue;
                    }
                    let is_new = line.generation != asked.0.generation;
                    asked = (line.clone(), Instant::now());
                    let projects = parse_projects(line)?;
                    let (allowed, complete) = self.allowed(projects, sections, outbox.wanted()).await;
                    if !complete {
                        asked.1 -= ACCESS_TTL - ACCESS_RETRY;
                    }
                    if !is_new && allowed == *outbox.wanted() {
                        continue;
                    }
                    // agentk may have accepted it for what it wanted before.
                    sending = None;
                    if is_new {
                        outbox = Outbox::default();
                    }
                    let new = outbox.set_wanted(allowed.clone());
                    guard = Some(WantedGuard::new(&self.service, allowed));
                    self.read_latest(&new, &mut outbox).await?;
                    looks = self.looks(sections, outbox.wanted());
                }
                events = live.recv() => match events {
                    Ok(events) => events.iter().for_each(|event| outbox.add(event)),
                    Err(RecvError::Lagged(_)) => {
                        let wanted: Vec<String> = outbox.wanted().iter().cloned().collect();
                        self.read_latest(&wanted, &mut outbox).await?;
                    }
                    Err(RecvError::Closed) => return Ok(()),
                },
                (event, sent) = sent => {
                    sending = None;
                    self.service.0.metrics.count_delivery(sent.is_ok());
                    match sent {
                        Ok(()) => outbox.accept(&event),
                        Err(error) => {
                            tracing::debug!(agent.name = %self.agent().name, id = event.id(), %error, "an event was not sent to agentk");
                            outbox.defer(&event);
                        }
                    }
                }
                Some(()) = looks.next(), if guard.is_some() && !looks.is_empty() => {}
            }
        }
    }

    /// Sends an event, once the operator of kas has not disabled events for this agent.
    async fn send(&self, tunnel: &Tunnel, event: &ProjectEvent) -> Result<(), AgentRequestError> {
        self.subscription.enabled().await;
        let request = request(Method::POST, ServiceName::NOTIFY, EVENTS_PATH, json(event));
        agent_requests::send(tunnel, request, REQUEST_TIMEOUT).await.map(drop)
    }

    /// Names projects, and adds their latest events.
    async fn read_latest(&self, projects: &[String], outbox: &mut Outbox) -> Result<(), String> {
        let store = &self.service.0.store;
        if !projects.is_empty() {
            store.name_projects(projects).await.map_err(|error| error.to_string())?;
        }
        for project in projects {
            let latest = store.latest_events(project).await.map_err(|error| error.to_string())?;
            latest.iter().for_each(|event| outbox.add(event));
        }
        Ok(())
    }

    /// Returns a future for each wanted project at whose repository kas looks. They never complete.
    fn looks<'a>(
        &'a self,
        sections: &'a EventSections,
        wanted: &BTreeSet<String>,
    ) -> FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send + 'a>>> {
        let looked_at = sections.projects.iter().filter(|entry| wanted.contains(&entry.id));
        looked_at.filter_map(|entry| Some(self.look(&entry.id, entry.poll?, &sections.own).boxed())).collect()
    }

    /// Looks at the default branch of a repository after each period and each push, and records the commit. All agents and replicas
    /// share the looks.
    async fn look(&self, project: &str, period: Duration, own: &str) {
        let mut pushes = self.service.0.store.pushes();
        let (mut before, mut failure): (Option<(String, String)>, Option<String>) = (None, None);
        let mut age = Duration::ZERO;
        loop {
            match self.service.0.projects.newest_commit(self.reader(own), project, age).await {
                Ok(Some(found)) => {
                    failure = None;
                    if before.as_ref() != Some(&found) && self.record(project, &found, before.as_ref()).await
                    {
                        before = Some(found);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    if failure.as_ref() != Some(&error) {
                        tracing::warn!(agent.name = %self.agent().name, project, error, "the repository of a project with poll is not read");
                        failure = Some(error);
                    }
                }
            }
            age = period.mul_f64(0.8);
            let pushed = async {
                loop {
                    match pushes.recv().await {
                        Ok(push) if push.path() != project => {}
                        // It may be one of those that were missed.
                        Ok(_) | Err(RecvError::Lagged(_)) => return,
                        Err(RecvError::Closed) => pending().await,
                    }
                }
            };
            tokio::select! {
                () = sleep(period.mul_f64(rand::random_range(0.9..1.1))) => {}
                () = pushed => age = Duration::ZERO,
            }
        }
    }

    /// Records the commit that a look has found. The event of another replica that has found the same one has the same id.
    /// Returns false if it is not recorded.
    async fn record(
        &self,
        project: &str,
        (reference, commit): &(String, String),
        before: Option<&(String, String)>,
    ) -> bool {
        let fields = ProjectEventFields {
            id: commit_event_id(project, reference, commit),
            sequence: 0,
            project: project.to_owned(),
            reference: Some(reference.clone()),
            before: before.filter(|before| before.0 == *reference).map(|before| before.1.clone()),
            after: Some(commit.clone()),
            urls: Vec::new(),
            time: SystemTime::now(),
        };
        // A program may have reported the commit before, with an id of its own.
        let latest = self.service.0.store.latest_events(project).await;
        let is_reported = |event: &ProjectEvent| {
            event.reference() == reference && event.fields().after.as_ref() == Some(commit)
        };
        if latest.is_ok_and(|latest| latest.iter().any(is_reported)) {
            return true;
        }
        // The name of the branch is that of the server of the repository.
        let Ok(event) = ProjectEvent::try_from(fields) else { return true };
        match self.service.record(&event, EventOrigin::Poll).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(project, %error, "a commit is not recorded");
                false
            }
        }
    }
}

/// Returns the projects of a line.
fn parse_projects(line: Subscription) -> Result<BTreeSet<String>, String> {
    if line.projects.len() > MAX_PROJECTS {
        return Err(format!("agentk wants more than {MAX_PROJECTS} projects"));
    }
    match line.projects.iter().find(|project| !is_project_path(project)) {
        Some(project) => Err(format!("agentk wants {project:?}, which is no project")),
        None => Ok(line.projects.into_iter().collect()),
    }
}
