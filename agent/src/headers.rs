//! What crosses agentk, in both directions. kas filters, too; each end trusts only itself.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        AUTHORIZATION, CONNECTION, COOKIE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE,
    },
};
use proto::header;

/// About the connection, and never passed on (RFC 9110 section 7.6.1).
static HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Makes kas's headers those of a request to a server near us. True if it asks for an upgrade.
///
/// Whoever the caller is to kas, nothing of it is a credential here.
pub(crate) fn to_upstream(headers: &mut HeaderMap) -> bool {
    let upgrade = upgrade(headers);
    strip(headers);
    headers.remove(AUTHORIZATION);
    headers.remove(COOKIE);
    let Some(protocol) = upgrade else { return false };
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);

    true
}

/// Makes a server's headers those of the answer to kas.
pub(crate) fn from_upstream(headers: &mut HeaderMap) {
    // A 101 keeps what it switches to: the tunnel carries it on.
    let upgrade = upgrade(headers);
    strip(headers);
    if let Some(protocol) = upgrade {
        headers.insert(UPGRADE, protocol);
    }
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = connection_tokens(headers)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .collect();
    let ours = headers.keys().filter(|name| name.as_str().starts_with(header::PREFIX)).cloned();
    let ours: Vec<_> = ours.collect();
    for name in named.iter().chain(&ours).chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = connection_tokens(headers).any(|token| token.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| asked).cloned()
}

fn connection_tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn credentials_and_connection_headers_end_here() {
        let mut headers = map(&[
            ("accept", "application/json"),
            ("authorization", "Bearer stolen"),
            ("cookie", "a=b"),
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("kas-service", "kubernetes"),
            ("upgrade", "not asked for"),
            ("content-length", "5"),
        ]);
        assert!(!to_upstream(&mut headers));
        assert_eq!(headers, map(&[("accept", "application/json"), ("content-length", "5")]));
    }

    #[test]
    fn a_real_upgrade_is_passed_on() {
        let mut headers = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert!(to_upstream(&mut headers));
        assert_eq!(headers, map(&[("connection", "upgrade"), ("upgrade", "SPDY/3.1")]));
    }

    #[test]
    fn a_server_cannot_speak_in_our_name() {
        let mut headers = map(&[
            ("kas-error", "forbidden"),
            ("kas-upgraded", "SPDY/3.1"),
            ("keep-alive", "timeout=5"),
            ("content-type", "text/plain"),
        ]);
        from_upstream(&mut headers);
        assert_eq!(headers, map(&[("content-type", "text/plain")]));
    }
}
