//! The MACs of what replicas act on: the URLs in heartbeats, and the records of events, views, environments and deployments.
//!
//! A program that can write to Redis can write a heartbeat, and kas sends requests of callers to the URLs in heartbeats. Without the MAC
//! of the replica, kas ignores a heartbeat.
//!
//! Whoever can write to Redis can write a record. Without the MAC of a replica, a record is ignored. A MAC is for one place, so that a record
//! cannot be copied to another one. It does not show that a record is the newest one: an older record of the same place is valid.

use std::{fmt, sync::Arc};

use proto::ReplicaId;

use super::RedisState;

/// The beginning and the end of the last key of a record, between which its MAC is.
const MAC: (&[u8], &[u8]) = (b",\"mac\":\"", b"\"}");

/// Signs and verifies the URLs of replicas with a secret that all of them share.
///
/// The id of a replica is that of one process, whose URL never changes. So a MAC that is copied from another heartbeat is of no use.
pub trait UrlAuthenticator: fmt::Debug + Send + Sync + 'static {
    /// Returns the MAC of the URL of a replica of a fleet, as text.
    fn sign(&self, replica: ReplicaId, fleet: &str, url: &str) -> String;

    /// Returns true if the MAC is that of the URL of this replica.
    fn verify(&self, replica: ReplicaId, fleet: &str, url: &str, mac: &str) -> bool;
}

/// Signs and verifies records with a secret that all replicas share.
pub trait RecordAuthenticator: fmt::Debug + Send + Sync + 'static {
    /// Returns the MAC of a record at its place, as text.
    fn sign(&self, place: RecordPlace<'_>, record: &[u8]) -> String;

    /// Returns true if the MAC is that of the record at this place.
    fn verify(&self, place: RecordPlace<'_>, record: &[u8], mac: &str) -> bool;
}

/// The place of a record in Redis.
#[derive(Clone, Copy, Debug)]
pub struct RecordPlace<'a> {
    /// The kind of the record.
    pub kind: &'static str,
    /// The thing that the record is about, among those of its kind.
    pub key: &'a str,
}

/// Adds the MAC to a JSON object, as its last key.
pub(super) fn seal(
    authenticator: Option<&Arc<dyn RecordAuthenticator>>,
    place: RecordPlace<'_>,
    record: &str,
) -> String {
    match (authenticator, record.strip_suffix('}')) {
        (Some(authenticator), Some(object)) => {
            let mac = authenticator.sign(place, record.as_bytes());
            format!("{object},\"mac\":\"{mac}\"}}")
        }
        _ => record.to_owned(),
    }
}

/// Returns a JSON object without its MAC, or `None` if it has not the one of its place.
pub(super) fn open(
    authenticator: Option<&Arc<dyn RecordAuthenticator>>,
    place: RecordPlace<'_>,
    sealed: Vec<u8>,
) -> Option<Vec<u8>> {
    let Some(authenticator) = authenticator else { return Some(sealed) };
    let object = sealed.strip_suffix(MAC.1)?;
    let at = object.windows(MAC.0.len()).rposition(|part| part == MAC.0)?;
    let (object, mac) = (&object[..at], str::from_utf8(&object[at + MAC.0.len()..]).ok()?);
    let record = [object, b"}"].concat();
    authenticator.verify(place, &record, mac).then_some(record)
}

impl RedisState {
    /// Adds the MAC to a record.
    pub(super) fn seal(&self, place: RecordPlace<'_>, record: &str) -> String {
        seal(self.settings.records.as_ref(), place, record)
    }

    /// Returns a record without its MAC, or `None` if no replica has written it at this place.
    pub(super) fn open(&self, place: RecordPlace<'_>, sealed: Vec<u8>) -> Option<Vec<u8>> {
        let record = open(self.settings.records.as_ref(), place, sealed);
        if record.is_none() {
            self.reject(place.kind, &"it has no valid MAC of a replica");
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A MAC that is readable.
    #[derive(Debug)]
    struct Readable;

    impl RecordAuthenticator for Readable {
        fn sign(&self, RecordPlace { kind, key }: RecordPlace<'_>, record: &[u8]) -> String {
            format!("{kind} {key} {}", record.len())
        }

        fn verify(&self, place: RecordPlace<'_>, record: &[u8], mac: &str) -> bool {
            self.sign(place, record) == mac
        }
    }

    const PLACE: RecordPlace<'_> = RecordPlace { kind: "views", key: "7" };

    #[test]
    fn record_is_opened_at_its_place_only() {
        let authenticator: Arc<dyn RecordAuthenticator> = Arc::new(Readable);
        let some = Some(&authenticator);
        for record in ["{\"a\":1}", "{\"a\":{\"mac\":\"x\"}}", "{\"a\":\",\\\"mac\\\":\\\"\"}"] {
            let sealed = seal(some, PLACE, record);
            assert!(serde_json::from_str::<serde_json::Value>(&sealed).unwrap().get("mac").is_some());
            let opened = open(some, PLACE, sealed.clone().into_bytes()).unwrap();
            assert_eq!(String::from_utf8(opened).unwrap(), record);
            for place in [RecordPlace { key: "8", ..PLACE }, RecordPlace { kind: "environments", ..PLACE }] {
                assert_eq!(open(some, place, sealed.clone().into_bytes()), None);
            }
            let changed = sealed.replacen("\"a\"", "\"a\" ", 1);
            assert_eq!(open(some, PLACE, changed.into_bytes()), None, "the length differs");
        }
    }

    #[test]
    fn record_without_a_mac_is_refused_if_replicas_have_a_secret() {
        let authenticator: Arc<dyn RecordAuthenticator> = Arc::new(Readable);
        for record in ["", "{}", "{\"a\":1}", "x", "\"}", ",\"mac\":\"\"}", "{\"mac\":\"views 7 2\"}"] {
            assert_eq!(open(Some(&authenticator), PLACE, record.into()), None, "{record}");
            assert_eq!(open(None, PLACE, record.into()), Some(record.into()));
            assert_eq!(seal(None, PLACE, record), record);
        }
    }
}
