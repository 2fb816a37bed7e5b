//! Events as alerts of GitLab: the body of `<project>/alerts/notify/….json`.
//!
//! GitLab has one open alert for each fingerprint. A further event with the same one is counted there, and one with `end_time` resolves the
//! alert. GitLab answers 400 to the end of an alert that it does not have open.

use proto::events::{CLOSED, Event, EventAgent, EventContent, EventKind, EventSubject, Severity};
use serde_json::{Value, json};
use store::LoggedEvent;

use super::neutral::neutral;
use crate::{digest::digest, filter::EventFilter};

/// The value of `monitoring_tool`, which GitLab shows.
const TOOL: &str = "kas";

/// Returns the alert for an event, or its end.
pub(super) fn payload(logged: &LoggedEvent) -> Value {
    let Event { time, agent, content } = &logged.event;
    let time = humantime::format_rfc3339_millis(*time).to_string();
    let name = agent.as_ref().map(|agent| agent.name.to_string());
    let mut alert = json!({
        "title": title(name.as_deref(), content),
        "description": description(content),
        "start_time": time,
        "severity": severity(content.severity),
        "fingerprint": fingerprint(agent.as_ref(), content),
        "monitoring_tool": TOOL,
        "kas": {"id": logged.position.to_string(), "kind": content.kind},
    });
    let subject = service(&content.subject);
    let environment = &content.subject.environment;
    let facts = [
        ("end_time", is_end(content).then_some(time)),
        ("hosts", name),
        ("service", (!subject.is_empty()).then(|| neutral(&subject))),
        ("gitlab_environment_name", (!environment.is_empty()).then(|| environment.clone())),
    ];
    for (key, value) in facts.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        alert[key] = value.into();
    }
    alert
}

/// Returns whether an event ends an alert.
pub(super) fn is_end(content: &EventContent) -> bool {
    match content.kind {
        EventKind::Alert => content.details.get("state").is_some_and(|state| state == CLOSED),
        EventKind::Other => false,
        _ => content.severity == Severity::Info,
    }
}

/// Returns the filters of the ends of the alerts that a filter selects: an end is less severe, and may have another kind. The end of an
/// alert of the kill switch may name no agent, also if the alert does.
pub(super) fn filters_of_ends(filter: &EventFilter) -> Vec<EventFilter> {
    let kinds = filter.kinds.iter().map(|kind| kind_of_end(*kind)).collect();
    let mut filters = vec![EventFilter { kinds, severity: Severity::Info, ..filter.clone() }];
    if filter.kinds.is_empty() || filter.kinds.contains(&EventKind::KillSwitch) {
        filters.push(EventFilter { kinds: vec![EventKind::KillSwitch], ..EventFilter::default() });
    }
    filters
}

/// Returns the kind of the event that ends an alert of a kind.
fn kind_of_end(kind: EventKind) -> EventKind {
    match kind {
        EventKind::AgentDisconnected => EventKind::AgentConnected,
        EventKind::ConfigurationError => EventKind::ConfigurationValid,
        kind => kind,
    }
}

/// Returns the text that an alert and its end have in common.
fn fingerprint(agent: Option<&EventAgent>, content: &EventContent) -> String {
    // The kill switch has one alert: its event names an agent only if one rule has changed.
    let agent = agent.filter(|_| content.kind != EventKind::KillSwitch);
    let agent = agent.map(|agent| agent.id.to_string()).unwrap_or_default();
    let EventSubject { project, environment, namespace, kind, name } = &content.subject;
    // The project of an environment may become known, or change, while an alert is open.
    let project = if environment.is_empty() { project.as_str() } else { "" };
    let facts = content.alert_fingerprint().unwrap_or_default();
    digest(&[&agent, kind_of_end(content.kind).as_str(), project, environment, namespace, kind, name, &facts])
}

fn title(agent: Option<&str>, EventContent { kind, message, .. }: &EventContent) -> String {
    let message = neutral(message);
    match agent {
        Some(agent) => format!("{agent}: {kind}: {message}"),
        None => format!("{kind}: {message}"),
    }
}

fn description(EventContent { message, details, .. }: &EventContent) -> String {
    let details = details.iter().map(|(name, value)| format!("{name}: {value}"));
    let parts: Vec<String> = [message.clone()].into_iter().chain(details).collect();
    neutral(&parts.join("; "))
}

/// Returns the affected part of the cluster.
fn service(EventSubject { project, environment, namespace, kind, name }: &EventSubject) -> String {
    let parts = [project, environment, namespace, kind, name].map(String::as_str);
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "medium",
        Severity::Error => "high",
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use proto::AgentId;
    use store::EventPosition;

    use super::*;

    fn logged(agent: Option<u64>, content: EventContent) -> LoggedEvent {
        let agent = agent.map(|id| EventAgent {
            id: AgentId(id),
            name: "production".parse().unwrap(),
            project_id: None,
            project_path: None,
        });
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        let position = EventPosition { millis: 17, sequence: 2 };
        LoggedEvent { position, key: "key".into(), event: Event { time, agent, content } }
    }

    fn of_environment(kind: EventKind, severity: Severity) -> EventContent {
        let subject = EventSubject { environment: "production".to_owned(), ..EventSubject::default() };
        EventContent::new(kind, severity, "2 of 3 objects are degraded").with_subject(subject)
    }

    fn alert(state: &str, severity: Severity) -> EventContent {
        EventContent::new(EventKind::Alert, severity, "blocked").with_detail("state", state)
    }

    #[test]
    fn alert_has_the_fields_of_gitlab() {
        let content =
            of_environment(EventKind::Health, Severity::Warning).with_detail("error", "<b>@all</b>");
        let fingerprint = payload(&logged(Some(7), content.clone()))["fingerprint"].take();
        assert_eq!(fingerprint.as_str().unwrap().len(), 32);
        let expected = json!({
            "title": "production: health: 2 of 3 objects are degraded",
            "description": "2 of 3 objects are degraded; error: <\u{200b}b>@\u{200b}all<\u{200b}/b>",
            "start_time": "1970-01-01T00:00:01.500Z",
            "severity": "medium",
            "fingerprint": fingerprint,
            "monitoring_tool": "kas",
            "hosts": "production",
            "service": "production",
            "gitlab_environment_name": "production",
            "kas": {"id": "17-2", "kind": "health"},
        });
        assert_eq!(payload(&logged(Some(7), content)), expected);
        let rules = EventContent::new(EventKind::KillSwitch, Severity::Warning, "1 rule");
        let alert = payload(&logged(None, rules));
        assert_eq!(alert["title"], "kill-switch: 1 rule");
        assert!(alert.get("hosts").is_none() && alert.get("service").is_none());
    }

    #[test]
    fn end_resolves_its_own_alert_only() {
        use EventKind::{
            AgentConnected, AgentDisconnected, ConfigurationError, ConfigurationValid, Health, KillSwitch,
            Sync,
        };
        use Severity::{Error, Info, Warning};

        let of = |agent, content| payload(&logged(Some(agent), content));
        for (begin, end) in [
            (of_environment(AgentDisconnected, Warning), of_environment(AgentConnected, Info)),
            (of_environment(ConfigurationError, Error), of_environment(ConfigurationValid, Info)),
            (of_environment(Health, Warning), of_environment(Health, Info)),
            (of_environment(Sync, Error), of_environment(Sync, Info)),
            (alert("opened", Warning), alert(CLOSED, Info)),
        ] {
            let (begun, ended) = (of(7, begin.clone()), of(7, end.clone()));
            assert!(begun.get("end_time").is_none(), "{begun}");
            assert_eq!(ended["end_time"], "1970-01-01T00:00:01.500Z", "{ended}");
            assert_eq!(begun["fingerprint"], ended["fingerprint"], "{begun}");
            assert_ne!(begun["fingerprint"], of(8, end)["fingerprint"], "{begun}");
        }
        let rules = |severity| EventContent::new(KillSwitch, severity, "the rules");
        let (begun, ended) = (of(7, rules(Warning)), payload(&logged(None, rules(Info))));
        assert_eq!(begun["fingerprint"], ended["fingerprint"], "the kill switch has one alert");
        assert!(ended["end_time"].is_string() && begun.get("end_time").is_none());
        let mut with_project = of_environment(Health, Info);
        with_project.subject.project = "shop/web".to_owned();
        let without = of(7, of_environment(Health, Warning));
        assert_eq!(of(7, with_project)["fingerprint"], without["fingerprint"], "the environment is the same");
        let of_kind = |kind| of(7, of_environment(kind, Warning))["fingerprint"].clone();
        assert_ne!(of_kind(Health), of_kind(Sync));
        let destination = alert("opened", Warning).with_detail("destination", "world");
        assert_ne!(of(7, destination)["fingerprint"], of(7, alert("opened", Warning))["fingerprint"]);
        // Traffic that would have been dropped is an alert of the least severity, and not an end.
        let audited = of(7, alert("opened", Info));
        assert!(audited.get("end_time").is_none() && audited["severity"] == "info", "{audited}");
    }

    #[test]
    fn ends_are_selected_whatever_their_severity() {
        let filter = EventFilter {
            kinds: vec![EventKind::AgentDisconnected, EventKind::Health],
            severity: Severity::Error,
            projects: vec!["shop/web".to_owned()],
            ..EventFilter::default()
        };
        let expected = EventFilter {
            kinds: vec![EventKind::AgentConnected, EventKind::Health],
            severity: Severity::Info,
            ..filter.clone()
        };
        assert_eq!(filters_of_ends(&filter), [expected]);
        let rules = EventFilter { kinds: vec![EventKind::KillSwitch], ..EventFilter::default() };
        for kinds in [vec![], vec![EventKind::Health, EventKind::KillSwitch]] {
            let of_one_agent = EventFilter { agents: vec!["prod".parse().unwrap()], kinds, ..filter.clone() };
            assert_eq!(filters_of_ends(&of_one_agent).last(), Some(&rules), "{of_one_agent:?}");
        }
    }
}
