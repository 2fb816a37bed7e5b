//! The addresses of servers whose name is not a setting of the cluster's owner.

use std::net::{IpAddr, Ipv6Addr};

/// Returns true if a Service, or a pod behind one, may have this address. Kubernetes itself refuses the others in an
/// EndpointSlice (`ValidateNonSpecialIP`), but a DNS name can be made to resolve to any address.
pub(crate) fn is_service_address(address: &IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_loopback()
                || ip.is_link_local()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_broadcast())
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
        ] {
            assert_eq!(is_service_address(&address.parse().unwrap()), may, "{address}");
        }
    }
}
