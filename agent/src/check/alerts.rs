//! The steps for the sources of alerts.

use std::io::Write;

use super::{CheckCommand, CheckReport, REVIEW_HINT, StepError, failed};
use crate::services::alerts::AlertSources;

/// The permissions for the alerts of policy engines.
const EVENTS: [(&str, &str, &str); 2] = [("list", "", "events"), ("watch", "", "events")];

impl CheckCommand {
    /// Checks the rights for the Events of policy engines if the cluster `answers`, and the connection to Hubble Relay.
    pub(super) async fn check_alerts(
        &self,
        sources: &AlertSources,
        answers: bool,
        report: &mut CheckReport<impl Write>,
    ) -> Result<(), StepError> {
        if sources.policy_engines && answers {
            report.ok("Events", self.may(&EVENTS).await.map_err(failed("Events", REVIEW_HINT))?);
        }
        let Some(relay) = &sources.hubble else { return Ok(()) };
        let hint = "check the scheme, the host and the port of --hubble-address, --hubble-ca-cert-file, and that NetworkPolicies allow \
                    the connection";
        let address = relay.check().await.map_err(failed("Hubble Relay", hint))?;
        report.ok("Hubble Relay", format!("connected to {address}"));
        Ok(())
    }
}
