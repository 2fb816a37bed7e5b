//! The span of one request in one program.
//!
//! It lasts until the last byte of the answer: a watch is one span of hours, which takes a few hundred bytes until
//! then. When the answer began is an event in it. Names follow OpenTelemetry's conventions for HTTP servers
//! (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>), `kas.*` is our own. Queries, credentials, names and
//! addresses of callers are in none: the request's id leads to the log, which has them.

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, HeaderName, Method, Request, StatusCode, Version,
    header::{HOST, USER_AGENT},
};
use opentelemetry::{
    Context, KeyValue, Value,
    trace::{Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, TraceId, Tracer as _},
};
use opentelemetry_sdk::trace::Span;

use crate::{Tracer, context};

/// Bytes of a path, a host or a user agent that a span keeps: spans that wait to be sent must not hold much.
const TEXT_MAX: usize = 512;

/// One request's span, or nothing where there is no tracer. It ends when this is dropped.
#[derive(Debug, Default)]
pub struct Trace(Option<Box<Recording>>);

#[derive(Debug)]
struct Recording {
    span: Span,
    /// How it ended is known.
    concluded: bool,
}

impl Trace {
    /// Begins the span of a request. With `trust` it is a child of the span that the request names; otherwise it begins
    /// a trace of its own, with a link to that span.
    pub fn begin<B>(tracer: Option<&Tracer>, request: &Request<B>, trust: bool) -> Self {
        let Some(tracer) = tracer else { return Self(None) };
        let method = method(request.method());
        let mut builder = SpanBuilder::from_name(method).with_kind(SpanKind::Server);
        let mut parent = Context::new();
        if let Some(caller) = context::read(request.headers()) {
            if trust {
                parent = parent.with_remote_span_context(caller);
            } else {
                builder = builder.with_links(vec![opentelemetry::trace::Link::with_context(caller)]);
            }
        }
        let mut span = tracer.0.build_with_context(builder, &parent);
        if span.is_recording() {
            describe(&mut span, method, request);
        }
        Self(Some(Box::new(Recording { span, concluded: false })))
    }

    /// Names the span after what is asked for.
    pub fn of_service(&mut self, service: &str, method: &Method) {
        if let Some(Recording { span, .. }) = self.recording() {
            span.update_name(format!("{} {service}", self::method(method)));
            span.set_attribute(KeyValue::new("kas.service", service.to_owned()));
        }
    }

    /// Adds an attribute.
    pub fn set(&mut self, key: &'static str, value: impl FnOnce() -> Value) {
        if let Some(Recording { span, .. }) = self.recording() {
            span.set_attribute(KeyValue::new(key, value()));
        }
    }

    /// Something happened, this long ago.
    pub fn event(&mut self, name: &'static str, ago: Duration) {
        if let Some(Recording { span, .. }) = self.recording() {
            let now = SystemTime::now();
            span.add_event_with_timestamp(name, now.checked_sub(ago).unwrap_or(now), Vec::new());
        }
    }

    /// The head of the answer is on its way. `failure`: ours, if it is one.
    pub fn answered(&mut self, status: StatusCode, failure: Option<&str>) {
        let Some(recording) = self.recording() else { return };
        recording.concluded = true;
        let span = &mut recording.span;
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if let Some(reason) = failure {
            span.set_attribute(KeyValue::new("error.type", reason.to_owned()));
        }
        // What is the caller's fault is no error of a server.
        if status.is_server_error() {
            if failure.is_none() {
                span.set_attribute(KeyValue::new("error.type", status.as_str().to_owned()));
            }
            span.set_status(Status::error(""));
        }
    }

    /// Makes this span the parent of what the next hop does. Without a tracer the headers stay as they came.
    pub fn write(&self, headers: &mut HeaderMap) {
        if let Some(recording) = &self.0 {
            context::write(headers, recording.span.span_context());
        }
    }

    /// The trace's id, if it is recorded: whoever is told finds something.
    pub fn id(&self) -> Option<TraceId> {
        let context = self.0.as_ref()?.span.span_context();
        context.is_sampled().then(|| context.trace_id())
    }

    fn recording(&mut self) -> Option<&mut Recording> {
        self.0.as_deref_mut().filter(|recording| recording.span.is_recording())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.concluded {
            self.span.set_attribute(KeyValue::new("error.type", "cancelled"));
        }
    }
}

fn describe<B>(span: &mut Span, method: &'static str, request: &Request<B>) {
    span.set_attribute(KeyValue::new("http.request.method", method));
    span.set_attribute(KeyValue::new("url.path", short(request.uri().path())));
    let version = match request.version() {
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    };
    span.set_attribute(KeyValue::new("network.protocol.version", version));
    let header = |name: HeaderName| request.headers().get(name)?.to_str().ok();
    if let Some(server) = request.uri().host().or_else(|| header(HOST)) {
        span.set_attribute(KeyValue::new("server.address", short(server)));
    }
    if let Some(agent) = header(USER_AGENT) {
        span.set_attribute(KeyValue::new("user_agent.original", short(agent)));
    }
}

/// Of few kinds, whatever callers make up.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        Method::CONNECT => "CONNECT",
        Method::TRACE => "TRACE",
        _ => "_OTHER",
    }
}

fn short(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].to_owned()
}
