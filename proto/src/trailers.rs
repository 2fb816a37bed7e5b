//! Trailers: which fields after a body are forwarded.

use http::{
    HeaderMap, HeaderName,
    header::{
        AGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, COOKIE, DATE, EXPECT, EXPIRES, HOST, LOCATION,
        MAX_FORWARDS, PRAGMA, RANGE, REFRESH, RETRY_AFTER, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TE,
        TRAILER, TRANSFER_ENCODING, UPGRADE, VARY, VIA, WARNING, WWW_AUTHENTICATE,
    },
};

use crate::{header, impersonation};

/// Fields for framing, routing, authentication and caching, which a receiver needs before the body (RFC 9110 section
/// 6.5.1), and fields that control a browser.
static FORBIDDEN: [HeaderName; 26] = [
    AGE,
    AUTHORIZATION,
    CACHE_CONTROL,
    CONNECTION,
    COOKIE,
    DATE,
    EXPECT,
    EXPIRES,
    HOST,
    HeaderName::from_static("keep-alive"),
    LOCATION,
    MAX_FORWARDS,
    PRAGMA,
    RANGE,
    REFRESH,
    RETRY_AFTER,
    SET_COOKIE,
    STRICT_TRANSPORT_SECURITY,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    VARY,
    VIA,
    WARNING,
    WWW_AUTHENTICATE,
];

/// Fields that control a browser, or a proxy in front of it. Browsers ignore trailers, but a proxy may merge them into the
/// headers.
const BROWSER_CONTROL: &[&str] = &[
    "alt-svc",
    "authentication-info",
    "clear-site-data",
    "expect-ct",
    "feature-policy",
    "link",
    "nel",
    "origin-agent-cluster",
    "permissions-policy",
    "referrer-policy",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-cookie2",
    "sourcemap",
    "timing-allow-origin",
    "x-content-type-options",
    "x-frame-options",
    "x-request-id",
    "x-sendfile",
    "x-sourcemap",
    "x-xss-protection",
];

/// Prefixes of further fields of both lists.
const FORBIDDEN_PREFIXES: &[&str] = &[
    header::PREFIX,
    impersonation::PREFIX,
    "access-control-",
    "content-",
    "cross-origin-",
    "gitlab-",
    "if-",
    "proxy-",
    "public-key-pins",
    "sec-",
    "x-accel-",
    "x-forwarded-",
    "x-remote-",
];

/// A field that begins like a forbidden one. It is computed from the body, so it is sent as a trailer (RFC 9530 section 2).
const CONTENT_DIGEST: &str = "content-digest";

/// Returns whether the sender of these headers accepts trailers in the response (RFC 9110 section 10.1.4).
pub fn accepted(headers: &HeaderMap) -> bool {
    let coding =
        |token: &str| token.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("trailers");
    header::tokens(headers, &TE).any(coding)
}

/// Removes trailers that a receiver would act on if they were headers: some receivers merge the two.
pub fn strip(trailers: &mut HeaderMap) {
    let forbidden: Vec<HeaderName> = trailers.keys().filter(|name| is_forbidden(name)).cloned().collect();
    for name in forbidden {
        trailers.remove(name);
    }
}

fn is_forbidden(name: &HeaderName) -> bool {
    // Some servers treat `X_Foo` as `X-Foo`.
    let name = name.as_str().replace('_', "-");
    let listed =
        FORBIDDEN.iter().any(|forbidden| forbidden.as_str() == name) || BROWSER_CONTROL.contains(&&*name);
    let prefixed = FORBIDDEN_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    (listed || prefixed) && name != CONTENT_DIGEST
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn stripped(names: &[&'static str]) -> Vec<String> {
        let field = |name: &&'static str| (HeaderName::from_static(name), HeaderValue::from_static("1"));
        let mut trailers: HeaderMap = names.iter().map(field).collect();
        strip(&mut trailers);
        trailers.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn fields_about_the_body_stay() {
        let allowed = ["grpc-status", "content-digest", "x-checksum", "server-timing", "etag"];
        assert_eq!(stripped(&allowed).len(), allowed.len());
    }

    #[test]
    fn fields_that_are_trusted_as_headers_are_removed() {
        let none: Vec<String> = Vec::new();
        assert_eq!(
            stripped(&[
                "authorization",
                "content-length",
                "content-type",
                "cookie",
                "host",
                "impersonate-user",
                "impersonate_user",
                "kas-error",
                "nel",
                "proxy-authorization",
                "set-cookie",
                "set_cookie",
                "te",
                "trailer",
                "transfer-encoding",
                "transfer_encoding",
                "x-forwarded-for",
                "x-remote-user",
            ]),
            none
        );
    }
}
