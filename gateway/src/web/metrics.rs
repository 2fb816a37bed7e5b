//! The metrics of the web page.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{counter::Counter, family::Family, gauge::ConstGauge},
    registry::Registry,
};
use tokio::time::Instant;

use super::sessions::Sessions;

/// Counts logins.
#[derive(Clone, Debug, Default)]
pub(super) struct WebMetrics {
    logins: Family<[(&'static str, &'static str); 1], Counter>,
}

/// Counts sessions when somebody reads the metrics, because sessions end by themselves.
#[derive(Debug)]
struct SessionGauge {
    sessions: Sessions,
}

impl WebMetrics {
    pub(super) fn register(registry: &mut Registry, sessions: Sessions) -> Self {
        let metrics = Self::default();
        let logins = "Logins of browsers by their result: ok, unknown, address, limit, unavailable, issuer, refused, or state";
        registry.register("kas_web_logins", logins, metrics.logins.clone());
        registry.register_collector(Box::new(SessionGauge { sessions }));
        metrics
    }

    pub(super) fn count_login(&self, result: &'static str) {
        self.logins.get_or_create(&[("result", result)]).inc();
    }
}

impl Collector for SessionGauge {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let sessions = self.sessions.count(Instant::now());
        let gauge = ConstGauge::new(sessions as i64);
        let help = "Sessions that browsers use at this replica";
        gauge.encode(encoder.encode_descriptor("kas_web_sessions", help, None, gauge.metric_type())?)
    }
}
