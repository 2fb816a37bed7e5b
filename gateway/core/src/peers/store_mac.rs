//! The MACs of what replicas publish in Redis: their URLs, and the records that other replicas act on.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::Mac as _;
use proto::ReplicaId;
use settings::Secret;
use store::redis::{RecordAuthenticator, RecordPlace, UrlAuthenticator};

use super::auth::append;

/// Computes the MACs of URLs with the secret of all replicas.
#[derive(Debug)]
pub(super) struct SecretUrlAuthenticator(pub(super) Secret);

/// Computes the MACs of records with the secret of all replicas.
#[derive(Debug)]
pub(super) struct SecretRecordAuthenticator(pub(super) Secret);

impl UrlAuthenticator for SecretUrlAuthenticator {
    fn sign(&self, replica: ReplicaId, fleet: &str, url: &str) -> String {
        sign(&self.0, &url_content(replica, fleet, url))
    }

    fn verify(&self, replica: ReplicaId, fleet: &str, url: &str, mac: &str) -> bool {
        verify(&self.0, &url_content(replica, fleet, url), mac)
    }
}

impl RecordAuthenticator for SecretRecordAuthenticator {
    fn sign(&self, place: RecordPlace<'_>, record: &[u8]) -> String {
        sign(&self.0, &record_content(place, record))
    }

    fn verify(&self, place: RecordPlace<'_>, record: &[u8], mac: &str) -> bool {
        verify(&self.0, &record_content(place, record), mac)
    }
}

/// Returns the bytes that the MAC of a URL covers. They begin like no other message that is signed with the secret.
fn url_content(replica: ReplicaId, fleet: &str, url: &str) -> Vec<u8> {
    let mut content = b"kas replica url v1".to_vec();
    content.extend_from_slice(&replica.to_bytes());
    append(&mut content, [fleet, url]);
    content
}

/// Returns the bytes that the MAC of a record covers. They begin like no other message that is signed with the secret.
fn record_content(RecordPlace { kind, key }: RecordPlace<'_>, record: &[u8]) -> Vec<u8> {
    let mut content = b"kas record v1".to_vec();
    append(&mut content, [kind, key]);
    content.extend_from_slice(record);
    content
}

/// Returns the MAC of a text with the secret of all replicas, for a record in Redis.
fn sign(secret: &Secret, content: &[u8]) -> String {
    let mac = secret.keys().signing().hmac().chain_update(content).finalize();
    BASE64_URL_SAFE_NO_PAD.encode(mac.into_bytes())
}

/// Returns whether one of the keys of the secret has signed a text.
fn verify(secret: &Secret, content: &[u8], mac: &str) -> bool {
    let Ok(mac) = BASE64_URL_SAFE_NO_PAD.decode(mac) else { return false };
    secret.keys().iter().any(|key| key.hmac().chain_update(content).verify_slice(&mac).is_ok())
}

#[cfg(test)]
mod tests {
    use base64::prelude::BASE64_STANDARD;

    use super::*;

    fn secret(keys: &[u8]) -> Secret {
        let lines: Vec<_> = keys.iter().map(|key| BASE64_STANDARD.encode([*key; 32])).collect();
        Secret::parse(&lines.join("\n")).unwrap()
    }

    fn urls(keys: &[u8]) -> SecretUrlAuthenticator {
        SecretUrlAuthenticator(secret(keys))
    }

    fn records(keys: &[u8]) -> SecretRecordAuthenticator {
        SecretRecordAuthenticator(secret(keys))
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

    #[test]
    fn mac_is_valid_for_one_record_and_place() {
        let place = RecordPlace { kind: "views", key: "7" };
        let mac = records(&[1]).sign(place, b"{}");
        let verify = |keys: &[u8], place, record: &[u8]| records(keys).verify(place, record, &mac);
        assert!(verify(&[1], place, b"{}"));
        assert!(verify(&[2, 1], place, b"{}"), "the key is being replaced");
        assert!(!verify(&[2], place, b"{}"), "another secret");
        assert!(!verify(&[1], place, b"{} "), "another record");
        assert!(!verify(&[1], RecordPlace { key: "8", ..place }, b"{}"), "another agent");
        assert!(!verify(&[1], RecordPlace { kind: "events", ..place }, b"{}"), "another kind");
        assert!(!verify(&[1], RecordPlace { kind: "views7", key: "" }, b"{}"));
        for bad in ["", "x", "=", &mac[1..], &format!("{mac}=")] {
            assert!(!records(&[1]).verify(place, b"{}", bad), "{bad}");
        }
    }
}
