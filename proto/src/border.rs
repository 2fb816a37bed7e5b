//! What each hop does to headers: pure functions that both ends share.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE},
};

use crate::header;

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

/// The protocol that a message asks to switch to, or says it switched to (RFC 9110 section 7.8).
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let asked = connection_tokens(headers).any(|token| token.eq_ignore_ascii_case("upgrade"));
    asked.then(|| protocol.clone())
}

/// Removes what is about the connection, what `Connection` names, and what only kas and agentk may say to each other.
pub fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = connection_tokens(headers)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .collect();
    let ours: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(header::PREFIX)).cloned().collect();
    for name in named.iter().chain(&ours).chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
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

    fn map(entries: &[(&'static str, &'static str)]) -> HeaderMap {
        let entry = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn the_connections_headers_end_here() {
        let mut headers = map(&[
            ("connection", "close, X-Private, not a name"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("te", "trailers"),
            ("upgrade", "not asked for"),
            ("kas-service", "control"),
            ("kas-anything", "x"),
            ("content-length", "5"),
        ]);
        assert_eq!(upgrade(&headers), None);
        strip(&mut headers);
        assert_eq!(headers, map(&[("content-length", "5")]));
    }

    #[test]
    fn an_upgrade_is_one_only_if_the_connection_says_so() {
        let asked = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert_eq!(upgrade(&asked).unwrap(), "SPDY/3.1");
        assert_eq!(upgrade(&map(&[("connection", "upgrade")])), None);
    }
}
