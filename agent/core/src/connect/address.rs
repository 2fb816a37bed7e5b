//! The address of kas: `ws(s)://host[:port][/prefix]`, or `grpc(s)://host[:port]` for GitLab's kas.

use std::{fmt, str::FromStr};

use crate::upstream::{Scheme, ServerUrl, ServerUrlError};

/// The address of kas's agent listener, or of a load balancer in front of it.
///
/// The path is kept unchanged: an ingress may serve kas below a prefix, and kas accepts tunnels at any path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KasAddress {
    /// The same address with the scheme `http` or `https`.
    url: ServerUrl,
    transport: Transport,
}

/// The protocol below the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// `ws` and `wss`.
    WebSocket,
    /// `grpc` and `grpcs`: HTTP/2 without a WebSocket, which only GitLab's kas accepts.
    Http2,
}

/// The error for an invalid address. It does not contain the address if that has a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KasAddressError {
    /// The scheme is unknown.
    #[error(
        "{0:?} starts with none of wss://, ws://, grpcs:// and grpc://; write it like wss://kas.example.com"
    )]
    Scheme(String),
    /// An address of gRPC has a path.
    #[error("{0:?} has a path, which gRPC does not support; write it like grpcs://kas.example.com:8150")]
    Path(String),
    /// The rest of the URL is invalid.
    #[error("{}", describe(.0, .1))]
    Url(ServerUrlError, &'static str),
}

impl KasAddress {
    /// Returns the same address with the scheme `http` or `https`.
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Returns true for `wss` and `grpcs`.
    pub fn is_secure(&self) -> bool {
        self.url.scheme() == Scheme::Https
    }

    /// Returns true for `grpc` and `grpcs`.
    pub fn is_grpc(&self) -> bool {
        self.transport == Transport::Http2
    }

    /// Returns the path of the request that opens a tunnel.
    pub fn path(&self) -> &str {
        match self.url.base_path() {
            "" => "/",
            path => path,
        }
    }
}

impl Transport {
    /// Returns the scheme without TLS.
    const fn scheme(self) -> &'static str {
        match self {
            Self::WebSocket => "ws",
            Self::Http2 => "grpc",
        }
    }
}

impl FromStr for KasAddress {
    type Err = KasAddressError;

    fn from_str(text: &str) -> Result<Self, KasAddressError> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let (transport, secure) = match scheme.to_ascii_lowercase().as_str() {
            "ws" => (Transport::WebSocket, false),
            "wss" => (Transport::WebSocket, true),
            "grpc" => (Transport::Http2, false),
            "grpcs" => (Transport::Http2, true),
            // The text is not shown, since a password may be before the `@`.
            _ if text.contains('@') => return Err(KasAddressError::Url(ServerUrlError::UserInfo, "ws")),
            _ => return Err(KasAddressError::Scheme(text.to_owned())),
        };
        let http = format!("http{}://{rest}", if secure { "s" } else { "" });
        let url: ServerUrl = http.parse().map_err(|error| KasAddressError::Url(error, transport.scheme()))?;
        if transport == Transport::Http2 && !url.base_path().is_empty() {
            return Err(KasAddressError::Path(text.to_owned()));
        }
        Ok(Self { url, transport })
    }
}

impl fmt::Display for KasAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url.to_string().replacen("http", self.transport.scheme(), 1))
    }
}

/// Describes the error of a URL whose scheme was replaced by `http`.
fn describe(error: &ServerUrlError, scheme: &str) -> String {
    let original = |url: &str| url.replacen("http", scheme, 1);
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
    fn address_of_grpc_has_no_path() {
        for (text, port, secure) in
            [("grpc://kas.example.com:8150", 8150, false), ("GRPCS://kas/", 443, true)]
        {
            let address: KasAddress = text.parse().unwrap();
            assert!(address.is_grpc());
            assert_eq!((address.url().port(), address.is_secure()), (port, secure));
            assert!(address.to_string().starts_with("grpc"), "{address}");
        }
        assert!(!"wss://kas".parse::<KasAddress>().unwrap().is_grpc());
        let error = "grpc://kas/prefix".parse::<KasAddress>().unwrap_err().to_string();
        assert!(error.starts_with(r#""grpc://kas/prefix" has a path"#), "{error}");
        let error = "grpcs://".parse::<KasAddress>().unwrap_err().to_string();
        assert!(error.starts_with(r#""grpcs://" is not a URL"#), "{error}");
    }

    #[test]
    fn invalid_address_is_refused_with_an_example() {
        let refused = |text: &str| text.parse::<KasAddress>().unwrap_err().to_string();
        for text in ["https://kas", "http2://kas", "kas.example.com", ""] {
            assert!(refused(text).contains("write it like wss://kas.example.com"), "{text}");
        }
        assert_eq!(refused("wss://"), r#""wss://" is not a URL; write it like wss://kas.example.com"#);
        assert!(refused("wss://kas?x=y").contains("query"));
        for text in ["wss://user:hunter2@kas", "https://user:hunter2@kas", "user:hunter2@kas"] {
            assert!(!refused(text).contains("hunter2"), "{text}");
        }
    }
}
