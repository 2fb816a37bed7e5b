//! What kas counts. Registered once; whoever counts holds the resolved handle.

mod limit;
mod peer;
pub mod redis;
mod service;

use std::{fmt::Debug, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};
use proto::ServiceName;
use telemetry::{Count, Histogram};
use tunnel::Stalls;

use self::service::Services;
pub use self::{
    limit::Limit,
    peer::{Asked, Passed, PeerMetrics, Route, Served},
    service::{ServiceMetrics, class},
};

/// The handles. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    services: Services,
    limits: [Counter; Limit::ALL.len()],
    /// What is between replicas.
    pub peers: PeerMetrics,
    /// Requests that were sent once more, on another tunnel.
    pub retries: Counter,
    /// Tunnels that end here.
    pub tunnels: Gauge,
    tunnel_lifetimes: Family<ReasonLabel, Histogram>,
    handshakes: Family<ReasonLabel, Counter>,
    api_requests: Family<ResultLabel, Counter>,
    /// Tunnels that were asked to go to another replica, so that each has its share.
    pub rebalanced: Counter,
    /// Open connections of callers.
    pub connections: Gauge,
    /// Writes that had to wait for a caller to read.
    pub write_stalls: Counter,
    /// Writes to a tunnel that had to wait for its agent to read.
    pub tunnel_write_stalls: Counter,
    /// Bytes of answers that are here and that their callers have not taken yet.
    pub bytes_in_flight: Gauge,
    /// Requests that wait for an agent to take more of them, in all tunnels.
    pub stalls: Stalls,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl Metrics {
    /// Registers everything.
    pub fn register(registry: &mut Registry) -> Self {
        let lifetimes: fn() -> Histogram = || Histogram::new(&LIFETIMES);
        let metrics = Self {
            services: Services::register(registry),
            limits: limit::register(registry),
            peers: PeerMetrics::register(registry),
            retries: Counter::default(),
            tunnels: Gauge::default(),
            tunnel_lifetimes: Family::new_with_constructor(lifetimes),
            handshakes: Family::default(),
            api_requests: Family::default(),
            rebalanced: Counter::default(),
            connections: Gauge::default(),
            write_stalls: Counter::default(),
            tunnel_write_stalls: Counter::default(),
            bytes_in_flight: Gauge::default(),
            stalls: Stalls::default(),
        };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("kas_build", "The running version", build);
        registry.register(
            "kas_retries",
            "Requests sent once more, on another tunnel or to another replica",
            metrics.retries.clone(),
        );
        registry.register("kas_tunnels", "Tunnels that end on this replica", metrics.tunnels.clone());
        registry.register_with_unit(
            "kas_tunnel_lifetime",
            "How long ended tunnels lived, by the reason of their end",
            Unit::Seconds,
            metrics.tunnel_lifetimes.clone(),
        );
        registry.register(
            "kas_handshakes",
            "Attempts of agents to open a tunnel, by result",
            metrics.handshakes.clone(),
        );
        registry.register(
            "kas_api_requests",
            "Requests to the internal API, by result",
            metrics.api_requests.clone(),
        );
        registry.register(
            "kas_rebalanced",
            "Tunnels that were asked to go to another replica, so that each has its share",
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
        registry.register_with_unit(
            "kas_in_flight",
            "Bytes of answers that are here and that their callers have not taken yet",
            Unit::Bytes,
            metrics.bytes_in_flight.clone(),
        );
        let (stalls, help) =
            (metrics.stalls.clone(), "Requests' bodies that had to wait for an agent to take more");
        registry.register_collector(Count::new("kas_tunnel_stalls", help, move || stalls.count()));
        metrics
    }

    /// What is counted for one service.
    pub fn of(&self, service: &ServiceName) -> &Arc<ServiceMetrics> {
        self.services.of(service)
    }

    /// A request that was refused before anybody knew its service.
    pub fn refused(&self, reason: &'static str) {
        self.services.refused(reason);
    }

    /// A limit was met.
    pub fn limit(&self, limit: Limit) {
        self.counter(limit).inc();
    }

    /// Counts how often a limit is met, for whoever holds on to it.
    pub fn counter(&self, limit: Limit) -> &Counter {
        &self.limits[limit as usize]
    }

    /// An agent tried to open a tunnel.
    pub fn handshake(&self, result: &'static str) {
        self.handshakes.get_or_create(&ReasonLabel { reason: result }).inc();
    }

    /// A program asked the internal API.
    pub fn api_request(&self, result: &'static str) {
        self.api_requests.get_or_create(&ResultLabel { result }).inc();
    }

    /// A tunnel ended.
    pub fn tunnel_end(&self, reason: &'static str, lifetime: Duration) {
        self.tunnel_lifetimes.get_or_create(&ReasonLabel { reason }).observe(lifetime);
    }
}

/// The text that Prometheus scrapes.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("writing to a string does not fail");
    text
}

/// Seconds: from a handshake that came to nothing to the default of `max_connection_age`, and what is beyond.
static LIFETIMES: [f64; 8] = [1.0, 10.0, 60.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0];
