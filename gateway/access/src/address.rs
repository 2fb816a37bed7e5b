//! The addresses of clients: the networks that may connect, and the key of an address in rate limits.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use settings::Network;
use sha2::{Digest as _, Sha256};

pub use strangers::site;

/// The networks from which clients may connect: all addresses, or those of a list. Clones are cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedNetworks(Arc<[IpNet]>);

/// Returns a digest of the address, or of its /64 for IPv6: Redis holds no addresses.
pub fn address_key(address: IpAddr) -> [u8; 16] {
    let digest = Sha256::new().chain_update(b"kas address\0");
    let digest = match site(address).addr() {
        IpAddr::V4(address) => digest.chain_update(address.octets()),
        IpAddr::V6(address) => digest.chain_update(address.octets()),
    };
    *digest.finalize().first_chunk().expect("a digest has 32 bytes")
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
    fn addresses_of_one_site_have_one_key() {
        let key = |address: &str| address_key(address.parse().unwrap());
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:ffff:ffff:ffff"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
    }
}
