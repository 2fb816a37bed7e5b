//! The URL that spans are sent to.

use std::{fmt, str::FromStr};

use http::{HeaderValue, Uri};

/// Where a collector takes spans, unless its URL says otherwise.
const DEFAULT_PATH: &str = "/v1/traces";

/// A URL of OTLP over HTTP: `http(s)://host[:port][/path]`. Without a path it is `/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    secure: bool,
    host: String,
    port: u16,
    authority: HeaderValue,
    path: String,
}

/// Not such a URL. It is not quoted: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    /// Not a URL at all.
    #[error("is not a URL: write it like https://collector.example.com:4318")]
    Malformed,
    /// Something else than HTTP.
    #[error("must begin with http:// or https://: spans are sent as OTLP over HTTP")]
    Scheme,
    /// A user name or password.
    #[error("must not hold a user name or password: put the token into a file")]
    UserInfo,
    /// A query.
    #[error("must not have a query")]
    Query,
}

impl Endpoint {
    /// The base URL of `OTEL_EXPORTER_OTLP_ENDPOINT`, to which `v1/traces` is appended.
    pub fn of_base(url: &str) -> Result<Self, InvalidEndpoint> {
        let mut endpoint: Self = url.parse()?;
        if endpoint.path != DEFAULT_PATH {
            endpoint.path = format!("{}{DEFAULT_PATH}", endpoint.path.trim_end_matches('/'));
        }
        Ok(endpoint)
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.secure
    }

    /// Without the brackets of an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// For `Host`.
    pub(crate) fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let uri: Uri = text.parse().map_err(|_| InvalidEndpoint::Malformed)?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) => return Err(InvalidEndpoint::Scheme),
            None => return Err(InvalidEndpoint::Malformed),
        };
        let authority = uri.authority().ok_or(InvalidEndpoint::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(InvalidEndpoint::UserInfo);
        }
        if uri.query().is_some() {
            return Err(InvalidEndpoint::Query);
        }
        let port = match authority.port() {
            Some(port) if port.as_u16() != 0 => port.as_u16(),
            None if authority.as_str().ends_with(authority.host()) => {
                if secure {
                    443
                } else {
                    80
                }
            }
            _ => return Err(InvalidEndpoint::Malformed),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let path = if uri.path() == "/" { DEFAULT_PATH } else { uri.path() }.to_owned();
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|_| InvalidEndpoint::Malformed)?;
        Ok(Self { secure, host, port, authority, path })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority.to_str().unwrap_or(&self.host), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let endpoint: Endpoint = "https://collector.example.com".parse().unwrap();
        assert_eq!(
            (endpoint.is_secure(), endpoint.host(), endpoint.port()),
            (true, "collector.example.com", 443)
        );
        assert_eq!(endpoint.to_string(), "https://collector.example.com/v1/traces");
        let endpoint: Endpoint = "http://[::1]:4318/traces/here".parse().unwrap();
        assert_eq!((endpoint.is_secure(), endpoint.host(), endpoint.port()), (false, "::1", 4318));
        assert_eq!(endpoint.path(), "/traces/here");
    }

    #[test]
    fn a_base_is_not_the_whole() {
        let whole = |base: &str| Endpoint::of_base(base).unwrap().to_string();
        assert_eq!(whole("http://c:4318"), "http://c:4318/v1/traces");
        assert_eq!(whole("http://c:4318/otlp/"), "http://c:4318/otlp/v1/traces");
    }

    #[test]
    fn refused() {
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
