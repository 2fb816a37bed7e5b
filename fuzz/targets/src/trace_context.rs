//! `traceparent` and `tracestate` of a caller, with any content.
//!
//! Input: the `traceparent`, then one `tracestate` per line.
//!
//! * A context that is read has ids, at most 512 bytes of state, and the fields that a second implementation finds.
//! * It is written as version 00, which is read as the same context.

use http::{HeaderMap, HeaderValue};
use telemetry::context::{TRACEPARENT, TRACESTATE, extract, inject};

/// The limit of `telemetry`, which does not export it.
const STATE_MAX: usize = 512;

/// Checks one input.
pub fn run(data: &[u8]) {
    let mut headers = HeaderMap::new();
    let mut lines = data.split(|byte| *byte == b'\n');
    let parent = lines.next().and_then(|line| HeaderValue::from_bytes(line).ok());
    headers.extend(parent.clone().map(|parent| (TRACEPARENT, parent)));
    for state in lines.filter_map(|line| HeaderValue::from_bytes(line).ok()) {
        headers.append(TRACESTATE, state);
    }
    let Some(context) = extract(&headers) else { return };

    let text = parent.as_ref().and_then(|parent| parent.to_str().ok()).expect("it was read");
    let parts: Vec<&str> = text.split('-').collect();
    assert_eq!([2, 32, 16, 2].as_slice(), parts[..4].iter().map(|part| part.len()).collect::<Vec<_>>());
    assert_eq!(u128::from_str_radix(parts[1], 16), Ok(u128::from_be_bytes(context.trace_id().to_bytes())));
    assert_eq!(u64::from_str_radix(parts[2], 16), Ok(u64::from_be_bytes(context.span_id().to_bytes())));
    assert!(context.is_valid() && context.trace_state().header().len() <= STATE_MAX);
    assert!(parts[0] != "ff" && !text.bytes().any(|byte| parts[0] == "00" && byte.is_ascii_uppercase()));

    let mut written = HeaderMap::new();
    inject(&mut written, &context);
    let again = extract(&written).expect("what was written can be read");
    assert_eq!(again, context);
    let mut same = HeaderMap::new();
    inject(&mut same, &again);
    assert_eq!(same, written);
}
