//! What agentk counts. Registered once; whoever counts holds the resolved handle.

use std::time::Duration;

use http::StatusCode;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};
use proto::{ServiceName, header};
use telemetry::{Count, Histogram};
use tunnel::Stalls;

/// The handles. Cheap to clone; the default counts for nobody.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Tunnels that are up.
    pub tunnels: Gauge,
    dials: Family<ResultLabel, Counter>,
    tunnel_lifetimes: Family<ReasonLabel, Histogram>,
    /// Answers that wait for kas to take more of them, in all tunnels.
    pub stalls: Stalls,
    upstream: Family<ServiceLabel, Histogram>,
    requests: Family<RequestLabels, Counter>,
    in_flight: Family<ServiceLabel, Gauge>,
    /// 1 if the cluster answered the last check.
    pub cluster_up: Gauge,
    cluster_checks: Family<ResultLabel, Counter>,
    policy_decisions: Family<PolicyLabels, Counter>,
    policy_reloads: Family<ResultLabel, Counter>,
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

/// Bounded by the rules of a policy file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    rule: String,
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    service: String,
    /// `2xx`, …, or `failed` for an answer of ours.
    class: &'static str,
}

impl Metrics {
    /// Registers everything.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("agentk_build", "The running version", build);
        registry.register("agentk_tunnels", "Tunnels to kas that are up", metrics.tunnels.clone());
        registry.register("agentk_dials", "Attempts to open a tunnel, by result", metrics.dials.clone());
        registry.register_with_unit(
            "agentk_tunnel_lifetime",
            "How long ended tunnels lived, by the reason of their end",
            Unit::Seconds,
            metrics.tunnel_lifetimes.clone(),
        );
        let (stalls, help) =
            (metrics.stalls.clone(), "Answers' bodies that had to wait for kas to take more");
        registry.register_collector(Count::new("agentk_tunnel_stalls", help, move || stalls.count()));
        registry.register_with_unit(
            "agentk_upstream_duration",
            "Time until the upstream's answer began",
            Unit::Seconds,
            metrics.upstream.clone(),
        );
        registry.register(
            "agentk_requests",
            "Answered requests by service and status class; failed are answers of agentk's own",
            metrics.requests.clone(),
        );
        registry.register(
            "agentk_requests_in_flight",
            "Requests whose answer has not ended",
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
            "agentk_policy_decisions",
            "Requests by the rule of the policy that was about them, and what it decided",
            metrics.policy_decisions.clone(),
        );
        registry.register(
            "agentk_policy_reloads",
            "New versions of the policy file by result",
            metrics.policy_reloads.clone(),
        );
        metrics
    }

    /// An attempt to open a tunnel.
    pub fn dial(&self, result: &'static str) {
        self.dials.get_or_create(&ResultLabel { result }).inc();
    }

    /// A tunnel ended.
    pub fn tunnel_end(&self, reason: &'static str, lifetime: Duration) {
        self.tunnel_lifetimes.get_or_create(&ReasonLabel { reason }).observe(lifetime);
    }

    /// A check of the cluster.
    pub fn cluster_check(&self, up: bool) {
        self.cluster_up.set(up.into());
        let result = if up { "ok" } else { "failed" };
        self.cluster_checks.get_or_create(&ResultLabel { result }).inc();
    }

    /// What is counted for one rule of a policy, resolved.
    pub fn policy_decisions(&self, rule: &str, decision: &'static str) -> Counter {
        self.policy_decisions.get_or_create(&PolicyLabels { rule: rule.to_owned(), decision }).clone()
    }

    /// A rule is no longer in force: its name is forgotten, or the names of all rules that ever were would stay.
    pub fn forget_policy_decisions(&self, rule: &str, decision: &'static str) {
        self.policy_decisions.remove(&PolicyLabels { rule: rule.to_owned(), decision });
    }

    /// The policy file has changed.
    pub fn policy_reload(&self, used: bool) {
        let result = if used { "ok" } else { "failed" };
        self.policy_reloads.get_or_create(&ResultLabel { result }).inc();
    }

    /// What is counted for one service, resolved.
    pub fn of(&self, service: &ServiceName) -> ServiceMetrics {
        let service = service.as_str().to_owned();
        let requests = Class::ALL.map(|class| {
            let label = RequestLabels { service: service.clone(), class: class.as_str() };
            self.requests.get_or_create(&label).clone()
        });
        let label = ServiceLabel { service };
        let in_flight = self.in_flight.get_or_create(&label).clone();
        let upstream = self.upstream.get_or_create(&label).clone();
        ServiceMetrics { requests, in_flight, upstream }
    }
}

/// What is counted for one service.
#[derive(Clone, Debug)]
pub struct ServiceMetrics {
    requests: [Counter; Class::ALL.len()],
    in_flight: Gauge,
    upstream: Histogram,
}

/// A request whose answer has not ended.
#[derive(Debug)]
pub struct InFlight(Gauge);

impl ServiceMetrics {
    /// A request has come.
    pub fn begin(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// Its answer has begun, this long after it came.
    pub fn answered<B>(&self, response: &http::Response<B>, after: Duration) {
        self.upstream.observe(after);
        let failed = response.headers().contains_key(header::ERROR);
        let class = if failed { Class::Failed } else { Class::of(response.status()) };
        self.requests[class as usize].inc();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The text that Prometheus scrapes.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("writing to a string does not fail");
    text
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            tunnels: Gauge::default(),
            dials: Family::default(),
            tunnel_lifetimes: Family::new_with_constructor(|| Histogram::new(&LIFETIMES)),
            stalls: Stalls::default(),
            upstream: Family::new_with_constructor(|| Histogram::new(&UPSTREAM_TIMES)),
            requests: Family::default(),
            in_flight: Family::default(),
            cluster_up: Gauge::default(),
            cluster_checks: Family::default(),
            policy_decisions: Family::default(),
            policy_reloads: Family::default(),
        }
    }
}

/// Seconds, as in kas.
static LIFETIMES: [f64; 8] = [1.0, 10.0, 60.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0];
/// Seconds: from an answer out of a cache to the longest evaluation of Prometheus.
static UPSTREAM_TIMES: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];

#[derive(Clone, Copy)]
enum Class {
    Switched,
    Success,
    Redirect,
    Client,
    Server,
    Failed,
}

impl Class {
    const ALL: [Self; 6] =
        [Self::Switched, Self::Success, Self::Redirect, Self::Client, Self::Server, Self::Failed];

    fn of(status: StatusCode) -> Self {
        match status.as_u16() / 100 {
            1 => Self::Switched,
            2 => Self::Success,
            3 => Self::Redirect,
            4 => Self::Client,
            _ => Self::Server,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Switched => "1xx",
            Self::Success => "2xx",
            Self::Redirect => "3xx",
            Self::Client => "4xx",
            Self::Server => "5xx",
            Self::Failed => "failed",
        }
    }
}
