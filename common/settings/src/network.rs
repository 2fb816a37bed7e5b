//! IP networks in CIDR notation.

use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use serde::Deserialize;

/// An IP network, like 10.0.0.0/8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(IpNet);

/// The error of a text that is not a network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The text is not in CIDR notation.
    #[error("{0:?} is not a network: write it like 10.0.0.0/8, or 10.0.0.1/32 for one address")]
    Malformed(String),
    /// The address has bits outside of the network.
    #[error("{0:?} has an address within its network: write {1}, or another length")]
    HostBits(String, IpNet),
    /// The addresses are those of IPv4, mapped to IPv6. No client has such an address.
    #[error("{0:?} has addresses of IPv4 in the notation of IPv6: write {1}")]
    Mapped(String, Ipv4Net),
}

impl From<Network> for IpNet {
    fn from(network: Network) -> Self {
        network.0
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let net: IpNet = text.parse().map_err(|_| NetworkError::Malformed(text.to_owned()))?;
        if net.trunc() != net {
            return Err(NetworkError::HostBits(text.to_owned(), net.trunc()));
        }
        if let IpNet::V6(net) = net
            && let Some(address) = net.addr().to_ipv4_mapped()
            && let Some(length) = net.prefix_len().checked_sub(96)
        {
            let net = Ipv4Net::new(address, length).expect("the length is at most 32");
            return Err(NetworkError::Mapped(text.to_owned(), net));
        }
        Ok(Self(net))
    }
}

impl TryFrom<String> for Network {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, NetworkError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_is_an_address_and_a_length() {
        for text in ["10.0.0.0/8", "10.0.0.1/32", "fd00::/8", "0.0.0.0/0", "::/0"] {
            assert!(text.parse::<Network>().is_ok(), "{text}");
        }
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1/32 for one address"),
            ("10.0.0.0/33", "is not a network"),
            ("lan", "is not a network"),
            ("10.0.0.5/8", "write 10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "write 10.0.0.0/8"),
            ("::ffff:10.0.0.1/128", "write 10.0.0.1/32"),
            ("::ffff:0:0/96", "write 0.0.0.0/0"),
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
