use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// The bits of an IPv6 address that one site has (RFC 6177). A client may use any address of its /64.
const SITE: u128 = !0 << 64;

/// Returns the network that limits count as one client: an IPv4 address, or the /64 of an IPv6 address.
pub fn site(address: IpAddr) -> IpNet {
    match address.to_canonical() {
        address @ IpAddr::V4(_) => address.into(),
        IpAddr::V6(address) => {
            let network = IpAddr::V6(Ipv6Addr::from(u128::from(address) & SITE));
            IpNet::new(network, 64).expect("64 is a length of IPv6")
        }
    }
}
