//! What each hop does to headers: pure functions that both ends share.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        CONNECTION, EXPECT, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, TE,
        TRANSFER_ENCODING, UPGRADE,
    },
};

use crate::{header, trailers};

/// About the connection, and never passed on (RFC 9110 section 7.6.1).
///
/// `Expect` is among them because each hop says 100 itself, when it begins to read: a hop that passed it on would have
/// to wait for an answer that a server may never give (RFC 9110 section 10.1.1).
fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        CONNECTION | EXPECT | PROXY_AUTHENTICATE | PROXY_AUTHORIZATION | TE | TRANSFER_ENCODING | UPGRADE => {
            true
        }
        _ => matches!(name.as_str(), "http2-settings" | "proxy-connection" | "keep-alive"),
    }
}

/// How a browser gives an API server its token, which cannot set `Authorization` on a WebSocket
/// (apiserver/pkg/authentication/request/websocket).
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The protocol that a message asks to switch to, or says it switched to (RFC 9110 section 7.8).
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let asked = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    // HTTP inside of an upgrade would carry requests that nobody authorizes (h2c smuggling); without the header, the
    // request is an ordinary one, as RFC 9110 section 7.8 has it.
    let http = tokens(headers, &UPGRADE).any(|token| token.eq_ignore_ascii_case("h2c"));
    (asked && !http).then(|| protocol.clone())
}

/// Removes what is about the connection, what `Connection` names, and what only kas and agentk may say to each other.
///
/// `TE: trailers` stays, and nothing else of `TE`: every hop of ours carries trailers.
pub fn strip(headers: &mut HeaderMap) {
    strip_where(headers, |_| false);
}

/// Does the same as [`strip`], and removes the fields whose name is `gone` in the same pass.
pub fn strip_where(headers: &mut HeaderMap, mut gone: impl FnMut(&HeaderName) -> bool) {
    let trailers = trailers::wanted(headers);
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .collect();
    remove_where(headers, |name| {
        // First, since it looks at every name.
        gone(name) || is_hop_by_hop(name) || name.as_str().starts_with(header::PREFIX) || named.contains(name)
    });
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    strip_bearer(headers);
}

/// Removes the fields whose name is `gone`. Each name is looked at once: most messages have none of them.
pub fn remove_where(headers: &mut HeaderMap, mut gone: impl FnMut(&HeaderName) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| gone(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Whoever a caller is to kas, it has no credential in the cluster but the one that kas says.
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

/// The members of a header that is a comma-separated list, in all its lines.
pub fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
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
            ("te", "gzip"),
            ("expect", "100-continue"),
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

    #[test]
    fn http_inside_of_an_upgrade_is_none() {
        let asked = [("connection", "Upgrade, HTTP2-Settings"), ("http2-settings", "AAMAAABk")];
        for protocol in ["h2c", "H2C", "websocket, h2c"] {
            let mut headers = map(&[asked[0], asked[1], ("upgrade", protocol)]);
            assert_eq!(upgrade(&headers), None, "{protocol}");
            strip(&mut headers);
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn a_token_among_the_websocket_protocols_is_a_credential() {
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
    fn who_takes_trailers_still_says_so() {
        let mut headers = map(&[("connection", "te"), ("te", "gzip, Trailers;q=0.5"), ("trailer", "digest")]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("te", "trailers"), ("trailer", "digest")]));
    }
}
