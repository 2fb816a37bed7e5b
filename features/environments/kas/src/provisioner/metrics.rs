//! The metrics of the objects of environments.

use std::time::Duration;

use proto::Reason;
use telemetry::{CounterByLabel, DurationHistogram};

/// The buckets of attempts, in seconds.
const BUCKETS: [f64; 8] = [0.01, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];

telemetry::metrics! {
    /// The counters of attempts. Cheap to clone.
    pub(super) struct ProvisionerMetrics {
        attempts: CounterByLabel = counters(
            "kas_managed_environments",
            "Jobs for which the objects of their environment were made or looked at, by result",
            "result",
            ["ok", "unmanaged", "refused", "not-ready", "disabled"],
        ),
        durations: DurationHistogram = histogram(
            "kas_managed_environment_wait",
            "Time for which the first request of a job waited for the objects of its environment",
            &BUCKETS,
        ),
    }
}

impl ProvisionerMetrics {
    /// Counts an attempt, with the reason if the objects do not exist.
    pub(super) fn record(&self, reason: Option<Reason>, took: Duration) {
        let result = match reason {
            None => "ok",
            Some(Reason::EnvironmentUnmanaged) => "unmanaged",
            Some(Reason::Disabled) => "disabled",
            Some(Reason::EnvironmentNotReady) => "not-ready",
            Some(_) => "refused",
        };
        self.attempts.get(result).inc();
        self.durations.observe(took);
    }
}
