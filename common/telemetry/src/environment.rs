//! The standard environment variables of OTLP exporters
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>), for agentk. Variables for traces take precedence over
//! those for all signals.
//!
//! `opentelemetry-otlp` reads the variables, too. It ignores or logs invalid values, and merges headers even over configured
//! ones. So this module reads them, and every option of the exporter is set: errors are found at the start, and the
//! variables have no effect on kas. The SDK reads `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`.

use std::{ffi::OsString, path::PathBuf};

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use crate::OtlpEndpoint;

/// The collector that the environment variables name, if any.
#[derive(Clone, Debug, Default)]
pub struct OtlpEnvironment {
    /// URL of the collector.
    pub endpoint: Option<OtlpEndpoint>,
    /// Headers of each request.
    pub headers: HeaderMap,
    /// File of the certificate authorities to trust.
    pub ca_file: Option<PathBuf>,
}

/// An environment variable that cannot be used. Errors do not quote the value, because it may hold a token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the environment variable {name} {what}")]
pub struct InvalidVariable {
    name: String,
    what: String,
}

impl OtlpEnvironment {
    /// Reads the variables with `get`. An empty variable counts as not set (OpenTelemetry specification, "Environment
    /// Variable Specification").
    ///
    /// # Errors
    ///
    /// If a variable is malformed, or selects another protocol than `http/protobuf`.
    pub fn read(get: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, InvalidVariable> {
        let get = |name: &str| {
            let value = get(name)?.into_string().ok()?;
            (!value.is_empty()).then(|| (name.to_owned(), value))
        };
        let either = |what: &str| {
            get(&format!("OTEL_EXPORTER_OTLP_TRACES_{what}"))
                .or_else(|| get(&format!("OTEL_EXPORTER_OTLP_{what}")))
        };
        let is = |name: &str, value: &str| get(name).is_some_and(|(_, set)| set.eq_ignore_ascii_case(value));
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(Self::default());
        }

        let invalid = |name: &str, what: String| InvalidVariable { name: name.to_owned(), what };
        let endpoint = match (get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), get("OTEL_EXPORTER_OTLP_ENDPOINT")) {
            (Some((name, url)), _) => Some((name, url.parse())),
            (None, Some((name, url))) => Some((name, OtlpEndpoint::from_base_url(&url))),
            (None, None) => None,
        };
        let endpoint = endpoint
            .map(|(name, parsed)| parsed.map_err(|error| invalid(&name, error.to_string())))
            .transpose()?;
        if endpoint.is_some()
            && let Some((name, protocol)) = either("PROTOCOL")
            && protocol != "http/protobuf"
        {
            return Err(invalid(
                &name,
                "selects another protocol than http/protobuf, which is the only supported one".into(),
            ));
        }
        let headers = match either("HEADERS") {
            Some((name, list)) => headers(&list).ok_or_else(|| {
                invalid(&name, "is not a list of headers: write it like name=value,other=value".into())
            })?,
            None => HeaderMap::new(),
        };
        Ok(Self { endpoint, headers, ca_file: either("CERTIFICATE").map(|(_, file)| file.into()) })
    }
}

/// Parses a list as in W3C Baggage: `name=value,other=value`, with values percent-encoded.
fn headers(list: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in list.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_bytes(name.trim().as_bytes()).ok()?, value);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<OtlpEnvironment, String> {
        let get = |name: &str| {
            let found = variables.iter().find(|(set, _)| *set == name);
            found.map(|(_, value)| OsString::from(value))
        };
        OtlpEnvironment::read(&get).map_err(|error| error.to_string())
    }

    fn endpoint(variables: &[(&str, &str)]) -> Option<String> {
        read(variables).unwrap().endpoint.map(|endpoint| endpoint.to_string())
    }

    #[test]
    fn variable_for_traces_takes_precedence() {
        let both = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318");
        assert_eq!(endpoint(&[]), None);
        assert_eq!(endpoint(&[both]).unwrap(), "http://all:4318/v1/traces");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/here");
        assert_eq!(endpoint(&[both, traces]).unwrap(), "http://traces:4318/here");
        assert_eq!(
            endpoint(&[both, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")]).unwrap(),
            "http://all:4318/v1/traces"
        );
    }

    #[test]
    fn disabled_traces_have_no_endpoint() {
        let endpoint_is = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318");
        assert_eq!(endpoint(&[endpoint_is, ("OTEL_SDK_DISABLED", "true")]), None);
        assert_eq!(endpoint(&[endpoint_is, ("OTEL_TRACES_EXPORTER", "none")]), None);
    }

    #[test]
    fn headers_are_decoded_and_not_debugged() {
        let read =
            read(&[("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20abc, x-tenant = 7,")]).unwrap();
        assert_eq!(read.headers["authorization"], "Bearer abc");
        assert_eq!(read.headers["x-tenant"], "7");
        assert!(!format!("{read:?}").contains("abc"));
    }

    #[test]
    fn invalid_variable_is_named_and_its_value_is_not_quoted() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:secret@all"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=secret%0d%0a"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(&format!("the environment variable {name} ")), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let grpc =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4317"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        assert!(read(&grpc).unwrap_err().contains("http/protobuf"));
    }
}
