//! The open alerts of an agent, as the pod that reports them lists them.

use std::{collections::BTreeSet, time::SystemTime};

use serde::{Deserialize, Serialize};
use settings::rfc3339_millis;
use sha2::{Digest as _, Sha256};

use super::{EventContent, EventKind};

/// The header field with which kas asks for lines of the response that an older kas does not know.
pub const EVENT_LINES: http::HeaderName = http::HeaderName::from_static("kas-event-lines");

/// The value of [`EVENT_LINES`] that asks for [`OpenAlerts`].
pub const OPEN_ALERTS: &str = "open-alerts";

/// The value of the detail `state` of the last event of an alert.
pub const CLOSED: &str = "closed";

/// All open alerts of an agent. kas ends those that it has as open and that are not among them: the process that has opened them was
/// killed before it could report their end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAlerts {
    /// Each alert that has occurred since this time is among them.
    #[serde(with = "rfc3339_millis")]
    pub since: SystemTime,
    /// The fingerprints of the alerts.
    pub fingerprints: BTreeSet<String>,
}

impl EventContent {
    /// Returns a short text that the events of one alert have in common, whichever process has reported them, or `None` for other kinds.
    /// The content has to be bounded.
    pub fn alert_fingerprint(&self) -> Option<String> {
        if self.kind != EventKind::Alert {
            return None;
        }
        let subject = [&self.subject.namespace, &self.subject.kind, &self.subject.name].map(String::as_str);
        let facts = ["verdict", "source", "destination", "policy"];
        let facts = facts.map(|name| self.details.get(name).map_or("", String::as_str));
        let mut digest = Sha256::new();
        for text in subject.into_iter().chain(facts) {
            digest.update((text.len() as u64).to_be_bytes());
            digest.update(text);
        }
        Some(digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{EventSubject, Severity};

    #[test]
    fn events_of_one_alert_have_one_fingerprint() {
        let event = |namespace: &str, state: &str, source: &str, kind: EventKind| {
            let subject = EventSubject { namespace: namespace.to_owned(), ..EventSubject::default() };
            EventContent::new(kind, Severity::Warning, state)
                .with_subject(subject)
                .with_detail("state", state)
                .with_detail("source", source)
                .alert_fingerprint()
        };
        let opened = event("shop", "opened", "shop/Deployment/web", EventKind::Alert);
        assert_eq!(opened.as_ref().map(String::len), Some(16));
        assert_eq!(event("shop", CLOSED, "shop/Deployment/web", EventKind::Alert), opened);
        assert_ne!(event("shop", "opened", "shop/Deployment/db", EventKind::Alert), opened);
        assert_ne!(event("other", "opened", "shop/Deployment/web", EventKind::Alert), opened);
        assert_eq!(event("shop", "opened", "shop/Deployment/web", EventKind::Drift), None);
    }
}
