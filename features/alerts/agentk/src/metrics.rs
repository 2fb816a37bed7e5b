//! The metrics of alerts. All labels are constants.

use std::sync::Arc;

use cluster_alerts::{Ignored, RefusedPolicy, Verdict};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use telemetry::{CounterByLabel, RegistryExt as _, encode_gauge};

use super::Alerts;

/// The reasons other than those of [`Ignored`] and [`RefusedPolicy`].
const REASONS: [&str; 3] = ["many-destinations", "too-many-alerts", "lost-by-hubble"];

telemetry::metrics! {
    /// The counters of alerts. Cheap to clone.
    pub(crate) struct AlertsMetrics {
        flows: CounterByLabel = counters(
            "agentk_alerts_flows",
            "Flows and Events that are alerts, by what the policy has done",
            "verdict",
            Verdict::ALL.map(Verdict::as_str),
        ),
        dropped: CounterByLabel = counters(
            "agentk_alerts_dropped",
            "Flows and Events that are no alert, or that are counted without all of their facts, by reason",
            "reason",
            Ignored::ALL.map(Ignored::as_str).into_iter().chain(RefusedPolicy::ALL.map(RefusedPolicy::as_str)).chain(REASONS),
        ),
        policies: Gauge = create("agentk_alerts_policies", "Network policies that ask for alerts"),
        connected: Gauge = create("agentk_alerts_hubble_connected", "1 while flows of Hubble are followed, else 0"),
        failures: Counter = create(
            "agentk_alerts_hubble_failures",
            "Attempts to follow flows that failed, and streams that ended",
        ),
    }
}

impl AlertsMetrics {
    /// Registers the number of open alerts.
    pub(crate) fn register_open(registry: &mut Registry, alerts: &Arc<Alerts>) {
        let alerts = Arc::downgrade(alerts);
        registry.collect(move |encoder| match alerts.upgrade() {
            Some(alerts) => {
                encode_gauge(encoder, "agentk_alerts_open", "Alerts that are not over", alerts.open() as u64)
            }
            None => Ok(()),
        });
    }

    pub(super) fn count(&self, verdict: Verdict) {
        self.flows.get(verdict.as_str()).inc();
    }

    pub(super) fn drop_one(&self, reason: &'static str) {
        self.drop_many(reason, 1);
    }

    pub(super) fn drop_many(&self, reason: &'static str, number: u64) {
        self.dropped.get(reason).inc_by(number);
    }

    pub(super) fn set_policies(&self, number: usize) {
        self.policies.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.set(i64::from(connected));
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected.get() == 1
    }

    pub(super) fn count_failure(&self) {
        self.failures.inc();
    }

    #[cfg(test)]
    pub(super) fn dropped(&self, reason: &'static str) -> u64 {
        self.dropped.get(reason).get()
    }

    #[cfg(test)]
    pub(super) fn counted(&self, verdict: Verdict) -> u64 {
        self.flows.get(verdict.as_str()).get()
    }

    #[cfg(test)]
    pub(super) fn failures(&self) -> u64 {
        self.failures.get()
    }
}
