//! The rules of a listener about the addresses of its clients.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::HeaderMap;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Deserialize;
use settings::{AllowedNetworks, Network, is_within};

use crate::forwarded::{ForwardedFor, PeerAddress};

/// The header with which a proxy of TCP reports the address of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocol {
    /// Connections have no header.
    #[default]
    Off,
    /// Each connection begins with a header of version 2.
    V2,
}

/// The rules of a listener about addresses. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub struct AddressRules {
    /// Proxies whose PROXY header and `X-Forwarded-For` are trusted.
    trusted_proxies: Arc<[IpNet]>,
    /// The version of the PROXY header that begins each connection, if any.
    proxy_protocol: ProxyProtocol,
    /// The networks of clients.
    allowed: AllowedNetworks,
}

impl AddressRules {
    /// Creates the rules of a listener from its keys.
    pub fn new(
        trusted_proxies: &[Network],
        proxy_protocol: ProxyProtocol,
        allowed_networks: &[Network],
    ) -> Self {
        let trusted_proxies = trusted_proxies.iter().copied().map(IpNet::from).collect();
        Self { trusted_proxies, proxy_protocol, allowed: AllowedNetworks::new(allowed_networks) }
    }

    /// Creates the rules of a listener without proxies.
    pub fn without_proxies(allowed_networks: &[Network]) -> Self {
        Self::new(&[], ProxyProtocol::Off, allowed_networks)
    }

    /// Returns whether each connection begins with a PROXY header.
    pub fn expects_proxy_header(&self) -> bool {
        self.proxy_protocol == ProxyProtocol::V2
    }

    /// Returns the proxies whose `X-Forwarded-For` is trusted.
    pub fn trusted_proxies(&self) -> &[IpNet] {
        &self.trusted_proxies
    }

    /// Returns whether the PROXY header and the `X-Forwarded-For` of an address are trusted.
    pub fn trusts(&self, address: IpAddr) -> bool {
        is_within(&self.trusted_proxies, address)
    }

    /// Returns whether a connection from the address is served. The requests in a connection of a proxy may be those of other
    /// clients, so that each of them is checked with [`Self::allows`].
    pub fn admits(&self, address: IpAddr) -> bool {
        self.allows(address) || self.trusts(address)
    }

    /// Returns whether the requests of a client at this address are served.
    pub fn allows(&self, client: IpAddr) -> bool {
        self.allowed.contains(client)
    }

    /// Returns the address of the client of a request that came over a connection from `peer`.
    pub fn client(&self, headers: &HeaderMap, peer: SocketAddr) -> IpAddr {
        self.client_of(headers, &PeerAddress::new(peer.ip()))
    }

    /// Returns the address of the client of a request that came over a connection from `peer`.
    pub fn client_of(&self, headers: &HeaderMap, peer: &PeerAddress) -> IpAddr {
        ForwardedFor::new(headers, peer, &self.trusted_proxies).client
    }
}

/// Returns the address with an IPv4 address in place of one that is mapped to IPv6. A socket for both has such peers.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(list: &[&str]) -> Vec<Network> {
        list.iter().map(|network| network.parse().unwrap()).collect()
    }

    #[test]
    fn proxy_may_connect_and_its_own_requests_may_not() {
        let rules =
            AddressRules::new(&networks(&["10.0.0.0/8"]), ProxyProtocol::Off, &networks(&["192.0.2.0/24"]));
        for (address, admits, allows) in
            [("192.0.2.7", true, true), ("10.0.0.1", true, false), ("198.51.100.7", false, false)]
        {
            let address = address.parse().unwrap();
            assert_eq!((rules.admits(address), rules.allows(address)), (admits, allows), "{address}");
        }
    }

    #[test]
    fn mapped_address_is_that_of_ipv4() {
        assert_eq!(canonical("[::ffff:192.0.2.1]:7".parse().unwrap()), "192.0.2.1:7".parse().unwrap());
        assert_eq!(canonical("[2001:db8::1]:7".parse().unwrap()), "[2001:db8::1]:7".parse().unwrap());
    }
}
