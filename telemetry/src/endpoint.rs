//! URL of a collector.

use std::{fmt, str::FromStr};

use http::{
    Uri,
    uri::{PathAndQuery, Scheme},
};

/// Path of the traces signal (OTLP specification, "OTLP/HTTP Request").
const DEFAULT_PATH: &str = "/v1/traces";

/// URL of OTLP over HTTP: `http(s)://host[:port][/path]`. Without a path it is `/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(Uri);

/// Reason why a text is no [`Endpoint`]. The text is not quoted, because it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
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

impl Endpoint {
    /// Parses the base URL of `OTEL_EXPORTER_OTLP_ENDPOINT`, to which `v1/traces` is appended.
    pub fn of_base(url: &str) -> Result<Self, InvalidEndpoint> {
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

    fn with_path(self, path: String) -> Result<Self, InvalidEndpoint> {
        let mut parts = self.0.into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(path).map_err(|_| InvalidEndpoint::Malformed)?);
        Uri::from_parts(parts).map(Self).map_err(|_| InvalidEndpoint::Malformed)
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let uri: Uri = text.parse().map_err(|_| InvalidEndpoint::Malformed)?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            Some(_) => return Err(InvalidEndpoint::Scheme),
            None => return Err(InvalidEndpoint::Malformed),
        }
        let authority = uri.authority().ok_or(InvalidEndpoint::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(InvalidEndpoint::UserInfo);
        }
        if uri.query().is_some() {
            return Err(InvalidEndpoint::Query);
        }
        // `http` accepts an authority with a port that is no number, and then returns no port.
        let valid_port = match authority.port_u16() {
            Some(port) => port != 0,
            None => authority.as_str().ends_with(authority.host()),
        };
        match (valid_port, uri.path()) {
            (false, _) => Err(InvalidEndpoint::Malformed),
            (true, "/") => Self(uri).with_path(DEFAULT_PATH.to_owned()),
            (true, _) => Ok(Self(uri)),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_without_path_gets_the_default_path() {
        let endpoint: Endpoint = "https://collector.example.com".parse().unwrap();
        assert!(endpoint.is_secure());
        assert_eq!(endpoint.to_string(), "https://collector.example.com/v1/traces");
        let endpoint: Endpoint = "http://[::1]:4318/traces/here".parse().unwrap();
        assert!(!endpoint.is_secure());
        assert_eq!(endpoint.to_string(), "http://[::1]:4318/traces/here");
    }

    #[test]
    fn base_url_is_extended_by_the_default_path() {
        let whole = |base: &str| Endpoint::of_base(base).unwrap().to_string();
        assert_eq!(whole("http://c:4318"), "http://c:4318/v1/traces");
        assert_eq!(whole("http://c:4318/otlp/"), "http://c:4318/otlp/v1/traces");
    }

    #[test]
    fn invalid_url_is_refused_with_its_reason() {
        let refused = |url: &str| url.parse::<Endpoint>().unwrap_err();
        for url in ["", "collector", "collector:4318", "http://", "http://h:", "http://h:0", "http://h:99999"]
        {
            assert_eq!(refused(url), InvalidEndpoint::Malformed, "{url}");
        }
        assert_eq!(refused("grpc://h:4317"), InvalidEndpoint::Scheme);
        assert_eq!(refused("https://me:secret@h"), InvalidEndpoint::UserInfo);
        assert_eq!(refused("https://h/?key=secret"), InvalidEndpoint::Query);
    }
}
