//! Spans of requests in kas and agentk, sent to an OpenTelemetry collector, and parts of their metrics and logs.
//!
//! ```text
//!   headers ──► context ──► Trace (one span per request and program) ──► BatchSpanProcessor ──► OTLP exporter ──► collector
//!                 ▲            │                                         (opentelemetry_sdk)    (opentelemetry-otlp)
//!   next hop ◄────┴── write ◄──┘
//! ```
//!
//! Spans, sampling, batches, protobuf, retries and HTTP come from `opentelemetry_sdk`, `opentelemetry-otlp`,
//! `opentelemetry-http` and hyper. This crate adds the parts that they do not have:
//!
//! * [`Trace`] is a handle of the SDK's span. Without a [`Tracer`] it is `None`: it costs a branch and no allocation.
//!   `tracing-opentelemetry` is not used: a `tracing` span of each request takes an entry in the subscriber's registry and
//!   formatted fields, even if the trace is not sampled, and the subscriber is global. The tracer here is passed on.
//! * [`context`] reads `traceparent` and `tracestate` as strictly as W3C asks. Its test `sdk_propagator_differs` shows
//!   the difference to the SDK's propagator.
//! * [`Exporter`] runs the pipeline and counts spans. The SDK's batch processor drops spans when its queue is full, and
//!   the exporter takes a partial success for a success, both with a log line at most; the tests
//!   `full_queue_drops_and_counts_spans` and `refused_spans_are_counted_and_not_sent_again` need the numbers. The batch
//!   processor encodes and waits on a thread of its own, so requests never wait for it; its connections run on the
//!   tokio runtime of [`Exporter::run`], with tokio-rustls, AWS-LC, and files that are read again.
//! * [`Collector`] is the configured collector. The exporter's builder would take variables of the environment over it;
//!   the test `exporter_variables_in_environment_have_no_effect` shows that they are ignored. [`environment`] reads them
//!   for agentk.
#![warn(missing_docs)]

mod client;
mod collector;
pub mod context;
mod count;
mod endpoint;
pub mod environment;
mod export;
mod histogram;
pub mod log_limit;
mod trace;
mod tracer;

pub use self::collector::{Collector, CollectorError};
pub use self::count::Count;
pub use self::endpoint::{Endpoint, InvalidEndpoint};
pub use self::export::{Exporter, SpanMetrics};
pub use self::histogram::Histogram;
pub use self::trace::Trace;
pub use self::tracer::{InvalidRatio, Program, SampleRatio, Tracer, TracerConfig};
pub use opentelemetry::trace::TraceId;
