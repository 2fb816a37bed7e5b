//! The metrics of the web page.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use telemetry::{CallbackMetric, Label, RegistryExt as _};
use tokio::time::Instant;

use super::sessions::Sessions;

/// Counts logins.
#[derive(Clone, Debug)]
pub(super) struct WebMetrics {
    logins: Family<Label, Counter>,
}

impl WebMetrics {
    pub(super) fn register(registry: &mut Registry, sessions: Sessions) -> Self {
        let logins = registry.create(
            "kas_web_logins",
            "Logins of browsers by their result: ok, unknown, address, limit, unavailable, issuer, refused, or state",
        );
        // Counted at each scrape, because sessions end by themselves.
        let count = move || sessions.count(Instant::now()) as u64;
        let help = "Sessions that browsers use at this replica";
        registry.register_collector(CallbackMetric::gauge("kas_web_sessions", help, count));
        Self { logins }
    }

    pub(super) fn count_login(&self, result: &'static str) {
        self.logins.get_or_create(&[("result", result)]).inc();
    }
}
