//! The metrics of agentk. Each user holds resolved handles.

use std::time::Duration;

use http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};
use proto::ServiceName;
use strum::{EnumCount, VariantNames};
use telemetry::{CallbackMetric, DurationHistogram, HistogramFamily, Label, RegistryExt as _};
use tunnel::{CloseReason, StallCounter};

telemetry::metrics! {
    /// The metrics. Cheap to clone; those of `default` are not registered.
    pub struct AgentMetrics {
        pub(crate) tunnels: Gauge = create("agentk_tunnels", "Open tunnels to kas"),
        /// While it is 1, kas chooses the pod to which it opens tunnels, so that a pod without one is no fault.
        pub(crate) listening: Gauge = create("agentk_listening", "1 while agentk accepts connections of kas"),
        dials: Family<Label, Counter> = create("agentk_dials", "Attempts to open a tunnel, by result"),
        tunnel_lifetimes: HistogramFamily<Label> = with(tunnel_lifetimes),
        /// Waits of response bodies for kas, in all tunnels.
        pub stalls: StallCounter = with(stalls),
        upstream: HistogramFamily<Label<String>> = histograms(
            "agentk_upstream_duration",
            "Time to the head of the upstream's response",
            &UPSTREAM_TIMES,
        ),
        requests: Family<RequestLabels, Counter> = create(
            "agentk_requests",
            "Answered requests by service and status class; failed are errors of agentk",
        ),
        in_flight: Family<Label<String>, Gauge> =
            create("agentk_requests_in_flight", "Requests whose response has not ended"),
        cluster_up: Gauge = create("agentk_cluster_up", "1 if the Kubernetes API answered the last check"),
        cluster_checks: Family<Label, Counter> =
            create("agentk_cluster_checks", "Checks of the Kubernetes API by result"),
        policy: PolicyMetrics = with(PolicyMetrics::register),
        out_of_scope: Counter =
            create("agentk_requests_out_of_scope", "Requests that the scope of the configuration refused"),
        configuration_updates: Family<Label, Counter> =
            create("agentk_configuration_updates", "Configurations that kas sent, by result"),
        configuration_error: Gauge = create(
            "agentk_configuration_error",
            "1 if kas cannot use the newest configuration of this agent",
        ),
    }
}

telemetry::metrics! {
    struct PolicyMetrics {
        decisions: Family<PolicyLabels, Counter> = create(
            "agentk_policy_decisions",
            "Requests by the policy rule that matched them, and by decision",
        ),
        reloads: Family<Label, Counter> =
            create("agentk_policy_reloads", "Reloads of the policy file, by result"),
    }
}

/// The number of label values is bounded by that of rules in a policy file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    rule: String,
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    service: String,
    /// `2xx`, …, or `failed` for an error of agentk.
    class: &'static str,
}

impl AgentMetrics {
    /// Counts an attempt to open a tunnel.
    pub(crate) fn record_dial(&self, result: &'static str) {
        self.dials(result).inc();
    }

    /// Returns the counter of attempts with this result.
    pub(crate) fn dials(&self, result: &'static str) -> Counter {
        self.dials.get_or_create_owned(&[("result", result)])
    }

    /// Records the end of a tunnel.
    pub fn record_tunnel_end(&self, reason: &'static str, lifetime: Duration) {
        self.tunnel_lifetimes.get_or_create(&[("reason", reason)]).observe(lifetime);
    }

    /// Counts a check of the cluster.
    pub(crate) fn record_cluster_check(&self, up: bool) {
        self.cluster_up.set(up.into());
        let result = if up { "ok" } else { "failed" };
        self.cluster_checks.get_or_create(&[("result", result)]).inc();
    }

    /// Returns metrics of which those of a policy are registered: those of a process that only decides by it.
    pub fn register_policy(registry: &mut Registry) -> Self {
        Self { policy: PolicyMetrics::register(registry), ..Self::default() }
    }

    /// Returns the counter of a policy rule.
    pub(crate) fn policy_decisions(&self, rule: &str, decision: &'static str) -> Counter {
        self.policy.decisions.get_or_create(&PolicyLabels { rule: rule.to_owned(), decision }).clone()
    }

    /// Removes the counter of a policy rule, so that the names of former rules do not accumulate.
    pub(crate) fn remove_policy_decisions(&self, rule: &str, decision: &'static str) {
        self.policy.decisions.remove(&PolicyLabels { rule: rule.to_owned(), decision });
    }

    /// Counts a reload of the policy file.
    pub(crate) fn record_policy_reload(&self, accepted: bool) {
        let result = if accepted { "ok" } else { "failed" };
        self.policy.reloads.get_or_create(&[("result", result)]).inc();
    }

    /// Counts a request that the scope refused.
    pub(crate) fn count_out_of_scope(&self) {
        self.out_of_scope.inc();
    }

    /// Returns the number of configurations with a result.
    #[cfg(test)]
    pub(crate) fn configuration_updates(&self, result: &'static str) -> u64 {
        self.configuration_updates.get_or_create(&[("result", result)]).get()
    }

    /// Counts a configuration that kas sent: `ok`, `ignored` or `failed`.
    pub(crate) fn record_configuration_update(&self, result: &'static str) {
        self.configuration_updates.get_or_create(&[("result", result)]).inc();
    }

    /// Records whether kas reports an error in the configuration.
    pub(crate) fn set_configuration_error(&self, is_error: bool) {
        self.configuration_error.set(is_error.into());
    }

    /// Returns the metrics of a service.
    pub(crate) fn service(&self, service: &ServiceName) -> ServiceMetrics {
        let service = service.as_str().to_owned();
        let requests = std::array::from_fn(|class| {
            let label = RequestLabels { service: service.clone(), class: StatusClass::VARIANTS[class] };
            self.requests.get_or_create_owned(&label)
        });
        let label = [("service", service)];
        let in_flight = self.in_flight.get_or_create(&label).clone();
        let upstream = self.upstream.get_or_create(&label).clone();
        ServiceMetrics { requests, in_flight, upstream }
    }
}

/// The metrics of one service.
#[derive(Clone, Debug)]
pub(crate) struct ServiceMetrics {
    requests: [Counter; StatusClass::COUNT],
    in_flight: Gauge,
    upstream: DurationHistogram,
}

/// Counts a request in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Gauge);

impl ServiceMetrics {
    /// Counts a request in flight.
    pub(crate) fn start_request(&self) -> InFlightGuard {
        self.in_flight.inc();
        InFlightGuard(self.in_flight.clone())
    }

    /// Records the head of a response, and the time until it. `failed`: it is an error of agentk.
    pub(crate) fn record_response(&self, status: StatusCode, failed: bool, duration: Duration) {
        self.upstream.observe(duration);
        let class = if failed { StatusClass::Failed } else { StatusClass::of(status) };
        self.requests[class as usize].inc();
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Registers the lifetimes of tunnels. All reasons exist from the start: the rate of a series misses the event with which it begins.
fn tunnel_lifetimes(registry: &mut Registry) -> HistogramFamily<Label> {
    let help = "Lifetimes of ended tunnels, by the reason of their end";
    let lifetimes = registry.histograms("agentk_tunnel_lifetime", help, &LIFETIMES);
    for reason in CloseReason::LABELS {
        drop(lifetimes.get_or_create(&[("reason", reason)]));
    }
    lifetimes
}

fn stalls(registry: &mut Registry) -> StallCounter {
    let stalls = StallCounter::default();
    let (counted, help) = (stalls.clone(), "Waits of response bodies until kas takes more bytes");
    registry
        .register_collector(CallbackMetric::counter("agentk_tunnel_stalls", help, move || counted.count()));
    stalls
}

/// Registers the version of agentk.
pub fn register_version(registry: &mut Registry) {
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("agentk_build", "The running version", build);
}

impl Default for AgentMetrics {
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

/// Seconds. kas has the same buckets.
static LIFETIMES: [f64; 8] = [1.0, 10.0, 60.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0];
/// Seconds: from a cached response to the longest evaluation of Prometheus.
static UPSTREAM_TIMES: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];

#[derive(Clone, Copy, EnumCount, VariantNames)]
enum StatusClass {
    #[strum(serialize = "1xx")]
    Informational,
    #[strum(serialize = "2xx")]
    Success,
    #[strum(serialize = "3xx")]
    Redirect,
    #[strum(serialize = "4xx")]
    Client,
    #[strum(serialize = "5xx")]
    Server,
    #[strum(serialize = "failed")]
    Failed,
}

impl StatusClass {
    fn of(status: StatusCode) -> Self {
        match status.as_u16() / 100 {
            1 => Self::Informational,
            2 => Self::Success,
            3 => Self::Redirect,
            4 => Self::Client,
            _ => Self::Server,
        }
    }
}
