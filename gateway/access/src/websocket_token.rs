//! The token of a WebSocket in its subprotocol, as the API server of Kubernetes accepts it: browsers cannot set `Authorization`.
//!
//! ```text
//!   Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.<token>, v5.channel.k8s.io
//! ```

use base64::{Engine as _, alphabet, engine};
use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL},
};

use crate::error::RequestError;

/// The beginning of the subprotocol.
const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Base64 for URLs without padding, which may be there.
const BASE64: engine::GeneralPurpose = engine::GeneralPurpose::new(
    &alphabet::URL_SAFE,
    engine::GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(engine::DecodePaddingMode::Indifferent),
);

/// Removes the subprotocol with a token, so that it reaches neither agentk nor a log. Without an `Authorization` header, the token
/// becomes one.
///
/// # Errors
///
/// The reason is `bad-request` if there are several tokens, one is malformed, or there is no other subprotocol that the server could
/// accept.
pub fn take_websocket_token(headers: &mut HeaderMap) -> Result<(), RequestError> {
    // Most requests are no WebSockets.
    if !headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
        return Ok(());
    }
    let (mut tokens, mut others) = (Vec::new(), Vec::new());
    for value in headers.get_all(SEC_WEBSOCKET_PROTOCOL) {
        let names = value
            .to_str()
            .map_err(|_| RequestError::bad_request("the WebSocket subprotocols are malformed"))?;
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name.strip_prefix(PREFIX) {
                Some(token) => tokens.push(bearer(token)),
                None => others.push(name),
            }
        }
    }
    let Some(first) = tokens.pop() else { return Ok(()) };
    let others = HeaderValue::from_str(&others.join(", ")).map_err(|_| malformed())?;
    if !tokens.is_empty() {
        return Err(RequestError::bad_request("the WebSocket has more than one subprotocol with a token"));
    }
    if others.is_empty() {
        return Err(RequestError::bad_request(
            "a WebSocket whose subprotocol is a token needs another one, such as v5.channel.k8s.io, which the server can accept",
        ));
    }
    let authorization = first.ok_or_else(malformed)?;
    headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    headers.entry(AUTHORIZATION).or_insert(authorization);
    Ok(())
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let token = String::from_utf8(BASE64.decode(token).ok()?).ok()?;
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn malformed() -> RequestError {
    RequestError::bad_request("the token in the WebSocket subprotocol is not base64url without padding")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(protocols: &[&str], authorization: Option<&str>) -> Result<(String, Option<String>), String> {
        let mut headers = HeaderMap::new();
        for protocol in protocols {
            headers.append(SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
        }
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value.parse().unwrap());
        }
        take_websocket_token(&mut headers).map_err(|error| error.to_string())?;
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let protocols: Vec<String> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().map(text).collect();
        Ok((protocols.join(" | "), headers.get(AUTHORIZATION).map(text)))
    }

    #[test]
    fn token_moves_from_the_subprotocol_to_the_header() {
        let bearer = |token: &str| Some(format!("Bearer {token}"));
        let token = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        for (protocols, expected) in [
            (&[&*format!("{token}, v5.channel.k8s.io")][..], ("v5.channel.k8s.io", bearer("secret"))),
            (
                &["v4.channel.k8s.io", token, "v5.channel.k8s.io"],
                ("v4.channel.k8s.io, v5.channel.k8s.io", bearer("secret")),
            ),
            (&["a,base64url.bearer.authorization.k8s.io.cGF0OjE6eC15Xw=="], ("a", bearer("pat:1:x-y_"))),
            (&["v5.channel.k8s.io", "b"], ("v5.channel.k8s.io | b", None)),
        ] {
            assert_eq!(taken(protocols, None).unwrap(), (expected.0.to_owned(), expected.1), "{protocols:?}");
        }
        let both = taken(&[&format!("{token}, a")], Some("Bearer other")).unwrap();
        assert_eq!(both, ("a".to_owned(), bearer("other")), "the header wins, and the token goes nowhere");
    }

    #[test]
    fn malformed_token_is_refused_without_its_text() {
        for (protocols, expected) in [
            ("base64url.bearer.authorization.k8s.io.c2VjcmV0", "needs another one"),
            (
                "base64url.bearer.authorization.k8s.io.c2VjcmV0, base64url.bearer.authorization.k8s.io.c2VjcmV0, a",
                "more than one",
            ),
            ("base64url.bearer.authorization.k8s.io.c2Vj+cmV0, a", "not base64url"),
            ("base64url.bearer.authorization.k8s.io._w, a", "not base64url"),
            ("base64url.bearer.authorization.k8s.io.YQpi, a", "not base64url"),
        ] {
            let error = taken(&[protocols], None).unwrap_err();
            assert!(error.contains(expected) && !error.contains("c2Vj"), "{error}");
        }
    }
}
