//! Metrics that are created and registered in one step.

use std::{fmt, hash::Hash};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{
        MetricType,
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::ConstGauge,
    },
    registry::{Metric, Registry, Unit},
};

use crate::DurationHistogram;

/// A label set of one label.
pub type Label<V = &'static str> = [(&'static str, V); 1];

/// Durations that differ in labels.
pub type HistogramFamily<L> = Family<L, DurationHistogram, HistogramBounds>;

/// Creates the histograms of a [`HistogramFamily`].
#[derive(Clone, Copy, Debug)]
pub struct HistogramBounds(&'static [f64]);

/// Counters that differ in one label. Each of its values has a series from the start: the rate of a series misses the event with
/// which it begins.
#[derive(Clone, Debug)]
pub struct CounterByLabel {
    label: &'static str,
    family: Family<Label, Counter>,
}

/// A collector that is a function.
struct FnCollector<F>(F);

/// Creates metrics that are registered.
pub trait RegistryExt {
    /// Returns the registry.
    fn registry(&mut self) -> &mut Registry;

    /// Creates a metric: a counter, a gauge, or a family of them.
    fn create<M: Metric + Clone + Default>(&mut self, name: &'static str, help: &'static str) -> M {
        let metric = M::default();
        self.registry().register(name, help, metric.clone());
        metric
    }

    /// Creates a metric with a unit.
    fn create_with_unit<M>(&mut self, name: &'static str, help: &'static str, unit: Unit) -> M
    where
        M: Metric + Clone + Default,
    {
        let metric = M::default();
        self.registry().register_with_unit(name, help, unit, metric.clone());
        metric
    }

    /// Creates a histogram of durations.
    fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        bounds: &'static [f64],
    ) -> DurationHistogram {
        let histogram = DurationHistogram::new(bounds);
        self.registry().register_with_unit(name, help, Unit::Seconds, histogram.clone());
        histogram
    }

    /// Creates a family of histograms of durations.
    fn histograms<L>(
        &mut self,
        name: &'static str,
        help: &'static str,
        bounds: &'static [f64],
    ) -> HistogramFamily<L>
    where
        L: EncodeLabelSet + Clone + Hash + Eq + fmt::Debug + Send + Sync + 'static,
    {
        let family = Family::new_with_constructor(HistogramBounds(bounds));
        self.registry().register_with_unit(name, help, Unit::Seconds, family.clone());
        family
    }

    /// Creates one counter for each value of a label.
    fn counters(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = &'static str>,
    ) -> CounterByLabel {
        let series = values.into_iter().map(|value| [(label, value)]);
        CounterByLabel { label, family: self.series(name, help, series) }
    }

    /// Creates the counters of all variants of an enum, in their order.
    fn variants<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        variants: &'static [&'static str],
    ) -> [Counter; N] {
        let counters = self.counters(name, help, label, variants.iter().copied());
        std::array::from_fn(|variant| counters.get(variants[variant]))
    }

    /// Creates counters with these labels, and others as they are needed.
    fn series<L>(
        &mut self,
        name: &'static str,
        help: &'static str,
        series: impl IntoIterator<Item = L>,
    ) -> Family<L, Counter>
    where
        L: EncodeLabelSet + Clone + Hash + Eq + fmt::Debug + Send + Sync + 'static,
    {
        let family = self.create::<Family<L, Counter>>(name, help);
        series.into_iter().for_each(|labels| drop(family.get_or_create_owned(&labels)));
        family
    }

    /// Calls a function at each scrape, which encodes metrics.
    fn collect(
        &mut self,
        encode: impl Fn(&mut DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
    ) {
        self.registry().register_collector(Box::new(FnCollector(encode)));
    }
}

impl RegistryExt for Registry {
    fn registry(&mut self) -> &mut Registry {
        self
    }
}

impl MetricConstructor<DurationHistogram> for HistogramBounds {
    fn new_metric(&self) -> DurationHistogram {
        DurationHistogram::new(self.0)
    }
}

impl CounterByLabel {
    /// Returns the counter of a value.
    pub fn get(&self, value: &'static str) -> Counter {
        let label = [(self.label, value)];
        debug_assert!(self.family.get(&label).is_some(), "{value} has no series from the start");
        self.family.get_or_create_owned(&label)
    }
}

impl<F> Collector for FnCollector<F>
where
    F: Fn(&mut DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut encoder)
    }
}

impl<F> fmt::Debug for FnCollector<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FnCollector")
    }
}

/// Encodes a gauge, for [`RegistryExt::collect`].
pub fn encode_gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// Encodes a family of gauges, for [`RegistryExt::collect`].
pub fn encode_gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        family.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}
