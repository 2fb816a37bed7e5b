//! Metrics of kas. They are registered once, and used through resolved handles.

pub mod agent;
pub mod certificate;
pub mod gitlab;
mod peer;
pub mod redis;
mod service;

use std::{sync::Arc, time::Duration};

use kas_listen::metrics::{Limit, ListenerMetrics};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};
use proto::ServiceName;
use telemetry::{CallbackMetric, CounterByLabel, HistogramFamily, Label, RegistryExt as _};
use tunnel::{CloseReason, StallCounter};

use self::service::Services;
pub use self::{
    peer::{ForwardResult, PeerMetrics, ProbeResult, RouteKind, ServedResult},
    service::ServiceMetrics,
};
use crate::{audit::AuditMetrics, request_types::RequestTypes};

telemetry::metrics! {
    /// The handles of all metrics. Requests are counted by their type. Cheap to clone.
    pub struct Metrics(types: &RequestTypes) {
        services: Services = with(Services::register, types),
        /// Metrics of the listeners, and the counters of all limits.
        pub listeners: ListenerMetrics = with(ListenerMetrics::register),
        /// Metrics of the traffic between replicas.
        pub peers: PeerMetrics = with(PeerMetrics::register),
        pub retries: Counter = create("kas_retries", "Attempts after the first one of a request"),
        pub tunnels: Gauge = create("kas_tunnels", "Tunnels that end at this replica"),
        tunnel_lifetimes: HistogramFamily<Label> = with(tunnel_lifetimes),
        handshakes: CounterByLabel = counters(
            "kas_handshakes",
            "Attempts of agents to open a tunnel, by result",
            "reason",
            HANDSHAKE_RESULTS,
        ),
        dials: CounterByLabel = counters(
            "kas_dials",
            "Attempts of kas to open a tunnel to an agent with a url, by result",
            "result",
            dial_results(),
        ),
        cut_ages: Family<Label, Gauge> = create_with_unit(
            "kas_cut_age",
            "Age at which a load balancer cuts the connections of a listener, or 0",
            Unit::Seconds,
        ),
        api_requests: Family<Label, Counter> = create("kas_api_requests", "Requests to the internal API, by result"),
        pub rebalanced: Counter = create("kas_rebalanced", "Tunnels moved to other replicas by the rebalancing"),
        pub connections: Gauge = create("kas_connections", "Open connections of callers"),
        pub write_stalls: Counter = create("kas_write_stalls", "Writes that had to wait for a caller to read"),
        pub tunnel_write_stalls: Counter =
            create("kas_tunnel_write_stalls", "Writes to a tunnel that had to wait for its agent to read"),
        pub bytes_in_flight: Gauge =
            create_with_unit("kas_in_flight", "Bytes of responses that callers have not read yet", Unit::Bytes),
        /// The metrics of the audit log.
        pub audit: AuditMetrics = with(AuditMetrics::register),
        /// Waits of request bodies for an agent, over all tunnels.
        pub stalls: StallCounter = with(stalls),
    }
}

impl Metrics {
    /// Returns the metrics of a service.
    pub fn service(&self, service: &ServiceName) -> &Arc<ServiceMetrics> {
        self.services.service(service)
    }

    /// Counts an error of kas, by reason.
    pub fn count_error(&self, reason: &'static str) {
        self.services.count_error(reason);
    }

    /// Counts that a limit was reached.
    pub fn count_limit(&self, limit: Limit) {
        self.listeners.count_limit(limit);
    }

    /// Returns the counter of a limit.
    pub fn limit_counter(&self, limit: Limit) -> &Counter {
        self.listeners.limit_counter(limit)
    }

    /// Counts an attempt of an agent to open a tunnel, by result.
    pub fn count_handshake(&self, result: &'static str) {
        self.handshakes.get(result).inc();
    }

    /// Counts an attempt of kas to open a tunnel, by result.
    pub(crate) fn count_dial(&self, result: &'static str) {
        self.dials.get(result).inc();
    }

    /// Returns the metric of the age at which connections of a listener are cut, in seconds. It is 0 until it is set.
    pub fn cut_age(&self, listener: &'static str) -> Gauge {
        self.cut_ages.get_or_create(&[("listener", listener)]).clone()
    }

    /// Counts a request to the internal API, by result.
    pub fn count_api_request(&self, result: &'static str) {
        self.api_requests.get_or_create(&[("result", result)]).inc();
    }

    /// Records the end of a tunnel.
    pub fn observe_tunnel_end(&self, reason: &'static str, lifetime: Duration) {
        debug_assert!(CloseReason::LABELS.contains(&reason), "{reason} has no series from the start");
        self.tunnel_lifetimes.get_or_create(&[("reason", reason)]).observe(lifetime);
    }
}

/// Registers the lifetimes of tunnels. All reasons exist from the start: the rate of a series misses the event with which it begins.
fn tunnel_lifetimes(registry: &mut Registry) -> HistogramFamily<Label> {
    let help = "Duration of ended tunnels, by the reason of their end";
    let lifetimes = registry.histograms("kas_tunnel_lifetime", help, &LIFETIMES);
    for reason in CloseReason::LABELS {
        drop(lifetimes.get_or_create(&[("reason", reason)]));
    }
    lifetimes
}

fn stalls(registry: &mut Registry) -> StallCounter {
    let stalls = StallCounter::default();
    let (counted, help) = (stalls.clone(), "Waits of request bodies until an agent takes more bytes");
    registry.register_collector(CallbackMetric::counter("kas_tunnel_stalls", help, move || counted.count()));
    stalls
}

/// Registers the version of kas.
pub fn register_version(registry: &mut Registry) {
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("kas_build", "The running version", build);
}

/// The values of the label `reason` of `kas_handshakes_total`.
const HANDSHAKE_RESULTS: [&str; 15] = [
    "accepted",
    "unauthorized",
    "identity-unavailable",
    "address-not-allowed",
    "protocol",
    "invalid-hello",
    "version",
    "wrong-cluster",
    "tunnel-limit",
    "token-rate-limit",
    "address-rate-limit",
    "unknown-token-rate-limit",
    "replica-rate-limit",
    "draining",
    "incomplete",
];

/// The values of the label `result` of `kas_dials_total` for connections without an agent that kas could admit.
const DIAL_ERRORS: [&str; 11] = [
    "dns",
    "connect",
    "timeout",
    "tls",
    "setup",
    "lost",
    "key-refused",
    "redirect",
    "refused",
    "not-agentk",
    "wrong-agent",
];

/// Returns the values of the label `result` of `kas_dials_total`: kas admits an agent that it dials like one that connects.
fn dial_results() -> impl Iterator<Item = &'static str> {
    let admission = HANDSHAKE_RESULTS.into_iter().filter(|result| *result != "accepted");
    ["connected"].into_iter().chain(admission).chain(DIAL_ERRORS)
}

/// Buckets in seconds: from an aborted tunnel to twice the default of `max_connection_age`.
static LIFETIMES: [f64; 8] = [1.0, 10.0, 60.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0];
