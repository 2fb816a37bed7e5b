//! Metrics whose values are read when they are scraped.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// A counter or gauge that calls a function for its value at each scrape.
pub struct CallbackMetric {
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    value: Box<dyn Fn() -> u64 + Send + Sync>,
}

#[derive(Clone, Copy)]
enum MetricKind {
    Counter,
    Gauge,
}

impl CallbackMetric {
    /// Creates a counter. `_total` is appended to its name.
    pub fn counter(
        name: &'static str,
        help: &'static str,
        value: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Box<Self> {
        Box::new(Self { name, help, kind: MetricKind::Counter, value: Box::new(value) })
    }

    /// Creates a gauge.
    pub fn gauge(
        name: &'static str,
        help: &'static str,
        value: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Box<Self> {
        Box::new(Self { name, help, kind: MetricKind::Gauge, value: Box::new(value) })
    }
}

impl Collector for CallbackMetric {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let value = (self.value)();
        match self.kind {
            MetricKind::Counter => {
                let counter = ConstCounter::new(value);
                let encoder = encoder.encode_descriptor(self.name, self.help, None, counter.metric_type())?;
                counter.encode(encoder)
            }
            MetricKind::Gauge => {
                let gauge = ConstGauge::new(value);
                let encoder = encoder.encode_descriptor(self.name, self.help, None, gauge.metric_type())?;
                gauge.encode(encoder)
            }
        }
    }
}

impl fmt::Debug for CallbackMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackMetric").field("name", &self.name).finish_non_exhaustive()
    }
}
