//! The events that agentk reports, and the request with which kas follows them.

use std::{fmt, str::FromStr, time::SystemTime};

use serde::{Deserialize, Serialize};
use settings::rfc3339_millis;

use super::{EventContent, OpenAlerts, clean};
use crate::InstanceId;

/// The path of the request. Its method is GET; the query `after=<id>` leaves out the event with this id and those before it. The response
/// is a stream of lines of JSON, each an [`AgentEventLine`].
pub const EVENTS_PATH: &str = "/v1/events";

/// The longest line of the response, in bytes: that of 2000 alerts.
pub const MAX_EVENT_LINE: usize = 48 << 10;

/// The longest key and the longest state of an event, in bytes.
const MAX_KEY: usize = 128;

/// A line of the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentEventLine {
    /// An event.
    Event(Box<AgentEvent>),
    /// This many events were forgotten before kas has read them.
    Missed(u64),
    /// The open alerts, after the events so far. Only a kas that asks for them with [`EVENT_LINES`](super::EVENT_LINES) gets them.
    OpenAlerts(OpenAlerts),
}

/// An event of an agentk process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentEvent {
    /// Its id.
    pub id: AgentEventId,
    /// The time at which it happened.
    #[serde(with = "rfc3339_millis")]
    pub time: SystemTime,
    /// The event.
    #[serde(flatten)]
    pub event: NewAgentEvent,
}

/// An event without its id and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewAgentEvent {
    /// What has happened.
    #[serde(flatten)]
    pub content: EventContent,
    /// A text that the same event has if another pod of the agent reports it, too. kas keeps the first of the events of an agent that
    /// have the same key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The state of the subject after the event, such as `degraded`. kas leaves out an event whose kind and subject had this state
    /// before, whichever pod has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// The id of an event: the process, and the number of the event in it, from 1. As text, `<instance>:<sequence>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentEventId {
    /// The process.
    pub instance: InstanceId,
    /// The number.
    pub sequence: u64,
}

/// A text that is no [`AgentEventId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of an event is the id of an instance, ':' and a number")]
pub struct InvalidAgentEventId;

impl NewAgentEvent {
    /// Cuts texts to their limits, and replaces kinds that only kas reports.
    #[must_use]
    pub fn bounded(self) -> Self {
        let Self { content, key, state } = self;
        let mut content = content.bounded();
        content.kind = content.kind.of_agent();
        let clean =
            |text: Option<String>| text.map(|text| clean(&text, MAX_KEY)).filter(|text| !text.is_empty());
        Self { content, key: clean(key), state: clean(state) }
    }

    /// Sets the key that the same event has at other pods.
    #[must_use]
    pub fn with_key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Sets the state of the subject after the event.
    #[must_use]
    pub fn with_state(self, state: impl Into<String>) -> Self {
        Self { state: Some(state.into()), ..self }
    }
}

impl From<EventContent> for NewAgentEvent {
    fn from(content: EventContent) -> Self {
        Self { content, key: None, state: None }
    }
}

impl fmt::Display for AgentEventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.instance, self.sequence)
    }
}

impl FromStr for AgentEventId {
    type Err = InvalidAgentEventId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (instance, sequence) = text.split_once(':').ok_or(InvalidAgentEventId)?;
        let digits = !sequence.is_empty() && sequence.bytes().all(|b| b.is_ascii_digit());
        let sequence = sequence.parse().ok().filter(|_| digits).ok_or(InvalidAgentEventId)?;
        Ok(Self { instance: instance.parse().map_err(|_| InvalidAgentEventId)?, sequence })
    }
}

impl TryFrom<String> for AgentEventId {
    type Error = InvalidAgentEventId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AgentEventId> for String {
    fn from(id: AgentEventId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::events::{EventKind, Severity};

    #[test]
    fn line_is_read_as_it_is_written_and_later_fields_are_ignored() {
        let instance = InstanceId::from_bytes([0x1b; 16]);
        let content = EventContent::new(EventKind::Health, Severity::Warning, "web is degraded");
        let event = AgentEvent {
            id: AgentEventId { instance, sequence: 3 },
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(5),
            event: NewAgentEvent::from(content).with_state("degraded"),
        };
        let line = AgentEventLine::Event(Box::new(event));
        let mut json = json!({"event": {
            "id": "1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b:3",
            "time": "1970-01-01T00:00:00.005Z",
            "kind": "health",
            "severity": "warning",
            "message": "web is degraded",
            "state": "degraded",
        }});
        assert_eq!(serde_json::to_value(&line).unwrap(), json);
        json["event"]["later"] = json!({"a": 1});
        assert_eq!(serde_json::from_value::<AgentEventLine>(json).unwrap(), line);
        let missed = serde_json::to_string(&AgentEventLine::Missed(7)).unwrap();
        assert_eq!(missed, "{\"missed\":7}");
        let fingerprints = ["0123456789abcdef".to_owned()].into();
        let open = AgentEventLine::OpenAlerts(OpenAlerts { since: SystemTime::UNIX_EPOCH, fingerprints });
        let json = json!({"open_alerts": {"since": "1970-01-01T00:00:00.000Z", "fingerprints": ["0123456789abcdef"]}});
        assert_eq!(serde_json::to_value(&open).unwrap(), json);
        assert_eq!(serde_json::from_value::<AgentEventLine>(json).unwrap(), open);
    }

    #[test]
    fn id_has_one_spelling() {
        let id = AgentEventId { instance: InstanceId::random(), sequence: u64::MAX };
        assert_eq!(id.to_string().parse(), Ok(id));
        let instance = id.instance;
        for bad in
            ["", "1", ":1", &format!("{instance}"), &format!("{instance}:"), &format!("{instance}:+1"), "x:1"]
        {
            assert_eq!(bad.parse::<AgentEventId>(), Err(InvalidAgentEventId), "{bad}");
        }
    }

    #[test]
    fn agent_cannot_report_an_event_of_kas() {
        let content = EventContent::new(EventKind::KillSwitch, Severity::Error, "all is disabled");
        let event = NewAgentEvent::from(content).with_key("k\n".repeat(1000)).with_state("\n").bounded();
        assert_eq!((event.content.kind, event.state), (EventKind::Other, None));
        assert_eq!(event.key.unwrap().len(), MAX_KEY - 1, "the last one would be a space");
    }
}
