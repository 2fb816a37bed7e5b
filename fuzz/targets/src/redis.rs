//! Values in Redis with any content: heartbeats, records, projects, events.
//!
//! * A decoded value keeps to the limits. It encodes to a value that decodes to the same.
//! * The address in a heartbeat is an address that a replica can have.

use std::collections::BTreeMap;

use store::redis::wire::{
    Heartbeat, RedisEvent, RedisEventKind, RouteRecord, decode_project, encode_project,
};

/// Checks one input.
pub fn run(data: &[u8]) {
    if let Ok(beat) = Heartbeat::decode(data) {
        check_address(&beat);
        assert_eq!(Heartbeat::decode(beat.encode().as_bytes()).expect("what was written can be read"), beat);
    }
    if let Ok(record) = RouteRecord::decode(data) {
        let again = RouteRecord::decode(record.encode().as_bytes()).expect("what was written can be read");
        // `encode` drops the instances that do not fit, because its spelling may be longer than the input's.
        assert_eq!(again.epoch, record.epoch);
        assert!(record.instances.starts_with(&again.instances));
    }
    if let Ok(agents) = decode_project(data) {
        let agents: BTreeMap<_, _> = agents.into_iter().collect();
        let again = decode_project(encode_project(&agents).as_bytes()).expect("what was written can be read");
        // `encode_project` drops the agents that do not fit.
        assert!(agents.into_iter().take(again.len()).eq(again));
    }
    if let Ok(event) = RedisEvent::decode(data) {
        if let RedisEventKind::Heartbeat(heartbeat) = &event.kind {
            check_address(heartbeat);
        }
        assert_eq!(
            RedisEvent::decode(event.encode().as_bytes()).expect("what was written can be read"),
            event
        );
    }
}

fn check_address(beat: &Heartbeat) {
    // Schemes are case-insensitive.
    assert!(beat.url.to_ascii_lowercase().starts_with("http") && beat.url.contains("://"), "{:?}", beat.url);
    assert!(!beat.url.contains(|c: char| c.is_control() || c.is_whitespace() || c == '@'), "{:?}", beat.url);
}
