//! Selects events.

use access::{AgentAttributes, AgentSelector, Identity};
use proto::{
    AgentId,
    events::{Event, EventAgent, EventKind, Severity},
};

/// Selects events: those that match each field. A field without values selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventFilter {
    /// The only agent whose events may be read.
    pub(crate) only: Option<AgentId>,
    /// The agents.
    pub(crate) agents: Vec<AgentSelector>,
    /// The kinds.
    pub(crate) kinds: Vec<EventKind>,
    /// Paths of Git projects, or ids of the projects of agents.
    pub(crate) projects: Vec<String>,
    /// The least severity.
    pub(crate) severity: Severity,
}

impl EventFilter {
    /// Returns whether the filter selects an event.
    pub(crate) fn matches(&self, event: &Event, identity: &Identity) -> bool {
        let (content, agent) = (&event.content, event.agent.as_ref());
        let is_agent = |wanted: &AgentSelector| {
            agent.is_some_and(|agent| wanted.selects(agent_attributes(agent), identity) == Some(true))
        };
        let is_project = |wanted: &String| {
            let of_agent = agent.and_then(|agent| agent.project_id);
            content.subject.project == *wanted || of_agent.is_some_and(|id| is_id(AgentId(id), wanted))
        };
        content.severity >= self.severity
            && self.only.is_none_or(|only| agent.is_some_and(|agent| agent.id == only))
            && (self.kinds.is_empty() || self.kinds.contains(&content.kind))
            && (self.agents.is_empty() || self.agents.iter().any(is_agent))
            && (self.projects.is_empty() || self.projects.iter().any(is_project))
    }
}

/// Returns the attributes by which settings select the agent of an event.
fn agent_attributes(EventAgent { id, name, project_path, .. }: &EventAgent) -> AgentAttributes<'_> {
    AgentAttributes { id: *id, name: Some(name), project_path: project_path.as_deref() }
}

fn is_id(id: AgentId, text: &str) -> bool {
    text.parse::<AgentId>().is_ok_and(|wanted| wanted == id)
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::SystemTime};

    use proto::events::{EventContent, EventSubject};

    use super::*;

    #[test]
    fn each_field_selects() {
        let subject = EventSubject { project: "shop/web".to_owned(), ..EventSubject::default() };
        let content = EventContent::new(EventKind::Drift, Severity::Warning, "x").with_subject(subject);
        let agent = EventAgent {
            id: AgentId(7),
            name: "prod".parse().unwrap(),
            project_id: Some(3),
            project_path: None,
        };
        let event = Event { time: SystemTime::UNIX_EPOCH, agent: Some(agent), content };
        let identity =
            Identity::parse(Path::new("identity.yaml"), "agents: [{id: 7, name: prod, tokens: []}]");
        let identity = identity.unwrap();
        let of_all = Event { agent: None, ..event.clone() };
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let agents = |names: &[&str]| {
            let agents = names.iter().map(|name| name.parse().unwrap()).collect();
            EventFilter { agents, ..EventFilter::default() }
        };
        let projects = |names: &[&str]| EventFilter { projects: texts(names), ..EventFilter::default() };
        let kinds = |kinds: &[EventKind]| EventFilter { kinds: kinds.to_vec(), ..EventFilter::default() };
        let severity = |severity| EventFilter { severity, ..EventFilter::default() };
        for (filter, expected) in [
            (EventFilter::default(), true),
            (agents(&["prod"]), true),
            (agents(&["test", "7"]), true),
            (agents(&["test", "shop/web:prod"]), false),
            (projects(&["shop/web"]), true),
            (projects(&["3"]), true),
            (projects(&["shop", "7"]), false),
            (kinds(&[EventKind::Drift, EventKind::Sync]), true),
            (kinds(&[EventKind::Sync]), false),
            (EventFilter { only: Some(AgentId(7)), ..agents(&["prod"]) }, true),
            (EventFilter { only: Some(AgentId(7)), ..agents(&["test"]) }, false),
            (EventFilter { only: Some(AgentId(8)), ..agents(&["prod"]) }, false),
            (severity(Severity::Info), true),
            (severity(Severity::Warning), true),
            (severity(Severity::Error), false),
        ] {
            assert_eq!(filter.matches(&event, &identity), expected, "{filter:?}");
        }
        let only = EventFilter { only: Some(AgentId(7)), ..EventFilter::default() };
        assert!(!only.matches(&of_all, &identity), "an event without an agent is for operators");
        assert!(!agents(&["prod"]).matches(&of_all, &identity));
        assert!(projects(&["shop/web"]).matches(&of_all, &identity));
    }

    #[test]
    fn agent_of_gitlab_is_selected_by_its_project_and_never_by_a_name_of_the_file() {
        let identity =
            Identity::parse(Path::new("identity.yaml"), "agents: [{id: 7, name: prod, tokens: []}]");
        let identity = identity.unwrap();
        let content = EventContent::new(EventKind::Drift, Severity::Warning, "x");
        let agent = |id, path: Option<&str>| EventAgent {
            id: AgentId(id),
            name: "prod".parse().unwrap(),
            project_id: Some(3),
            project_path: path.map(str::to_owned),
        };
        for (selector, agent, expected) in [
            ("prod", agent(50, Some("shop/web")), false),
            ("prod", agent(50, None), false),
            ("50", agent(50, Some("shop/web")), true),
            ("shop/web:prod", agent(50, Some("shop/web")), true),
            ("shop/web:prod", agent(51, Some("evil/web")), false),
            ("shop/web:prod", agent(51, None), false),
            // A record in Redis cannot make an agent of the file one of GitLab.
            ("shop/web:prod", agent(7, Some("shop/web")), false),
        ] {
            let filter = EventFilter { agents: vec![selector.parse().unwrap()], ..EventFilter::default() };
            let event =
                Event { time: SystemTime::UNIX_EPOCH, agent: Some(agent.clone()), content: content.clone() };
            assert_eq!(filter.matches(&event, &identity), expected, "{selector} {agent:?}");
        }
    }
}
