//! Answers that a browser would run.
//!
//! Whoever controls a cluster can answer with a page, and get somebody to open its address. On this listener's origin
//! it must be able to do nothing (CVE-2025-11224 and its like in GitLab's kas).

use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE},
};

/// No scripts, no forms, no frames, nothing loaded, an origin of its own.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'");

/// What browsers show as it is, or not at all, when they may not guess (`nosniff`).
const INERT: [&str; 11] = [
    "application/json",
    "application/jwk-set+json",
    "application/yaml",
    "application/octet-stream",
    "application/openmetrics-text",
    "application/vnd.kubernetes.protobuf",
    "application/x-ndjson",
    "application/x-protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "text/event-stream",
    "text/plain",
];

/// Takes the life out of everything that is not known to have none.
pub(super) fn apply(headers: &mut HeaderMap) {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let inert = match (types.next(), types.next()) {
        (Some(only), None) => is_inert(only),
        _ => false,
    };
    if !inert {
        headers.insert(CONTENT_SECURITY_POLICY, SANDBOX);
    }
}

fn is_inert(content_type: &HeaderValue) -> bool {
    let Ok(text) = content_type.to_str() else { return false };
    let kind = text.split(';').next().unwrap_or_default().trim();
    // A list of types in one line: which one counts depends on the browser.
    !text.contains(',') && INERT.iter().any(|known| kind.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_be_inert_is_put_into_the_sandbox() {
        for (types, sandboxed) in [
            (&["application/json"][..], false),
            (&["Application/JSON; charset=utf-8"], false),
            (&["application/json;stream=watch"], false),
            (&["text/plain; version=0.0.4"], false),
            (&["text/html"], true),
            (&["image/svg+xml"], true),
            (&["application/javascript"], true),
            (&["application/xhtml+xml"], true),
            (&["text/plain, text/html"], true),
            (&["text/plain", "text/html"], true),
            (&["text/html;application/json"], true),
            (&[], true),
        ] {
            let mut headers = HeaderMap::new();
            for kind in types {
                headers.append(CONTENT_TYPE, kind.parse().unwrap());
            }
            apply(&mut headers);
            assert_eq!(headers.contains_key(CONTENT_SECURITY_POLICY), sandboxed, "{types:?}");
        }
    }
}
