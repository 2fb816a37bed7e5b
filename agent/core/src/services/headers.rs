//! The headers that pass agentk, in both directions. kas filters them, too: neither end relies on the other.

use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, CONNECTION, COOKIE, TE, UPGRADE, VIA},
};
use proto::hop_by_hop;

/// Turns the headers of a request of kas into those of a request to a server. Returns true if it is an upgrade.
///
/// Credentials of the caller are removed: they are for kas.
pub fn to_upstream(headers: &mut HeaderMap) -> bool {
    let upgrade = hop_by_hop::upgrade_protocol(headers);
    hop_by_hop::strip_with(headers, |name| matches!(*name, AUTHORIZATION | COOKIE));
    headers.append(VIA, HeaderValue::from_static("2 agentk"));
    let Some(protocol) = upgrade else {
        if headers.contains_key(TE) {
            // RFC 9110 section 10.1.4: `Connection` must list TE, since it is for the next hop only.
            headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
        return false;
    };
    headers.remove(TE);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);

    true
}

/// Turns the headers of a server's response into those of the response to kas.
pub fn from_upstream(headers: &mut HeaderMap) {
    // A 101 keeps its protocol, which the tunnel sends to kas.
    let upgrade = hop_by_hop::upgrade_protocol(headers);
    hop_by_hop::strip(headers);
    headers.append(VIA, HeaderValue::from_static("1.1 agentk"));
    if let Some(protocol) = upgrade {
        headers.insert(UPGRADE, protocol);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn credentials_and_hop_by_hop_headers_are_removed() {
        let mut headers = map(&[
            ("accept", "application/json"),
            ("authorization", "Bearer stolen"),
            ("cookie", "a=b"),
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip"),
            ("kas-service", "kubernetes"),
            ("upgrade", "not asked for"),
            ("content-length", "5"),
        ]);
        assert!(!to_upstream(&mut headers));
        assert_eq!(
            headers,
            map(&[("accept", "application/json"), ("content-length", "5"), ("via", "2 agentk")])
        );
    }

    #[test]
    fn te_trailers_is_sent_with_connection_te() {
        let mut headers = map(&[("te", "trailers")]);
        assert!(!to_upstream(&mut headers));
        assert_eq!(headers, map(&[("te", "trailers"), ("via", "2 agentk"), ("connection", "te")]));
    }

    #[test]
    fn upgrade_headers_are_kept() {
        let mut headers = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert!(to_upstream(&mut headers));
        assert_eq!(headers, map(&[("via", "2 agentk"), ("connection", "upgrade"), ("upgrade", "SPDY/3.1")]));
    }

    #[test]
    fn kas_headers_of_a_server_are_removed() {
        let mut headers = map(&[
            ("kas-error", "forbidden"),
            ("kas-upgraded", "SPDY/3.1"),
            ("keep-alive", "timeout=5"),
            ("content-type", "text/plain"),
        ]);
        from_upstream(&mut headers);
        assert_eq!(headers, map(&[("content-type", "text/plain"), ("via", "1.1 agentk")]));
    }
}
