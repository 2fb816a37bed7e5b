//! The credential of a caller: its `Authorization` header, or its browser session.

use std::{borrow::Cow, fmt, net::IpAddr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, header::AUTHORIZATION};
use proto::AgentId;
use secrecy::SecretString;

use super::unauthorized;
use crate::{error::RequestError, token::TokenHash};

/// The longest token or cookie, in bytes. Job tokens of GitLab are JWTs of about 1,000 bytes.
pub const MAX_TOKEN: usize = 32 << 10;

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
