//! The metrics of agentk. Each user holds resolved handles.

use std::time::Duration;

use http::StatusCode;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};
use proto::{ServiceName, header};
use telemetry::{CallbackMetric, DurationHistogram};
use tunnel::{CloseReason, StallCounter};

/// The metrics. Cheap to clone; those of `default` are not registered.
#[derive(Clone, Debug)]
pub struct AgentMetrics {
    /// The number of open tunnels.
    pub(crate) tunnels: Gauge,
    /// 1 while agentk accepts connections of kas, which choose a pod: no tunnel in this one is no fault then.
    pub(crate) listening: Gauge,
    dials: Family<ResultLabel, Counter>,
    tunnel_lifetimes: Family<ReasonLabel, DurationHistogram>,
    /// Waits of response bodies for kas, in all tunnels.
    pub(crate) stalls: StallCounter,
    upstream: Family<ServiceLabel, DurationHistogram>,
    requests: Family<RequestLabels, Counter>,
    in_flight: Family<ServiceLabel, Gauge>,
    /// 1 if the Kubernetes API answered the last check.
    cluster_up: Gauge,
    cluster_checks: Family<ResultLabel, Counter>,
    policy_decisions: Family<PolicyLabels, Counter>,
    policy_reloads: Family<ResultLabel, Counter>,
    out_of_scope: Counter,
    configuration_updates: Family<ResultLabel, Counter>,
    /// 1 if kas reports an error in the configuration of this agent.
    configuration_error: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabel {
    service: String,
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
    /// Returns registered metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // All exist from the start: the rate of a series misses the event with which it begins.
        for reason in CloseReason::LABELS {
            drop(metrics.tunnel_lifetimes.get_or_create(&ReasonLabel { reason }));
        }
        metrics.register_own_policy(registry);
        registry.register("agentk_tunnels", "Open tunnels to kas", metrics.tunnels.clone());
        let help = "1 while agentk accepts connections of kas";
        registry.register("agentk_listening", help, metrics.listening.clone());
        registry.register("agentk_dials", "Attempts to open a tunnel, by result", metrics.dials.clone());
        registry.register_with_unit(
            "agentk_tunnel_lifetime",
            "Lifetimes of ended tunnels, by the reason of their end",
            Unit::Seconds,
            metrics.tunnel_lifetimes.clone(),
        );
        let (stalls, help) = (metrics.stalls.clone(), "Waits of response bodies until kas takes more bytes");
        registry.register_collector(CallbackMetric::counter("agentk_tunnel_stalls", help, move || {
            stalls.count()
        }));
        registry.register_with_unit(
            "agentk_upstream_duration",
            "Time to the head of the upstream's response",
            Unit::Seconds,
            metrics.upstream.clone(),
        );
        registry.register(
            "agentk_requests",
            "Answered requests by service and status class; failed are errors of agentk",
            metrics.requests.clone(),
        );
        registry.register(
            "agentk_requests_in_flight",
            "Requests whose response has not ended",
            metrics.in_flight.clone(),
        );
        registry.register(
            "agentk_cluster_up",
            "1 if the Kubernetes API answered the last check",
            metrics.cluster_up.clone(),
        );
        registry.register(
            "agentk_cluster_checks",
            "Checks of the Kubernetes API by result",
            metrics.cluster_checks.clone(),
        );
        registry.register(
            "agentk_requests_out_of_scope",
            "Requests that the scope of the configuration refused",
            metrics.out_of_scope.clone(),
        );
        registry.register(
            "agentk_configuration_updates",
            "Configurations that kas sent, by result",
            metrics.configuration_updates.clone(),
        );
        registry.register(
            "agentk_configuration_error",
            "1 if kas cannot use the newest configuration of this agent",
            metrics.configuration_error.clone(),
        );
        metrics
    }

    /// Counts an attempt to open a tunnel.
    pub(crate) fn record_dial(&self, result: &'static str) {
        self.dials(result).inc();
    }

    /// Returns the counter of attempts with this result.
    pub(crate) fn dials(&self, result: &'static str) -> Counter {
        self.dials.get_or_create_owned(&ResultLabel { result })
    }

    /// Records the end of a tunnel.
    pub(crate) fn record_tunnel_end(&self, reason: &'static str, lifetime: Duration) {
        self.tunnel_lifetimes.get_or_create(&ReasonLabel { reason }).observe(lifetime);
    }

    /// Counts a check of the cluster.
    pub(crate) fn record_cluster_check(&self, up: bool) {
        self.cluster_up.set(up.into());
        let result = if up { "ok" } else { "failed" };
        self.cluster_checks.get_or_create(&ResultLabel { result }).inc();
    }

    /// Returns metrics of which those of a policy are registered: those of a process that only decides by it.
    pub(crate) fn register_policy(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        metrics.register_own_policy(registry);
        metrics
    }

    fn register_own_policy(&self, registry: &mut Registry) {
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("agentk_build", "The running version", build);
        registry.register(
            "agentk_policy_decisions",
            "Requests by the policy rule that matched them, and by decision",
            self.policy_decisions.clone(),
        );
        registry.register(
            "agentk_policy_reloads",
            "Reloads of the policy file, by result",
            self.policy_reloads.clone(),
        );
    }

    /// Returns the counter of a policy rule.
    pub(crate) fn policy_decisions(&self, rule: &str, decision: &'static str) -> Counter {
        self.policy_decisions.get_or_create(&PolicyLabels { rule: rule.to_owned(), decision }).clone()
    }

    /// Removes the counter of a policy rule, so that the names of former rules do not accumulate.
    pub(crate) fn remove_policy_decisions(&self, rule: &str, decision: &'static str) {
        self.policy_decisions.remove(&PolicyLabels { rule: rule.to_owned(), decision });
    }

    /// Counts a reload of the policy file.
    pub(crate) fn record_policy_reload(&self, accepted: bool) {
        let result = if accepted { "ok" } else { "failed" };
        self.policy_reloads.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a request that the scope refused.
    pub(crate) fn count_out_of_scope(&self) {
        self.out_of_scope.inc();
    }

    /// Returns the number of configurations with a result.
    #[cfg(test)]
    pub(crate) fn configuration_updates(&self, result: &'static str) -> u64 {
        self.configuration_updates.get_or_create(&ResultLabel { result }).get()
    }

    /// Counts a configuration that kas sent: `ok`, `ignored` or `failed`.
    pub(crate) fn record_configuration_update(&self, result: &'static str) {
        self.configuration_updates.get_or_create(&ResultLabel { result }).inc();
    }

    /// Records whether kas reports an error in the configuration.
    pub(crate) fn set_configuration_error(&self, is_error: bool) {
        self.configuration_error.set(is_error.into());
    }

    /// Returns the metrics of a service.
    pub(crate) fn service(&self, service: &ServiceName) -> ServiceMetrics {
        let service = service.as_str().to_owned();
        let requests = StatusClass::ALL.map(|class| {
            let label = RequestLabels { service: service.clone(), class: class.as_str() };
            self.requests.get_or_create(&label).clone()
        });
        let label = ServiceLabel { service };
        let in_flight = self.in_flight.get_or_create(&label).clone();
        let upstream = self.upstream.get_or_create(&label).clone();
        ServiceMetrics { requests, in_flight, upstream }
    }
}

/// The metrics of one service.
#[derive(Clone, Debug)]
pub(crate) struct ServiceMetrics {
    requests: [Counter; StatusClass::ALL.len()],
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

    /// Records the head of a response, and the time until it.
    pub(crate) fn record_response<B>(&self, response: &http::Response<B>, duration: Duration) {
        self.upstream.observe(duration);
        let failed = response.headers().contains_key(header::ERROR);
        let class = if failed { StatusClass::Failed } else { StatusClass::of(response.status()) };
        self.requests[class as usize].inc();
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Returns the metrics in OpenMetrics text format.
pub(crate) fn render(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("writing to a string does not fail");
    text
}

impl Default for AgentMetrics {
    fn default() -> Self {
        Self {
            tunnels: Gauge::default(),
            listening: Gauge::default(),
            dials: Family::default(),
            tunnel_lifetimes: Family::new_with_constructor(|| DurationHistogram::new(&LIFETIMES)),
            stalls: StallCounter::default(),
            upstream: Family::new_with_constructor(|| DurationHistogram::new(&UPSTREAM_TIMES)),
            requests: Family::default(),
            in_flight: Family::default(),
            cluster_up: Gauge::default(),
            cluster_checks: Family::default(),
            policy_decisions: Family::default(),
            policy_reloads: Family::default(),
            out_of_scope: Counter::default(),
            configuration_updates: Family::default(),
            configuration_error: Gauge::default(),
        }
    }
}

/// Seconds. kas has the same buckets.
static LIFETIMES: [f64; 8] = [1.0, 10.0, 60.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0];
/// Seconds: from a cached response to the longest evaluation of Prometheus.
static UPSTREAM_TIMES: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];

#[derive(Clone, Copy)]
enum StatusClass {
    Informational,
    Success,
    Redirect,
    Client,
    Server,
    Failed,
}

impl StatusClass {
    const ALL: [Self; 6] =
        [Self::Informational, Self::Success, Self::Redirect, Self::Client, Self::Server, Self::Failed];

    fn of(status: StatusCode) -> Self {
        match status.as_u16() / 100 {
            1 => Self::Informational,
            2 => Self::Success,
            3 => Self::Redirect,
            4 => Self::Client,
            _ => Self::Server,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Informational => "1xx",
            Self::Success => "2xx",
            Self::Redirect => "3xx",
            Self::Client => "4xx",
            Self::Server => "5xx",
            Self::Failed => "failed",
        }
    }
}
