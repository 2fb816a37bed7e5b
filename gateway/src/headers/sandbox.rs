//! The sandbox for responses that a browser could execute.
//!
//! The owner of a cluster can serve a web page and lead a user to its address. The page must not run scripts in the origin of
//! this listener (CVE-2025-11224 and similar ones in GitLab's kas).

use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE},
};

/// Forbids scripts, forms, frames and subresources, and gives the page an opaque origin.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'");

/// Content types that browsers display as text or download, if they must not guess (`nosniff`).
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

/// Adds the sandbox to a response unless its content type is inert.
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
    // Browsers differ in which type of a list they use.
    !text.contains(',') && INERT.iter().any(|known| kind.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_are_not_inert_are_sandboxed() {
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
