//! The record of the kill switch in Redis, with any content.
//!
//! * A record that replicas use encodes to a record with the same rules in the same spelling, so that a replica can write it back.
//! * Each line of an error names the key in Redis.

use access::kill_switch::fleet;

/// Checks one input.
pub fn run(data: &[u8]) {
    let (record, rules) = match fleet::parse(data) {
        Ok(accepted) => accepted,
        Err(error) => {
            for line in error.split('\n') {
                assert!(line.contains("{kas}:disabled") && !line.contains(char::is_control), "{error:?}");
            }
            return;
        }
    };
    let (again, same) = fleet::parse(record.encode().as_bytes()).expect("what was written can be read");
    assert_eq!((again.version, again.rules.get(), same), (record.version, record.rules.get(), rules));
}
