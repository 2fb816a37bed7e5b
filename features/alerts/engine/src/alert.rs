//! An alert: one source, one destination and one policy, with a count.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher as _},
    time::{Duration, SystemTime},
};

use proto::events::{CLOSED, EventContent, EventKind, EventSubject, NewAgentEvent, Severity};
use serde::{Serialize, Serializer};

use crate::policy::{Direction, PolicyRef};

/// The time after which an alert that goes on is reported again.
pub(crate) const AGAIN: Duration = Duration::from_secs(15 * 60);

/// What happens again and again. Occurrences with the same key are one alert.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AlertKey {
    /// What the policy has done.
    pub verdict: Verdict,
    /// The end whose policy decided. Violations have none.
    pub direction: Option<Direction>,
    /// The namespace of the end whose policy decided, or of the object that violates a policy. It is empty for what is in none.
    pub namespace: String,
    /// The sender, or the object that violates a policy.
    pub source: Peer,
    /// The receiver. It is empty for violations.
    pub destination: Destination,
    /// The policy. Its name is empty if it is not known.
    pub policy: PolicyRef,
    /// The reason in one word.
    pub reason: String,
}

/// What the policy has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Traffic was dropped.
    Dropped,
    /// Traffic would have been dropped if the policy were not in audit mode.
    Audited,
    /// A policy engine has reported a violation.
    Violation,
}

/// A workload, or what else takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Peer {
    /// The namespace of a workload.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The kind of a workload.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The name of a workload, a DNS name, or a word of Cilium such as `world`.
    pub name: String,
}

/// The receiver of traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Destination {
    /// The receiver.
    #[serde(flatten)]
    pub peer: Peer,
    /// The port, or 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: u16,
    /// The protocol, such as `TCP`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub protocol: &'static str,
}

/// An alert with its count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alert {
    /// A text of 16 hexadecimal digits, which every pod of agentk makes of the same key.
    pub id: String,
    /// The severity.
    pub severity: Severity,
    /// What the policy has done.
    pub verdict: Verdict,
    /// The end whose policy decided.
    #[serde(skip)]
    pub direction: Option<Direction>,
    /// The namespace of the end whose policy decided, or of the object.
    pub namespace: String,
    /// The sender or the object.
    pub source: Peer,
    /// The receiver.
    #[serde(skip_serializing_if = "Destination::is_empty")]
    pub destination: Destination,
    /// The policy, if it is known.
    #[serde(skip_serializing_if = "PolicyRef::is_unknown")]
    pub policy: PolicyRef,
    /// The reason in one word.
    pub reason: String,
    /// The number of occurrences.
    pub count: u64,
    /// The time of the first one.
    #[serde(serialize_with = "rfc3339")]
    pub first: SystemTime,
    /// The time of the last one.
    #[serde(serialize_with = "rfc3339")]
    pub last: SystemTime,
    /// A detail of the first one: the addresses, or the message of the policy engine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sample: String,
}

/// The state of an alert in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertState {
    /// It has begun.
    Opened,
    /// It goes on.
    Ongoing,
    /// It was quiet for the quiet period.
    Closed,
}

/// A change of an alert that kas should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertReport {
    /// The alert.
    pub alert: Alert,
    /// Its state.
    pub state: AlertState,
    /// The time of the report.
    pub at: SystemTime,
}

impl AlertKey {
    /// Returns the id of the alert.
    pub(crate) fn id(&self) -> String {
        // Each pod has the same keys of this hash.
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Returns the key under which the destinations of a source are counted together.
    pub(crate) fn any_destination(&self) -> Self {
        Self { destination: Destination::many(), ..self.clone() }
    }

    /// Returns the key under which everything is counted that has no group of its own.
    pub(crate) fn overflow() -> Self {
        Self {
            verdict: Verdict::Dropped,
            direction: None,
            namespace: String::new(),
            source: Peer { name: "many sources".to_owned(), ..Peer::default() },
            destination: Destination::many(),
            policy: PolicyRef::default(),
            reason: "too-many-alerts".to_owned(),
        }
    }
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Self; 3] = [Self::Dropped, Self::Audited, Self::Violation];

    /// Returns the word in JSON, in metrics and in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dropped => "dropped",
            Self::Audited => "audited",
            Self::Violation => "violation",
        }
    }

    /// Returns the severity of alerts.
    pub fn severity(self) -> Severity {
        match self {
            Self::Dropped | Self::Violation => Severity::Warning,
            Self::Audited => Severity::Info,
        }
    }
}

impl AlertState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Ongoing => "ongoing",
            Self::Closed => CLOSED,
        }
    }
}

impl Destination {
    fn many() -> Self {
        let peer = Peer { name: "many destinations".to_owned(), ..Peer::default() };
        Self { peer, ..Self::default() }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl PolicyRef {
    fn is_unknown(&self) -> bool {
        self.name.is_empty()
    }
}

impl Alert {
    /// Returns the text that the events of this alert have in common.
    pub(crate) fn fingerprint(&self) -> String {
        let report = AlertReport { alert: self.clone(), state: AlertState::Ongoing, at: self.last };
        let content = NewAgentEvent::from(report).content.bounded();
        content.alert_fingerprint().expect("its kind is that of alerts")
    }
}

impl AlertReport {
    /// Returns the number of quarters of an hour since the first occurrence, rounded, so that the clocks of nodes and the times at which
    /// pods look make no difference.
    fn quarter(&self) -> u64 {
        let elapsed = self.at.duration_since(self.alert.first).unwrap_or_default();
        (elapsed + AGAIN / 2).as_secs() / AGAIN.as_secs()
    }

    /// Returns the sentence for people.
    fn message(&self) -> String {
        let Alert { verdict, source, destination, policy, reason, count, .. } = &self.alert;
        let policy = if policy.is_unknown() { "a policy".to_owned() } else { format!("the policy {policy}") };
        let what = match verdict {
            Verdict::Dropped => format!("{policy} drops traffic from {source} to {destination}"),
            Verdict::Audited => format!("{policy} would drop traffic from {source} to {destination}"),
            Verdict::Violation => format!("{source} violates {policy} ({reason})"),
        };
        match self.state {
            AlertState::Opened => what,
            AlertState::Ongoing => format!("{what}, {count} times so far"),
            AlertState::Closed if *count == 1 => format!("{what}: over after one time"),
            AlertState::Closed => format!("{what}: over after {count} times"),
        }
    }
}

impl From<AlertReport> for NewAgentEvent {
    fn from(report: AlertReport) -> Self {
        let (message, quarter) = (report.message(), report.quarter());
        let AlertReport { alert, state, .. } = report;
        let subject = match alert.direction {
            Some(Direction::Ingress) => &alert.destination.peer,
            Some(Direction::Egress) | None => &alert.source,
        };
        let subject = EventSubject {
            namespace: alert.namespace.clone(),
            kind: subject.kind.clone(),
            name: subject.name.clone(),
            ..EventSubject::default()
        };
        let severity = match state {
            AlertState::Opened | AlertState::Ongoing => alert.severity,
            AlertState::Closed => Severity::Info,
        };
        let mut content = EventContent::new(EventKind::Alert, severity, message)
            .with_subject(subject)
            .with_detail("state", state.as_str())
            .with_detail("verdict", alert.verdict.as_str())
            .with_detail("source", alert.source.to_string())
            .with_detail("policy", alert.policy.to_string())
            .with_detail("count", alert.count.to_string())
            .with_detail("first", time(alert.first))
            .with_detail("last", time(alert.last));
        content = match alert.verdict {
            Verdict::Violation => content.with_detail("message", alert.sample),
            Verdict::Dropped | Verdict::Audited => {
                content.with_detail("destination", alert.destination.to_string())
            }
        };
        let first = alert.first.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        // Another pod may have reported the same, with another count: it has led meanwhile, or there is no Lease.
        let key = match state {
            AlertState::Ongoing => format!("alert:{}:{first}:{quarter}", alert.id),
            AlertState::Opened | AlertState::Closed => {
                format!("alert:{}:{first}:{}", alert.id, state.as_str())
            }
        };
        Self::from(content).with_key(key)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.namespace, &self.kind].into_iter().filter(|part| !part.is_empty()) {
            write!(f, "{part}/")?;
        }
        f.write_str(&self.name)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(f)?;
        match (self.port, self.protocol) {
            (0, "") => Ok(()),
            (0, protocol) => write!(f, " ({protocol})"),
            (port, protocol) => write!(f, " ({port}/{protocol})"),
        }
    }
}

impl fmt::Display for PolicyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(port: &u16) -> bool {
    *port == 0
}

fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*time))
}

fn time(time: SystemTime) -> String {
    // The formatter panics after the year 9999.
    let latest = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_millis(time.clamp(SystemTime::UNIX_EPOCH, latest)).to_string()
}
