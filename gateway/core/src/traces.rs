//! The spans of callers' requests, and their configuration (`observability.tracing`).

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use access::RequestError;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use serde_saphyr::Spanned;
use settings::ConfigError;
use telemetry::{Collector, CollectorError, RequestSpan, TraceId, Tracer, TracerConfig};

use crate::{config::TracingConfig, destination::Destination, timing::RequestTiming};

/// The section of the configuration, for errors.
const SECTION: &str = "observability.tracing";

/// The tracing of callers' requests.
#[derive(Clone, Debug)]
pub struct Traces {
    /// Creates the spans.
    pub tracer: Tracer,
    /// If true, the span of kas continues the trace of the caller. Otherwise it is only linked to that trace, because any caller
    /// could decide which requests are recorded, and could write into the traces of others.
    pub trust_callers: bool,
    /// The scheme of the listener for callers: `http`, or `https` if it has a certificate.
    pub scheme: &'static str,
}

/// The span of one request, if the request is traced.
#[derive(Debug, Default)]
pub struct RequestTrace(RequestSpan);

/// Reads the files of the section. Returns `None` without an endpoint.
pub fn settings(file: &Path, config: &TracingConfig) -> Result<Option<TracerConfig>, ConfigError> {
    let files = [
        ("otlp_ca_certificate_file", &config.otlp_ca_certificate_file),
        ("otlp_token_secret_file", &config.otlp_token_secret_file),
    ];
    let Some(endpoint) = config.otlp_endpoint.clone() else {
        let unused = files.iter().find_map(|(key, path)| Some((key, path.as_ref()?)));
        return match unused {
            Some((key, path)) => {
                let what = "has no effect without otlp_endpoint: name the collector, or remove this key";
                Err(ConfigError::new(file, path.referenced, format!("{SECTION}.{key}"), what))
            }
            None => Ok(None),
        };
    };

    let [authority, token] = files;
    let failed = |(key, path): (&str, &Option<Spanned<PathBuf>>), error: CollectorError| match path {
        Some(path) => ConfigError::new(file, path.referenced, format!("{SECTION}.{key}"), error.to_string()),
        None => ConfigError::whole(file, format!("{SECTION}.{key}: {error}")),
    };
    let path = |(_, path): (&str, &Option<Spanned<PathBuf>>)| path.as_ref().map(|path| path.value.clone());
    let mut collector =
        Collector::new(endpoint, path(authority)).map_err(|error| failed(authority, error))?;
    if let Some(path) = path(token) {
        collector = collector.with_token(path).map_err(|error| failed(token, error))?;
    }
    Ok(Some(TracerConfig { collector, ratio: config.sample_ratio }))
}

impl RequestTrace {
    /// Starts the span of a request whose head has arrived.
    pub fn start<B>(traces: Option<&Traces>, request: &Request<B>, id: &HeaderValue) -> Self {
        let Some(Traces { tracer, trust_callers, scheme }) = traces else { return Self::default() };
        let mut trace = RequestSpan::start(Some(tracer), scheme, request, *trust_callers);
        trace.set_attribute("kas.request.id", || id.to_str().unwrap_or_default().to_owned().into());
        Self(trace)
    }

    /// Records the destination, once the request is authorized.
    pub fn set_destination(&mut self, to: &Destination, method: &Method) {
        self.0.set_service(to.service.as_str(), method);
        self.0.set_attribute("kas.agent.id", || i64::try_from(to.agent.0).unwrap_or(i64::MAX).into());
        if let Some(name) = &to.name {
            self.0.set_attribute("kas.agent.name", || name.to_string().into());
        }
    }

    /// Adds the headers with which the span of the agent becomes a child of this span.
    pub fn inject(&self, headers: &mut HeaderMap) {
        self.0.inject(headers);
    }

    /// Records the head of the cluster's response. The span ends after the body.
    pub fn record_response(&mut self, status: StatusCode, timing: &RequestTiming) {
        self.0.add_event("request.sent", timing.tunnel + timing.upstream);
        self.0.add_event("response.head", Duration::ZERO);
        for (key, time) in [
            ("kas.queue.duration", timing.queue),
            ("kas.tunnel.duration", timing.tunnel),
            ("kas.upstream.duration", timing.upstream),
        ] {
            self.0.set_attribute(key, || time.as_secs_f64().into());
        }
        self.0.set_response(status, None);
    }

    /// Records an error of kas or of its agent.
    pub fn record_error(&mut self, error: &RequestError) {
        self.0.set_response(error.reason.status(), Some(error.reason.as_str()));
    }

    /// Returns the id of the trace, for logs and errors.
    pub fn id(&self) -> Option<TraceId> {
        self.0.trace_id()
    }
}
