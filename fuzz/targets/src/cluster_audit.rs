//! `EventScanner` and `parse` of audit events with any bytes of an API server.
//!
//! * The events do not depend on the sizes of the chunks.
//! * An event is at most 128 KiB, its bodies are `null`, and its texts have at most 4 KiB.
//! * A kept event is one short line without control characters, which can be read again.

use std::time::UNIX_EPOCH;

use cluster_audit::{EventScanner, ScanError, Scanned, append_line, parse};
use proto::audit::{ClusterEvent, MAX_LINE};
use serde_json::Value;

const MAX_EVENT: usize = 128 << 10;
const MAX_TEXT: usize = 4 << 10;

/// Checks one input.
pub fn run(data: &[u8]) {
    let (events, end) = scan(data, data.len().max(1));
    for size in [1, 7] {
        assert_eq!(scan(data, size), (events.clone(), end), "chunks of {size} bytes");
    }
    for (event, _) in events.iter().flatten() {
        check(event);
    }
}

/// The JSON of each event, and whether a text was cut.
type Events = Vec<Option<(Vec<u8>, bool)>>;

fn scan(data: &[u8], size: usize) -> (Events, Result<(), ScanError>) {
    let (mut scanner, mut events) = (EventScanner::default(), Vec::new());
    for chunk in data.chunks(size) {
        let fed = scanner.feed(chunk, |scanned| {
            events.push(match scanned {
                Scanned::Event { json, is_cut } => Some((json.to_vec(), is_cut)),
                Scanned::TooLarge => None,
            });
        });
        if fed.is_err() {
            return (events, fed);
        }
    }
    (events, scanner.finish())
}

/// Returns the length of the longest text of a value.
fn longest(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(longest).max().unwrap_or_default(),
        Value::Object(pairs) => {
            pairs.iter().map(|(key, value)| key.len().max(longest(value))).max().unwrap_or_default()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn check(event: &[u8]) {
    assert!(event.len() <= MAX_EVENT, "{} bytes of an event", event.len());
    let Ok(kept) = parse(event, UNIX_EPOCH) else { return };
    let value: Value = serde_json::from_slice(event).expect("what was parsed is JSON");
    assert!(longest(&value) <= MAX_TEXT, "{value}");
    let has_escaped_key = event.contains(&b'\\');
    for body in ["requestObject", "responseObject"] {
        assert!(has_escaped_key || value.get(body).is_none_or(Value::is_null), "{value}");
    }
    let mut lines = Vec::new();
    if !append_line(&kept, &mut lines) {
        return;
    }
    let text = String::from_utf8(lines).expect("JSON is UTF-8");
    let line = text.strip_suffix('\n').expect("a line has an end");
    assert!(line.len() <= MAX_LINE && !line.contains(char::is_control), "{line}");
    let again: ClusterEvent = serde_json::from_str(line).expect("what was written can be read");
    assert_eq!(again.audit_id, kept.audit_id);
}
