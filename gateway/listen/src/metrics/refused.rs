//! Connections that were closed because of their address, as a metric.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use strum::{IntoStaticStr, VariantArray};
use telemetry::RegistryExt as _;

/// The reason for which a connection was closed before TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum RefusedConnection {
    /// The client is in none of the `allowed_networks`.
    AddressNotAllowed,
    /// A PROXY header is expected, and the peer is in none of the `trusted_proxies`.
    UntrustedProxy,
    /// The PROXY header is missing or invalid.
    ProxyHeader,
    /// The PROXY header was not complete in time.
    ProxyHeaderTimeout,
}

/// The counters of all listeners.
#[derive(Clone, Debug)]
pub(super) struct RefusedConnections(Family<Label, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Label {
    listener: &'static str,
    reason: &'static str,
}

impl RefusedConnections {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self(registry.create(
            "kas_connections_refused",
            "Connections that were closed because of their address or their PROXY header",
        ))
    }

    /// Creates the series of a listener. All exist from the start: an alert on a missing counter never fires.
    pub(super) fn create(&self, listener: &'static str) {
        for reason in RefusedConnection::VARIANTS {
            self.counter(listener, *reason);
        }
    }

    pub(super) fn count(&self, listener: &'static str, reason: RefusedConnection) {
        self.counter(listener, reason).inc();
    }

    fn counter(&self, listener: &'static str, reason: RefusedConnection) -> Counter {
        self.0.get_or_create(&Label { listener, reason: reason.into() }).clone()
    }
}
