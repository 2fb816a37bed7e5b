//! The metrics of webhooks.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use strum::{IntoStaticStr, VariantArray};
use telemetry::{Label, RegistryExt as _};

/// The counters of webhooks. Clones share them.
#[derive(Clone, Debug)]
pub struct WebhookMetrics {
    deliveries: Family<DeliveryLabels, Counter>,
    active: Family<Label<String>, Gauge>,
    lag: Family<Label<String>, Gauge>,
}

/// The result of an attempt to deliver an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum DeliveryResult {
    /// The receiver has accepted it.
    Delivered,
    /// The receiver has refused it, or does not respond. It is tried again.
    Failed,
    /// It was not delivered in time, and is left out.
    Expired,
    /// The receiver has responded 410, and the event is left out.
    Gone,
    /// The receiver has refused its content each time, and it is left out.
    Refused,
    /// Events were removed from the log before they were delivered.
    Missed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    webhook: String,
    result: &'static str,
}

impl WebhookMetrics {
    /// Registers the metrics of the webhooks with these names.
    pub fn register<'a>(registry: &mut Registry, names: impl Iterator<Item = &'a str>) -> Self {
        let metrics = Self {
            deliveries: registry
                .create("kas_webhook_deliveries", "Attempts to deliver an event to a webhook, by result"),
            active: registry
                .create("kas_webhook_active", "1 if this replica delivers to the webhook, else 0"),
            lag: registry.create(
                "kas_webhook_lag_seconds",
                "Age in seconds of the event that waits for the webhook at this replica; 0 if none waits",
            ),
        };
        for name in names {
            for result in DeliveryResult::VARIANTS {
                metrics.count_by(name, *result, 0);
            }
            metrics.set_active(name, false);
            metrics.set_lag(name, 0);
        }
        metrics
    }

    pub(super) fn count(&self, webhook: &str, result: DeliveryResult) {
        self.count_by(webhook, result, 1);
    }

    fn count_by(&self, webhook: &str, result: DeliveryResult, by: u64) {
        let labels = DeliveryLabels { webhook: webhook.to_owned(), result: result.into() };
        self.deliveries.get_or_create(&labels).inc_by(by);
    }

    pub(super) fn set_active(&self, webhook: &str, active: bool) {
        self.active.get_or_create(&[("webhook", webhook.to_owned())]).set(active.into());
    }

    pub(super) fn set_lag(&self, webhook: &str, seconds: u64) {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        self.lag.get_or_create(&[("webhook", webhook.to_owned())]).set(seconds);
    }
}
