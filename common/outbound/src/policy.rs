//! The addresses that kas may dial. Files name hosts, and DNS may resolve a name to any address: without these rules, whoever controls the
//! name of an agent or of the receiver of a webhook could reach services of the network of kas (SSRF).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use settings::Network;

/// The networks that are refused unless a configured network lies within them: the kind for messages, and the network.
const REFUSED: [(&str, &str); 21] = [
    ("a loopback address", "127.0.0.0/8"),
    ("a loopback address", "::1/128"),
    ("a link-local address", "169.254.0.0/16"),
    ("a link-local address", "fe80::/10"),
    ("an unspecified address", "0.0.0.0/8"),
    ("an unspecified address", "::/128"),
    ("a multicast address", "224.0.0.0/4"),
    ("a multicast address", "ff00::/8"),
    ("a reserved address", "240.0.0.0/4"),
    // The metadata services of clouds, which give credentials to every client.
    ("the address of a metadata service", "169.254.169.254/32"),
    ("the address of a metadata service", "169.254.170.2/32"),
    ("the address of a metadata service", "169.254.170.23/32"),
    ("the address of a metadata service", "fd00:ec2::254/128"),
    ("the address of a metadata service", "fd00:ec2::23/128"),
    ("the address of a metadata service", "fd20:ce::254/128"),
    ("the address of a metadata service", "100.100.100.200/32"),
    ("the address of a metadata service", "168.63.129.16/32"),
    ("the address of a metadata service", "192.0.0.192/32"),
    ("a site-local address", "fec0::/10"),
    // Gateways translate them to any IPv4 address (RFC 8215, RFC 2765).
    ("a translated address", "64:ff9b:1::/48"),
    ("a translated address", "::ffff:0:0:0/96"),
];

/// The networks that are refused in addition, where kas has no business in its own network.
const PRIVATE: [(&str, &str); 6] = [
    ("a private address", "10.0.0.0/8"),
    ("a private address", "172.16.0.0/12"),
    ("a private address", "192.168.0.0/16"),
    ("a private address", "fc00::/7"),
    ("an address of a carrier's network", "100.64.0.0/10"),
    ("an address for benchmarks", "198.18.0.0/15"),
];

/// The rules for addresses that kas dials.
#[derive(Clone, Debug)]
pub struct AddressPolicy {
    /// The key of the configuration with the networks.
    key: &'static str,
    allowed: Vec<IpNet>,
    refused: Vec<(&'static str, IpNet)>,
}

/// The reason for which kas does not dial an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The address has a special meaning.
    #[error("{address} is {kind}, which {key} does not name")]
    Refused {
        /// The address.
        address: IpAddr,
        /// The special meaning.
        kind: &'static str,
        /// The key of the configuration.
        key: &'static str,
    },
    /// The address is in none of the networks that are allowed.
    #[error("{address} is in none of the networks of {key}")]
    NotAllowed {
        /// The address.
        address: IpAddr,
        /// The key of the configuration.
        key: &'static str,
    },
}

impl AddressPolicy {
    /// Allows the networks of the list, or every address if it is empty. Addresses with a special meaning are refused unless a
    /// network of the list lies within their range: `0.0.0.0/0` does not allow them.
    /// `key` is the one of the configuration with the list.
    pub fn new(key: &'static str, allowed: &[Network]) -> Self {
        let refused = REFUSED.map(parse);
        Self { key, allowed: allowed.iter().copied().map(IpNet::from).collect(), refused: refused.into() }
    }

    /// Refuses private addresses, too, unless a network of the list lies within their range.
    #[must_use]
    pub fn without_private(mut self) -> Self {
        self.refused.extend(PRIVATE.map(parse));
        self
    }

    /// Checks an address before kas connects to it.
    ///
    /// # Errors
    ///
    /// The rules refuse the address.
    pub fn check(&self, address: IpAddr) -> Result<(), AddressError> {
        let address = address.to_canonical();
        let is_allowed = self.allowed.iter().any(|network| network.contains(&address));
        if !self.allowed.is_empty() && !is_allowed {
            return Err(AddressError::NotAllowed { address, key: self.key });
        }
        let inner = embedded(address).map(IpAddr::V4);
        match [address].into_iter().chain(inner).find_map(|address| self.refused_kind(address)) {
            Some(kind) => Err(AddressError::Refused { address, kind, key: self.key }),
            None => Ok(()),
        }
    }

    /// Returns the special meaning of an address, unless a network of the list is named for it.
    fn refused_kind(&self, address: IpAddr) -> Option<&'static str> {
        let of_address = self.refused.iter().filter(|(_, range)| range.contains(&address));
        let mut unnamed = of_address.filter(|(_, range)| {
            !self.allowed.iter().any(|network| range.contains(network) && network.contains(&address))
        });
        unnamed.next().map(|(kind, _)| *kind)
    }
}

fn parse((kind, network): (&'static str, &str)) -> (&'static str, IpNet) {
    (kind, network.parse().expect("a constant network"))
}

/// Returns the IPv4 address to which a gateway translates an IPv6 address: NAT64 (RFC 6052), 6to4 (RFC 3056), IPv4-compatible
/// addresses (RFC 4291 section 2.5.5.1).
fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        _ if address == Ipv6Addr::LOCALHOST || address == Ipv6Addr::UNSPECIFIED => None,
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] | [0, 0, 0, 0, 0, 0, high, low] => {
            Some(v4(high, low))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(networks: &[&str]) -> AddressPolicy {
        let networks: Vec<Network> = networks.iter().map(|network| network.parse().unwrap()).collect();
        AddressPolicy::new("agent.receptive.allowed_networks", &networks)
    }

    fn allows(networks: &[&str], address: &str) -> bool {
        policy(networks).check(address.parse().unwrap()).is_ok()
    }

    #[test]
    fn special_addresses_are_refused_by_default() {
        for address in [
            "127.0.0.1",
            "127.8.9.10",
            "::1",
            "::ffff:127.0.0.1",
            "169.254.1.1",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.100.100.200",
            "168.63.129.16",
            "64:ff9b:1::a9fe:a9fe",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::127.0.0.1",
            "2002:7f00:1::",
            "::127.0.0.1",
        ] {
            assert!(!allows(&[], address), "{address}");
            assert!(!allows(&["0.0.0.0/0", "::/0"], address), "{address}");
        }
    }

    #[test]
    fn other_addresses_are_allowed_by_default() {
        for address in
            ["10.0.0.1", "192.168.1.1", "203.0.113.7", "2001:db8::1", "fd12::1", "64:ff9b::8.8.8.8"]
        {
            assert!(allows(&[], address), "{address}");
            assert!(allows(&["0.0.0.0/0", "::/0"], address), "{address}");
        }
    }

    #[test]
    fn private_addresses_have_to_be_named_if_they_are_refused() {
        let allows = |networks: &[&str], address: &str| {
            policy(networks).without_private().check(address.parse().unwrap()).is_ok()
        };
        for address in [
            "10.0.0.1",
            "172.31.0.1",
            "192.168.1.1",
            "fd12::1",
            "100.64.0.1",
            "64:ff9b::10.0.0.1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!allows(&[], address), "{address}");
            assert!(!allows(&["0.0.0.0/0", "::/0"], address), "{address}");
        }
        assert!(allows(&[], "203.0.113.7") && allows(&[], "2001:db8::1"));
        assert!(allows(&["10.1.0.0/16"], "10.1.2.3") && !allows(&["10.1.0.0/16"], "10.2.0.1"));
    }

    #[test]
    fn only_named_networks_are_allowed() {
        let office = &["10.1.0.0/16", "127.0.0.0/8", "2001:db8::/32"];
        for (address, expected) in [
            ("10.1.2.3", true),
            ("10.2.0.1", false),
            ("127.0.0.1", true),
            ("::1", false),
            ("2001:db8::7", true),
            ("203.0.113.7", false),
        ] {
            assert_eq!(allows(office, address), expected, "{address}");
        }
    }

    #[test]
    fn metadata_service_has_to_be_named_itself() {
        assert!(allows(&["169.254.0.0/16"], "169.254.1.1"));
        assert!(!allows(&["169.254.0.0/16"], "169.254.169.254"));
        let both = &["169.254.0.0/16", "169.254.169.254/32"];
        assert!(allows(both, "169.254.169.254"));
        assert!(allows(&["64:ff9b::/96"], "64:ff9b::8.8.8.8"));
    }

    #[test]
    fn error_names_the_address_and_the_reason() {
        let error = policy(&[]).check("::ffff:169.254.1.1".parse().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("169.254.1.1 is a link-local address, which agent.receptive"), "{error}");
    }
}
