//! A histogram of durations that all cores observe at once.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, TypedMetric},
};

/// A histogram of durations. Clones are cheap, and share the counts.
///
/// An observation is two atomic additions. That of `prometheus_client` takes a lock, and each request makes four
/// observations.
#[derive(Clone, Debug)]
pub struct DurationHistogram(Arc<HistogramState>);

#[derive(Debug)]
struct HistogramState {
    bounds: &'static [f64],
    /// One counter for each bound, and one for durations above the last bound.
    buckets: Box<[AtomicU64]>,
    micros: AtomicU64,
}

impl DurationHistogram {
    /// Creates a histogram. `bounds` are the upper bounds of the buckets in seconds, in ascending order.
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(HistogramState { bounds, buckets, micros: AtomicU64::new(0) }))
    }

    /// Counts a duration.
    pub fn observe(&self, time: Duration) {
        let HistogramState { bounds, buckets, micros } = &*self.0;
        let seconds = time.as_secs_f64();
        let bucket = bounds.iter().take_while(|bound| seconds > **bound).count();
        buckets[bucket].fetch_add(1, Relaxed);
        micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }
}

impl TypedMetric for DurationHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for DurationHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let HistogramState { bounds, buckets, micros } = &*self.0;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(buckets.iter().map(|bucket| bucket.load(Relaxed))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = Duration::from_micros(micros.load(Relaxed)).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    #[test]
    fn duration_is_counted_in_the_first_bucket_that_holds_it() {
        let histogram = DurationHistogram::new(&[0.001, 0.5]);
        for millis in [0, 1, 2, 500, 501, 3000] {
            histogram.clone().observe(Duration::from_millis(millis));
        }
        let mut registry = Registry::default();
        registry.register("took", "Time", histogram);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "took_sum 4.004",
                "took_count 6",
                "took_bucket{le=\"0.001\"} 2",
                "took_bucket{le=\"0.5\"} 4",
                "took_bucket{le=\"+Inf\"} 6",
            ]
        );
    }
}
