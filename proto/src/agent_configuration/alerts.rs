//! Section `alerts`: the traffic and the violations that agentk reports.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use settings::AnyDuration;

use super::{InvalidValue, is_namespace};

/// The most namespaces.
const MAX_NAMESPACES: usize = 1000;
/// The most reasons of Events, and the longest one in bytes, which is a rule of the API.
const MAX_REASONS: usize = 32;
const MAX_REASON: usize = 128;
/// The shortest and the longest quiet period.
const QUIET_PERIODS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(24 * 3600);

/// Section `alerts`. It has an effect if a flag of agentk names a source of alerts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertsSection {
    /// The network policies whose drops are alerts.
    pub policies: AlertPolicies,
    /// The namespaces; none for all. A scope limits them further.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The time without an occurrence after which an alert is over.
    #[serde(with = "AnyDuration")]
    pub quiet_period: Duration,
    /// The reasons of the Events that policy engines write about violations.
    pub event_reasons: Vec<String>,
}

/// The network policies whose drops are alerts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertPolicies {
    /// Those with the annotation `app.gitlab.com/alert: "true"`.
    #[default]
    Annotated,
    /// All.
    All,
}

impl Default for AlertsSection {
    fn default() -> Self {
        // Kyverno has the first one, and Gatekeeper the others.
        let reasons =
            ["PolicyViolation", "FailedAdmission", "AuditViolation", "DryrunViolation", "WarningAdmission"];
        Self {
            policies: AlertPolicies::default(),
            namespaces: Vec::new(),
            quiet_period: Duration::from_secs(600),
            event_reasons: reasons.map(str::to_owned).to_vec(),
        }
    }
}

impl AlertsSection {
    /// Returns the key and the problem of the first invalid value.
    pub(super) fn validate(&self) -> Result<(), InvalidValue> {
        let error = |key: &str, what: String| Err(InvalidValue::new(format!("alerts.{key}"), what));
        if self.namespaces.len() > MAX_NAMESPACES {
            return error("namespaces", format!("there are at most {MAX_NAMESPACES}"));
        }
        if let Some(name) = self.namespaces.iter().find(|name| !is_namespace(name)) {
            return error("namespaces", format!("{name:?} is not a namespace: write its exact name"));
        }
        if !QUIET_PERIODS.contains(&self.quiet_period) {
            return error("quiet_period", "it must be from 1m to 24h".to_owned());
        }
        if self.event_reasons.len() > MAX_REASONS {
            return error("event_reasons", format!("there are at most {MAX_REASONS}"));
        }
        let is_reason = |text: &str| {
            (1..=MAX_REASON).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
        };
        match self.event_reasons.iter().find(|reason| !is_reason(reason)) {
            Some(reason) => error(
                "event_reasons",
                format!(
                    "{reason:?} is not a reason of Events: write letters and digits, as in PolicyViolation"
                ),
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::agent_configuration::AgentConfiguration;

    fn parse(text: &str) -> Result<AgentConfiguration, String> {
        AgentConfiguration::parse(Path::new("config.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn section_is_read_and_absent_keys_have_defaults() {
        let parsed = parse("alerts: {policies: all, namespaces: [shop], quiet_period: 5m}").unwrap();
        let alerts = parsed.alerts.unwrap();
        assert_eq!((alerts.policies, alerts.quiet_period.as_secs()), (AlertPolicies::All, 300));
        assert_eq!(alerts.event_reasons, AlertsSection::default().event_reasons);
        assert_eq!(parse("alerts: {}").unwrap().alerts, Some(AlertsSection::default()));
    }

    #[test]
    fn invalid_section_is_refused_with_line_and_key() {
        for (text, expected) in [
            ("alerts:\n  policies: some\n", "config.yaml:2:13: alerts.policies: "),
            (
                "alerts:\n  namespaces: [shop, '*']\n",
                "config.yaml:2:3: alerts.namespaces: \"*\" is not a namespace",
            ),
            (
                "alerts:\n  quiet_period: 5s\n",
                "config.yaml:2:3: alerts.quiet_period: it must be from 1m to 24h",
            ),
            (
                "alerts: {event_reasons: ['Policy Violation']}",
                "alerts.event_reasons: \"Policy Violation\" is not a reason",
            ),
            ("alerts: {hubble: x}", "unknown field `hubble`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}\n gave {error}");
        }
    }
}
