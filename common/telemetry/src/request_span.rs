//! The span of one request in one program.
//!
//! The span ends with the last byte of the response. So a watch of hours is one span, which takes a few hundred bytes; the
//! start of the response is an event of the span. Names follow OpenTelemetry's conventions for HTTP servers
//! (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>). Attributes that they do not have begin with `kas.`.
//!
//! Spans hold no queries and no credentials, names or addresses of callers. The log has names and addresses, and the span
//! has the id of the request, by which they are found there.

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

/// Longest path, host or user agent in a span, in bytes: spans that wait for the exporter must stay small.
const TEXT_MAX: usize = 512;
/// The value of `http.request.method` for an unknown method.
const OTHER: &str = "_OTHER";

/// The span of one request. It is empty without a tracer, and ends when this is dropped.
#[derive(Debug, Default)]
pub struct RequestSpan(Option<Box<Recording>>);

#[derive(Debug)]
struct Recording {
    span: Span,
    has_response: bool,
}

impl RequestSpan {
    /// Starts the span of a request. With `trust`, it is a child of the span in the request's headers. Otherwise it starts
    /// a new trace, with a link to that span. `scheme` is that of the connection: a request of HTTP/1.1 has none.
    pub fn start<B>(
        tracer: Option<&Tracer>,
        scheme: &'static str,
        request: &Request<B>,
        trust: bool,
    ) -> Self {
        let Some(tracer) = tracer else { return Self(None) };
        let method = method(request.method());
        let mut builder = SpanBuilder::from_name(name(method)).with_kind(SpanKind::Server);
        let mut parent = Context::new();
        if let Some(caller) = context::extract(request.headers()) {
            if trust {
                parent = parent.with_remote_span_context(caller);
            } else {
                builder = builder.with_links(vec![opentelemetry::trace::Link::with_context(caller)]);
            }
        }
        let mut span = tracer.0.build_with_context(builder, &parent);
        if span.is_recording() {
            span.set_attribute(KeyValue::new("url.scheme", scheme));
            set_request_attributes(&mut span, method, request);
        }
        Self(Some(Box::new(Recording { span, has_response: false })))
    }

    /// Sets the service, and names the span after method and service.
    pub fn set_service(&mut self, service: &str, method: &Method) {
        if let Some(Recording { span, .. }) = self.recording() {
            span.update_name(format!("{} {service}", name(self::method(method))));
            span.set_attribute(KeyValue::new("kas.service", service.to_owned()));
        }
    }

    /// Sets an attribute. `value` is called only if the span is recorded.
    pub fn set_attribute(&mut self, key: &'static str, value: impl FnOnce() -> Value) {
        if let Some(Recording { span, .. }) = self.recording() {
            span.set_attribute(KeyValue::new(key, value()));
        }
    }

    /// Adds an event that happened this time ago.
    pub fn add_event(&mut self, name: &'static str, ago: Duration) {
        if let Some(Recording { span, .. }) = self.recording() {
            let now = SystemTime::now();
            span.add_event_with_timestamp(name, now.checked_sub(ago).unwrap_or(now), Vec::new());
        }
    }

    /// Sets the status of the response. `failure` is the reason, if it is an error response of this program.
    ///
    /// A span that ends without a response is marked as cancelled.
    pub fn set_response(&mut self, status: StatusCode, failure: Option<&str>) {
        let Some(recording) = self.recording() else { return };
        recording.has_response = true;
        let span = &mut recording.span;
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if let Some(reason) = failure {
            span.set_attribute(KeyValue::new("error.type", reason.to_owned()));
        }
        // A 4xx is no error of a server's span (conventions for HTTP spans, "Status").
        if status.is_server_error() {
            if failure.is_none() {
                span.set_attribute(KeyValue::new("error.type", status.as_str().to_owned()));
            }
            span.set_status(Status::error(""));
        }
    }

    /// Makes this span the parent of the next hop's span. Without a tracer the headers stay unchanged.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if let Some(recording) = &self.0 {
            context::inject(headers, recording.span.span_context());
        }
    }

    /// Returns the id of the trace, if it is recorded.
    pub fn trace_id(&self) -> Option<TraceId> {
        let context = self.0.as_ref()?.span.span_context();
        context.is_sampled().then(|| context.trace_id())
    }

    fn recording(&mut self) -> Option<&mut Recording> {
        self.0.as_deref_mut().filter(|recording| recording.span.is_recording())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.has_response {
            self.span.set_attribute(KeyValue::new("error.type", "cancelled"));
        }
    }
}

fn set_request_attributes<B>(span: &mut Span, method: &'static str, request: &Request<B>) {
    span.set_attribute(KeyValue::new("http.request.method", method));
    if method == OTHER {
        span.set_attribute(KeyValue::new(
            "http.request.method_original",
            truncate(request.method().as_str()),
        ));
    }
    span.set_attribute(KeyValue::new("url.path", truncate(request.uri().path())));
    let version = match request.version() {
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    };
    span.set_attribute(KeyValue::new("network.protocol.version", version));
    let header = |name: HeaderName| request.headers().get(name)?.to_str().ok();
    let authority = request.uri().authority().cloned().or_else(|| header(HOST)?.parse().ok());
    if let Some(server) = authority {
        // An address of IPv6 has brackets only beside a port.
        let address = server.host().trim_matches(['[', ']']);
        span.set_attribute(KeyValue::new("server.address", truncate(address)));
        if let Some(port) = server.port_u16() {
            span.set_attribute(KeyValue::new("server.port", i64::from(port)));
        }
    }
    if let Some(agent) = header(USER_AGENT) {
        span.set_attribute(KeyValue::new("user_agent.original", truncate(agent)));
    }
}

/// Returns the method in the name of a span.
fn name(method: &'static str) -> &'static str {
    if method == OTHER { "HTTP" } else { method }
}

/// Returns the method, or `_OTHER` for an unknown one: the attribute must have few values.
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
        _ => OTHER,
    }
}

fn truncate(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].to_owned()
}
