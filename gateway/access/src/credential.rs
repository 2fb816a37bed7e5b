//! The credential of a caller: its `Authorization` header, its browser session, or the token of a WebSocket in its subprotocol, as the API
//! server of Kubernetes accepts it, because browsers cannot set `Authorization`:
//!
//! ```text
//!   Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.<token>, v5.channel.k8s.io
//! ```

use std::{borrow::Cow, fmt, net::IpAddr};

use base64::{
    Engine as _, alphabet,
    engine::{self, general_purpose::STANDARD},
};
use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL},
};
use proto::AgentId;
use secrecy::{ExposeSecret as _, SecretString};

use super::unauthorized;
use crate::{error::RequestError, token::TokenHash};

/// The longest token or cookie, in bytes. Job tokens of GitLab are JWTs of about 1,000 bytes.
pub const MAX_TOKEN: usize = 32 << 10;

/// The beginning of the subprotocol with a token.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Base64 for URLs without padding, which may be there.
const BASE64: engine::GeneralPurpose = engine::GeneralPurpose::new(
    &alphabet::URL_SAFE,
    engine::GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(engine::DecodePaddingMode::Indifferent),
);

/// The credential of a request. It is parsed and not yet verified.
#[derive(Clone, Debug)]
pub struct Credential {
    /// The token, without the prefix that names its kind and the agent. The cookie of a browser session.
    pub token: SecretString,
    /// The hash of the token, by which every source looks it up.
    pub hash: TokenHash,
    /// The CSRF token of a browser session.
    pub csrf_token: Option<SecretString>,
    /// The prefix of the token.
    pub kind: TokenKind,
    /// The user name of basic authentication, which is the name of the caller.
    pub name: Option<String>,
    /// The address of the client that sent the credential.
    pub address: IpAddr,
}

/// The kind of a token, as its prefix names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A token without prefix.
    Plain,
    /// `ci:<agent id>:<token>`: the token of a CI job, for this agent.
    CiJob(AgentId),
    /// `pat:<agent id>:<token>`: the personal access token of a user, for this agent.
    Personal(AgentId),
    /// The cookie of a browser session, for this agent.
    Session(AgentId),
}

/// A browser session, as the request names it.
#[derive(Clone, Debug)]
pub struct BrowserSession {
    /// The agent.
    pub agent: AgentId,
    /// The value of the cookie, unescaped.
    pub cookie: SecretString,
    /// The CSRF token that belongs to the cookie.
    pub csrf_token: SecretString,
}

/// Parses the browser sessions of a server whose pages send requests to clusters. They are credentials without a header
/// `Authorization`.
pub trait SessionParser: fmt::Debug + Send + Sync {
    /// Parses the session of a request, or returns `None` if the request has none. A cookie or CSRF token has at most [`MAX_TOKEN`]
    /// bytes.
    ///
    /// # Errors
    ///
    /// The text names the missing or malformed part.
    fn parse(&self, headers: &HeaderMap, query: Option<&str>)
    -> Result<Option<BrowserSession>, &'static str>;

    /// Removes the credentials of a session from a path with a query. All other bytes stay as they are.
    fn without_credentials<'a>(&self, path: &'a str) -> Cow<'a, str>;
}

impl TokenKind {
    /// Returns the agent that the credential names.
    pub fn agent(self) -> Option<AgentId> {
        match self {
            Self::Plain => None,
            Self::CiJob(agent) | Self::Personal(agent) | Self::Session(agent) => Some(agent),
        }
    }
}

impl Credential {
    /// Parses the `Authorization` header of a request or, without one, its browser session, which is partly in the query.
    ///
    /// # Errors
    ///
    /// The reason is `unauthorized` if there is no credential, more than one, or a malformed one.
    pub fn parse(
        headers: &HeaderMap,
        query: Option<&str>,
        address: IpAddr,
        sessions: &dyn SessionParser,
    ) -> Result<Self, RequestError> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let value = match (values.next(), values.next()) {
            (Some(value), None) => value,
            (None, _) => {
                let session = sessions.parse(headers, query);
                let session = session.map_err(unauthorized)?.map(|session| Self::session(session, address));
                return session
                    .ok_or_else(|| unauthorized("an Authorization header with a token is missing"));
            }
            (Some(_), Some(_)) => return Err(unauthorized("there is more than one Authorization header")),
        };
        let value = value.to_str().map_err(|_| unauthorized("the Authorization header is malformed"))?;
        let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
        let rest = rest.trim();
        let credential = if scheme.eq_ignore_ascii_case("bearer") {
            Self::bearer(rest, address)
        } else if scheme.eq_ignore_ascii_case("basic") {
            Self::basic(rest, address)
        } else {
            return Err(unauthorized("the Authorization header is neither Bearer nor Basic"));
        };
        credential.ok_or_else(|| unauthorized("the Authorization header is malformed"))
    }

    fn bearer(text: &str, address: IpAddr) -> Option<Self> {
        let (kind, token) = match text.split_once(':') {
            None => (TokenKind::Plain, text),
            Some((prefix, rest)) => {
                let (agent, token) = rest.split_once(':')?;
                let agent = agent.parse().ok()?;
                let kind = match prefix {
                    "ci" => TokenKind::CiJob(agent),
                    "pat" => TokenKind::Personal(agent),
                    _ => return None,
                };
                (kind, token)
            }
        };
        if !is_token(token) {
            return None;
        }
        let token = SecretString::from(token);
        Some(Self { hash: TokenHash::of(&token), token, csrf_token: None, kind, name: None, address })
    }

    fn basic(encoded: &str, address: IpAddr) -> Option<Self> {
        let decoded = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
        let (name, token) = decoded.split_once(':')?;
        let mut credential = Self::bearer(token, address)?;
        credential.name = Some(name.to_owned());
        Some(credential)
    }

    /// Returns the header `Authorization` with which the caller reaches an agent. Returns `None` for a credential that names another agent
    /// and is valid for this one only, or that is no header.
    pub fn authorization(&self, agent: AgentId) -> Option<HeaderValue> {
        let prefix = match self.kind {
            TokenKind::Plain => String::new(),
            TokenKind::CiJob(_) => format!("ci:{agent}:"),
            TokenKind::Personal(named) if named == agent => format!("pat:{agent}:"),
            TokenKind::Personal(_) | TokenKind::Session(_) => return None,
        };
        let mut value =
            HeaderValue::try_from(format!("Bearer {prefix}{}", self.token.expose_secret())).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    fn session(session: BrowserSession, address: IpAddr) -> Self {
        Self {
            hash: TokenHash::of(&session.cookie),
            token: session.cookie,
            csrf_token: Some(session.csrf_token),
            kind: TokenKind::Session(session.agent),
            name: None,
            address,
        }
    }
}

/// Returns whether a text can be a token: printable ASCII without spaces (RFC 6750 section 2.1 allows fewer).
fn is_token(text: &str) -> bool {
    (1..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

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
            match name.strip_prefix(BEARER_PROTOCOL) {
                Some(token) => tokens.push(bearer_header(token)),
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

fn bearer_header(token: &str) -> Option<HeaderValue> {
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
