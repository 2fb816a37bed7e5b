//! The text of metrics, in the format that the client of a scrape accepts.

use std::fmt::Write as _;

use http::{HeaderMap, header::ACCEPT};
use prometheus_client::{encoding::text::encode, registry::Registry};

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// OpenMetrics 1.0, for clients that name it and do not refuse it, as Prometheus does.
    OpenMetrics,
    /// The text format 0.0.4 of Prometheus, for all others.
    Prometheus,
}

impl ExpositionFormat {
    /// Returns the format for a request with these headers.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        if accepted.any(|value| value.split(',').any(accepts_open_metrics)) {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Returns the value of `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Returns the text of all metrics.
    pub fn render(self, registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).expect("writing to a string does not fail");
        match self {
            Self::OpenMetrics => text,
            Self::Prometheus => from_open_metrics(&text),
        }
    }
}

/// Returns whether a media range names OpenMetrics with a weight above 0 (RFC 9110 sections 12.4.2 and 12.5.1).
fn accepts_open_metrics(range: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let names_it = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
    let is_refused = |parameter: &str| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        name.trim().eq_ignore_ascii_case("q") && value.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0)
    };
    names_it && !parts.any(is_refused)
}

/// Converts OpenMetrics. The format 0.0.4 has no units and no end.
fn from_open_metrics(open_metrics: &str) -> String {
    let (mut text, mut help) = (String::with_capacity(open_metrics.len()), "");
    for line in open_metrics.lines() {
        let comment = line.strip_prefix("# ");
        match comment.map(|comment| comment.split_once(' ').unwrap_or((comment, ""))) {
            None => text.extend([line, "\n"]),
            Some(("HELP", described)) => help = described,
            Some(("TYPE", typed)) => write_family(&mut text, std::mem::take(&mut help), typed),
            Some(_) => {}
        }
    }
    text
}

/// Writes the description and the type of a family. The format 0.0.4 does not know the type `info`, and its families are named as their
/// series.
fn write_family(text: &mut String, help: &str, typed: &str) {
    let (name, of_open_metrics) = typed.split_once(' ').unwrap_or((typed, "unknown"));
    let (suffix, kind) = match of_open_metrics {
        "counter" => ("_total", "counter"),
        "info" => ("_info", "gauge"),
        "unknown" => ("", "untyped"),
        other => ("", other),
    };
    let help = help.strip_prefix(name).unwrap_or_default();
    // No error: it is a string.
    _ = write!(text, "# HELP {name}{suffix}{help}\n# TYPE {name}{suffix} {kind}\n");
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use prometheus_client::{
        metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
        registry::Unit,
    };

    use super::*;
    use crate::{Label, RegistryExt as _};

    #[test]
    fn client_that_names_open_metrics_gets_it() {
        let of_prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let of_prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                               application/openmetrics-text;version=0.0.1;q=0.5,\
                               text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            (&[of_prometheus][..], ExpositionFormat::OpenMetrics),
            (&[of_prometheus_3], ExpositionFormat::OpenMetrics),
            (&["text/plain, Application/OpenMetrics-Text ; Q=0.001"], ExpositionFormat::OpenMetrics),
            (&["application/openmetrics-text;q=0, text/plain"], ExpositionFormat::Prometheus),
            (&["application/openmetrics-text; version=1.0.0; Q=0.000"], ExpositionFormat::Prometheus),
            (&["application/openmetrics-text-2"], ExpositionFormat::Prometheus),
            (&["text/html", "application/openmetrics-text"], ExpositionFormat::OpenMetrics),
            (&["text/plain;version=0.0.4"], ExpositionFormat::Prometheus),
            (&["*/*"], ExpositionFormat::Prometheus),
            (&[], ExpositionFormat::Prometheus),
        ] {
            let mut headers = HeaderMap::new();
            for value in accept {
                headers.append(ACCEPT, HeaderValue::from_static(value));
            }
            assert_eq!(ExpositionFormat::accepted(&headers), expected, "{accept:?}");
        }
    }

    #[test]
    fn format_of_prometheus_has_its_types_and_names() {
        let mut registry = Registry::default();
        registry.register("kas_build", "The running version", Info::new([("version", "0.1.0")]));
        let requests: Family<Label, Counter> = registry.create("kas_requests", "Requests # of callers");
        requests.get_or_create(&[("reason", "# TYPE x info")]).inc();
        let memory: Gauge = registry.create_with_unit("kas_memory", "Memory", Unit::Bytes);
        memory.set(7);
        let times = registry.histogram("kas_time", "Times", &[1.0]);
        times.observe(std::time::Duration::from_millis(500));
        let lines = [
            "# HELP kas_build_info The running version.",
            "# TYPE kas_build_info gauge",
            r#"kas_build_info{version="0.1.0"} 1"#,
            "# HELP kas_requests_total Requests # of callers.",
            "# TYPE kas_requests_total counter",
            r##"kas_requests_total{reason="# TYPE x info"} 1"##,
            "# HELP kas_memory_bytes Memory.",
            "# TYPE kas_memory_bytes gauge",
            "kas_memory_bytes 7",
            "# HELP kas_time_seconds Times.",
            "# TYPE kas_time_seconds histogram",
            "kas_time_seconds_sum 0.5",
            "kas_time_seconds_count 1",
            r#"kas_time_seconds_bucket{le="1.0"} 1"#,
            r#"kas_time_seconds_bucket{le="+Inf"} 1"#,
            "",
        ];
        assert_eq!(ExpositionFormat::Prometheus.render(&registry), lines.join("\n"));
    }
}
