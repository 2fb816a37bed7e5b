//! The metrics of the objects of environments.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::{Registry, Unit},
};
use proto::Reason;
use telemetry::DurationHistogram;

/// The buckets of attempts, in seconds.
const BUCKETS: [f64; 8] = [0.01, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];
/// The results of an attempt.
const RESULTS: [&str; 5] = ["ok", "unmanaged", "refused", "not-ready", "disabled"];

/// The counters of attempts. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ProvisionerMetrics {
    attempts: Family<ResultLabel, Counter>,
    durations: DurationHistogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl ProvisionerMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self { attempts: Family::default(), durations: DurationHistogram::new(&BUCKETS) };
        // All exist from the start: the rate of a series misses the event with which it begins.
        for result in RESULTS {
            drop(metrics.attempts.get_or_create(&ResultLabel { result }));
        }
        let help = "Jobs for which the objects of their environment were made or looked at, by result";
        registry.register("kas_managed_environments", help, metrics.attempts.clone());
        registry.register_with_unit(
            "kas_managed_environment_wait",
            "Time for which the first request of a job waited for the objects of its environment",
            Unit::Seconds,
            metrics.durations.clone(),
        );
        metrics
    }

    /// Counts an attempt, with the reason if the objects do not exist.
    pub(super) fn record(&self, reason: Option<Reason>, took: Duration) {
        let result = match reason {
            None => "ok",
            Some(Reason::EnvironmentUnmanaged) => "unmanaged",
            Some(Reason::Disabled) => "disabled",
            Some(Reason::EnvironmentNotReady) => "not-ready",
            Some(_) => "refused",
        };
        self.attempts.get_or_create(&ResultLabel { result }).inc();
        self.durations.observe(took);
    }
}
