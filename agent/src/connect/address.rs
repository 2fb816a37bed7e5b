//! The address of kas: `ws(s)://host[:port][/prefix]`.

use std::{fmt, str::FromStr};

use crate::upstream::{Scheme, ServerUrl, ServerUrlError};

/// The address of kas's agent listener, or of a load balancer in front of it.
///
/// The path is kept unchanged: an ingress may serve kas below a prefix, and kas accepts tunnels at any path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KasAddress(ServerUrl);

/// The error for an invalid address. It does not contain the address if that has a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KasAddressError {
    /// The scheme is neither `wss` nor `ws`.
    #[error("{0:?} starts with neither wss:// nor ws://; write it like wss://kas.example.com")]
    Scheme(String),
    /// The rest of the URL is invalid.
    #[error("{}", ws(.0))]
    Url(ServerUrlError),
}

impl KasAddress {
    /// Returns the same address with the scheme `http` or `https`.
    pub fn url(&self) -> &ServerUrl {
        &self.0
    }

    /// Returns true for `wss`.
    pub fn is_secure(&self) -> bool {
        self.0.scheme() == Scheme::Https
    }

    /// Returns the path of the request that opens a tunnel.
    pub fn path(&self) -> &str {
        match self.0.base_path() {
            "" => "/",
            path => path,
        }
    }
}

impl FromStr for KasAddress {
    type Err = KasAddressError;

    fn from_str(text: &str) -> Result<Self, KasAddressError> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let http = match scheme.as_deref() {
            Some("wss") => format!("https{}", &text[3..]),
            Some("ws") => format!("http{}", &text[2..]),
            // The text is not shown, since a password may be before the `@`.
            _ if text.contains('@') => return Err(KasAddressError::Url(ServerUrlError::UserInfo)),
            _ => return Err(KasAddressError::Scheme(text.to_owned())),
        };

        http.parse().map(Self).map_err(KasAddressError::Url)
    }
}

impl fmt::Display for KasAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let http = self.0.to_string();
        f.write_str(&http.replacen("http", "ws", 1))
    }
}

fn ws(error: &ServerUrlError) -> String {
    match error {
        ServerUrlError::UserInfo => {
            "the address contains a user name or password; the token is configured separately".to_owned()
        }
        ServerUrlError::Extra(url) => {
            format!(
                "{:?} has a query or a fragment; only scheme, host, port and path are used",
                original(url)
            )
        }
        ServerUrlError::Malformed(url) | ServerUrlError::Scheme(url) => {
            format!("{:?} is not a URL; write it like wss://kas.example.com", original(url))
        }
    }
}

fn original(url: &str) -> String {
    url.replacen("http", "ws", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_parsed_into_its_parts() {
        let plain: KasAddress = "wss://kas.example.com".parse().unwrap();
        assert_eq!(
            (plain.url().host(), plain.url().port(), plain.path(), plain.is_secure()),
            ("kas.example.com", 443, "/", true)
        );
        let full: KasAddress = "WS://[fd00::1]:8150/-/kubernetes-agent/".parse().unwrap();
        assert_eq!(
            (full.url().host(), full.url().port(), full.path(), full.is_secure()),
            ("fd00::1", 8150, "/-/kubernetes-agent", false)
        );
        assert_eq!(full.to_string(), "ws://[fd00::1]:8150/-/kubernetes-agent");
    }

    #[test]
    fn invalid_address_is_refused_with_an_example() {
        let refused = |text: &str| text.parse::<KasAddress>().unwrap_err().to_string();
        for text in ["https://kas", "grpc://kas", "kas.example.com", ""] {
            assert!(refused(text).contains("write it like wss://kas.example.com"), "{text}");
        }
        assert_eq!(refused("wss://"), r#""wss://" is not a URL; write it like wss://kas.example.com"#);
        assert!(refused("wss://kas?x=y").contains("query"));
        for text in ["wss://user:hunter2@kas", "https://user:hunter2@kas", "user:hunter2@kas"] {
            assert!(!refused(text).contains("hunter2"), "{text}");
        }
    }
}
