//! What stands in Redis, whoever put it there: heartbeats, records, events.
//!
//! * What decodes keeps to the limits, and encodes again to what decodes to the same.
//! * A heartbeat's address is one that a peer can have.
#![no_main]

use libfuzzer_sys::fuzz_target;
use router::redis::wire::{Event, Heartbeat, Held, News};

fuzz_target!(|data: &[u8]| {
    if let Ok(beat) = Heartbeat::decode(data) {
        check_address(&beat);
        assert_eq!(Heartbeat::decode(beat.encode().as_bytes()).expect("what was written can be read"), beat);
    }
    if let Ok(held) = Held::decode(data) {
        let again = Held::decode(held.encode().as_bytes()).expect("what was written can be read");
        // What was written shorter than it is written here is cut to what fits.
        assert_eq!(again.epoch, held.epoch);
        assert!(held.instances.starts_with(&again.instances));
    }
    if let Ok(event) = Event::decode(data) {
        if let News::Beat(beat) = &event.news {
            check_address(beat);
        }
        assert_eq!(Event::decode(event.encode().as_bytes()).expect("what was written can be read"), event);
    }
});

fn check_address(beat: &Heartbeat) {
    // A scheme may be written in capitals; whoever dials takes it, or says that it is none.
    assert!(beat.url.to_ascii_lowercase().starts_with("http") && beat.url.contains("://"), "{:?}", beat.url);
    assert!(!beat.url.contains(|c: char| c.is_control() || c.is_whitespace() || c == '@'), "{:?}", beat.url);
}
