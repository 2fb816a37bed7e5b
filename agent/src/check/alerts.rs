//! The steps for the sources of alerts.

use std::io::Write;

use super::{CheckCommand, CheckReport, REVIEW_HINT, StepError, failed};
use crate::services::alerts::AlertSources;

/// The permissions for the alerts of policy engines.
const EVENTS: [&str; 2] = ["list", "watch"];

impl CheckCommand {
    /// Checks the rights for the Events of policy engines if the cluster `answers`. With a scope, agentk needs them in its namespaces only,
    /// where it tries them at its start.
    pub(super) async fn check_events(
        &self,
        sources: &AlertSources,
        answers: bool,
        report: &mut CheckReport<impl Write>,
    ) -> Result<(), StepError> {
        if !sources.policy_engines || !answers || self.scope.namespaces.is_some() {
            return Ok(());
        }
        for verb in EVENTS {
            let allowed = self.kubernetes.may(verb, "", "events").await;
            if !allowed.map_err(failed("Events", REVIEW_HINT))? {
                let what = format!(
                    "agentk may not {verb} events in all namespaces, so that it reports no violations"
                );
                report.line("Events", "warning", what);
                return Ok(());
            }
        }
        report.ok("Events", "agentk may list and watch events in all namespaces");
        Ok(())
    }
}

/// Checks that Hubble Relay answers.
pub(super) async fn check_hubble(
    sources: &AlertSources,
    report: &mut CheckReport<impl Write>,
) -> Result<(), StepError> {
    let Some(relay) = &sources.hubble else { return Ok(()) };
    let hint = "check the scheme, the host and the port of --hubble-address, the --hubble-… files, and that NetworkPolicies allow the \
                connection";
    let address = relay.check().await.map_err(failed("Hubble Relay", hint))?;
    report.ok("Hubble Relay", format!("{address} answers"));
    Ok(())
}
