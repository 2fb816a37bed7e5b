//! IP networks in CIDR notation, and the networks from which clients may connect.

use std::{net::IpAddr, str::FromStr, sync::Arc};

use ipnet::{IpNet, Ipv4Net};
use serde::Deserialize;

/// An IP network, like 10.0.0.0/8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(IpNet);

/// The networks from which clients may connect: all addresses, or those of a list. Clones are cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedNetworks(Arc<[IpNet]>);

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

impl AllowedNetworks {
    /// Allows the networks of the list, or every address if it is empty.
    pub fn new(networks: &[Network]) -> Self {
        Self(networks.iter().copied().map(IpNet::from).collect())
    }

    /// Returns whether a client may connect from the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.is_empty() || is_within(&self.0, address)
    }
}

/// Returns whether one of the networks has the address.
pub fn is_within(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(list: &[&str]) -> Vec<Network> {
        list.iter().map(|network| network.parse().unwrap()).collect()
    }

    #[test]
    fn empty_list_allows_every_address() {
        let (all, office) =
            (AllowedNetworks::default(), AllowedNetworks::new(&networks(&["192.0.2.0/24", "2001:db8::/32"])));
        for (address, in_office) in
            [("192.0.2.7", true), ("2001:db8::7", true), ("198.51.100.7", false), ("::1", false)]
        {
            let address = address.parse().unwrap();
            assert_eq!((all.contains(address), office.contains(address)), (true, in_office), "{address}");
        }
    }

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
