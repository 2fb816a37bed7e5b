//! The addresses of servers whose name is not a setting of the cluster's owner.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns true if a Service, or a pod behind one, may have this address. Kubernetes itself refuses the others in an
/// EndpointSlice (`ValidateNonSpecialIP`), but a DNS name can be made to resolve to any address.
pub fn is_service_address(address: &IpAddr) -> bool {
    match embedded_v4(address) {
        IpAddr::V4(ip) => {
            !(ip.is_loopback()
                || ip.is_link_local()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_broadcast()
                || METADATA_V4.contains(&ip))
        }
        IpAddr::V6(ip) => {
            !(ip.is_loopback()
                || ip.is_unicast_link_local()
                || ip.is_unspecified()
                || ip.is_multicast()
                || METADATA.contains(&ip))
        }
    }
}

/// Returns the IPv4 address within an IPv6 address that is mapped (RFC 4291 section 2.5.5), or translated by NAT64 (RFC 6052).
fn embedded_v4(address: &IpAddr) -> IpAddr {
    let IpAddr::V6(ip) = address else { return *address };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
            if !ip.is_loopback() && !ip.is_unspecified() =>
        {
            IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => *address,
    }
}

/// The addresses of metadata services that are not link-local: of Alibaba, Azure and Oracle.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

/// The IPv6 addresses of metadata services, of AWS and of Google. That over IPv4, 169.254.169.254, is link-local.
const METADATA: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_link_local_and_metadata_addresses_are_refused() {
        for (address, may) in [
            ("10.96.0.10", true),
            ("100.64.0.1", true),
            ("192.0.2.1", true),
            ("fd00::1", true),
            ("2001:db8::1", true),
            ("::ffff:10.0.0.1", true),
            ("127.0.0.1", false),
            ("127.9.9.9", false),
            ("0.0.0.0", false),
            ("169.254.169.254", false),
            ("169.254.170.2", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("::ffff:169.254.169.254", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("fd00:ec2::254", false),
            ("fd20:ce::254", false),
            ("100.100.100.200", false),
            ("168.63.129.16", false),
            ("192.0.0.192", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("::169.254.169.254", false),
            ("64:ff9b::a00:1", true),
        ] {
            assert_eq!(is_service_address(&address.parse().unwrap()), may, "{address}");
        }
    }
}
