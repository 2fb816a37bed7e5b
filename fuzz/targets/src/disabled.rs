//! The record of the kill switch in Redis, with any content.
//!
//! * A record that replicas use encodes to a record with the same rules in the same spelling, so that a replica can write it back.
//! * An error is one line that names the key in Redis.

use gateway::kill_switch::fleet;

/// Checks one input.
pub fn run(data: &[u8]) {
    let (record, rules) = match fleet::parse(data) {
        Ok(accepted) => accepted,
        Err(error) => {
            assert!(error.contains("{kas}:disabled") && !error.contains(char::is_control), "{error:?}");
            return;
        }
    };
    let (again, same) = fleet::parse(record.encode().as_bytes()).expect("what was written can be read");
    assert_eq!((again.version, again.rules.get(), same), (record.version, record.rules.get(), rules));
}
