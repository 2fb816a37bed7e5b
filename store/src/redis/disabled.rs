//! The record of the kill switch, which disables requests at all replicas: an operator writes it, every replica reads it at once
//! after an event, and keeps it while Redis is away.
//!
//! Redis may lose the record. The first replica that notices it writes the record that it uses back. A newer version always
//! replaces an older one. This module does not parse the rules: the user of the record decides whether it is valid.

use std::sync::Arc;

use proto::ReplicaId;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::{
    RedisState, RedisStore, RedisStoreError, ReplaceError,
    client::{RedisConnection, connect},
    wire::{MAX_DISABLED, RedisEvent, RedisEventKind, WireError, decode, to_json},
};

/// The version of no record.
const NO_RECORD: &str = "0";
/// The version of a record that cannot be decoded.
const MALFORMED: &str = "-1";

/// The record of the kill switch.
#[derive(Clone, Debug)]
pub struct DisabledRecord {
    /// The order of the records, from 1: the time when it was written in microseconds since 1970, or a later one.
    pub version: u64,
    /// The rules as JSON, which is written back unchanged.
    pub rules: Box<RawValue>,
}

/// The record in Redis, as an operator reads and replaces it.
#[derive(Debug)]
pub struct DisabledEditor<'a> {
    shared: &'a RedisState,
    connection: RedisConnection,
    /// The record that is replaced.
    text: Vec<u8>,
    /// The number of replicas that use this Redis.
    pub replicas: usize,
}

/// The records of a replica.
#[derive(Debug, Default)]
pub(super) struct DisabledState {
    /// The version of the record that Redis had last.
    seen: Option<String>,
    /// The valid record that this replica uses.
    accepted: Option<DisabledRecord>,
}

/// The result of a write of the record.
struct DisabledWrite {
    replaced: bool,
    /// The record that Redis has now.
    text: Vec<u8>,
}

impl DisabledRecord {
    /// Encodes the record.
    pub fn encode(&self) -> String {
        to_json(&(1_u16, self.version, &self.rules))
    }

    /// Decodes a record, whose rules may be anything.
    ///
    /// # Errors
    ///
    /// The text is no record.
    pub fn decode(text: &[u8]) -> Result<Self, WireError> {
        let (_, version, rules): (u16, u64, Box<RawValue>) = decode(text, MAX_DISABLED)?;
        Ok(Self { version, rules })
    }
}

impl RedisStore {
    /// Returns a receiver of the records of the kill switch that were found in Redis. They are not trusted.
    pub fn disabled_records(&self) -> watch::Receiver<Option<Arc<[u8]>>> {
        self.0.disabled_records.subscribe()
    }

    /// Keeps a record that is valid, so that this replica can write it back if Redis loses it.
    pub fn accept_disabled(&self, record: DisabledRecord) {
        self.0.disabled.lock().accepted = Some(record);
    }

    /// Connects to Redis to read and replace the record, without joining the other replicas.
    ///
    /// # Errors
    ///
    /// Redis does not answer, or another fleet uses it.
    pub async fn edit_disabled(&self) -> Result<DisabledEditor<'_>, RedisStoreError> {
        let shared = &*self.0;
        let (connection, _events) = connect(&shared.settings, &shared.keys.events()).await?;
        let (live, _) = shared.read_members(&connection).await?;
        if let Some((_, other)) = live.iter().find(|(_, heartbeat)| heartbeat.fleet != shared.settings.fleet)
        {
            return Err(shared.fleet_conflict(other));
        }
        let text = shared.read_disabled(&connection).await?;
        Ok(DisabledEditor { shared, connection, text, replicas: live.len() })
    }
}

impl DisabledEditor<'_> {
    /// Returns the text of the record; `None` if there is none.
    pub fn text(&self) -> Option<&[u8]> {
        Some(&*self.text).filter(|text| !text.is_empty())
    }

    /// Replaces the record by one with these rules, and announces it. `now` is the time in microseconds since 1970.
    ///
    /// # Errors
    ///
    /// The rules are too long, Redis does not answer, or another operator has replaced the record in the meantime.
    pub async fn replace(self, rules: Box<RawValue>, now: u64) -> Result<(), ReplaceError> {
        let before = DisabledRecord::decode(&self.text).map_or(0, |record| record.version);
        let record = DisabledRecord { version: now.max(before.saturating_add(1)), rules };
        let text = record.encode();
        if text.len() > MAX_DISABLED {
            return Err(ReplaceError::TooLong);
        }
        let expected = version_of(&self.text);
        let written = self.shared.write_disabled(&self.connection, &record, &expected).await?;
        if written.replaced { Ok(()) } else { Err(ReplaceError::Conflict) }
    }
}

impl RedisState {
    /// Reads the record, and offers it to the receivers. If Redis has lost it or has an older one, that of this replica is
    /// written back.
    pub(super) async fn sync_disabled(&self, connection: &RedisConnection) -> Result<(), RedisStoreError> {
        let accepted = self.disabled.lock().accepted.clone();
        let text = match &accepted {
            Some(record) => self.write_disabled(connection, record, "").await?.text,
            None => self.read_disabled(connection).await?,
        };
        self.disabled.lock().seen = Some(version_of(&text));
        let record = Some(Arc::<[u8]>::from(text)).filter(|text| !text.is_empty());
        self.disabled_records.send_if_modified(|current| {
            let changed = *current != record;
            *current = record;
            changed
        });
        Ok(())
    }

    /// Returns the version of the record that Redis had last.
    pub(super) fn disabled_version(&self) -> String {
        self.disabled.lock().seen.clone().unwrap_or_else(|| NO_RECORD.to_owned())
    }

    async fn read_disabled(&self, connection: &RedisConnection) -> Result<Vec<u8>, RedisStoreError> {
        let mut script = self.scripts.disabled.key(self.keys.disabled());
        script.arg(MAX_DISABLED);
        let (_, text): (u8, Vec<u8>) = connection.run(&script, &self.metrics).await?;
        Ok(text)
    }

    /// Replaces the record with this version, or any older one if it is empty.
    async fn write_disabled(
        &self,
        connection: &RedisConnection,
        record: &DisabledRecord,
        expected: &str,
    ) -> Result<DisabledWrite, RedisStoreError> {
        // No replica has this id: the event is none of a sequence.
        let event = RedisEvent {
            replica: ReplicaId::random(),
            generation: 0,
            sequence: 0,
            kind: RedisEventKind::Disabled,
        };
        let mut script = self.scripts.disabled.key(self.keys.disabled());
        script.arg(MAX_DISABLED).arg(record.version).arg(record.encode());
        script.arg(self.keys.events()).arg(event.encode()).arg(expected);
        let (replaced, text): (u8, Vec<u8>) = connection.run(&script, &self.metrics).await?;
        Ok(DisabledWrite { replaced: replaced == 1, text })
    }
}

/// Returns the version that a record begins with, as the scripts find it.
fn version_of(text: &[u8]) -> String {
    if text.is_empty() {
        return NO_RECORD.to_owned();
    }
    let digits = |rest: &[u8]| {
        let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let found = end > 0 && rest[end] == b',';
        found.then(|| String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    text.strip_prefix(b"[1,").and_then(digits).unwrap_or_else(|| MALFORMED.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_that_which_the_scripts_find() {
        for (text, version) in [
            ("", "0"),
            ("[1,17,{}]", "17"),
            ("[1,17]", "-1"),
            ("[1,,{}]", "-1"),
            ("[2,17,{}]", "-1"),
            ("!", "-1"),
            ("[1,17", "-1"),
        ] {
            assert_eq!(version_of(text.as_bytes()), version, "{text}");
        }
    }

    #[test]
    fn decoded_record_encodes_to_the_same() {
        for text in [r#"[1,7,{"rules":[]}]"#, r#"[1,7,{"b":1.10,"a":123456789012345678901,"a":2}]"#] {
            let record = DisabledRecord::decode(text.as_bytes()).unwrap();
            assert_eq!((record.version, record.encode()), (7, text.to_owned()));
        }
        let long = format!("[1,7,\"{}\"]", "x".repeat(MAX_DISABLED));
        for bad in ["!", "[2,7,{}]", "[1,-7,{}]", "[1,7", &long] {
            assert!(DisabledRecord::decode(bad.as_bytes()).is_err());
        }
    }
}
