//! What kas counts. Registered once; whoever counts holds the resolved handle.

use std::time::Duration;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};
use proto::ServiceName;

/// The handles. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<ServiceLabel, Histogram>,
    in_flight: Family<ServiceLabel, Gauge>,
    bytes: Family<ServiceLabel, Counter>,
    /// Requests that were sent once more, on another tunnel.
    pub retries: Counter,
    /// Tunnels that end here.
    pub tunnels: Gauge,
    tunnel_ends: Family<ReasonLabel, Counter>,
    handshakes: Family<ReasonLabel, Counter>,
    /// Open connections of callers.
    pub connections: Gauge,
}

/// Request types that a label may name. Agents invent names; labels must not grow with them.
const KNOWN: &[&str] = &["kubernetes", "prometheus", "gitops", "resources"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    service: &'static str,
    /// `2xx`, …, or the reason of an answer of ours.
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabel {
    service: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl Metrics {
    /// Registers everything.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS.iter().copied())),
            in_flight: Family::default(),
            bytes: Family::default(),
            retries: Counter::default(),
            tunnels: Gauge::default(),
            tunnel_ends: Family::default(),
            handshakes: Family::default(),
            connections: Gauge::default(),
        };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("kas_build", "The running version", build);
        registry.register(
            "kas_requests",
            "Requests of callers by service and result: a status class of the cluster, or the reason of our own error",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "kas_request_duration",
            "Time from a request's head to the last byte of its answer",
            Unit::Seconds,
            metrics.durations.clone(),
        );
        registry.register(
            "kas_requests_in_flight",
            "Requests whose answer has not ended",
            metrics.in_flight.clone(),
        );
        registry.register_with_unit(
            "kas_response",
            "Bytes of answers' bodies",
            Unit::Bytes,
            metrics.bytes.clone(),
        );
        registry.register(
            "kas_retries",
            "Requests sent once more, on another tunnel",
            metrics.retries.clone(),
        );
        registry.register("kas_tunnels", "Tunnels that end on this replica", metrics.tunnels.clone());
        registry.register("kas_tunnel_ends", "Ended tunnels by reason", metrics.tunnel_ends.clone());
        registry.register(
            "kas_handshakes",
            "Attempts of agents to open a tunnel, by result",
            metrics.handshakes.clone(),
        );
        registry.register("kas_connections", "Open connections of callers", metrics.connections.clone());
        metrics
    }

    /// What is counted for one service, resolved.
    pub fn of(&self, service: &ServiceName) -> ServiceMetrics {
        let name = service.as_str().split('.').next().unwrap_or_default();
        let service = KNOWN.iter().find(|known| **known == name).copied().unwrap_or("other");
        let label = ServiceLabel { service };
        ServiceMetrics {
            service,
            requests: self.requests.clone(),
            duration: self.durations.get_or_create(&label).clone(),
            in_flight: self.in_flight.get_or_create(&label).clone(),
            bytes: self.bytes.get_or_create(&label).clone(),
        }
    }

    /// A request that was refused before anybody knew its service.
    pub fn refused(&self, reason: &'static str) {
        self.requests.get_or_create(&RequestLabels { service: "none", result: reason }).inc();
    }

    /// An agent tried to open a tunnel.
    pub fn handshake(&self, result: &'static str) {
        self.handshakes.get_or_create(&ReasonLabel { reason: result }).inc();
    }

    /// A tunnel ended.
    pub fn tunnel_end(&self, reason: &'static str) {
        self.tunnel_ends.get_or_create(&ReasonLabel { reason }).inc();
    }
}

/// What is counted for one service.
#[derive(Clone, Debug)]
pub struct ServiceMetrics {
    service: &'static str,
    requests: Family<RequestLabels, Counter>,
    duration: Histogram,
    /// Requests whose answer has not ended.
    pub in_flight: Gauge,
    /// Bytes of answers' bodies.
    pub bytes: Counter,
}

impl ServiceMetrics {
    /// An answer has begun.
    pub fn answered(&self, result: &'static str) {
        self.requests.get_or_create(&RequestLabels { service: self.service, result }).inc();
    }

    /// An answer has ended.
    pub fn ended(&self, after: Duration) {
        self.duration.observe(after.as_secs_f64());
    }
}

/// The class of a status, as a label.
pub fn class(status: http::StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

/// The text that Prometheus scrapes.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("writing to a string does not fail");
    text
}

/// Seconds: from a local request to a watch of an hour.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0];
