//! Metrics of the requests to GitLab, which exist only if GitLab is configured.

use std::time::Duration;

use http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::{Registry, Unit},
};
use telemetry::{CallbackMetric, DurationHistogram, Label};
use tokio::sync::watch;

use super::{BudgetShare, Endpoint};

/// Upper bounds in seconds, up to the time limit of an attempt.
static DURATIONS: [f64; 8] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 20.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    result: &'static str,
}

/// The result of an attempt, as the metrics have it.
#[derive(Clone, Copy, Debug)]
pub(super) enum AttemptResult {
    Status(StatusCode),
    Timeout,
    /// The body is larger than kas reads. Strangers can make it so, which is no fault of GitLab.
    TooLarge,
    /// No connection, or no HTTP.
    Failed,
}

/// The handles of the metrics.
#[derive(Clone, Debug)]
pub(super) struct GitLabMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<Label, DurationHistogram, fn() -> DurationHistogram>,
    limited: Family<Label, Counter>,
}

impl Default for GitLabMetrics {
    fn default() -> Self {
        let durations: fn() -> DurationHistogram = || DurationHistogram::new(&DURATIONS);
        let limited = Family::<Label, Counter>::default();
        for share in BudgetShare::ALL {
            drop(limited.get_or_create(&[("share", share.label())]));
        }
        Self { requests: Family::default(), durations: Family::new_with_constructor(durations), limited }
    }
}

impl GitLabMetrics {
    /// Counts a request that was not sent because too many were waiting.
    pub(super) fn count_limited(&self, share: BudgetShare) {
        self.limited.get_or_create(&[("share", share.label())]).inc();
    }

    pub(super) fn observe(&self, endpoint: Endpoint, result: AttemptResult, duration: Duration) {
        let endpoint = endpoint.label();
        let result = match result {
            AttemptResult::Status(status) => match status.as_u16() / 100 {
                2 => "2xx",
                3 => "3xx",
                4 => "4xx",
                _ => "5xx",
            },
            AttemptResult::Timeout => "timeout",
            AttemptResult::TooLarge => "too-large",
            AttemptResult::Failed => "failed",
        };
        self.requests.get_or_create(&RequestLabels { endpoint, result }).inc();
        self.durations.get_or_create(&[("endpoint", endpoint)]).observe(duration);
    }
}

/// Registers the metrics of a client. `off` is true while GitLab has switched kas off.
pub(super) fn register(registry: &mut Registry, off: watch::Receiver<bool>, metrics: &GitLabMetrics) {
    registry.register(
        "kas_gitlab_requests",
        "Requests to GitLab, by endpoint and by class of the status; each attempt counts",
        metrics.requests.clone(),
    );
    registry.register_with_unit(
        "kas_gitlab_request_duration",
        "Time of a request to GitLab until the end of the response",
        Unit::Seconds,
        metrics.durations.clone(),
    );
    registry.register(
        "kas_gitlab_limited",
        "Requests to GitLab that were not sent because of gitlab.api_rate_limit, by their share of it",
        metrics.limited.clone(),
    );
    let help = "1 while GitLab has switched kas off, else 0";
    let gauge = move || u64::from(*off.borrow());
    registry.register_collector(CallbackMetric::gauge("kas_gitlab_switched_off", help, gauge));
}
