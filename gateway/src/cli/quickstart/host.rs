//! A name or an address of this machine.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};

/// A name or an IP address, as a certificate has it. An IPv6 address has no brackets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Host(String);

/// The error of a text that is no [`Host`].
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is neither a name nor an IP address: write it like kas.example.com or 192.0.2.7, without a port"
)]
pub(super) struct InvalidHost(String);

impl Host {
    /// Returns the host as URLs have it.
    pub(super) fn in_url(&self) -> String {
        match self.0.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]"),
            Err(_) => self.0.clone(),
        }
    }
}

impl FromStr for Host {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |_| InvalidHost(text.to_owned());
        ServerName::try_from(text).map(|_| Self(text.to_owned())).map_err(invalid)
    }
}

impl TryFrom<String> for Host {
    type Error = InvalidHost;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.0
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self(address.to_string())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_has_no_scheme_and_no_port() {
        for (text, in_url) in [
            ("kas.example.com", "kas.example.com"),
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8::1", "[2001:db8::1]"),
        ] {
            assert_eq!(text.parse::<Host>().unwrap().in_url(), in_url);
        }
        for bad in ["", "kas:8150", "wss://kas", "[::1]", "a b", "$(id)", "kas/a", "*.kas"] {
            assert!(bad.parse::<Host>().is_err(), "{bad}");
        }
    }
}
