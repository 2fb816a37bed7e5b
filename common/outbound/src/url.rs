//! The URL of a server: its address, and the path that is put before that of every request.

use std::{fmt, str::FromStr};

use http::{
    HeaderValue, Uri,
    uri::{InvalidUri, PathAndQuery},
};

/// A URL of the form `http[s]://host[:port][/base/path]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    scheme: Scheme,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    /// The empty string, or a path with a slash at its beginning and none at its end.
    base_path: String,
    authority: HeaderValue,
}

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `http`, without TLS.
    Http,
    /// `https`, with TLS.
    Https,
}

/// The error for an invalid URL. It does not contain the URL if that has a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// The text is not a URL.
    #[error("{0:?} is not a URL; write it like https://host:6443")]
    Malformed(String),
    /// The scheme is neither `http` nor `https`.
    #[error("{0:?} starts with neither http:// nor https://")]
    Scheme(String),
    /// The URL has a user name or a password.
    #[error("the URL contains a user name or password; credentials are configured separately")]
    UserInfo,
    /// The URL has a query or a fragment.
    #[error("{0:?} has a query or a fragment; only scheme, host, port and path are used")]
    Extra(String),
}

impl ServerUrl {
    /// Returns the URL of an HTTPS server. `host` may be an IPv6 address, with or without brackets.
    pub fn https(host: &str, port: u16) -> Result<Self, ServerUrlError> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };

        format!("https://{host}:{port}").parse()
    }

    /// Returns the scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the DNS name or the IP address, the latter without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port, which is the default of the scheme if the URL has none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path, without a slash at its end.
    pub fn base_path(&self) -> &str {
        &self.base_path
    }

    /// Returns the value of the Host header.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// Returns the request target for `uri`: its path and query, unchanged, below the base path.
    pub fn target(&self, uri: &Uri) -> Result<PathAndQuery, InvalidUri> {
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        // Without a slash, `*` and `?query` would be a part of the last segment of the base path.
        let slash = if path.starts_with('/') { "" } else { "/" };
        if self.base_path.is_empty() && slash.is_empty() {
            return Ok(uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
        }

        PathAndQuery::from_maybe_shared(format!("{}{slash}{path}", self.base_path))
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(url: &str) -> Result<Self, ServerUrlError> {
        let malformed = || ServerUrlError::Malformed(url.to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(malformed)?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        if authority.contains('@') {
            return Err(ServerUrlError::UserInfo);
        }
        // `Uri` would ignore a fragment.
        if rest.contains(['?', '#']) {
            return Err(ServerUrlError::Extra(url.to_owned()));
        }
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(ServerUrlError::Scheme(url.to_owned())),
        };
        let uri: Uri = url.parse().map_err(|_| malformed())?;
        let authority = uri.authority().ok_or_else(malformed)?;
        let host = authority.host();
        // `Authority` accepts "host:" and "host:99999", and then has neither a port nor an error.
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

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.authority.to_str().unwrap_or(&self.host);
        write!(f, "{}://{authority}{}", self.scheme, self.base_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(url: &str) -> ServerUrl {
        url.parse().unwrap()
    }

    #[test]
    fn url_is_parsed_into_its_parts() {
        let plain = url("https://kubernetes.default.svc");
        assert_eq!(
            (plain.scheme(), plain.host(), plain.port(), plain.base_path()),
            (Scheme::Https, "kubernetes.default.svc", 443, "")
        );
        assert_eq!(plain.authority(), "kubernetes.default.svc");

        let full = url("HTTP://[fd00::1]:9090/prom/%2f/");
        assert_eq!(
            (full.scheme(), full.host(), full.port(), full.base_path()),
            (Scheme::Http, "fd00::1", 9090, "/prom/%2f")
        );
        assert_eq!(full.authority(), "[fd00::1]:9090");
        assert_eq!(full.to_string(), "http://[fd00::1]:9090/prom/%2f");
    }

    #[test]
    fn ipv6_host_is_put_in_brackets() {
        for host in ["fd00::1", "[fd00::1]"] {
            let url = ServerUrl::https(host, 443).unwrap();
            assert_eq!((url.host(), url.to_string().as_str()), ("fd00::1", "https://[fd00::1]:443"));
        }
    }

    #[test]
    fn invalid_url_is_refused() {
        let refused = |url: &str| url.parse::<ServerUrl>().unwrap_err();
        assert_eq!(refused("https://user:hunter2@host/"), ServerUrlError::UserInfo);
        assert!(!refused("https://user:hunter2@host/?a").to_string().contains("hunter2"));
        for url in ["https://host/?a=b", "https://host#x", "https://host?"] {
            assert_eq!(refused(url), ServerUrlError::Extra(url.into()));
        }
        for url in ["unix:///run/api", "ftp://host"] {
            assert_eq!(refused(url), ServerUrlError::Scheme(url.into()));
        }
        for url in
            ["", "host:6443", "https://", "https://host:", "https://host:0", "https://h:99999", "https://a b"]
        {
            assert_eq!(refused(url), ServerUrlError::Malformed(url.into()), "{url}");
        }
        assert_eq!(refused("host").to_string(), r#""host" is not a URL; write it like https://host:6443"#);
    }

    #[test]
    fn target_keeps_its_bytes() {
        let target = |base: &str, uri: &'static str| {
            url(base).target(&Uri::from_static(uri)).unwrap().as_str().to_owned()
        };
        assert_eq!(target("http://h", "/a%2fb//c?x=%20&y"), "/a%2fb//c?x=%20&y");
        assert_eq!(target("http://h/", "//a/../b"), "//a/../b");
        assert_eq!(target("http://h/base/", "/a%2fb//c?x=%20&y"), "/base/a%2fb//c?x=%20&y");
        assert_eq!(target("http://h/base", "*"), "/base/*");
        assert_eq!(target("http://h/base", "/"), "/base/");
    }
}
