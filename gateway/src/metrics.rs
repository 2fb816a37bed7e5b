//! Metrics of kas. They are registered once, and used through resolved handles.

pub(crate) mod agent;
pub mod certificate;
mod cluster_audit;
mod limit;
mod peer;
pub mod redis;
mod refused;
mod service;

use std::{fmt::Debug, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};
use proto::ServiceName;
use telemetry::{CallbackMetric, DurationHistogram};
use tunnel::{CloseReason, StallCounter};

pub(crate) use self::cluster_audit::ClusterAuditMetrics;
pub use self::{
    limit::Limit,
    peer::{ForwardResult, PeerMetrics, ProbeResult, RouteKind, ServedResult},
    refused::RefusedConnection,
    service::ServiceMetrics,
};
use self::{refused::RefusedConnections, service::Services};
use crate::{audit::AuditMetrics, request_types::RequestTypes};

/// The handles of all metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    services: Services,
    limits: [Counter; Limit::ALL.len()],
    refused_connections: RefusedConnections,
    /// Metrics of the traffic between replicas.
    pub peers: PeerMetrics,
    /// Attempts after the first one of a request.
    pub retries: Counter,
    /// Tunnels that end at this replica.
    pub tunnels: Gauge,
    tunnel_lifetimes: Family<ReasonLabel, DurationHistogram>,
    handshakes: Family<ReasonLabel, Counter>,
    dials: Family<ResultLabel, Counter>,
    cut_ages: Family<ListenerLabel, Gauge>,
    api_requests: Family<ResultLabel, Counter>,
    /// Tunnels that were moved to other replicas by the rebalancing.
    pub rebalanced: Counter,
    /// Open connections of callers.
    pub connections: Gauge,
    /// Writes that had to wait for a caller to read.
    pub write_stalls: Counter,
    /// Writes to a tunnel that had to wait for its agent to read.
    pub tunnel_write_stalls: Counter,
    /// Bytes of responses that callers have not read yet.
    pub bytes_in_flight: Gauge,
    /// The metrics of the audit log.
    pub audit: AuditMetrics,
    /// The metrics of the audit logs of clusters.
    pub(crate) cluster_audit: ClusterAuditMetrics,
    /// Waits of request bodies for an agent, over all tunnels.
    pub stalls: StallCounter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabel {
    listener: &'static str,
}

impl Metrics {
    /// Registers all metrics. Requests are counted by their type.
    pub fn register(registry: &mut Registry, types: &RequestTypes) -> Self {
        let lifetimes: fn() -> DurationHistogram = || DurationHistogram::new(&LIFETIMES);
        let metrics = Self {
            services: Services::register(registry, types),
            limits: limit::register(registry),
            refused_connections: RefusedConnections::register(registry),
            peers: PeerMetrics::register(registry),
            retries: Counter::default(),
            tunnels: Gauge::default(),
            tunnel_lifetimes: Family::new_with_constructor(lifetimes),
            handshakes: Family::default(),
            dials: Family::default(),
            cut_ages: Family::default(),
            api_requests: Family::default(),
            rebalanced: Counter::default(),
            connections: Gauge::default(),
            write_stalls: Counter::default(),
            tunnel_write_stalls: Counter::default(),
            bytes_in_flight: Gauge::default(),
            audit: AuditMetrics::default(),
            cluster_audit: ClusterAuditMetrics::default(),
            stalls: StallCounter::default(),
        };
        // All exist from the start: the rate of a series misses the event with which it begins.
        for reason in HANDSHAKE_RESULTS {
            drop(metrics.handshakes.get_or_create(&ReasonLabel { reason }));
        }
        for result in dial_results() {
            drop(metrics.dials.get_or_create(&ResultLabel { result }));
        }
        for reason in CloseReason::LABELS {
            drop(metrics.tunnel_lifetimes.get_or_create(&ReasonLabel { reason }));
        }
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("kas_build", "The running version", build);
        registry.register(
            "kas_retries",
            "Attempts after the first one of a request",
            metrics.retries.clone(),
        );
        registry.register("kas_tunnels", "Tunnels that end at this replica", metrics.tunnels.clone());
        registry.register_with_unit(
            "kas_tunnel_lifetime",
            "Duration of ended tunnels, by the reason of their end",
            Unit::Seconds,
            metrics.tunnel_lifetimes.clone(),
        );
        registry.register(
            "kas_handshakes",
            "Attempts of agents to open a tunnel, by result",
            metrics.handshakes.clone(),
        );
        registry.register(
            "kas_dials",
            "Attempts of kas to open a tunnel to an agent with a url, by result",
            metrics.dials.clone(),
        );
        registry.register_with_unit(
            "kas_cut_age",
            "Age at which a load balancer cuts the connections of a listener, or 0",
            Unit::Seconds,
            metrics.cut_ages.clone(),
        );
        registry.register(
            "kas_api_requests",
            "Requests to the internal API, by result",
            metrics.api_requests.clone(),
        );
        registry.register(
            "kas_rebalanced",
            "Tunnels moved to other replicas by the rebalancing",
            metrics.rebalanced.clone(),
        );
        registry.register("kas_connections", "Open connections of callers", metrics.connections.clone());
        registry.register(
            "kas_write_stalls",
            "Writes that had to wait for a caller to read",
            metrics.write_stalls.clone(),
        );
        registry.register(
            "kas_tunnel_write_stalls",
            "Writes to a tunnel that had to wait for its agent to read",
            metrics.tunnel_write_stalls.clone(),
        );
        registry.register(
            "kas_audit_dropped",
            "Lines of the audit log that were dropped, because the sink was too slow or failed",
            metrics.audit.dropped.clone(),
        );
        registry.register(
            "kas_audit_left_out",
            "Refusals of strangers without a line in the audit log, which counts them",
            metrics.audit.left_out.clone(),
        );
        metrics.cluster_audit.register(registry);
        registry.register_with_unit(
            "kas_in_flight",
            "Bytes of responses that callers have not read yet",
            Unit::Bytes,
            metrics.bytes_in_flight.clone(),
        );
        let (stalls, help) =
            (metrics.stalls.clone(), "Waits of request bodies until an agent takes more bytes");
        registry
            .register_collector(CallbackMetric::counter("kas_tunnel_stalls", help, move || stalls.count()));
        metrics
    }

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
        self.limit_counter(limit).inc();
    }

    /// Returns the counter of a limit.
    pub fn limit_counter(&self, limit: Limit) -> &Counter {
        &self.limits[limit as usize]
    }

    /// Creates the counters of a listener's refused connections.
    pub fn create_refused_connections(&self, listener: &'static str) {
        self.refused_connections.create(listener);
    }

    /// Counts a connection that was closed because of its address or its PROXY header.
    pub fn count_refused_connection(&self, listener: &'static str, reason: RefusedConnection) {
        self.refused_connections.count(listener, reason);
    }

    /// Counts an attempt of an agent to open a tunnel, by result.
    pub fn count_handshake(&self, result: &'static str) {
        debug_assert!(HANDSHAKE_RESULTS.contains(&result), "{result} has no series from the start");
        self.handshakes.get_or_create(&ReasonLabel { reason: result }).inc();
    }

    /// Counts an attempt of kas to open a tunnel, by result.
    pub(crate) fn count_dial(&self, result: &'static str) {
        debug_assert!(dial_results().any(|known| known == result), "{result} has no series from the start");
        self.dials.get_or_create(&ResultLabel { result }).inc();
    }

    /// Returns the metric of the age at which connections of a listener are cut, in seconds. It is 0 until it is set.
    pub fn cut_age(&self, listener: &'static str) -> Gauge {
        self.cut_ages.get_or_create(&ListenerLabel { listener }).clone()
    }

    /// Counts a request to the internal API, by result.
    pub fn count_api_request(&self, result: &'static str) {
        self.api_requests.get_or_create(&ResultLabel { result }).inc();
    }

    /// Records the end of a tunnel.
    pub fn observe_tunnel_end(&self, reason: &'static str, lifetime: Duration) {
        debug_assert!(CloseReason::LABELS.contains(&reason), "{reason} has no series from the start");
        self.tunnel_lifetimes.get_or_create(&ReasonLabel { reason }).observe(lifetime);
    }
}

/// Returns the metrics as OpenMetrics text.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("writing to a string does not fail");
    text
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
