//! The MACs of the URLs that replicas publish in Redis.

use proto::ReplicaId;
use settings::Secret;
use store::redis::UrlAuthenticator;

use super::auth::{self, append};

/// Computes the MACs with the secret of all replicas.
#[derive(Debug)]
pub(super) struct SecretUrlAuthenticator(pub(super) Secret);

impl UrlAuthenticator for SecretUrlAuthenticator {
    fn sign(&self, replica: ReplicaId, fleet: &str, url: &str) -> String {
        auth::sign(&self.0, &content(replica, fleet, url))
    }

    fn verify(&self, replica: ReplicaId, fleet: &str, url: &str, mac: &str) -> bool {
        auth::verify(&self.0, &content(replica, fleet, url), mac)
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
    use base64::{Engine as _, prelude::BASE64_STANDARD};

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
