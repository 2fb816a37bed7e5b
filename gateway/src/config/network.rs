//! A network, as people write it.

use std::str::FromStr;

use ipnet::IpNet;
use serde::Deserialize;

/// Addresses with the same beginning, like 10.0.0.0/8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(IpNet);

/// A text that is no network.
#[derive(Debug, thiserror::Error)]
pub enum NotANetwork {
    /// Of any kind.
    #[error("{0:?} is not a network: write it like 10.0.0.0/8, or 10.0.0.1/32 for one address")]
    Malformed(String),
    /// More of the address is given than the network has: one of the two is a mistake.
    #[error("{0:?} has an address within its network: {1} is meant, or another length")]
    HostBits(String, IpNet),
}

impl From<Network> for IpNet {
    fn from(network: Network) -> Self {
        network.0
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let net: IpNet = text.parse().map_err(|_| NotANetwork::Malformed(text.to_owned()))?;
        if net.trunc() != net {
            return Err(NotANetwork::HostBits(text.to_owned(), net.trunc()));
        }
        Ok(Self(net))
    }
}

impl TryFrom<String> for Network {
    type Error = NotANetwork;

    fn try_from(text: String) -> Result<Self, NotANetwork> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_an_address_and_a_length() {
        for text in ["10.0.0.0/8", "10.0.0.1/32", "fd00::/8", "0.0.0.0/0"] {
            assert!(text.parse::<Network>().is_ok(), "{text}");
        }
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1/32 for one address"),
            ("10.0.0.0/33", "is not a network"),
            ("lan", "is not a network"),
            ("10.0.0.5/8", "10.0.0.0/8 is meant"),
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
