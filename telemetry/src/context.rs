//! W3C Trace Context: which trace a request belongs to (<https://www.w3.org/TR/trace-context/>).
//!
//! Reading is strict, as the specification asks: what is not exactly a trace context is none.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Trace id, span id and flags.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What tracing systems add to it.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// `00-` trace id `-` span id `-` flags.
const LENGTH: usize = 55;
/// The flags that have a meaning: sampled, and random (Trace Context Level 2). Others are not passed on.
const KNOWN_FLAGS: u8 = 0b11;
/// Bytes of `tracestate` that are kept; section 3.3.1.5 asks for at least these.
const STATE_MAX: usize = 512;

/// The context that a request came with.
pub fn read(headers: &HeaderMap) -> Option<SpanContext> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let (parent, None) = (parents.next()?, parents.next()) else { return None };
    let (trace, span, flags) = parse(parent.to_str().ok()?)?;
    Some(SpanContext::new(trace, span, flags, true, state(headers).unwrap_or_default()))
}

/// Replaces the context that a request came with.
pub fn write(headers: &mut HeaderMap, context: &SpanContext) {
    let flags = context.trace_flags().to_u8() & KNOWN_FLAGS;
    let parent = format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id());
    headers.insert(TRACEPARENT, HeaderValue::try_from(parent).expect("hexadecimal digits"));
    let state = context.trace_state().header();
    match HeaderValue::try_from(state) {
        Ok(state) if !state.is_empty() => headers.insert(TRACESTATE, state),
        _ => headers.remove(TRACESTATE),
    };
}

fn parse(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let bytes = text.as_bytes();
    let version = hex(bytes.get(..2)?)?;
    // A later version may add to its end, after another dash; 255 is forbidden.
    let whole = match version {
        0 => bytes.len() == LENGTH,
        255 => false,
        _ => matches!(bytes.get(LENGTH), None | Some(b'-')),
    };
    let (trace, span, flags) = (bytes.get(3..35)?, bytes.get(36..52)?, bytes.get(53..LENGTH)?);
    let dashes = [2, 35, 52].iter().all(|&at| bytes[at] == b'-');
    if !(whole && dashes) {
        return None;
    }

    let trace = TraceId::from_bytes(digits(trace)?);
    let span = SpanId::from_bytes(digits(span)?);
    let valid = trace != TraceId::INVALID && span != SpanId::INVALID;
    valid.then_some((trace, span, TraceFlags::new(hex(flags)? & KNOWN_FLAGS)))
}

fn digits<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = hex(pair)?;
    }
    Some(bytes)
}

/// Two digits, in lower case only.
fn hex(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    match pair {
        &[high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    }
}

/// A broken `tracestate` is dropped; `traceparent` stays good. A long one loses its end, which is its oldest part.
fn state(headers: &HeaderMap) -> Option<TraceState> {
    let mut kept = String::new();
    for value in headers.get_all(TRACESTATE) {
        for member in value.to_str().ok()?.split(',').map(|member| member.trim_matches([' ', '\t'])) {
            if member.is_empty() {
                continue;
            }
            // A key of no letters: the library would take it.
            if member.starts_with('=') {
                return None;
            }
            if kept.len() + 1 + member.len() > STATE_MAX {
                return kept.parse().ok();
            }
            if !kept.is_empty() {
                kept.push(',');
            }
            kept.push_str(member);
        }
    }
    kept.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn map(entries: &[(&'static str, &str)]) -> HeaderMap {
        let entry = |&(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::try_from(value).unwrap())
        };
        entries.iter().map(entry).collect()
    }

    fn parent(text: &str) -> Option<SpanContext> {
        read(&map(&[("traceparent", text)]))
    }

    #[test]
    fn a_context_is_read_and_written() {
        let headers = map(&[("traceparent", &format!("00-{TRACE}-{SPAN}-01")), ("tracestate", "a=1,b@c=2")]);
        let context = read(&headers).unwrap();
        assert_eq!(context.trace_id().to_string(), TRACE);
        assert_eq!(context.span_id().to_string(), SPAN);
        assert!(context.is_sampled() && context.is_remote());

        let mut written = map(&[("traceparent", "old"), ("traceparent", "older"), ("tracestate", "old=1")]);
        write(&mut written, &context);
        assert_eq!(written, headers);
    }

    #[test]
    fn what_is_not_exactly_a_context_is_none() {
        let zeros = ["0".repeat(32), "0".repeat(16)];
        for text in [
            "",
            "00",
            &format!("00-{TRACE}-{SPAN}"),
            &format!("00-{TRACE}-{SPAN}-1"),
            &format!("00-{TRACE}-{SPAN}-011"),
            &format!("00-{TRACE}-{SPAN}-01-more"),
            &format!(" 00-{TRACE}-{SPAN}-01"),
            &format!("ff-{TRACE}-{SPAN}-01"),
            &format!("0x-{TRACE}-{SPAN}-01"),
            &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            &format!("00-{}-{SPAN}-01", zeros[0]),
            &format!("00-{TRACE}-{}-01", zeros[1]),
            &format!("00_{TRACE}_{SPAN}_01"),
            &format!("00-{TRACE}-{SPAN}-0g"),
            &format!("00-{}z-{SPAN}-01", &TRACE[1..]),
            &format!("01-{TRACE}-{SPAN}-01.more"),
        ] {
            assert!(parent(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        for text in [format!("01-{TRACE}-{SPAN}-ff"), format!("cc-{TRACE}-{SPAN}-03-what the future brings")]
        {
            let context = parent(&text).unwrap();
            assert_eq!(context.trace_flags().to_u8(), 3, "{text}");
            let mut written = HeaderMap::new();
            write(&mut written, &context);
            assert_eq!(written["traceparent"].to_str().unwrap(), format!("00-{TRACE}-{SPAN}-03"));
        }
    }

    #[test]
    fn two_parents_are_none() {
        let one = format!("00-{TRACE}-{SPAN}-01");
        assert!(read(&map(&[("traceparent", &one), ("traceparent", &one)])).is_none());
        assert!(read(&map(&[("tracestate", "a=1")])).is_none());
    }

    #[test]
    fn a_broken_state_is_dropped_alone() {
        let one = format!("00-{TRACE}-{SPAN}-01");
        let state = |values: &[&str]| {
            let mut entries = vec![("traceparent", &*one)];
            entries.extend(values.iter().map(|value| ("tracestate", *value)));
            read(&map(&entries)).unwrap().trace_state().header()
        };
        assert_eq!(state(&["a=1", " b=2 ,, c=3"]), "a=1,b=2,c=3", "headers are one list");
        for broken in ["a", "A=1", "a=1=2", "=1"] {
            assert_eq!(state(&[broken]), "", "{broken}");
        }
        let long = (0..40).map(|n| format!("k{n}={}", "v".repeat(40))).collect::<Vec<_>>().join(",");
        let kept = state(&[&long]);
        assert!(long.starts_with(&kept) && (450..=512).contains(&kept.len()), "{kept}");
    }
}
