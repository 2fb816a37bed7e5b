//! The address of GitLab: `https://gitlab.example.com/path`, or `unix:/path/to/socket`.

use std::{fmt, path::PathBuf, str::FromStr};

use http::{
    Uri,
    uri::{PathAndQuery, Scheme},
};
use serde::{Deserialize, Deserializer, de::Error as _};

/// The host in requests through a socket. GitLab does not use it.
const SOCKET_HOST: &str = "http://localhost/";

/// The address of GitLab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitLabAddress {
    /// The URL, whose path ends without a slash.
    base: Uri,
    /// The socket to which requests are sent, in place of the host of the URL.
    socket: Option<PathBuf>,
}

/// The error of a text that is not the address of a GitLab.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a GitLab: https://gitlab.example.com or unix:/path/to/socket")]
pub struct GitLabAddressError(String);

impl GitLabAddress {
    /// Returns the URL of a path, which begins with a slash, and a query, which may be empty.
    pub(super) fn url(&self, path: &str, query: &str) -> Uri {
        let base = self.path();
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        let mut parts = self.base.clone().into_parts();
        let path = PathAndQuery::try_from(format!("{base}{path}{query}"));
        parts.path_and_query = Some(path.expect("the paths are literals, and queries are percent-encoded"));
        Uri::from_parts(parts).expect("the base has a scheme and a host")
    }

    /// Returns the path of the URL, without a slash at the end.
    pub(super) fn path(&self) -> &str {
        self.base.path().trim_end_matches('/')
    }

    /// Returns whether connections use TLS.
    pub fn is_secure(&self) -> bool {
        self.base.scheme() == Some(&Scheme::HTTPS)
    }

    pub(super) fn socket(&self) -> Option<&PathBuf> {
        self.socket.as_ref()
    }
}

impl FromStr for GitLabAddress {
    type Err = GitLabAddressError;

    fn from_str(text: &str) -> Result<Self, GitLabAddressError> {
        let wrong = || GitLabAddressError(text.chars().take(100).collect());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(wrong());
            }
            return Ok(Self { base: Uri::from_static(SOCKET_HOST), socket: Some(PathBuf::from(path)) });
        }
        let base: Uri = text.parse().map_err(|_| wrong())?;
        let known = matches!(base.scheme_str(), Some("http" | "https"));
        let user = base.authority().is_none_or(|authority| authority.as_str().contains('@'));
        if !known || user || base.host().is_none_or(str::is_empty) || base.query().is_some() {
            return Err(wrong());
        }
        Ok(Self { base, socket: None })
    }
}

impl<'de> Deserialize<'de> for GitLabAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for GitLabAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(path) => write!(f, "unix:{}", path.display()),
            None => fmt::Display::fmt(&self.base, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_appended_to_the_path_of_the_address() {
        for (address, url) in [
            ("https://gitlab.example.com", "https://gitlab.example.com/api/v4/x?id=1"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/api/v4/x?id=1"),
            ("https://example.com/gitlab/", "https://example.com/gitlab/api/v4/x?id=1"),
            ("unix:/var/opt/gitlab/socket", "http://localhost/api/v4/x?id=1"),
        ] {
            let address: GitLabAddress = address.parse().unwrap();
            assert_eq!(address.url("/api/v4/x", "id=1").to_string(), url);
        }
        let address: GitLabAddress = "unix:///run/s".parse().unwrap();
        assert_eq!(address.socket(), Some(&PathBuf::from("/run/s")));
    }

    #[test]
    fn other_text_is_refused() {
        for text in
            ["", "gitlab", "gitlab.com:443", "ftp://a", "https://", "https://u:p@a", "http://a?b", "unix:a"]
        {
            assert!(text.parse::<GitLabAddress>().is_err(), "{text}");
        }
    }
}
