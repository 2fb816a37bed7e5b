//! Traces: what kas and agentk tell an OpenTelemetry collector about each request.
//!
//! ```text
//!   headers ──► context ──► Trace (one span per request and program) ──► Exporter ──► collector, OTLP over HTTP
//!                 ▲            │                                            │
//!   next hop ◄────┴── write ◄──┘                                            └─ queue, batch, client
//! ```
//!
//! * [`context`] reads and writes `traceparent` and `tracestate`.
//! * [`Trace`] is the span of one request; without a [`Tracer`] it is nothing, and costs a branch.
//! * [`Exporter`] sends spans on in the background. Requests never wait for it: what does not fit into its queue is
//!   dropped and counted.
//! * [`Collector`] is where spans go; [`environment`] reads the standard variables that name one.
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
pub use self::export::{Counts, Exporter};
pub use self::histogram::Histogram;
pub use self::trace::Trace;
pub use self::tracer::{InvalidRatio, Program, SampleRatio, Settings, Tracer};
pub use opentelemetry::trace::TraceId;
