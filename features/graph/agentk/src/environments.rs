//! Reports when the health of an environment has changed.
//!
//! The objects are those of the cache that callers use, which costs memory. So it is loaded for this alone only if the configuration asks
//! for it (`events.environment_health`). While it is loaded for somebody else, environments are looked at, too.

use std::{collections::HashMap, sync::Arc, time::Duration};

use agentk_core::EventLog;
use proto::{
    agent_configuration::environments::NamedEnvironment,
    events::{EventContent, EventKind, EventSubject, NewAgentEvent, Severity},
    graph::{GroupHealth, HealthState},
    impersonation::Identity,
};
use resource_graph::Query;
use tokio::time::{Instant, sleep, timeout};

use super::{GraphService, LOAD_TIMEOUT, View, now};

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(10);
/// The time for which a health must stay until it is reported: a rollout is no event.
const HOLD: Duration = Duration::from_secs(30);

/// The environments of the agent's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchedEnvironments {
    pub(crate) environments: Vec<NamedEnvironment>,
    /// The cache is loaded also if nobody else needs it.
    pub(crate) load: bool,
}

/// The place of an environment: its project, its slug and its namespace.
type Place = (Option<String>, String, String);

/// The health of an environment over time.
#[derive(Debug, Default)]
struct Trend {
    /// The last one that was reported: true for degraded.
    reported: Option<bool>,
    /// Another one, and since when it is so.
    candidate: Option<(bool, Instant)>,
}

impl Trend {
    /// Notes a look. Returns the health if it should be reported now. `None` is neither good nor bad: a rollout, or nothing was found.
    fn note(&mut self, degraded: Option<bool>, now: Instant) -> Option<bool> {
        let next = degraded.filter(|degraded| self.reported != Some(*degraded));
        let since = match (next, self.candidate) {
            (Some(next), Some((candidate, since))) if candidate == next => since,
            _ => now,
        };
        self.candidate = next.map(|next| (next, since));
        let due = next.filter(|_| now >= since + HOLD)?;
        (self.reported, self.candidate) = (Some(due), None);
        Some(due)
    }
}

impl GraphService {
    /// Sets the environments that are looked at.
    pub(crate) fn set_environments(&self, watched: WatchedEnvironments) {
        self.environments.send_if_modified(|known| {
            let is_new = **known != watched;
            if is_new {
                *known = Arc::new(watched);
            }
            is_new
        });
    }

    /// Reports changes of the health of environments. The future never completes.
    pub(crate) async fn watch_environments(&self, log: &EventLog) {
        let mut watched = self.environments.subscribe();
        let mut trends = HashMap::<Place, Trend>::new();
        loop {
            let now = Arc::clone(&watched.borrow_and_update());
            let places: Vec<Place> = now.environments.iter().map(place).collect();
            trends.retain(|place, _| places.contains(place));
            let look = async {
                if now.environments.is_empty() {
                    std::future::pending::<()>().await;
                }
                sleep(LOOK).await;
            };
            tokio::select! {
                () = look => self.look_at_environments(&now, &mut trends, log).await,
                // The sender lives as long as the service.
                _ = watched.changed() => {}
            }
        }
    }

    async fn look_at_environments(
        &self,
        watched: &WatchedEnvironments,
        trends: &mut HashMap<Place, Trend>,
        log: &EventLog,
    ) {
        let Some(view) = (if watched.load { Some(self.view()) } else { self.loaded_view() }) else { return };
        if timeout(LOAD_TIMEOUT, view.cache.loaded()).await.is_err() {
            return;
        }
        for environment in &watched.environments {
            let Some(health) = health(&view, environment).await else { continue };
            let degraded = match health.health {
                HealthState::Healthy | HealthState::Suspended => Some(false),
                HealthState::Degraded => Some(true),
                HealthState::Progressing | HealthState::Unknown => None,
            };
            let trend = trends.entry(place(environment)).or_default();
            if let Some(degraded) = trend.note(degraded, Instant::now()) {
                log.emit(event(environment, degraded, &health));
            }
        }
    }
}

/// Returns the health of an environment as agentk sees it, or `None` if that is not known now.
async fn health(view: &View, environment: &NamedEnvironment) -> Option<GroupHealth> {
    let mut query = Query::default();
    query.set("namespace", &environment.namespace).ok()?;
    let labels: Vec<String> =
        environment.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let labels = labels.join(",");
    if !labels.is_empty() {
        query.set("label", &labels).ok()?;
    }
    let access = view.access(&Identity::default(), &query).await.ok()?;
    Some(view.cache.read(|graph| graph.health(&query, &labels, &access, now())).health)
}

fn place(NamedEnvironment { project, slug, namespace, .. }: &NamedEnvironment) -> Place {
    (project.clone(), slug.clone(), namespace.clone())
}

fn event(environment: &NamedEnvironment, degraded: bool, health: &GroupHealth) -> NewAgentEvent {
    let NamedEnvironment { slug, project, tier, namespace, .. } = environment;
    let first = health.attention.first().filter(|_| degraded);
    let reason = first.map(|object| format!(": {} {}: {}", object.kind, object.name, object.message));
    let (severity, state) =
        if degraded { (Severity::Warning, "degraded") } else { (Severity::Info, "healthy") };
    let message = format!("environment {slug} is {state}{}", reason.unwrap_or_default());
    let subject = EventSubject {
        project: project.clone().unwrap_or_default(),
        environment: slug.clone(),
        namespace: namespace.clone(),
        ..EventSubject::default()
    };
    let content = EventContent::new(EventKind::Health, severity, message).with_subject(subject);
    let content = content.with_detail("tier", tier.clone().unwrap_or_default());
    NewAgentEvent::from(content).with_state(state)
}

#[cfg(test)]
mod tests {
    use proto::graph::Attention;

    use super::*;

    #[test]
    fn health_is_reported_once_it_stays() {
        let (mut trend, start) = (Trend::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let (good, bad, rollout) = (Some(false), Some(true), None);
        assert_eq!(trend.note(good, at(0)), None);
        assert_eq!(trend.note(good, at(30)), good);
        assert_eq!(trend.note(good, at(90)), None, "it has not changed");
        assert_eq!(trend.note(bad, at(100)), None);
        assert_eq!(trend.note(rollout, at(110)), None, "it is not degraded any more");
        assert_eq!(trend.note(bad, at(120)), None);
        assert_eq!(trend.note(bad, at(140)), None, "for 20 s only");
        assert_eq!(trend.note(bad, at(150)), bad);
        assert_eq!(trend.note(rollout, at(160)), None);
        assert_eq!(trend.note(bad, at(170)), None, "a rollout that did not help");
        assert_eq!(trend.note(good, at(180)), None);
        assert_eq!(trend.note(good, at(210)), good);
    }

    #[test]
    fn event_names_the_environment_and_what_is_wrong() {
        let environment = NamedEnvironment {
            slug: "live".to_owned(),
            project: Some("shop/web".to_owned()),
            namespace: "shop".to_owned(),
            ..NamedEnvironment::default()
        };
        let attention = Attention {
            kind: "Pod".to_owned(),
            name: "web-1".to_owned(),
            message: "back-off".to_owned(),
            ..Attention::default()
        };
        let health = GroupHealth { attention: vec![attention], ..GroupHealth::default() };
        let degraded = event(&environment, true, &health);
        assert_eq!(degraded.content.message, "environment live is degraded: Pod web-1: back-off");
        assert_eq!(
            (degraded.content.severity, degraded.state.as_deref()),
            (Severity::Warning, Some("degraded"))
        );
        let EventSubject { project, environment: slug, namespace, .. } = degraded.content.subject;
        assert_eq!((&*project, &*slug, &*namespace), ("shop/web", "live", "shop"));
        assert_eq!(event(&environment, false, &health).content.message, "environment live is healthy");
    }
}
