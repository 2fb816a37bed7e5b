//! Events: what has happened to an agent, or in its cluster, that people and programs should notice.
//!
//! ```text
//!   agentk: drift, syncs, health, alerts ──► AgentEvent ──┐
//!   kas: connections, configurations, kill switch ────────┴──► Event ──► API, webhooks
//! ```
//!
//! Whoever reads an event does not trust it: [`EventContent::bounded`] cuts what is too long.

mod agent;
mod open_alerts;

use std::{collections::BTreeMap, fmt, str::FromStr, time::SystemTime};

use serde::{Deserialize, Serialize};
use settings::rfc3339_millis;

pub use self::agent::{
    AgentEvent, AgentEventId, AgentEventLine, EVENTS_PATH, InvalidAgentEventId, MAX_EVENT_LINE, NewAgentEvent,
};
pub use self::open_alerts::{CLOSED, EVENT_LINES, OPEN_ALERTS, OpenAlerts};
use crate::{AgentId, AgentName};

/// The longest message, in bytes.
const MAX_MESSAGE: usize = 512;
/// The longest name in a subject, in bytes: that of a Kubernetes object.
const MAX_NAME: usize = 253;
/// The most details, and the longest name and value of one, in bytes.
const MAX_DETAILS: usize = 8;
const MAX_DETAIL_NAME: usize = 40;
const MAX_DETAIL: usize = 256;
/// The most bytes of the values of all details.
const MAX_DETAIL_BYTES: usize = 1024;

/// An event, as kas keeps it for a week and sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The time at which it happened, by the clock of whoever noticed it.
    #[serde(with = "rfc3339_millis")]
    pub time: SystemTime,
    /// The agent, unless the event concerns all of them. kas sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<EventAgent>,
    /// What has happened.
    #[serde(flatten)]
    pub content: EventContent,
}

/// The agent of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventAgent {
    /// The id.
    pub id: AgentId,
    /// The name.
    pub name: AgentName,
    /// The project of the agent, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<u64>,
    /// The path of the project of an agent of GitLab, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventContent {
    /// The kind.
    pub kind: EventKind,
    /// The severity.
    #[serde(default)]
    pub severity: Severity,
    /// The object, environment or project that the event is about.
    #[serde(default, skip_serializing_if = "EventSubject::is_empty")]
    pub subject: EventSubject,
    /// One sentence for people. It contains no secrets.
    pub message: String,
    /// A few more facts for programs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The agent has tunnels, and had none before.
    AgentConnected,
    /// The agent has no tunnel at any replica any more.
    AgentDisconnected,
    /// The newest version of the agent's configuration cannot be used.
    ConfigurationError,
    /// The newest version of the agent's configuration can be used again.
    ConfigurationValid,
    /// The rules of the kill switch have changed.
    KillSwitch,
    /// A sync of manifests has ended.
    Sync,
    /// Objects in the cluster differ from Git, because somebody else has changed them.
    Drift,
    /// The health of an environment or of a project has changed.
    Health,
    /// Something that needs attention, such as traffic that a network policy has dropped.
    Alert,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

/// A text that is no [`EventKind`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a kind of event: the kinds are {list}", list = EventKind::list())]
pub struct InvalidEventKind(pub String);

/// The severity of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing has to be done.
    #[default]
    Info,
    /// Somebody should look at it.
    Warning,
    /// Something does not work.
    Error,
}

/// The subject of an event. Fields that are not known are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct EventSubject {
    /// The path of the Git project.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub project: String,
    /// The slug of the environment.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub environment: String,
    /// The namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The kind of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

impl EventContent {
    /// Returns an event without a subject and without details.
    pub fn new(kind: EventKind, severity: Severity, message: impl Into<String>) -> Self {
        let (subject, details) = (EventSubject::default(), BTreeMap::new());
        Self { kind, severity, subject, message: message.into(), details }
    }

    /// Sets the subject.
    #[must_use]
    pub fn with_subject(self, subject: EventSubject) -> Self {
        Self { subject, ..self }
    }

    /// Adds a fact for programs. Names are lower-case letters, digits, `_`, `-` and `.`.
    #[must_use]
    pub fn with_detail(mut self, name: &str, value: impl Into<String>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// Cuts texts to their limits, replaces hidden characters, and leaves out details that are too many or have no valid name. An
    /// event has at most 3 KiB of text then.
    #[must_use]
    pub fn bounded(self) -> Self {
        let Self { kind, severity, subject, message, details } = self;
        let EventSubject { project, environment, namespace, kind: object, name } = subject;
        let [project, environment, namespace, object, name] =
            [project, environment, namespace, object, name].map(|text| clean(&text, MAX_NAME));
        let mut left = MAX_DETAIL_BYTES;
        let details = details.into_iter().filter(|(name, _)| is_detail_name(name)).take(MAX_DETAILS);
        let details = details.filter_map(|(name, value)| {
            let value = clean(&value, MAX_DETAIL.min(left));
            left -= value.len();
            (!value.is_empty()).then_some((name, value))
        });
        Self {
            kind,
            severity,
            subject: EventSubject { project, environment, namespace, kind: object, name },
            message: clean(&message, MAX_MESSAGE),
            details: details.collect(),
        }
    }
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::AgentConnected,
        Self::AgentDisconnected,
        Self::ConfigurationError,
        Self::ConfigurationValid,
        Self::KillSwitch,
        Self::Sync,
        Self::Drift,
        Self::Health,
        Self::Alert,
        Self::Other,
    ];

    /// Returns the word in JSON, in queries and in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AgentConnected => "agent-connected",
            Self::AgentDisconnected => "agent-disconnected",
            Self::ConfigurationError => "configuration-error",
            Self::ConfigurationValid => "configuration-valid",
            Self::KillSwitch => "kill-switch",
            Self::Sync => "sync",
            Self::Drift => "drift",
            Self::Health => "health",
            Self::Alert => "alert",
            Self::Other => "other",
        }
    }

    /// Returns the kind of an event that an agent reports: kas alone reports the others.
    #[must_use]
    pub fn of_agent(self) -> Self {
        match self {
            Self::Sync | Self::Drift | Self::Health | Self::Alert => self,
            _ => Self::Other,
        }
    }

    fn list() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl FromStr for EventKind {
    type Err = InvalidEventKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| InvalidEventKind(text.chars().take(100).collect()))
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Severity {
    /// Returns the word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl EventSubject {
    /// Returns whether nothing is known about the subject.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns whether a character is a control character, changes the direction of a line, or has no width: a text with it does not look like
/// what it is, in a terminal and in a message.
pub fn is_hidden(c: char) -> bool {
    let format = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    );
    c.is_control() || format
}

/// Returns one line of at most `max` bytes, in which hidden characters are spaces.
fn clean(text: &str, max: usize) -> String {
    let mut line = String::with_capacity(text.len().min(max));
    for character in text.chars().map(|c| if is_hidden(c) { ' ' } else { c }) {
        if line.len() + character.len_utf8() > max {
            break;
        }
        line.push(character);
    }
    line.trim().to_owned()
}

fn is_detail_name(name: &str) -> bool {
    let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.".contains(&b);
    (1..=MAX_DETAIL_NAME).contains(&name.len()) && name.bytes().all(valid)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn event_is_read_as_it_is_written() {
        let subject = EventSubject { project: "shop/web".to_owned(), ..EventSubject::default() };
        let content = EventContent::new(EventKind::Sync, Severity::Error, "quota exceeded")
            .with_subject(subject)
            .with_detail("commit", "3f1c9a7e5b2d");
        let event = Event {
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_732_309_881_203),
            agent: Some(EventAgent {
                id: AgentId(7),
                name: "prod".parse().unwrap(),
                project_id: None,
                project_path: None,
            }),
            content,
        };
        let json = json!({
            "time": "2024-11-22T21:11:21.203Z",
            "agent": {"id": 7, "name": "prod"},
            "kind": "sync",
            "severity": "error",
            "subject": {"project": "shop/web"},
            "message": "quota exceeded",
            "details": {"commit": "3f1c9a7e5b2d"},
        });
        assert_eq!(serde_json::to_value(&event).unwrap(), json);
        assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
    }

    #[test]
    fn kinds_have_their_words_and_unknown_ones_are_other() {
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert_eq!(
            serde_json::from_value::<EventKind>(json!("of-a-later-version")).unwrap(),
            EventKind::Other
        );
        assert!("syncs".parse::<EventKind>().unwrap_err().to_string().ends_with("alert, other"));
        assert_eq!(EventKind::KillSwitch.of_agent(), EventKind::Other, "an agent cannot report it");
        assert_eq!(EventKind::Alert.of_agent(), EventKind::Alert);
    }

    #[test]
    fn hidden_characters_become_spaces() {
        let message = "a\u{202e}b\u{200b}c\u{feff}d\u{2066}e\u{e0041}f é 日本";
        let content = EventContent::new(EventKind::Alert, Severity::Info, message).bounded();
        assert_eq!(content.message, "a b c d e f é 日本");
    }

    #[test]
    fn hostile_content_is_cut() {
        let long = "é\u{1b}\n".repeat(10_000);
        let mut content = EventContent::new(EventKind::Alert, Severity::Info, long.clone());
        content.subject = EventSubject {
            project: long.clone(),
            environment: long.clone(),
            namespace: long.clone(),
            kind: long.clone(),
            name: long.clone(),
        };
        content.details = (0..1000).map(|number| (format!("detail-{number}"), long.clone())).collect();
        content.details.insert("no name".to_owned(), "x".to_owned());
        content.details.insert("A".repeat(100), "x".to_owned());
        let content = content.bounded();
        assert!(
            (500..=512).contains(&content.message.len()) && (250..=253).contains(&content.subject.name.len())
        );
        assert!(!content.message.contains(['\u{1b}', '\n']));
        assert!(content.details.len() <= MAX_DETAILS && !content.details.contains_key("no name"));
        assert!(serde_json::to_vec(&content).unwrap().len() < 4 << 10);
        assert_eq!(content.clone().bounded(), content, "bounded twice is bounded once");
    }
}
