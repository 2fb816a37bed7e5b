//! The URL of an issuer, or of one of its endpoints.

use std::{fmt, net::IpAddr, str::FromStr};

use http::Uri;
use serde::Deserialize;

/// A URL of an issuer: `https`, or `http` to this machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct EndpointUrl(Uri);

/// The error of a text that is no such URL.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointUrlError {
    /// It is not a URL with scheme and host.
    #[error("is not a URL like https://issuer.example.com: https, a host, no user and no fragment")]
    Malformed,
    /// The scheme is `http`, and the host is another machine.
    #[error("must be https: kas uses http only for an issuer on the same machine")]
    Insecure,
}

impl EndpointUrl {
    /// Returns the URL.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// Returns whether the scheme is `https`.
    pub fn is_secure(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// Returns the URL of a path below this one.
    pub fn join(&self, path: &str) -> Result<Self, EndpointUrlError> {
        format!("{}{path}", self.0.to_string().trim_end_matches('/')).parse()
    }
}

impl FromStr for EndpointUrl {
    type Err = EndpointUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|_| EndpointUrlError::Malformed)?;
        let authority = uri.authority().ok_or(EndpointUrlError::Malformed)?;
        if authority.host().is_empty() || authority.as_str().contains('@') || text.contains('#') {
            return Err(EndpointUrlError::Malformed);
        }
        match uri.scheme_str() {
            Some("https") => Ok(Self(uri)),
            Some("http") if is_loopback(authority.host()) => Ok(Self(uri)),
            Some("http") => Err(EndpointUrlError::Insecure),
            _ => Err(EndpointUrlError::Malformed),
        }
    }
}

impl TryFrom<String> for EndpointUrl {
    type Error = EndpointUrlError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_loopback_only() {
        for good in [
            "https://issuer.example.com",
            "https://issuer.example.com:8443/realms/a",
            "http://localhost:5556/dex",
            "http://127.0.0.1:1",
            "http://[::1]/",
        ] {
            assert!(good.parse::<EndpointUrl>().is_ok(), "{good}");
        }
        for (bad, error) in [
            ("http://issuer.example.com", EndpointUrlError::Insecure),
            ("http://127.0.0.1.example.com", EndpointUrlError::Insecure),
            ("http://10.0.0.1", EndpointUrlError::Insecure),
            ("issuer.example.com", EndpointUrlError::Malformed),
            ("file:///etc/passwd", EndpointUrlError::Malformed),
            ("https://me:secret@issuer", EndpointUrlError::Malformed),
            ("https://issuer/#a", EndpointUrlError::Malformed),
            ("", EndpointUrlError::Malformed),
        ] {
            assert_eq!(bad.parse::<EndpointUrl>(), Err(error), "{bad}");
        }
    }

    #[test]
    fn path_is_joined_with_one_slash() {
        for issuer in ["https://a.example/dex", "https://a.example/dex/"] {
            let joined = issuer.parse::<EndpointUrl>().unwrap().join("/.well-known/openid-configuration");
            assert_eq!(joined.unwrap().to_string(), "https://a.example/dex/.well-known/openid-configuration");
        }
    }
}
