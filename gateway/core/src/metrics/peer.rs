//! Metrics of requests between replicas.

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use strum::{EnumCount, IntoStaticStr, VariantNames};

telemetry::metrics! {
    /// The handles of the metrics. Cheap to clone. Each counter is 0 from the start.
    pub struct PeerMetrics {
        routes: [Counter; RouteKind::COUNT] =
            variants("kas_routes", "Requests that were sent, by their next hop", "kind", RouteKind::VARIANTS),
        forwards: [Counter; ForwardResult::COUNT] = variants(
            "kas_peer_requests",
            "Requests that were forwarded to other replicas",
            "result",
            ForwardResult::VARIANTS,
        ),
        probes: [Counter; ProbeResult::COUNT] =
            variants("kas_peer_probes", "Probes that were sent to other replicas", "result", ProbeResult::VARIANTS),
        served: [Counter; ServedResult::COUNT] =
            variants("kas_peer_served", "Requests that other replicas sent", "result", ServedResult::VARIANTS),
        pub connections: Gauge = create("kas_peer_connections", "Open connections to other replicas"),
        pub hedges: Counter =
            create("kas_peer_hedges", "Probes that were sent because the owner before had not responded yet"),
        /// 1 if other replicas reach this one, else 0. It is registered only if there can be other replicas.
        pub reachable: Gauge,
        pub outliers: Counter = create("kas_peer_outliers", "Ejections of a replica that failed"),
    }
}

/// The next hop of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum RouteKind {
    /// A tunnel that ends on this replica.
    Local,
    /// Another replica.
    Peer,
}

/// The result of a request that was forwarded to another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum ForwardResult {
    /// The head of the response arrived.
    Answered,
    /// The replica did not process the request: it does not hold the agent any more, or it stops.
    Refused,
    /// The request failed, and the replica may have processed it.
    Lost,
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum ProbeResult {
    /// The replica accepts the request.
    Accepted,
    /// The replica does not hold the agent: the route store was stale.
    NotConnected,
    /// The replica holds the agent, but declines this request.
    Declined,
    /// There is no connection to the replica.
    Unreachable,
    /// The replica did not respond in time.
    Timeout,
    /// The response is not that of a kas.
    InvalidResponse,
    /// The replicas have different secrets, or this replica refuses the certificate of the other one.
    Untrusted,
    /// The replicas have the same secret, and different clocks.
    ClockSkew,
}

/// The result of a request that another replica sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum ServedResult {
    /// A probe or a ping got a response.
    Answered,
    /// The request was sent into a tunnel.
    Forwarded,
    /// The request was refused, because no tunnel takes it.
    NoTunnel,
    /// The request was refused, because a header is missing or malformed.
    Malformed,
    /// The request was refused, because it has no valid MAC.
    InvalidMac,
    /// The request was refused, because it is too old, or a clock is wrong.
    Expired,
    /// The request was refused, because it was accepted before.
    Replayed,
}

impl PeerMetrics {
    /// Counts a request by its next hop.
    pub fn record_route(&self, kind: RouteKind) {
        self.routes[kind as usize].inc();
    }

    /// Counts a request that was forwarded to another replica.
    pub fn record_forward(&self, result: ForwardResult) {
        self.forwards[result as usize].inc();
    }

    /// Counts a probe.
    pub fn record_probe(&self, result: ProbeResult) {
        self.probes[result as usize].inc();
    }

    /// Counts a request that another replica sent.
    pub fn record_served(&self, result: ServedResult) {
        self.served[result as usize].inc();
    }
}
