//! A number that others keep, for those who scrape it.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Asks for the number whenever it is scraped.
pub struct Count {
    name: &'static str,
    help: &'static str,
    count: Box<dyn Fn() -> u64 + Send + Sync>,
    falls: bool,
}

impl Count {
    /// A counter named `name`, to which `_total` is added.
    pub fn new(
        name: &'static str,
        help: &'static str,
        count: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Box<Self> {
        Box::new(Self { name, help, count: Box::new(count), falls: false })
    }

    /// A gauge named `name`.
    pub fn gauge(
        name: &'static str,
        help: &'static str,
        level: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Box<Self> {
        Box::new(Self { name, help, count: Box::new(level), falls: true })
    }
}

impl Collector for Count {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if self.falls {
            let gauge = ConstGauge::new((self.count)());
            let encoder = encoder.encode_descriptor(self.name, self.help, None, gauge.metric_type())?;
            return gauge.encode(encoder);
        }
        let counter = ConstCounter::new((self.count)());
        let encoder = encoder.encode_descriptor(self.name, self.help, None, counter.metric_type())?;
        counter.encode(encoder)
    }
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Count").field("name", &self.name).finish_non_exhaustive()
    }
}
