//! The dialect and the encoding of an error.

use http::{
    HeaderMap, HeaderValue,
    header::{ACCEPT, USER_AGENT},
};
use proto::header::weighted;
use telemetry::TraceId;

/// The language of an error's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorDialect {
    /// `Status` objects (kubectl, helm, client-go).
    Kubernetes,
    /// The envelope of the Prometheus HTTP API (Grafana, promtool).
    Prometheus,
    /// A small JSON object.
    Plain,
}

/// The form of an error, as the client of a request understands it.
#[derive(Clone, Debug)]
pub struct ErrorFormat {
    pub(super) dialect: ErrorDialect,
    accept: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    pub(super) discovery: bool,
}

/// The encodings of a `Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusEncoding {
    Json,
    Yaml,
    Text,
}

/// The ids with which a request is found in logs and traces, and the link to the documents of its error.
pub(super) struct ErrorReferences {
    pub(super) request: String,
    trace: Option<String>,
    docs: Option<String>,
}

impl ErrorFormat {
    /// Returns the format for the client that sent these headers. The headers are parsed only if there is an error to render.
    pub fn new(dialect: ErrorDialect, headers: &HeaderMap) -> Self {
        let (accept, user_agent) = (headers.get(ACCEPT).cloned(), headers.get(USER_AGENT).cloned());
        Self { dialect, accept, user_agent, discovery: false }
    }

    /// Adds a `Warning` for requests to a path of discovery.
    ///
    /// There kubectl prints only the code of a `Status` ("the server is currently unable to handle the request"), and before
    /// 1.26 not even that of a 403 or 404; but it prints warnings.
    pub fn with_discovery(self, discovery: bool) -> Self {
        Self { discovery, ..self }
    }

    /// Returns whether the client is built on client-go: "kubectl/v1.32.4 (linux/amd64) kubernetes/59526cd".
    pub(super) fn is_client_go(&self) -> bool {
        let agent = self.user_agent.as_ref().and_then(|agent| agent.to_str().ok());
        agent.is_some_and(|agent| agent.contains(" kubernetes/"))
    }

    /// Returns the known encoding in `Accept` with the greatest weight, the first one of several, or JSON.
    pub(super) fn encoding(&self) -> StatusEncoding {
        let Some(accept) = self.accept.as_ref().and_then(|accept| accept.to_str().ok()) else {
            return StatusEncoding::Json;
        };
        let encoding_of = |range: &str| match range {
            "application/json" | "application/*" | "*/*" => Some(StatusEncoding::Json),
            "application/yaml" => Some(StatusEncoding::Yaml),
            "text/plain" | "text/*" | "text/html" => Some(StatusEncoding::Text),
            _ => None,
        };
        let ranges = accept.split(',').filter_map(weighted).filter(|(_, weight)| *weight > 0.0);
        let known = ranges.filter_map(|(range, weight)| Some((encoding_of(range)?, weight)));
        let best = known.reduce(|best, next| if next.1 > best.1 { next } else { best });
        // A client that accepts only protobuf still reads the status code, and a log shows the text.
        best.map_or(StatusEncoding::Json, |(encoding, _)| encoding)
    }
}

impl ErrorReferences {
    pub(super) fn new(id: &HeaderValue, trace: Option<TraceId>, docs: Option<String>) -> Self {
        let request = String::from_utf8_lossy(id.as_bytes()).into_owned();
        Self { request, trace: trace.map(|trace| trace.to_string()), docs }
    }

    /// Iterates over the references with their names in a body.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let trace = self.trace.as_deref().map(|trace| ("trace-id", trace));
        let docs = self.docs.as_deref().map(|docs| ("docs", docs));
        [("request-id", &*self.request)].into_iter().chain(trace).chain(docs)
    }

    /// Returns the trace id and the link as the end of a message: kubectl and Grafana show only the message.
    pub(super) fn suffix(&self) -> String {
        let trace = self.trace.as_ref().map_or_else(String::new, |trace| format!(". Trace ID: {trace}"));
        let docs = self.docs.as_ref().map_or_else(String::new, |docs| format!(". See {docs}"));
        trace + &docs
    }
}
