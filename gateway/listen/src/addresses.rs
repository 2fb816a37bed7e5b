//! The addresses of the clients of a listener: its rules about them, and `X-Forwarded-For`, with which trusted proxies report them.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Deserialize;
use settings::{AllowedNetworks, Network, is_within};

/// The header with the addresses. Other forwarding headers are removed.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PREFIX: &str = "x-forwarded-";

/// The most proxies in front of kas.
const MAX_HOPS: usize = 32;

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

/// The address of the peer of a connection, prepared for all requests of the connection.
#[derive(Clone, Debug)]
pub struct PeerAddress {
    address: IpAddr,
    text: HeaderValue,
}

/// The addresses of the caller and of the proxies in front of kas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedFor {
    /// The address of the caller: the first trustworthy one.
    pub client: IpAddr,
    /// All trustworthy addresses, beginning with the caller.
    hops: HeaderValue,
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

impl PeerAddress {
    /// Prepares an address.
    pub fn new(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, text: joined(&[address]) }
    }
}

impl ForwardedFor {
    /// Reads the addresses of a request that came over a connection from `peer`.
    ///
    /// `X-Forwarded-For` is read from its end. Each entry was written by the proxy that follows it, and is used if that proxy is
    /// `trusted`. The entries before an untrusted proxy may be forged. If a trusted proxy wrote something else than an address,
    /// or if there are more than 32 trusted entries, the address is that of the connection.
    pub fn new(headers: &HeaderMap, peer: &PeerAddress, trusted: &[IpNet]) -> Self {
        let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
        let mut client = peer.address;
        let of_connection = || Self { client: peer.address, hops: peer.text.clone() };
        if !is_trusted(&client) {
            return of_connection();
        }
        let mut hops = vec![client];
        for entry in entries(headers) {
            if !is_trusted(&client) {
                break;
            }
            let Some(address) = entry.filter(|_| hops.len() <= MAX_HOPS) else { return of_connection() };
            client = address;
            hops.push(address);
        }
        hops.reverse();
        Self { client, hops: joined(&hops) }
    }

    /// Sets `X-Forwarded-For`. The API server writes it into its audit log (`sourceIPs`).
    pub fn write(&self, headers: &mut HeaderMap) {
        headers.insert(X_FORWARDED_FOR, self.hops.clone());
    }
}

fn joined(hops: &[IpAddr]) -> HeaderValue {
    let text = hops.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    HeaderValue::from_str(&text).expect("addresses are ASCII")
}

/// Returns whether a header names the addresses, host or scheme of a request.
pub fn is_forwarded(name: &HeaderName) -> bool {
    name.as_str().starts_with(FORWARDED_PREFIX) || matches!(name.as_str(), "forwarded" | "x-real-ip")
}

/// Returns the entries from the last to the first, and `None` for an entry that is no address.
fn entries(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines: Vec<&HeaderValue> = headers.get_all(X_FORWARDED_FOR).iter().collect();
    lines.into_iter().rev().flat_map(|line| {
        let line = line.to_str().unwrap_or_default();
        line.rsplit(',').map(|entry| address(entry.trim()))
    })
}

/// Parses an entry. Some proxies add the port.
fn address(entry: &str) -> Option<IpAddr> {
    let address = entry.parse().ok().or_else(|| entry.parse::<SocketAddr>().ok().map(|socket| socket.ip()));
    address.map(|address: IpAddr| address.to_canonical())
}

/// Returns the address with an IPv4 address in place of one that is mapped to IPv6. A socket for both has such peers.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use proto::hop_by_hop;

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

    fn read(peer: &str, lines: &[&str]) -> (String, String) {
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_FORWARDED_FOR, line.parse().unwrap());
        }
        headers.insert("forwarded", "for=1.1.1.1".parse().unwrap());
        headers.insert("x-forwarded-host", "evil.example".parse().unwrap());
        headers.insert("x-real-ip", "1.1.1.1".parse().unwrap());
        headers.insert("accept", "*/*".parse().unwrap());
        let forwarded = ForwardedFor::new(&headers, &PeerAddress::new(peer.parse().unwrap()), &trusted);
        hop_by_hop::remove_if(&mut headers, is_forwarded);
        forwarded.write(&mut headers);
        assert_eq!(headers.len(), 2, "{headers:?}");
        (forwarded.client.to_string(), headers["x-forwarded-for"].to_str().unwrap().to_owned())
    }

    #[test]
    fn header_of_untrusted_peer_is_ignored() {
        for lines in [&[][..], &["1.1.1.1"], &["10.0.0.1, 10.0.0.2"], &["\"><script>"]] {
            assert_eq!(read("192.0.2.1", lines), ("192.0.2.1".into(), "192.0.2.1".into()), "{lines:?}");
        }
    }

    #[test]
    fn entries_of_trusted_proxies_are_used() {
        for (lines, client, expected) in [
            (&[][..], "10.0.0.1", "10.0.0.1"),
            (&["192.0.2.1"], "192.0.2.1", "192.0.2.1, 10.0.0.1"),
            (&["192.0.2.1:5000"], "192.0.2.1", "192.0.2.1, 10.0.0.1"),
            (&["[2001:db8::1]:5000"], "2001:db8::1", "2001:db8::1, 10.0.0.1"),
            (&["192.0.2.1, 10.0.0.9"], "192.0.2.1", "192.0.2.1, 10.0.0.9, 10.0.0.1"),
            (&["192.0.2.1", "10.0.0.9"], "192.0.2.1", "192.0.2.1, 10.0.0.9, 10.0.0.1"),
            (&["1.1.1.1, 192.0.2.1, 10.0.0.9"], "192.0.2.1", "192.0.2.1, 10.0.0.9, 10.0.0.1"),
            (&["rubbish, 192.0.2.1, 10.0.0.9"], "192.0.2.1", "192.0.2.1, 10.0.0.9, 10.0.0.1"),
            (&["::ffff:192.0.2.1"], "192.0.2.1", "192.0.2.1, 10.0.0.1"),
        ] {
            assert_eq!(read("10.0.0.1", lines), (client.into(), expected.into()), "{lines:?}");
        }
        assert_eq!(read("::ffff:10.0.0.1", &["192.0.2.1"]).0, "192.0.2.1");
    }

    #[test]
    fn invalid_header_of_a_trusted_proxy_is_ignored() {
        let long = ["10.0.0.9"; 1000].join(", ");
        for lines in [
            &["192.0.2.1, unknown, 10.0.0.9"][..],
            &["rubbish"],
            &["192.0.2.1", ""],
            &["192.0.2.1,"],
            &["999.0.2.1"],
            &["192.0.2.1;10.0.0.9"],
            &[&long],
        ] {
            assert_eq!(read("10.0.0.1", lines), ("10.0.0.1".into(), "10.0.0.1".into()), "{lines:?}");
        }
    }

    /// A client could hide behind the address of the proxy otherwise.
    #[test]
    fn entries_that_the_client_sent_do_not_hide_the_client() {
        let forged = [&["10.0.0.9"; 1000].join(", "), "192.0.2.1"].join(", ");
        assert_eq!(read("10.0.0.1", &[&forged]), ("192.0.2.1".into(), "192.0.2.1, 10.0.0.1".into()));
    }
}
