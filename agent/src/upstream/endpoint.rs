//! The URL of a server: where to connect, and what to put before every path.

use std::{fmt, str::FromStr};

use http::{
    HeaderValue, Uri,
    uri::{InvalidUri, PathAndQuery},
};

/// `http[s]://host[:port][/base/path]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    scheme: Scheme,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    /// Empty, or with a slash at its beginning and none at its end.
    base_path: String,
    authority: HeaderValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

/// What is wrong with a URL. The URL itself is not shown when it contains a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("{0:?} is not a URL; write it like https://host:6443")]
    Malformed(String),
    #[error("{0:?} starts with neither http:// nor https://")]
    Scheme(String),
    #[error("the URL contains a user name or password; credentials are configured separately")]
    UserInfo,
    #[error("{0:?} has a query or a fragment; only scheme, host, port and path are used")]
    Extra(String),
}

impl Endpoint {
    /// `host` may be an IPv6 address, with or without brackets.
    pub fn https(host: &str, port: u16) -> Result<Self, EndpointError> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };

        format!("https://{host}:{port}").parse()
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// A name or an IP address, the latter without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn base_path(&self) -> &str {
        &self.base_path
    }

    /// The Host header.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// The request target for `uri`: its path and query, untouched, below the base path.
    pub(super) fn target(&self, uri: &Uri) -> Result<PathAndQuery, InvalidUri> {
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        // `*` and `?query` would otherwise run into the last segment of the base path.
        let slash = if path.starts_with('/') { "" } else { "/" };
        if self.base_path.is_empty() && slash.is_empty() {
            return Ok(uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
        }

        PathAndQuery::from_maybe_shared(format!("{}{slash}{path}", self.base_path))
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(url: &str) -> Result<Self, EndpointError> {
        let malformed = || EndpointError::Malformed(url.to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(malformed)?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        if authority.contains('@') {
            return Err(EndpointError::UserInfo);
        }
        // `Uri` would drop a fragment in silence.
        if rest.contains(['?', '#']) {
            return Err(EndpointError::Extra(url.to_owned()));
        }
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(EndpointError::Scheme(url.to_owned())),
        };
        let uri: Uri = url.parse().map_err(|_| malformed())?;
        let authority = uri.authority().ok_or_else(malformed)?;
        let host = authority.host();
        // `Authority` accepts "host:" and "host:99999"; the port is then part of neither.
        let port = match authority.as_str().strip_prefix(host) {
            Some("") => scheme.default_port(),
            _ => authority.port_u16().filter(|port| *port != 0).ok_or_else(malformed)?,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(malformed());
        }

        Ok(Self {
            scheme,
            host: host.to_owned(),
            port,
            base_path: uri.path().trim_end_matches('/').to_owned(),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| malformed())?,
        })
    }
}

impl Scheme {
    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.authority.to_str().unwrap_or(&self.host);
        write!(f, "{}://{authority}{}", self.scheme, self.base_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Endpoint {
        url.parse().unwrap()
    }

    #[test]
    fn parts() {
        let plain = endpoint("https://kubernetes.default.svc");
        assert_eq!(
            (plain.scheme(), plain.host(), plain.port(), plain.base_path()),
            (Scheme::Https, "kubernetes.default.svc", 443, "")
        );
        assert_eq!(plain.authority(), "kubernetes.default.svc");

        let full = endpoint("HTTP://[fd00::1]:9090/prom/%2f/");
        assert_eq!(
            (full.scheme(), full.host(), full.port(), full.base_path()),
            (Scheme::Http, "fd00::1", 9090, "/prom/%2f")
        );
        assert_eq!(full.authority(), "[fd00::1]:9090");
        assert_eq!(full.to_string(), "http://[fd00::1]:9090/prom/%2f");
    }

    #[test]
    fn from_parts_brackets_ipv6() {
        for host in ["fd00::1", "[fd00::1]"] {
            let endpoint = Endpoint::https(host, 443).unwrap();
            assert_eq!(
                (endpoint.host(), endpoint.to_string().as_str()),
                ("fd00::1", "https://[fd00::1]:443")
            );
        }
    }

    #[test]
    fn refused() {
        let refused = |url: &str| url.parse::<Endpoint>().unwrap_err();
        assert_eq!(refused("https://user:hunter2@host/"), EndpointError::UserInfo);
        assert!(!refused("https://user:hunter2@host/?a").to_string().contains("hunter2"));
        for url in ["https://host/?a=b", "https://host#x", "https://host?"] {
            assert_eq!(refused(url), EndpointError::Extra(url.into()));
        }
        for url in ["unix:///run/api", "ftp://host"] {
            assert_eq!(refused(url), EndpointError::Scheme(url.into()));
        }
        for url in
            ["", "host:6443", "https://", "https://host:", "https://host:0", "https://h:99999", "https://a b"]
        {
            assert_eq!(refused(url), EndpointError::Malformed(url.into()), "{url}");
        }
        assert_eq!(refused("host").to_string(), r#""host" is not a URL; write it like https://host:6443"#);
    }

    #[test]
    fn targets_keep_their_bytes() {
        let target = |base: &str, uri: &'static str| {
            endpoint(base).target(&Uri::from_static(uri)).unwrap().as_str().to_owned()
        };
        assert_eq!(target("http://h", "/a%2fb//c?x=%20&y"), "/a%2fb//c?x=%20&y");
        assert_eq!(target("http://h/", "//a/../b"), "//a/../b");
        assert_eq!(target("http://h/base/", "/a%2fb//c?x=%20&y"), "/base/a%2fb//c?x=%20&y");
        assert_eq!(target("http://h/base", "*"), "/base/*");
        assert_eq!(target("http://h/base", "/"), "/base/");
    }
}
