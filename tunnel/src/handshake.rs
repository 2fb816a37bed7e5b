//! The HTTP part of a WebSocket: pure functions over requests and responses, for both ends.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
        UPGRADE,
    },
};
use proto::SUBPROTOCOL;
use tungstenite::handshake::{client::generate_key, derive_accept_key};

/// Why a request on the agent listener is not the beginning of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An ordinary HTTP request.
    #[error(
        "this address takes tunnels of agentk, which begin with a WebSocket upgrade; callers use kas's public address"
    )]
    NotAnUpgrade,
    /// RFC 6455 section 4.2.1.
    #[error(
        "the WebSocket upgrade is malformed: it needs GET, Sec-WebSocket-Version: 13 and one Sec-WebSocket-Key"
    )]
    Malformed,
    /// None of ours among the offered subprotocols.
    #[error("none of the offered WebSocket subprotocols is spoken here; this kas speaks {SUBPROTOCOL}")]
    Subprotocol,
}

/// Why the answer of the other end is not the beginning of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Not 101.
    #[error("it answered {0} instead of switching to WebSocket")]
    Status(StatusCode),
    /// RFC 6455 section 4.1: something on the way answered, but not a WebSocket server.
    #[error("it answered 101 without the headers of a WebSocket server")]
    NotWebSocket,
    /// It is a WebSocket server, but not kas.
    #[error("it is a WebSocket server that does not speak {SUBPROTOCOL}: is this the agent address of kas?")]
    Subprotocol,
}

impl Refusal {
    /// The answer's status.
    pub fn status(self) -> StatusCode {
        match self {
            Self::NotAnUpgrade | Self::Subprotocol => StatusCode::UPGRADE_REQUIRED,
            Self::Malformed => StatusCode::BAD_REQUEST,
        }
    }
}

/// kas: the headers of the 101 that accepts this request.
pub fn accept<B>(request: &Request<B>) -> Result<HeaderMap, Refusal> {
    let headers = request.headers();
    if !has_token(headers, &CONNECTION, "upgrade") || !has_token(headers, &UPGRADE, "websocket") {
        return Err(Refusal::NotAnUpgrade);
    }

    let version = headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).iter();
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return Err(Refusal::Malformed);
    };
    if request.method() != Method::GET || !version {
        return Err(Refusal::Malformed);
    }
    if !has_token(headers, &SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL) {
        return Err(Refusal::Subprotocol);
    }

    let accept = derive_accept_key(key.as_bytes());
    let mut answer = HeaderMap::new();
    answer.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    answer.insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_str(&accept).expect("base64 is a header value"));
    Ok(answer)
}

/// agentk: the headers that ask for a tunnel, and the key to check the answer with.
pub fn ask() -> (HeaderMap, String) {
    let key = generate_key();
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_str(&key).expect("base64 is a header value"));
    (headers, key)
}

/// agentk: whether the answer accepts the request that was made with `key`.
pub fn check<B>(answer: &Response<B>, key: &str) -> Result<(), Mismatch> {
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(Mismatch::Status(answer.status()));
    }

    let headers = answer.headers();
    let accepted = headers
        .get(SEC_WEBSOCKET_ACCEPT)
        .is_some_and(|accept| accept.as_bytes() == derive_accept_key(key.as_bytes()).as_bytes());
    if !accepted || !has_token(headers, &UPGRADE, "websocket") {
        return Err(Mismatch::NotWebSocket);
    }
    if headers.get(SEC_WEBSOCKET_PROTOCOL).is_none_or(|protocol| protocol != SUBPROTOCOL) {
        return Err(Mismatch::Subprotocol);
    }

    Ok(())
}

/// Whether a comma-separated header names a token, in whatever case.
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

    fn request(edit: impl FnOnce(&mut HeaderMap)) -> (Request<()>, String) {
        let (headers, key) = ask();
        let mut request = Request::new(());
        *request.headers_mut() = headers;
        edit(request.headers_mut());
        (request, key)
    }

    #[test]
    fn an_honest_handshake_is_accepted_by_both_ends() {
        let (request, key) = request(|_| {});
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = accept(&request).unwrap();
        assert_eq!(check(&response, &key), Ok(()));
        assert_eq!(check(&response, "another key"), Err(Mismatch::NotWebSocket));
    }

    #[test]
    fn several_subprotocols_and_tokens_may_be_offered() {
        let (request, _) = request(|headers| {
            headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("ws-tunnel, kas-tunnel.v1"));
        });
        assert!(accept(&request).is_ok());
    }

    #[test]
    fn each_refusal_says_what_is_wrong() {
        let refusal = |edit: fn(&mut HeaderMap)| accept(&request(edit).0).unwrap_err();
        assert_eq!(refusal(HeaderMap::clear), Refusal::NotAnUpgrade);
        assert_eq!(
            refusal(|h| {
                h.remove(SEC_WEBSOCKET_KEY);
            }),
            Refusal::Malformed
        );
        assert_eq!(
            refusal(|h| {
                h.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("ws-tunnel"));
            }),
            Refusal::Subprotocol
        );
        assert!(Refusal::Subprotocol.to_string().contains(SUBPROTOCOL));
    }

    #[test]
    fn an_answer_of_something_else_is_told_apart() {
        let mut response = Response::new(());
        assert_eq!(check(&response, "key"), Err(Mismatch::Status(StatusCode::OK)));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        assert_eq!(check(&response, "key"), Err(Mismatch::NotWebSocket));
    }
}
