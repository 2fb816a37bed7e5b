//! The tracer of one program. It is built once and passed on; there is no global one.

use std::str::FromStr;

use opentelemetry::{Key, KeyValue, trace::TracerProvider as _};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracer, SdkTracerProvider, SpanProcessor},
};

use crate::{Collector, Exporter, SpanMetrics, client::CollectorClient, export::BoundedProcessor};

/// The program that the spans come from, as attributes of its OpenTelemetry resource.
#[derive(Clone, Debug)]
pub struct Program {
    /// `service.name`, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` sets another.
    pub name: &'static str,
    /// `service.version`.
    pub version: &'static str,
    /// `service.instance.id`: new at each start.
    pub instance: String,
}

/// The share of new traces that is recorded, from 0 (none) to 1 (all).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRatio(f64);

/// A ratio that is not a number from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a number from 0 (no trace) to 1 (every trace)")]
pub struct InvalidRatio;

/// Configuration of a program's traces.
#[derive(Debug)]
pub struct TracerConfig {
    /// Collector of the spans.
    pub collector: Collector,
    /// Share of new traces that is recorded.
    pub ratio: SampleRatio,
}

/// Creates spans. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tracer(pub(crate) SdkTracer);

impl TracerConfig {
    /// Builds the tracer and the exporter of its spans. The caller must run the exporter.
    pub fn build(self, program: &Program) -> (Tracer, Exporter) {
        let (client, metrics) = (CollectorClient::new(self.collector), SpanMetrics::default());
        let processor = BoundedProcessor::new(client.clone(), metrics.clone());
        let provider = provider(program, self.ratio, processor);
        (Tracer(provider.tracer(program.name)), Exporter { provider, client, metrics })
    }
}

impl Tracer {
    /// Creates a tracer that passes ended spans to `processor`.
    ///
    /// `ratio` applies to new traces. A span with a parent is recorded if the parent is.
    pub fn new(program: &Program, ratio: SampleRatio, processor: impl SpanProcessor + 'static) -> Self {
        Self(provider(program, ratio, processor).tracer(program.name))
    }
}

fn provider(
    program: &Program,
    ratio: SampleRatio,
    processor: impl SpanProcessor + 'static,
) -> SdkTracerProvider {
    SdkTracerProvider::builder()
        .with_resource(resource(program))
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio.0))))
        .with_span_processor(processor)
        .build()
}

fn resource(program: &Program) -> Resource {
    let resource = Resource::builder().with_attributes([
        KeyValue::new("service.version", program.version),
        KeyValue::new("service.instance.id", program.instance.clone()),
    ]);
    let resource = resource.build();
    let named = resource.get_ref(&Key::from_static_str("service.name"));
    let named = named.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    if named {
        return resource;
    }

    let known = resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    Resource::builder_empty().with_attributes(known).with_service_name(program.name).build()
}

impl SampleRatio {
    /// Records every trace.
    pub const ALL: Self = Self(1.0);
}

impl Default for SampleRatio {
    fn default() -> Self {
        Self::ALL
    }
}

impl TryFrom<f64> for SampleRatio {
    type Error = InvalidRatio;

    fn try_from(ratio: f64) -> Result<Self, InvalidRatio> {
        (0.0..=1.0).contains(&ratio).then_some(Self(ratio)).ok_or(InvalidRatio)
    }
}

impl FromStr for SampleRatio {
    type Err = InvalidRatio;

    fn from_str(text: &str) -> Result<Self, InvalidRatio> {
        text.parse().map_err(|_| InvalidRatio).and_then(|ratio: f64| ratio.try_into())
    }
}

impl std::fmt::Display for SampleRatio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
