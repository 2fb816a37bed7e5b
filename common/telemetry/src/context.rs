//! W3C Trace Context of a request (<https://www.w3.org/TR/trace-context/>).
//!
//! Parsing is strict, as the specification requires: an invalid `traceparent` is ignored.
//!
//! `TraceContextPropagator` of the SDK is not used. It accepts ids of one digit, signs and several `traceparent` headers,
//! keeps up to 16 KiB of `tracestate` in each span that waits for the exporter, loses the second `tracestate` header, and
//! writes an empty one. The test `sdk_propagator_differs` shows this.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The header with trace id, span id and flags.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header with data of tracing systems.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The defined flags: sampled, and random (Trace Context Level 2). Others are not forwarded.
const KNOWN_FLAGS: u8 = 0b11;
/// Longest `tracestate` that is kept, in bytes: the least that section 3.3.1.5 requires.
const STATE_MAX: usize = 512;

/// Returns the context in the headers, or `None` without a valid one.
pub fn extract(headers: &HeaderMap) -> Option<SpanContext> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let (parent, None) = (parents.next()?, parents.next()) else { return None };
    let (trace, span, flags) = parse(parent.to_str().ok()?)?;
    Some(SpanContext::new(trace, span, flags, true, state(headers).unwrap_or_default()))
}

/// Replaces the context in the headers.
pub fn inject(headers: &mut HeaderMap, context: &SpanContext) {
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
    let mut fields = text.splitn(5, '-');
    let mut field = |length| fields.next().filter(|field| field.len() == length && is_hex(field));
    let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    // A later version may have more fields; 255 is forbidden.
    if version == "ff" || (version == "00" && fields.next().is_some()) {
        return None;
    }

    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = u8::from_str_radix(flags, 16).ok()? & KNOWN_FLAGS;
    let valid = trace != TraceId::INVALID && span != SpanId::INVALID;
    valid.then_some((trace, span, TraceFlags::new(flags)))
}

/// Returns whether all characters are lower-case hexadecimal digits. `from_hex` also accepts upper case and a sign.
fn is_hex(field: &str) -> bool {
    field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Parses `tracestate`. Returns `None` for an invalid one, and cuts off the end of a long one, which is its oldest part.
fn state(headers: &HeaderMap) -> Option<TraceState> {
    let mut kept = String::new();
    for value in headers.get_all(TRACESTATE) {
        for member in value.to_str().ok()?.split(',').map(|member| member.trim_matches([' ', '\t'])) {
            if member.is_empty() {
                continue;
            }
            // The library accepts an empty key.
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
    use opentelemetry::{Context, propagation::TextMapPropagator as _, trace::TraceContextExt as _};
    use opentelemetry_http::{HeaderExtractor, HeaderInjector};
    use opentelemetry_sdk::propagation::TraceContextPropagator;

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
        extract(&map(&[("traceparent", text)]))
    }

    #[test]
    fn valid_context_is_read_and_written() {
        let headers = map(&[("traceparent", &format!("00-{TRACE}-{SPAN}-01")), ("tracestate", "a=1,b@c=2")]);
        let context = extract(&headers).unwrap();
        assert_eq!(context.trace_id().to_string(), TRACE);
        assert_eq!(context.span_id().to_string(), SPAN);
        assert!(context.is_sampled() && context.is_remote());

        let mut written = map(&[("traceparent", "old"), ("traceparent", "older"), ("tracestate", "old=1")]);
        inject(&mut written, &context);
        assert_eq!(written, headers);
    }

    #[test]
    fn invalid_traceparent_is_ignored() {
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
    fn later_version_is_read_as_version_00() {
        for text in [format!("01-{TRACE}-{SPAN}-ff"), format!("cc-{TRACE}-{SPAN}-03-what the future brings")]
        {
            let context = parent(&text).unwrap();
            assert_eq!(context.trace_flags().to_u8(), 3, "{text}");
            let mut written = HeaderMap::new();
            inject(&mut written, &context);
            assert_eq!(written["traceparent"].to_str().unwrap(), format!("00-{TRACE}-{SPAN}-03"));
        }
    }

    #[test]
    fn several_traceparents_are_ignored() {
        let one = format!("00-{TRACE}-{SPAN}-01");
        assert!(extract(&map(&[("traceparent", &one), ("traceparent", &one)])).is_none());
        assert!(extract(&map(&[("tracestate", "a=1")])).is_none());
    }

    #[test]
    fn invalid_tracestate_is_dropped_alone() {
        let one = format!("00-{TRACE}-{SPAN}-01");
        let state = |values: &[&str]| {
            let mut entries = vec![("traceparent", &*one)];
            entries.extend(values.iter().map(|value| ("tracestate", *value)));
            extract(&map(&entries)).unwrap().trace_state().header()
        };
        assert_eq!(state(&["a=1", " b=2 ,, c=3"]), "a=1,b=2,c=3", "headers are one list");
        for broken in ["a", "A=1", "a=1=2", "=1"] {
            assert_eq!(state(&[broken]), "", "{broken}");
        }
        let long = (0..40).map(|n| format!("k{n}={}", "v".repeat(40))).collect::<Vec<_>>().join(",");
        let kept = state(&[&long]);
        assert!(long.starts_with(&kept) && (450..=512).contains(&kept.len()), "{kept}");
    }

    #[test]
    fn sdk_propagator_differs() {
        let sdk = |entries: &[(&'static str, &str)]| {
            let context = TraceContextPropagator::new()
                .extract_with_context(&Context::new(), &HeaderExtractor(&map(entries)));
            context.span().span_context().clone()
        };
        for invalid in ["00-1-2-1", "+0-+1-+2-+1", &format!("00-{TRACE}-{SPAN}-01-")] {
            assert!(sdk(&[("traceparent", invalid)]).is_valid() && parent(invalid).is_none(), "{invalid}");
        }
        let one = format!("00-{TRACE}-{SPAN}-01");
        assert!(sdk(&[("traceparent", &one), ("traceparent", "other")]).is_valid());
        let two = [("traceparent", &*one), ("tracestate", "a=1"), ("tracestate", "b=2")];
        assert_eq!(sdk(&two).trace_state().header(), "a=1");
        let long = (10..42).map(|n| format!("k{n:0254}={}", "v".repeat(256))).collect::<Vec<_>>().join(",");
        let long = sdk(&[("traceparent", &one), ("tracestate", &long)]);
        assert!(long.trace_state().header().len() > 16_000);

        let context = Context::new().with_remote_span_context(parent(&one).unwrap());
        let mut written = HeaderMap::new();
        TraceContextPropagator::new().inject_context(&context, &mut HeaderInjector(&mut written));
        assert_eq!(written["tracestate"], "");
    }
}
