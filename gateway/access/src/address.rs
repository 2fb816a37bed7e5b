//! The key of the address of a client in rate limits.

use std::net::IpAddr;

use sha2::{Digest as _, Sha256};

pub use strangers::site;

/// Returns a digest of the address, or of its /64 for IPv6: Redis holds no addresses.
pub fn address_key(address: IpAddr) -> [u8; 16] {
    let digest = Sha256::new().chain_update(b"kas address\0");
    let digest = match site(address).addr() {
        IpAddr::V4(address) => digest.chain_update(address.octets()),
        IpAddr::V6(address) => digest.chain_update(address.octets()),
    };
    *digest.finalize().first_chunk().expect("a digest has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_site_have_one_key() {
        let key = |address: &str| address_key(address.parse().unwrap());
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:ffff:ffff:ffff"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
    }
}
