//! What crosses agentk, in both directions. kas filters, too; each end trusts only itself.

use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, CONNECTION, COOKIE, TE, UPGRADE, VIA},
};
use proto::border;

/// Makes kas's headers those of a request to a server near us. True if it asks for an upgrade.
///
/// Whoever the caller is to kas, nothing of it is a credential here.
pub fn to_upstream(headers: &mut HeaderMap) -> bool {
    let upgrade = border::upgrade(headers);
    border::strip(headers);
    headers.remove(AUTHORIZATION);
    headers.remove(COOKIE);
    headers.append(VIA, HeaderValue::from_static("2 agentk"));
    let Some(protocol) = upgrade else {
        if headers.contains_key(TE) {
            // RFC 9110 section 10.1.4: or the server takes it for something meant for a later hop.
            headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
        return false;
    };
    headers.remove(TE);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);

    true
}

/// Makes a server's headers those of the answer to kas.
pub fn from_upstream(headers: &mut HeaderMap) {
    // A 101 keeps what it switches to: the tunnel carries it on.
    let upgrade = border::upgrade(headers);
    border::strip(headers);
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
    fn credentials_and_connection_headers_end_here() {
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
    fn who_takes_trailers_says_so_to_the_next_server() {
        let mut headers = map(&[("te", "trailers")]);
        assert!(!to_upstream(&mut headers));
        assert_eq!(headers, map(&[("te", "trailers"), ("via", "2 agentk"), ("connection", "te")]));
    }

    #[test]
    fn a_real_upgrade_is_passed_on() {
        let mut headers = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert!(to_upstream(&mut headers));
        assert_eq!(headers, map(&[("via", "2 agentk"), ("connection", "upgrade"), ("upgrade", "SPDY/3.1")]));
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
        assert_eq!(headers, map(&[("content-type", "text/plain"), ("via", "1.1 agentk")]));
    }
}
