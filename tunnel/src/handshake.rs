//! The handshake of the WebSocket (RFC 6455 section 4): pure functions over requests and responses, for both ends.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
        UPGRADE,
    },
};
use proto::TunnelProtocol;
use tungstenite::handshake::{client::generate_key, derive_accept_key};

/// The reason why kas refuses the request for a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeRequestError {
    /// The request is not a WebSocket upgrade.
    #[error(
        "this address accepts tunnels of agentk, which start with a WebSocket upgrade; callers use kas's public address"
    )]
    NotAnUpgrade,
    /// The upgrade is malformed (RFC 6455 section 4.2.1).
    #[error(
        "the WebSocket upgrade is malformed: it needs GET, Sec-WebSocket-Version: 13 and one Sec-WebSocket-Key"
    )]
    Malformed,
    /// None of the offered subprotocols is supported.
    #[error(
        "kas supports none of the offered WebSocket subprotocols; it supports {}",
        TunnelProtocol::list(.supported)
    )]
    Subprotocol {
        /// The protocols that kas supports.
        supported: &'static [TunnelProtocol],
    },
}

/// The reason why agentk refuses the response to its request for a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeResponseError {
    /// The status is not 101.
    #[error("it responded with {0} instead of switching to WebSocket")]
    Status(StatusCode),
    /// The 101 does not come from a WebSocket server (RFC 6455 section 4.1).
    #[error("it responded with 101 without the headers of a WebSocket server")]
    NotWebSocket,
    /// The WebSocket server is not kas.
    #[error(
        "it is a WebSocket server that does not support {}: is this the agent address of kas?",
        TunnelProtocol::list(.offered)
    )]
    Subprotocol {
        /// The protocols that agentk offered.
        offered: &'static [TunnelProtocol],
    },
}

impl UpgradeRequestError {
    /// Returns the status of the response.
    pub fn status(self) -> StatusCode {
        match self {
            Self::NotAnUpgrade | Self::Subprotocol { .. } => StatusCode::UPGRADE_REQUIRED,
            Self::Malformed => StatusCode::BAD_REQUEST,
        }
    }
}

/// Returns the headers of the 101 that accepts the request, at kas, and the first of the `supported` protocols that agentk offers.
pub fn response_headers<B>(
    request: &Request<B>,
    supported: &'static [TunnelProtocol],
) -> Result<(HeaderMap, TunnelProtocol), UpgradeRequestError> {
    let headers = request.headers();
    if !has_token(headers, &CONNECTION, "upgrade") || !has_token(headers, &UPGRADE, "websocket") {
        return Err(UpgradeRequestError::NotAnUpgrade);
    }

    let version = headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).iter();
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return Err(UpgradeRequestError::Malformed);
    };
    if request.method() != Method::GET || !version {
        return Err(UpgradeRequestError::Malformed);
    }
    let is_offered =
        |protocol: &&TunnelProtocol| has_token(headers, &SEC_WEBSOCKET_PROTOCOL, protocol.subprotocol());
    let Some(&protocol) = supported.iter().find(is_offered) else {
        return Err(UpgradeRequestError::Subprotocol { supported });
    };

    let accept = derive_accept_key(key.as_bytes());
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol.subprotocol()));
    headers.insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_str(&accept).expect("base64 is a header value"));
    Ok((headers, protocol))
}

/// Makes a response that is no upgrade the last one of its connection.
///
/// Without persistent connections, hyper would add `close` to the header `Connection` of the 101, too. A reverse proxy in Go (Caddy, Traefik)
/// and a client in Go (agentk of GitLab) take such a 101 for no upgrade.
pub fn close_unless_upgraded<B>(mut response: Response<B>) -> Response<B> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Returns the headers of the request for a tunnel with one of these protocols, at agentk, and the key for [`verify_response`].
pub fn request_headers(offered: &[TunnelProtocol]) -> (HeaderMap, String) {
    let key = generate_key();
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    let protocols = HeaderValue::from_str(&TunnelProtocol::list(offered)).expect("names are ASCII");
    headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols);
    headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_str(&key).expect("base64 is a header value"));
    (headers, key)
}

/// Checks that the response accepts the request with this `key`, at agentk. Returns the protocol that kas chose from the offered ones.
pub fn verify_response<B>(
    response: &Response<B>,
    key: &str,
    offered: &'static [TunnelProtocol],
) -> Result<TunnelProtocol, UpgradeResponseError> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(UpgradeResponseError::Status(response.status()));
    }

    let headers = response.headers();
    let accepted = headers
        .get(SEC_WEBSOCKET_ACCEPT)
        .is_some_and(|accept| accept.as_bytes() == derive_accept_key(key.as_bytes()).as_bytes());
    if !accepted || !has_token(headers, &UPGRADE, "websocket") {
        return Err(UpgradeResponseError::NotWebSocket);
    }
    let chosen = headers.get(SEC_WEBSOCKET_PROTOCOL);
    let is_chosen =
        |protocol: &&TunnelProtocol| chosen.is_some_and(|chosen| chosen == protocol.subprotocol());
    offered.iter().find(is_chosen).copied().ok_or(UpgradeResponseError::Subprotocol { offered })
}

/// Returns whether a comma-separated header has a token. The case of letters is ignored.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|each| each.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[TunnelProtocol] = &[TunnelProtocol::KasTunnel];
    const BOTH: &[TunnelProtocol] = &[TunnelProtocol::KasTunnel, TunnelProtocol::GitLab];

    fn request(edit: impl FnOnce(&mut HeaderMap)) -> (Request<()>, String) {
        let (headers, key) = request_headers(ONE);
        let mut request = Request::new(());
        *request.headers_mut() = headers;
        edit(request.headers_mut());
        (request, key)
    }

    #[test]
    fn valid_handshake_is_accepted_by_both_ends() {
        let (request, key) = request(|_| {});
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        (*response.headers_mut(), _) = response_headers(&request, BOTH).unwrap();
        assert_eq!(verify_response(&response, &key, ONE), Ok(TunnelProtocol::KasTunnel));
        assert_eq!(verify_response(&response, "another key", ONE), Err(UpgradeResponseError::NotWebSocket));
    }

    #[test]
    fn several_subprotocols_and_tokens_are_accepted() {
        let (request, _) = request(|headers| {
            headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("ws-tunnel, kas-tunnel.v1"));
        });
        let chosen = |supported| response_headers(&request, supported).map(|(_, protocol)| protocol);
        assert_eq!(chosen(ONE), Ok(TunnelProtocol::KasTunnel));
        assert_eq!(chosen(BOTH), Ok(TunnelProtocol::KasTunnel));
        assert_eq!(chosen(&[TunnelProtocol::GitLab]), Ok(TunnelProtocol::GitLab));
    }

    #[test]
    fn invalid_request_is_refused_with_its_reason() {
        let refusal = |edit: fn(&mut HeaderMap)| response_headers(&request(edit).0, ONE).unwrap_err();
        assert_eq!(refusal(HeaderMap::clear), UpgradeRequestError::NotAnUpgrade);
        assert_eq!(
            refusal(|h| {
                h.remove(SEC_WEBSOCKET_KEY);
            }),
            UpgradeRequestError::Malformed
        );
        assert_eq!(
            refusal(|h| {
                h.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("ws-tunnel"));
            }),
            UpgradeRequestError::Subprotocol { supported: ONE }
        );
        let text = UpgradeRequestError::Subprotocol { supported: BOTH }.to_string();
        assert!(text.ends_with("it supports kas-tunnel.v1, ws-tunnel"), "{text}");
    }

    #[test]
    fn response_of_another_server_is_refused() {
        let mut response = Response::new(());
        assert_eq!(verify_response(&response, "key", ONE), Err(UpgradeResponseError::Status(StatusCode::OK)));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        assert_eq!(verify_response(&response, "key", ONE), Err(UpgradeResponseError::NotWebSocket));
    }
}
