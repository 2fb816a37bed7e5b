//! The credential of a caller, as its `Authorization` header has it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, header::AUTHORIZATION};
use proto::AgentId;
use secrecy::SecretString;

use super::unauthorized;
use crate::{error::RequestError, token::TokenHash};

/// The content of an `Authorization` header. It is parsed and not yet verified.
#[derive(Debug)]
pub struct Credential {
    /// The token, without the prefix that names its kind and the agent.
    pub token: SecretString,
    /// The hash of the token, by which every source looks it up.
    pub hash: TokenHash,
    /// The prefix of the token.
    pub kind: TokenKind,
    /// The user name of basic authentication, which is the name of the caller.
    pub name: Option<String>,
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
}

impl TokenKind {
    /// Returns the agent that the credential names.
    pub fn agent(self) -> Option<AgentId> {
        match self {
            Self::Plain => None,
            Self::CiJob(agent) | Self::Personal(agent) => Some(agent),
        }
    }
}

impl Credential {
    /// Parses the `Authorization` header of a request.
    ///
    /// # Errors
    ///
    /// The reason is `unauthorized` if there is no such header, more than one, or a malformed one.
    pub fn parse(headers: &HeaderMap) -> Result<Self, RequestError> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let value = match (values.next(), values.next()) {
            (Some(value), None) => value,
            (None, _) => return Err(unauthorized("an Authorization header with a token is missing")),
            (Some(_), Some(_)) => return Err(unauthorized("there is more than one Authorization header")),
        };
        let value = value.to_str().map_err(|_| unauthorized("the Authorization header is malformed"))?;
        let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
        let rest = rest.trim();
        let credential = if scheme.eq_ignore_ascii_case("bearer") {
            Self::bearer(rest)
        } else if scheme.eq_ignore_ascii_case("basic") {
            Self::basic(rest)
        } else {
            return Err(unauthorized("the Authorization header is neither Bearer nor Basic"));
        };
        credential.ok_or_else(|| unauthorized("the Authorization header is malformed"))
    }

    fn bearer(text: &str) -> Option<Self> {
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
        if token.is_empty() {
            return None;
        }
        let token = SecretString::from(token);
        Some(Self { hash: TokenHash::of(&token), token, kind, name: None })
    }

    fn basic(encoded: &str) -> Option<Self> {
        let decoded = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
        let (name, token) = decoded.split_once(':')?;
        let mut credential = Self::bearer(token)?;
        credential.name = Some(name.to_owned());
        Some(credential)
    }
}
