//! Metrics of listeners, and the counters of all limits.

mod limit;
mod refused;

use prometheus_client::metrics::counter::Counter;
use strum::{EnumCount as _, VariantNames as _};

use self::refused::RefusedConnections;
pub use self::{limit::Limit, refused::RefusedConnection};

telemetry::metrics! {
    /// The handles of the metrics. Cheap to clone.
    pub struct ListenerMetrics {
        /// One counter for each limit. All exist from the start: an alert on a missing counter never fires.
        limits: [Counter; Limit::COUNT] =
            variants("kas_limits", "Times that a limit was reached", "limit", Limit::VARIANTS),
        refused_connections: RefusedConnections = with(RefusedConnections::register),
    }
}

impl ListenerMetrics {
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
}
