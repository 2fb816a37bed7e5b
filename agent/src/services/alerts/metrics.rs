//! The metrics of alerts. All labels are constants.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use cluster_alerts::{Ignored, RefusedPolicy, Verdict};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge, gauge::Gauge},
    registry::Registry,
};

use super::Alerts;

/// The reasons other than those of [`Ignored`] and [`RefusedPolicy`].
const REASONS: [&str; 3] = ["many-destinations", "too-many-alerts", "lost-by-hubble"];

/// The counters of alerts. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlertsMetrics {
    flows: Family<VerdictLabel, Counter>,
    dropped: Family<ReasonLabel, Counter>,
    policies: Gauge,
    connected: Gauge,
    failures: Counter,
}

/// Reads the table at each scrape.
struct OpenAlerts(Weak<Alerts>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabel {
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl AlertsMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for verdict in Verdict::ALL {
            drop(metrics.flows.get_or_create(&VerdictLabel { verdict: verdict.as_str() }));
        }
        let of_policies = RefusedPolicy::ALL.map(RefusedPolicy::as_str);
        for reason in Ignored::ALL.map(Ignored::as_str).into_iter().chain(of_policies).chain(REASONS) {
            drop(metrics.dropped.get_or_create(&ReasonLabel { reason }));
        }
        let help = "Flows and Events that are alerts, by what the policy has done";
        registry.register("agentk_alerts_flows", help, metrics.flows.clone());
        let help =
            "Flows and Events that are no alert, or that are counted without all of their facts, by reason";
        registry.register("agentk_alerts_dropped", help, metrics.dropped.clone());
        let help = "Network policies that ask for alerts";
        registry.register("agentk_alerts_policies", help, metrics.policies.clone());
        let help = "1 while flows of Hubble are followed, else 0";
        registry.register("agentk_alerts_hubble_connected", help, metrics.connected.clone());
        let help = "Attempts to follow flows that failed, and streams that ended";
        registry.register("agentk_alerts_hubble_failures", help, metrics.failures.clone());
        metrics
    }

    /// Registers the number of open alerts.
    pub(crate) fn register_open(registry: &mut Registry, alerts: &Arc<Alerts>) {
        registry.register_collector(Box::new(OpenAlerts(Arc::downgrade(alerts))));
    }

    pub(super) fn count(&self, verdict: Verdict) {
        self.flows.get_or_create(&VerdictLabel { verdict: verdict.as_str() }).inc();
    }

    pub(super) fn drop_one(&self, reason: &'static str) {
        self.drop_many(reason, 1);
    }

    pub(super) fn drop_many(&self, reason: &'static str, number: u64) {
        self.dropped.get_or_create(&ReasonLabel { reason }).inc_by(number);
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
        self.dropped.get_or_create(&ReasonLabel { reason }).get()
    }

    #[cfg(test)]
    pub(super) fn counted(&self, verdict: Verdict) -> u64 {
        self.flows.get_or_create(&VerdictLabel { verdict: verdict.as_str() }).get()
    }

    #[cfg(test)]
    pub(super) fn failures(&self) -> u64 {
        self.failures.get()
    }
}

impl Collector for OpenAlerts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(alerts) = self.0.upgrade() else { return Ok(()) };
        let help = "Alerts that are not over";
        let gauge = ConstGauge::new(i64::try_from(alerts.open()).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor("agentk_alerts_open", help, None, MetricType::Gauge)?)
    }
}

impl fmt::Debug for OpenAlerts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenAlerts")
    }
}
