//! The record of the kill switch in Redis, with any content.
//!
//! * A record that replicas use encodes to a record with the same rules, so that a replica can write it back. The spelling of a
//!   floating-point number may change, but kas writes text only.
//! * An error is one line that names the key in Redis.

use gateway::disabled::fleet;
use router::redis::DisabledRecord;
use serde_json::Value;

/// Checks one input.
pub fn run(data: &[u8]) {
    let (record, rules) = match fleet::parse(data) {
        Ok(accepted) => accepted,
        Err(error) => {
            assert!(error.contains("{kas}:disabled") && !error.contains(char::is_control), "{error:?}");
            return;
        }
    };
    assert_eq!(DisabledRecord::decode(data).expect("it is accepted"), record);
    let has_float = |rule: &Value| rule.as_object().is_some_and(|keys| keys.values().any(Value::is_f64));
    if record.rules["rules"].as_array().is_some_and(|rules| rules.iter().any(has_float)) {
        return;
    }
    let (again, same) = fleet::parse(record.encode().as_bytes()).expect("what was written can be read");
    assert_eq!((again.version, same), (record.version, rules));
}
