//! Hop-by-hop header fields: pure functions that kas and agentk share.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{
        CONNECTION, CONTENT_LENGTH, EXPECT, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL,
        TE, TRANSFER_ENCODING, UPGRADE,
    },
};

use crate::{
    header::{self, tokens},
    trailers,
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
    let trailers = trailers::accepted(headers);
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
}
