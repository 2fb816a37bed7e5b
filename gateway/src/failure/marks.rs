//! What finds a request again, in the body of a failure.

use http::HeaderValue;
use telemetry::TraceId;

/// The ids of a request.
pub(super) struct Marks {
    pub(super) request: String,
    trace: Option<String>,
}

impl Marks {
    pub(super) fn of(id: &HeaderValue, trace: Option<TraceId>) -> Self {
        let request = String::from_utf8_lossy(id.as_bytes()).into_owned();
        Self { request, trace: trace.map(|trace| trace.to_string()) }
    }

    /// With what they are called in a body.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let trace = self.trace.as_deref().map(|trace| ("trace-id", trace));
        [("request-id", &*self.request)].into_iter().chain(trace)
    }

    /// kubectl and Grafana show a message and nothing else: whoever is called for help then has the trace's id.
    pub(super) fn suffix(&self) -> String {
        self.trace.as_ref().map_or_else(String::new, |trace| format!(". Trace ID: {trace}"))
    }
}
