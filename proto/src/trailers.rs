//! Fields after a body: what each hop does to them.

use http::{
    HeaderMap, HeaderName,
    header::{
        AGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, COOKIE, DATE, EXPECT, EXPIRES, HOST, LOCATION,
        MAX_FORWARDS, PRAGMA, RANGE, REFRESH, RETRY_AFTER, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TE,
        TRAILER, TRANSFER_ENCODING, UPGRADE, VARY, VIA, WARNING, WWW_AUTHENTICATE,
    },
};

use crate::{border, header, impersonation};

/// What a receiver must know before the body, or acts upon: framing, routing, authentication, caching
/// (RFC 9110 section 6.5.1), and what a browser is told by.
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

/// What browsers, or proxies on the way to one, obey. None of them reads trailers; one that merges them into the headers
/// would.
const OBEYED: &[&str] = &[
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

/// Families of both.
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

/// Computed over a body, and therefore made for what comes after it (RFC 9530 section 2).
const CONTENT_DIGEST: &str = "content-digest";

/// Whether whoever sent these headers takes trailers in the answer (RFC 9110 section 10.1.4).
pub fn wanted(headers: &HeaderMap) -> bool {
    let coding =
        |token: &str| token.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("trailers");
    border::tokens(headers, &TE).any(coding)
}

/// Removes trailers that would be trusted if they were headers: some receivers merge the two.
pub fn strip(trailers: &mut HeaderMap) {
    let forbidden: Vec<HeaderName> = trailers.keys().filter(|name| is_forbidden(name)).cloned().collect();
    for name in forbidden {
        trailers.remove(name);
    }
}

fn is_forbidden(name: &HeaderName) -> bool {
    // Some servers take `X_Foo` for `X-Foo`.
    let spelled = name.as_str().replace('_', "-");
    let listed = FORBIDDEN.iter().any(|forbidden| forbidden.as_str() == spelled);
    let obeyed = OBEYED.contains(&&*spelled);
    let prefixed = FORBIDDEN_PREFIXES.iter().any(|prefix| spelled.starts_with(prefix));
    (listed || obeyed || prefixed) && spelled != CONTENT_DIGEST
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn left(names: &[&'static str]) -> Vec<String> {
        let field = |name: &&'static str| (HeaderName::from_static(name), HeaderValue::from_static("1"));
        let mut trailers: HeaderMap = names.iter().map(field).collect();
        strip(&mut trailers);
        trailers.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_about_the_body_passes() {
        let fine = ["grpc-status", "content-digest", "x-checksum", "server-timing", "etag"];
        assert_eq!(left(&fine).len(), fine.len());
    }

    #[test]
    fn what_would_be_trusted_as_a_header_does_not() {
        let none: Vec<String> = Vec::new();
        assert_eq!(
            left(&[
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
