//! The MACs of the URLs that replicas publish in Redis.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::Mac as _;
use proto::ReplicaId;
use router::redis::UrlAuthenticator;
use settings::Secret;

use super::auth::append;

/// Computes the MACs with the secret of all replicas.
#[derive(Debug)]
pub(super) struct SecretUrlAuthenticator(pub(super) Secret);

impl UrlAuthenticator for SecretUrlAuthenticator {
    fn sign(&self, replica: ReplicaId, fleet: &str, url: &str) -> String {
        let mac = self.0.keys().signing().hmac().chain_update(content(replica, fleet, url)).finalize();
        BASE64_URL_SAFE_NO_PAD.encode(mac.into_bytes())
    }

    fn verify(&self, replica: ReplicaId, fleet: &str, url: &str, mac: &str) -> bool {
        let Ok(mac) = BASE64_URL_SAFE_NO_PAD.decode(mac) else { return false };
        let content = content(replica, fleet, url);
        self.0.keys().iter().any(|key| key.hmac().chain_update(&content).verify_slice(&mac).is_ok())
    }
}

/// Returns the bytes that the MAC covers. They begin like no other message that is signed with the secret.
fn content(replica: ReplicaId, fleet: &str, url: &str) -> Vec<u8> {
    let mut content = b"kas replica url v1".to_vec();
    content.extend_from_slice(&replica.to_bytes());
    append(&mut content, [fleet, url]);
    content
}

#[cfg(test)]
mod tests {
    use base64::prelude::BASE64_STANDARD;

    use super::*;

    fn urls(keys: &[u8]) -> SecretUrlAuthenticator {
        let lines: Vec<_> = keys.iter().map(|key| BASE64_STANDARD.encode([*key; 32])).collect();
        SecretUrlAuthenticator(Secret::parse(&lines.join("\n")).unwrap())
    }

    #[test]
    fn mac_is_valid_for_one_replica_fleet_and_url() {
        let (id, other) = (ReplicaId::random(), ReplicaId::random());
        let mac = urls(&[1]).sign(id, "blue", "http://a:8155");
        let verify = |keys: &[u8], id, fleet, url| urls(keys).verify(id, fleet, url, &mac);
        assert!(verify(&[1], id, "blue", "http://a:8155"));
        assert!(verify(&[2, 1], id, "blue", "http://a:8155"), "the key is being replaced");
        assert!(!verify(&[2], id, "blue", "http://a:8155"), "another secret");
        assert!(!verify(&[1], other, "blue", "http://a:8155"), "another replica");
        assert!(!verify(&[1], id, "green", "http://a:8155"), "another fleet");
        assert!(!verify(&[1], id, "blue", "http://b:8155"), "another URL");
        assert!(!verify(&[1], id, "bluehttp://", "a:8155"));
        for bad in ["", "x", "=", &mac[1..], &format!("{mac}=")] {
            assert!(!urls(&[1]).verify(id, "blue", "http://a:8155", bad), "{bad}");
        }
    }
}
