//! Where kas is: `ws(s)://host[:port][/prefix]`.

use std::{fmt, str::FromStr};

use crate::upstream::{Endpoint, EndpointError, Scheme};

/// The address of kas's agent listener, or of what stands before it.
///
/// The path is kept as it is: an ingress may serve kas below a prefix, and kas takes tunnels at any path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(Endpoint);

/// What is wrong with an address. The address itself is not shown when it contains a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Another scheme, or none.
    #[error("{0:?} starts with neither wss:// nor ws://; write it like wss://kas.example.com")]
    Scheme(String),
    /// Anything else.
    #[error("{}", ws(.0))]
    Url(EndpointError),
}

impl Address {
    /// The same address, as HTTP says it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.0
    }

    /// Whether TLS is spoken there.
    pub fn is_secure(&self) -> bool {
        self.0.scheme() == Scheme::Https
    }

    /// The path of the request that opens a tunnel.
    pub fn path(&self) -> &str {
        match self.0.base_path() {
            "" => "/",
            path => path,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let http = match scheme.as_deref() {
            Some("wss") => format!("https{}", &text[3..]),
            Some("ws") => format!("http{}", &text[2..]),
            // Where `@` may stand for a password, the text stays unseen.
            _ if text.contains('@') => return Err(AddressError::Url(EndpointError::UserInfo)),
            _ => return Err(AddressError::Scheme(text.to_owned())),
        };

        http.parse().map(Self).map_err(AddressError::Url)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let http = self.0.to_string();
        f.write_str(&http.replacen("http", "ws", 1))
    }
}

fn ws(error: &EndpointError) -> String {
    match error {
        EndpointError::UserInfo => {
            "the address contains a user name or password; the token is configured separately".to_owned()
        }
        EndpointError::Extra(url) => {
            format!(
                "{:?} has a query or a fragment; only scheme, host, port and path are used",
                original(url)
            )
        }
        EndpointError::Malformed(url) | EndpointError::Scheme(url) => {
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
    fn the_parts_of_an_address() {
        let plain: Address = "wss://kas.example.com".parse().unwrap();
        assert_eq!(
            (plain.endpoint().host(), plain.endpoint().port(), plain.path(), plain.is_secure()),
            ("kas.example.com", 443, "/", true)
        );
        let full: Address = "WS://[fd00::1]:8150/-/kubernetes-agent/".parse().unwrap();
        assert_eq!(
            (full.endpoint().host(), full.endpoint().port(), full.path(), full.is_secure()),
            ("fd00::1", 8150, "/-/kubernetes-agent", false)
        );
        assert_eq!(full.to_string(), "ws://[fd00::1]:8150/-/kubernetes-agent");
    }

    #[test]
    fn a_bad_address_is_refused_with_an_example() {
        let refused = |text: &str| text.parse::<Address>().unwrap_err().to_string();
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
