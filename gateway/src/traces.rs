//! Section `observability.tracing` as something that can be used, and what kas's span of a request says.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use serde_saphyr::Spanned;
use telemetry::{Collector, CollectorError, Trace, TraceId, Tracer, TracerConfig};

use crate::{
    config::{ConfigError, Tracing},
    failure::Failure,
    forward::Destination,
    timing::Stages,
};

/// The section; `section` is for errors.
const SECTION: &str = "observability.tracing";

/// How callers' requests are traced.
#[derive(Clone, Debug)]
pub struct Traces {
    /// Makes their spans.
    pub tracer: Tracer,
    /// Whether a caller's own trace is continued. If not, it is only linked to: whoever may send requests could
    /// otherwise decide what is recorded, and write into others' traces.
    pub trust_callers: bool,
}

/// The span of one request of a caller, if it is traced.
#[derive(Debug, Default)]
pub struct RequestTrace(Trace);

/// Reads and checks what the section names. None without an endpoint.
pub fn settings(file: &Path, config: &Tracing) -> Result<Option<TracerConfig>, ConfigError> {
    let files = [
        ("otlp_ca_certificate_file", &config.otlp_ca_certificate_file),
        ("otlp_token_secret_file", &config.otlp_token_secret_file),
    ];
    let Some(endpoint) = config.otlp_endpoint.clone() else {
        let lonely = files.iter().find_map(|(key, path)| Some((key, path.as_ref()?)));
        return match lonely {
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
    /// Begins when the request's head is here.
    pub fn begin<B>(traces: Option<&Traces>, request: &Request<B>, id: &HeaderValue) -> Self {
        let Some(Traces { tracer, trust_callers }) = traces else { return Self::default() };
        let mut trace = Trace::begin(Some(tracer), request, *trust_callers);
        trace.set("kas.request.id", || id.to_str().unwrap_or_default().to_owned().into());
        Self(trace)
    }

    /// The caller may ask for this.
    pub fn authorized(&mut self, to: &Destination, method: &Method) {
        self.0.of_service(to.service.as_str(), method);
        self.0.set("kas.agent.id", || i64::try_from(to.agent.0).unwrap_or(i64::MAX).into());
        self.0.set("kas.agent.name", || to.name.to_string().into());
    }

    /// The agent's span becomes a child of this one.
    pub fn write(&self, headers: &mut HeaderMap) {
        self.0.write(headers);
    }

    /// The head of the cluster's answer is here. What remains is its body.
    pub fn answered(&mut self, status: StatusCode, stages: &Stages) {
        self.0.event("request.sent", stages.tunnel + stages.upstream);
        self.0.event("response.head", Duration::ZERO);
        for (key, time) in [
            ("kas.queue.duration", stages.queue),
            ("kas.tunnel.duration", stages.tunnel),
            ("kas.upstream.duration", stages.upstream),
        ] {
            self.0.set(key, || time.as_secs_f64().into());
        }
        self.0.answered(status, None);
    }

    /// The answer is a failure of ours.
    pub fn failed(&mut self, failure: &Failure) {
        self.0.answered(failure.reason.status(), Some(failure.reason.as_str()));
    }

    /// For people: where to find it.
    pub fn id(&self) -> Option<TraceId> {
        self.0.id()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_wrong_is_said_with_file_line_and_key() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kas.yaml");
        let said = |section: &str| {
            let text = format!("identity: {{file: i}}\nobservability:\n  tracing:\n{section}");
            fs::write(&file, text).unwrap();
            let read = Config::read(&file).and_then(|config| settings(&file, &config.observability.tracing));
            let said = read.map(|settings| settings.is_some()).map_err(|error| error.to_string());
            said.map_err(|error| error.replace(&format!("{}/", directory.path().display()), ""))
        };
        fs::write(directory.path().join("token"), "secret").unwrap();
        fs::write(directory.path().join("empty"), "\n").unwrap();
        let collector = "    otlp_endpoint: http://collector:4318\n";
        assert_eq!(said("    sample_ratio: 0.5\n"), Ok(false));
        assert_eq!(said(collector), Ok(true));
        assert_eq!(said(&format!("{collector}    otlp_token_secret_file: token\n")), Ok(true));
        for (section, expected) in [
            (
                "    otlp_endpoint: collector:4318\n",
                "kas.yaml:4:20: observability.tracing.otlp_endpoint: is not a URL",
            ),
            (
                "    otlp_endpoint: https://me:secret@c\n",
                "kas.yaml:4:20: observability.tracing.otlp_endpoint: must not",
            ),
            (
                "    sample_ratio: 2\n",
                "kas.yaml:4:19: observability.tracing.sample_ratio: must be a number from 0",
            ),
            (
                "    otlp_token_secret_file: token\n",
                "kas.yaml:4:29: observability.tracing.otlp_token_secret_file: has no effect without otlp_endpoint",
            ),
            (
                &format!("{collector}    otlp_token_secret_file: empty\n"),
                "kas.yaml:5:29: observability.tracing.otlp_token_secret_file: empty: holds no token",
            ),
            (
                &format!("{collector}    otlp_ca_certificate_file: absent\n"),
                "kas.yaml:5:31: observability.tracing.otlp_ca_certificate_file: absent: the file does not exist",
            ),
            (
                &format!("{collector}    otlp_ca_certificate_file: token\n"),
                "kas.yaml:5:31: observability.tracing.otlp_ca_certificate_file: token: holds no PEM certificate",
            ),
        ] {
            let error = said(section).unwrap_err();
            assert!(error.starts_with(expected) && !error.contains("secret@"), "{error}");
        }
    }
}
