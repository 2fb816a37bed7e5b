//! Fields that end at a hop: pure functions that kas and agentk share.
//!
//! Hop-by-hop fields are about one connection. Some receivers merge trailers into the headers: a trailer on which they would act ends here.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{
        AGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, COOKIE, DATE, EXPECT, EXPIRES, HOST,
        LOCATION, MAX_FORWARDS, PRAGMA, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE, REFRESH, RETRY_AFTER,
        SEC_WEBSOCKET_PROTOCOL, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TE, TRAILER, TRANSFER_ENCODING,
        UPGRADE, VARY, VIA, WARNING, WWW_AUTHENTICATE,
    },
};

use crate::{
    header::{self, tokens},
    impersonation,
};

/// Returns whether a field is about the connection and is never forwarded (RFC 9110 section 7.6.1).
///
/// `Expect` is one of them: each hop sends the 100 itself when it begins to read. A hop that forwarded `Expect` would have
/// to wait for a 100 that a server may never send (RFC 9110 section 10.1.1).
fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        CONNECTION | EXPECT | PROXY_AUTHENTICATE | PROXY_AUTHORIZATION | TE | TRANSFER_ENCODING | UPGRADE => {
            true
        }
        _ => matches!(name.as_str(), "http2-settings" | "proxy-connection" | "keep-alive"),
    }
}

/// The prefix of a subprotocol that carries a token: a browser cannot set `Authorization` on a WebSocket
/// (apiserver/pkg/authentication/request/websocket).
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Returns the protocol of an upgrade request, or of the 101 to one (RFC 9110 section 7.8).
pub fn upgrade_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let requested = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    // HTTP inside of an upgrade would carry requests that kas does not authorize (h2c smuggling). Without the header, the
    // request is an ordinary one (RFC 9110 section 7.8).
    let h2c = tokens(headers, &UPGRADE).any(|token| token.eq_ignore_ascii_case("h2c"));
    (requested && !h2c).then(|| protocol.clone())
}

/// Returns the protocol to which a request asks to upgrade, if it can become an upgrade: a GET, or a POST as SPDY has it, without
/// a body.
///
/// An upgrade has no place for a body. Any other request is an ordinary one, and is forwarded whole, without `Upgrade`, which a
/// server may ignore (RFC 9110 section 7.8).
pub fn requested_upgrade(method: &Method, headers: &HeaderMap) -> Option<HeaderValue> {
    upgrade_protocol(headers).filter(|_| has_upgrade_method(method) && !has_body(headers))
}

/// Returns whether requests with this method can become an upgrade.
pub fn has_upgrade_method(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::POST)
}

/// Returns whether a request of HTTP/1.1 has a body (RFC 9112 section 6.3).
fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
        || headers.get_all(CONTENT_LENGTH).iter().any(|length| length != "0")
}

/// Removes the hop-by-hop fields, the fields that `Connection` names, and the `kas-*` fields between kas and agentk.
///
/// `TE: trailers` stays, and no other value of `TE`: kas and agentk forward trailers.
pub fn strip(headers: &mut HeaderMap) {
    strip_with(headers, |_| false);
}

/// Removes the fields that [`strip`] removes, and in the same pass those for whose name `remove` returns true.
pub fn strip_with(headers: &mut HeaderMap, mut remove: impl FnMut(&HeaderName) -> bool) {
    let trailers = accepts_trailers(headers);
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .collect();
    remove_if(headers, |name| {
        // `remove` comes first, because it must be called with every name.
        remove(name)
            || is_hop_by_hop(name)
            || name.as_str().starts_with(header::PREFIX)
            || named.contains(name)
    });
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    strip_bearer(headers);
}

/// Removes the fields for whose name `remove` returns true. It is called once for each name.
pub fn remove_if(headers: &mut HeaderMap, mut remove: impl FnMut(&HeaderName) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| remove(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Removes tokens from the offered WebSocket subprotocols: only agentk adds credentials to a request to the cluster.
fn strip_bearer(headers: &mut HeaderMap) {
    let is_bearer = |protocol: &str| {
        protocol.get(..BEARER_PROTOCOL.len()).is_some_and(|start| start.eq_ignore_ascii_case(BEARER_PROTOCOL))
    };
    if !tokens(headers, &SEC_WEBSOCKET_PROTOCOL).any(is_bearer) {
        return;
    }
    let others: Vec<&str> =
        tokens(headers, &SEC_WEBSOCKET_PROTOCOL).filter(|protocol| !is_bearer(protocol)).collect();
    let others = HeaderValue::from_str(&others.join(", ")).ok().filter(|others| !others.is_empty());
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Some(others) = others {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    }
}

/// Trailers for framing, routing, authentication and caching, which a receiver needs before the body (RFC 9110 section
/// 6.5.1), and fields that control a browser.
static FORBIDDEN_TRAILERS: [HeaderName; 26] = [
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

/// Trailers that control a browser, or a proxy in front of it. Browsers ignore trailers, but a proxy may merge them into the
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

/// Prefixes of further trailers of both lists.
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

/// A trailer that begins like a forbidden one. It is computed from the body, so it is sent as a trailer (RFC 9530 section 2).
const CONTENT_DIGEST: &str = "content-digest";

/// Returns whether the sender of these headers accepts trailers in the response (RFC 9110 section 10.1.4).
pub fn accepts_trailers(headers: &HeaderMap) -> bool {
    let coding =
        |token: &str| token.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("trailers");
    tokens(headers, &TE).any(coding)
}

/// Removes trailers that a receiver would act on if they were headers: some receivers merge the two.
pub fn strip_trailers(trailers: &mut HeaderMap) {
    let forbidden: Vec<HeaderName> =
        trailers.keys().filter(|name| is_forbidden_trailer(name)).cloned().collect();
    for name in forbidden {
        trailers.remove(name);
    }
}

fn is_forbidden_trailer(name: &HeaderName) -> bool {
    // Some servers treat `X_Foo` as `X-Foo`.
    let name = name.as_str().replace('_', "-");
    let listed = FORBIDDEN_TRAILERS.iter().any(|forbidden| forbidden.as_str() == name)
        || BROWSER_CONTROL.contains(&&*name);
    let prefixed = FORBIDDEN_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    (listed || prefixed) && name != CONTENT_DIGEST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&'static str, &'static str)]) -> HeaderMap {
        let entry = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn fields_of_the_connection_are_removed() {
        let mut headers = map(&[
            ("connection", "close, X-Private, not a name"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("te", "gzip"),
            ("expect", "100-continue"),
            ("upgrade", "not requested"),
            ("kas-service", "control"),
            ("kas-anything", "x"),
            ("content-length", "5"),
        ]);
        assert_eq!(upgrade_protocol(&headers), None);
        strip(&mut headers);
        assert_eq!(headers, map(&[("content-length", "5")]));
    }

    #[test]
    fn upgrade_needs_both_headers() {
        let both = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert_eq!(upgrade_protocol(&both).unwrap(), "SPDY/3.1");
        assert_eq!(upgrade_protocol(&map(&[("connection", "upgrade")])), None);
    }

    #[test]
    fn request_with_a_body_is_no_upgrade() {
        let upgrade = [("connection", "Upgrade"), ("upgrade", "foo/1")];
        let requested = |method: Method, length: &[(&'static str, &'static str)]| {
            requested_upgrade(&method, &map(&[&upgrade, length].concat())).is_some()
        };
        for method in [Method::GET, Method::POST] {
            assert!(requested(method.clone(), &[]) && requested(method.clone(), &[("content-length", "0")]));
            assert!(!requested(method.clone(), &[("content-length", "25")]), "{method}");
            assert!(!requested(method.clone(), &[("transfer-encoding", "chunked")]), "{method}");
        }
        for method in [Method::DELETE, Method::PUT, Method::PATCH, Method::HEAD, Method::OPTIONS] {
            assert!(!requested(method.clone(), &[]), "{method}");
        }
        assert!(requested_upgrade(&Method::GET, &map(&[upgrade[1]])).is_none());
    }

    #[test]
    fn upgrade_to_h2c_is_removed() {
        let settings = [("connection", "Upgrade, HTTP2-Settings"), ("http2-settings", "AAMAAABk")];
        for protocol in ["h2c", "H2C", "websocket, h2c"] {
            let mut headers = map(&[settings[0], settings[1], ("upgrade", protocol)]);
            assert_eq!(upgrade_protocol(&headers), None, "{protocol}");
            strip(&mut headers);
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn token_among_the_websocket_protocols_is_removed() {
        let token = "base64url.bearer.authorization.k8s.io.dG9rZW4";
        let offered = |lines: &[&'static str]| {
            let lines: Vec<_> = lines.iter().map(|line| ("sec-websocket-protocol", *line)).collect();
            let mut headers = map(&lines);
            strip(&mut headers);
            let left = headers.get_all("sec-websocket-protocol").iter();
            left.map(|line| line.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let both = format!("{token}, v5.channel.k8s.io").leak();
        assert_eq!(offered(&[both]), ["v5.channel.k8s.io"]);
        assert_eq!(
            offered(&["v5.channel.k8s.io", token, "v4.channel.k8s.io"]),
            ["v5.channel.k8s.io, v4.channel.k8s.io"]
        );
        assert_eq!(offered(&[token]), [""; 0]);
        assert_eq!(offered(&["v5.channel.k8s.io,v4"]), ["v5.channel.k8s.io,v4"], "others stay as they are");
    }

    #[test]
    fn te_trailers_stays() {
        let mut headers = map(&[("connection", "te"), ("te", "gzip, Trailers;q=0.5"), ("trailer", "digest")]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("te", "trailers"), ("trailer", "digest")]));
    }

    fn stripped_trailers(names: &[&'static str]) -> Vec<String> {
        let field = |name: &&'static str| (HeaderName::from_static(name), HeaderValue::from_static("1"));
        let mut trailers: HeaderMap = names.iter().map(field).collect();
        strip_trailers(&mut trailers);
        trailers.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn trailers_about_the_body_stay() {
        let allowed = ["grpc-status", "content-digest", "x-checksum", "server-timing", "etag"];
        assert_eq!(stripped_trailers(&allowed).len(), allowed.len());
    }

    #[test]
    fn trailers_that_are_trusted_as_headers_are_removed() {
        let none: Vec<String> = Vec::new();
        assert_eq!(
            stripped_trailers(&[
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
