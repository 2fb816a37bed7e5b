//! Checks the events of an agent, which is not trusted. No I/O.

use std::time::{Duration, SystemTime};

use proto::{
    InstanceId,
    events::{AgentEvent, AgentEventId, Event, EventAgent, EventKind, NewAgentEvent, Severity},
};
use store::{EVENTS_PERIOD, NewEvent, StateScope, SubjectState};

use crate::digest::digest;

/// The lead that the clock of an agent may have.
const MAX_LEAD: Duration = Duration::from_secs(300);
/// The greatest number of an event. Numbers in Redis' scripts are exact up to 2^53.
const MAX_SEQUENCE: u64 = 1 << 53;

/// Checks the events of one agentk process, in their order.
#[derive(Debug)]
pub(super) struct EventChecker {
    agent: EventAgent,
    instance: InstanceId,
    /// The number of the last event.
    last: u64,
}

impl EventChecker {
    /// Returns a checker of the events after the one with the number `last`.
    pub(super) fn new(agent: EventAgent, instance: InstanceId, last: u64) -> Self {
        Self { agent, instance, last }
    }

    /// Returns the number of the last event.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the event for the log: its agent is that of the tunnel, and its texts are cut. `project` is that of its environment.
    ///
    /// # Errors
    ///
    /// The id is not one of the process, or not a later one.
    pub(super) fn check(&mut self, event: AgentEvent, project: Option<String>) -> Result<NewEvent, String> {
        let AgentEvent { id, time, event } = event;
        let AgentEventId { instance, sequence } = id;
        if instance != self.instance || sequence <= self.last || sequence >= MAX_SEQUENCE {
            return Err(format!("agentk sent an event with the id {id}, which does not follow its last one"));
        }
        self.last = sequence;
        let NewAgentEvent { mut content, key, state } = event.bounded();
        if content.subject.project.is_empty() {
            content.subject.project = project.unwrap_or_default();
        }
        let agent = self.agent.id;
        let key = match key {
            Some(key) => format!("agent:{agent}:key:{}", digest(&[content.kind.as_str(), &key])),
            None => format!("agent:{agent}:{id}"),
        };
        let subject = &content.subject;
        let state = state.map(|state| SubjectState {
            scope: StateScope::Reported,
            subject: digest(&[
                content.kind.as_str(),
                &subject.project,
                &subject.environment,
                &subject.namespace,
                &subject.kind,
                &subject.name,
            ]),
            state,
            // An object that is healthy, or as in Git, from the start is no news.
            quiet: matches!(content.kind, EventKind::Health | EventKind::Drift)
                && content.severity == Severity::Info,
        });
        let now = SystemTime::now();
        let possible =
            now.checked_sub(EVENTS_PERIOD).is_none_or(|oldest| time >= oldest) && time <= now + MAX_LEAD;
        let event =
            Event { time: if possible { time } else { now }, agent: Some(self.agent.clone()), content };
        Ok(NewEvent { origin: Some(id), state, ..NewEvent::new(key, event) })
    }
}

#[cfg(test)]
mod tests {
    use proto::{
        AgentId,
        events::{EventContent, EventSubject},
    };

    use super::*;

    fn agent(id: u64) -> EventAgent {
        EventAgent { id: AgentId(id), name: "prod".parse().unwrap(), project_id: None, project_path: None }
    }

    fn event(instance: InstanceId, sequence: u64, content: EventContent) -> AgentEvent {
        let id = AgentEventId { instance, sequence };
        AgentEvent { id, time: SystemTime::now(), event: content.into() }
    }

    fn alert(message: &str) -> EventContent {
        EventContent::new(EventKind::Alert, Severity::Warning, message)
    }

    #[test]
    fn ids_are_those_of_the_process_and_increase() {
        let (instance, other) = (InstanceId::random(), InstanceId::random());
        let mut checker = EventChecker::new(agent(1), instance, 3);
        assert!(checker.check(event(instance, 4, alert("a")), None).is_ok());
        assert!(checker.check(event(instance, 9, alert("a")), None).is_ok(), "agentk has forgotten some");
        for (instance, sequence) in [(instance, 9), (instance, 2), (other, 10), (instance, u64::MAX)] {
            assert!(checker.check(event(instance, sequence, alert("a")), None).is_err(), "{sequence}");
        }
        assert_eq!(checker.last(), 9);
    }

    #[test]
    fn agent_cannot_report_for_another_one() {
        let instance = InstanceId::random();
        let check = |id: u64| {
            let mut checker = EventChecker::new(agent(id), instance, 0);
            let event = event(instance, 1, EventContent { kind: EventKind::KillSwitch, ..alert("all") });
            checker.check(event, None).unwrap()
        };
        let (first, second) = (check(1), check(2));
        assert_eq!(first.event.agent, Some(agent(1)));
        assert_eq!(first.event.content.kind, EventKind::Other);
        assert_ne!(first.key, second.key, "the same id does not suppress an event of another agent");
    }

    #[test]
    fn pods_of_one_agent_report_the_same_thing_once() {
        let check = |content: NewAgentEvent| {
            let instance = InstanceId::random();
            let event = AgentEvent { event: content, ..event(instance, 1, alert("a")) };
            EventChecker::new(agent(1), instance, 0).check(event, Some("shop/web".to_owned())).unwrap()
        };
        let with_key = |key: &str| check(NewAgentEvent::from(alert("dropped")).with_key(key)).key;
        assert_eq!(with_key("a->b 13:00"), with_key("a->b 13:00"));
        assert_ne!(with_key("a->b 13:00"), with_key("a->b 13:01"));
        let health = |slug: &str, severity| {
            let subject = EventSubject { environment: slug.to_owned(), ..EventSubject::default() };
            let content = EventContent::new(EventKind::Health, severity, "x").with_subject(subject);
            check(NewAgentEvent::from(content).with_state("degraded"))
        };
        let (one, other) = (health("live", Severity::Warning), health("live", Severity::Info));
        assert_eq!(one.event.content.subject.project, "shop/web");
        let (one, other) = (one.state.unwrap(), other.state.unwrap());
        assert_eq!((&one.subject, one.quiet, other.quiet), (&other.subject, false, true));
        assert_ne!(one.subject, health("dev", Severity::Info).state.unwrap().subject);
    }

    #[test]
    fn wrong_clock_of_an_agent_is_replaced() {
        let (instance, now) = (InstanceId::random(), SystemTime::now());
        let mut checker = EventChecker::new(agent(1), instance, 0);
        for (sequence, time, kept) in [
            (1, now - Duration::from_secs(3600), true),
            (2, SystemTime::UNIX_EPOCH, false),
            (3, now + Duration::from_secs(86_400), false),
        ] {
            let event = AgentEvent { time, ..event(instance, sequence, alert("a")) };
            let checked = checker.check(event, None).unwrap().event.time;
            assert_eq!(checked == time, kept);
            assert!(checked >= now - Duration::from_secs(3600) && checked <= now + MAX_LEAD);
        }
    }
}
