//! The URL of a collector.

use std::{fmt, str::FromStr};

use http::{
    Uri,
    uri::{PathAndQuery, Scheme},
};

/// The path for traces (OTLP specification, "OTLP/HTTP Request").
const DEFAULT_PATH: &str = "/v1/traces";

/// The URL of OTLP over HTTP: `http(s)://host[:port][/path]`. The default path is `/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(Uri);

/// The reason why a text is no [`OtlpEndpoint`]. Errors do not quote the text, because it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOtlpEndpoint {
    /// The text is no absolute URL.
    #[error("is not a URL: write it like https://collector.example.com:4318")]
    Malformed,
    /// The scheme is neither `http` nor `https`.
    #[error("must begin with http:// or https://: spans are sent as OTLP over HTTP")]
    Scheme,
    /// The URL holds a user name or a password.
    #[error("must not hold a user name or password: put the token into a file")]
    UserInfo,
    /// The URL holds a query.
    #[error("must not have a query")]
    Query,
}

impl OtlpEndpoint {
    /// Parses the base URL of `OTEL_EXPORTER_OTLP_ENDPOINT`, to which `v1/traces` is appended.
    pub fn from_base_url(url: &str) -> Result<Self, InvalidOtlpEndpoint> {
        let endpoint: Self = url.parse()?;
        let base = endpoint.0.path();
        if base == DEFAULT_PATH {
            return Ok(endpoint);
        }
        let path = format!("{}{DEFAULT_PATH}", base.trim_end_matches('/'));
        endpoint.with_path(path)
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.0.scheme() == Some(&Scheme::HTTPS)
    }

    fn with_path(self, path: String) -> Result<Self, InvalidOtlpEndpoint> {
        let mut parts = self.0.into_parts();
        parts.path_and_query =
            Some(PathAndQuery::try_from(path).map_err(|_| InvalidOtlpEndpoint::Malformed)?);
        Uri::from_parts(parts).map(Self).map_err(|_| InvalidOtlpEndpoint::Malformed)
    }
}

impl FromStr for OtlpEndpoint {
    type Err = InvalidOtlpEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidOtlpEndpoint> {
        let uri: Uri = text.parse().map_err(|_| InvalidOtlpEndpoint::Malformed)?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            Some(_) => return Err(InvalidOtlpEndpoint::Scheme),
            None => return Err(InvalidOtlpEndpoint::Malformed),
        }
        let authority = uri.authority().ok_or(InvalidOtlpEndpoint::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(InvalidOtlpEndpoint::UserInfo);
        }
        if uri.query().is_some() {
            return Err(InvalidOtlpEndpoint::Query);
        }
        // `http` accepts an authority with a port that is no number, and then returns no port.
        let valid_port = match authority.port_u16() {
            Some(port) => port != 0,
            None => authority.as_str().ends_with(authority.host()),
        };
        match (valid_port, uri.path()) {
            (false, _) => Err(InvalidOtlpEndpoint::Malformed),
            (true, "/") => Self(uri).with_path(DEFAULT_PATH.to_owned()),
            (true, _) => Ok(Self(uri)),
        }
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_without_path_gets_the_default_path() {
        let endpoint: OtlpEndpoint = "https://collector.example.com".parse().unwrap();
        assert!(endpoint.is_secure());
        assert_eq!(endpoint.to_string(), "https://collector.example.com/v1/traces");
        let endpoint: OtlpEndpoint = "http://[::1]:4318/traces/here".parse().unwrap();
        assert!(!endpoint.is_secure());
        assert_eq!(endpoint.to_string(), "http://[::1]:4318/traces/here");
    }

    #[test]
    fn base_url_is_extended_by_the_default_path() {
        let whole = |base: &str| OtlpEndpoint::from_base_url(base).unwrap().to_string();
        assert_eq!(whole("http://c:4318"), "http://c:4318/v1/traces");
        assert_eq!(whole("http://c:4318/otlp/"), "http://c:4318/otlp/v1/traces");
    }

    #[test]
    fn invalid_url_is_refused_with_its_reason() {
        let refused = |url: &str| url.parse::<OtlpEndpoint>().unwrap_err();
        for url in ["", "collector", "collector:4318", "http://", "http://h:", "http://h:0", "http://h:99999"]
        {
            assert_eq!(refused(url), InvalidOtlpEndpoint::Malformed, "{url}");
        }
        assert_eq!(refused("grpc://h:4317"), InvalidOtlpEndpoint::Scheme);
        assert_eq!(refused("https://me:secret@h"), InvalidOtlpEndpoint::UserInfo);
        assert_eq!(refused("https://h/?key=secret"), InvalidOtlpEndpoint::Query);
    }
}
