//! Spans of requests in kas and agentk, sent to an OpenTelemetry collector, and parts of their metrics.
//!
//! ```text
//!   headers ──► context ──► RequestSpan ──► BatchSpanProcessor ──► OTLP exporter ──► collector
//!                 ▲            │            (opentelemetry_sdk)    (opentelemetry-otlp)
//!   next hop ◄────┴── inject ◄─┘
//! ```
//!
//! Spans, sampling, batches, protobuf, retries and HTTP come from `opentelemetry_sdk`, `opentelemetry-otlp`,
//! `opentelemetry-http` and hyper. This crate adds the parts that they do not have:
//!
//! * [`RequestSpan`] is the span of one request in one program. Without a [`Tracer`] it is `None`, and costs a branch and no
//!   allocation. `tracing-opentelemetry` is not used: a `tracing` span of each request takes an entry in the subscriber's
//!   registry and formatted fields, even if the trace is not sampled, and the subscriber is global.
//! * [`context`] parses `traceparent` and `tracestate` as strictly as W3C requires. Its test `sdk_propagator_differs` shows
//!   the difference to the SDK's propagator.
//! * [`Exporter`] runs the pipeline and counts spans. The SDK's batch processor drops spans when its queue is full, and
//!   the OTLP exporter treats a partial success as a success; both log a line at most. The tests
//!   `full_queue_drops_and_counts_spans` and `refused_spans_are_counted_and_not_sent_again` check the counts. The batch
//!   processor encodes and waits on a thread of its own, so requests never wait for it. Its connections run on the
//!   tokio runtime of [`Exporter::run`], with tokio-rustls, AWS-LC, and files that are read again.
//! * [`Collector`] is the configured collector. The builder of the OTLP exporter also reads environment variables; the
//!   test `exporter_variables_in_environment_have_no_effect` shows that they are ignored. [`environment`] reads them
//!   for agentk.
//! * [`ExpositionFormat`] is the text of metrics for a scrape. `prometheus_client` has OpenMetrics, which not all clients read.
//! * [`metrics!`], [`RegistryExt`], [`DurationHistogram`], [`CallbackMetric`] and [`GaugeGuard`] are parts of metrics that
//!   `prometheus_client` does not have.
#![warn(missing_docs)]

mod callback_metric;
mod client;
mod collector;
pub mod context;
pub mod environment;
mod export;
mod exposition;
mod gauge_guard;
mod histogram;
mod metrics;
mod otlp_endpoint;
mod registry;
mod request_span;
mod tracer;

pub use self::callback_metric::CallbackMetric;
pub use self::collector::{Collector, CollectorError};
pub use self::export::{Exporter, SpanMetrics};
pub use self::exposition::ExpositionFormat;
pub use self::gauge_guard::GaugeGuard;
pub use self::histogram::DurationHistogram;
pub use self::otlp_endpoint::{InvalidOtlpEndpoint, OtlpEndpoint};
pub use self::registry::{
    CounterByLabel, HistogramBounds, HistogramFamily, Label, RegistryExt, encode_gauge, encode_gauges,
};
pub use self::request_span::RequestSpan;
pub use self::tracer::{InvalidRatio, Program, SampleRatio, Tracer, TracerConfig};
pub use opentelemetry::trace::TraceId;
