//! The MACs of the records in Redis that replicas act on.

use settings::Secret;
use store::redis::{RecordAuthenticator, RecordPlace};

use super::auth::{self, append};

/// Computes the MACs with the secret of all replicas.
#[derive(Debug)]
pub(super) struct SecretRecordAuthenticator(pub(super) Secret);

impl RecordAuthenticator for SecretRecordAuthenticator {
    fn sign(&self, place: RecordPlace<'_>, record: &[u8]) -> String {
        auth::sign(&self.0, &content(place, record))
    }

    fn verify(&self, place: RecordPlace<'_>, record: &[u8], mac: &str) -> bool {
        auth::verify(&self.0, &content(place, record), mac)
    }
}

/// Returns the bytes that the MAC covers. They begin like no other message that is signed with the secret.
fn content(RecordPlace { kind, key }: RecordPlace<'_>, record: &[u8]) -> Vec<u8> {
    let mut content = b"kas record v1".to_vec();
    append(&mut content, [kind, key]);
    content.extend_from_slice(record);
    content
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};

    use super::*;

    fn records(keys: &[u8]) -> SecretRecordAuthenticator {
        let lines: Vec<_> = keys.iter().map(|key| BASE64_STANDARD.encode([*key; 32])).collect();
        SecretRecordAuthenticator(Secret::parse(&lines.join("\n")).unwrap())
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
