//! Authentication of callers, and authorization of their requests.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, header::AUTHORIZATION};
use proto::{AgentId, Reason};
use secrecy::SecretString;

use crate::{
    error::RequestError,
    identity::{Caller, Grant, Identity},
    target::Target,
};

/// A caller whose token is valid.
#[derive(Debug)]
pub struct AuthenticatedCaller {
    /// The rights of the token.
    pub grant: Arc<Grant>,
    /// The agent that the credential names.
    agent: Option<AgentId>,
}

/// The content of an `Authorization` header.
struct Credential {
    token: SecretString,
    /// The agent of `ci:<agent id>:<token>` and `pat:<agent id>:<token>`.
    agent: Option<AgentId>,
    /// The user name of basic authentication, which is the name of the caller.
    name: Option<String>,
}

/// Authenticates the caller by its `Authorization` header.
///
/// # Errors
///
/// The reason is `unauthorized`.
pub fn authenticate(identity: &Identity, headers: &HeaderMap) -> Result<AuthenticatedCaller, RequestError> {
    let Credential { token, agent, name } = Credential::parse(headers)?;
    let grant = identity
        .grant(&token)
        .filter(|grant| name.as_ref().is_none_or(|name| *name == grant.caller.name))
        .ok_or_else(|| unauthorized("the token is unknown or was revoked"))?;
    Ok(AuthenticatedCaller { grant: Arc::clone(grant), agent })
}

/// Returns the agent that the path or the credential names, if the caller may use it and the service.
///
/// # Errors
///
/// The reason is `unknown-agent`, or `forbidden` if the caller may not use the service or if the credential is for another
/// agent. It is `unauthorized` if neither the path nor the credential names an agent.
pub fn authorize(
    identity: &Identity,
    AuthenticatedCaller { grant, agent: of_credential }: &AuthenticatedCaller,
    target: &Target<'_>,
) -> Result<AgentId, RequestError> {
    let caller = &grant.caller;
    let named = match target.agent {
        Some(name) => identity.find(name),
        None => Some(of_credential.ok_or_else(|| {
            unauthorized("at this path the credential names the agent: use Bearer ci:<agent id>:<token> or pat:<agent id>:<token>")
        })?),
    };
    // An agent that the caller may not use is reported like an agent that does not exist.
    let agent = named
        .filter(|agent| caller.may_use(*agent) && identity.name(*agent).is_some())
        .ok_or_else(|| unknown_agent(identity, caller, target, *of_credential))?;
    if of_credential.is_some_and(|named| named != agent) {
        return Err(RequestError::new(
            Reason::Forbidden,
            "the credential is for another agent than the path names",
        ));
    }
    if !caller.may_use_service(&target.service) {
        let what = format!("caller {} may not use the service {}", caller.name, target.service);
        return Err(RequestError::new(Reason::Forbidden, what));
    }

    Ok(agent)
}

impl Credential {
    fn parse(headers: &HeaderMap) -> Result<Self, RequestError> {
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

    fn bearer(token: &str) -> Option<Self> {
        let token = match token.split_once(':') {
            None => token,
            Some(("ci" | "pat", rest)) => {
                let (agent, token) = rest.split_once(':')?;
                let agent = Some(agent.parse().ok()?);
                let token = Some(token).filter(|token| !token.is_empty())?;
                return Some(Self { token: SecretString::from(token), agent, name: None });
            }
            Some(_) => return None,
        };
        (!token.is_empty()).then(|| Self { token: SecretString::from(token), agent: None, name: None })
    }

    fn basic(encoded: &str) -> Option<Self> {
        let decoded = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
        let (name, token) = decoded.split_once(':')?;
        let mut credential = Self::bearer(token)?;
        credential.name = Some(name.to_owned());
        Some(credential)
    }
}

fn unauthorized(what: &str) -> RequestError {
    RequestError::new(Reason::Unauthorized, what)
}

fn unknown_agent(
    identity: &Identity,
    caller: &Caller,
    target: &Target<'_>,
    of_credential: Option<AgentId>,
) -> RequestError {
    let named = match (target.agent, of_credential) {
        (Some(name), _) => format!("{name:?}"),
        (None, Some(id)) => id.to_string(),
        (None, None) => String::new(),
    };
    let agents = identity.agents_of(caller);
    let known = agents.iter().take(20).map(|(name, id)| format!("{name} ({id})")).collect::<Vec<_>>();
    let known = match (known.is_empty(), agents.len() > known.len()) {
        (true, _) => "none".to_owned(),
        (false, true) => format!("{} and {} more", known.join(", "), agents.len() - known.len()),
        (false, false) => known.join(", "),
    };
    let what = format!("there is no agent {named} for caller {}; there are: {known}", caller.name);
    RequestError::new(Reason::UnknownAgent, what)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::HeaderValue;

    use super::*;
    use crate::token::TokenHash;

    fn identity() -> Identity {
        let hash = |token: &str| TokenHash::of(&SecretString::from(token));
        let text = format!(
            "agents: [{{id: 1, name: prod, tokens: []}}, {{id: 2, name: test, tokens: []}}]\n\
             callers: [{{name: ci, tokens: ['{}'], agents: [prod], services: [kubernetes]}}]",
            hash("secret")
        );
        Identity::parse(Path::new("id.yaml"), &text).unwrap()
    }

    fn authorized_agent(path: &str, authorization: &[&str]) -> Result<AgentId, (Reason, String)> {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        let path = path.parse().unwrap();
        let target = Target::parse(&path).unwrap();
        let identity = identity();
        authenticate(&identity, &headers)
            .and_then(|caller| authorize(&identity, &caller, &target))
            .map_err(|failure| (failure.reason, failure.message))
    }

    #[test]
    fn agent_is_named_by_id_name_or_credential() {
        let basic = format!("Basic {}", STANDARD.encode("ci:secret"));
        for (path, authorization) in [
            ("/agents/prod/kubernetes/api", "Bearer secret"),
            ("/agents/1/kubernetes/api", "bearer secret"),
            ("/agents/1/kubernetes/api", &*basic),
            ("/agents/1/kubernetes/api", "Bearer ci:1:secret"),
            ("/k8s-proxy/api", "Bearer ci:1:secret"),
            ("/k8s-proxy/api", "Bearer pat:1:secret"),
        ] {
            assert_eq!(authorized_agent(path, &[authorization]), Ok(AgentId(1)), "{path} {authorization}");
        }
    }

    #[test]
    fn bad_credential_is_unauthorized() {
        let wrong_name = format!("Basic {}", STANDARD.encode("cd:secret"));
        for authorization in [
            &[][..],
            &["Bearer wrong"],
            &["Bearer "],
            &["Bearer"],
            &["secret"],
            &["Digest secret"],
            &["Bearer oidc:1:secret"],
            &["Bearer ci:x:secret"],
            &["Bearer ci:+1:secret"],
            &["Bearer ci:01:secret"],
            &["Bearer ci:1:"],
            &["Basic !"],
            &[&wrong_name],
            &["Bearer secret", "Bearer secret"],
        ] {
            let (reason, message) =
                authorized_agent("/agents/prod/kubernetes/api", authorization).unwrap_err();
            assert_eq!(reason, Reason::Unauthorized, "{authorization:?}");
            assert!(!message.contains("secret"), "{message}");
        }
        assert_eq!(
            authorized_agent("/k8s-proxy/api", &["Bearer secret"]).unwrap_err().0,
            Reason::Unauthorized
        );
    }

    #[test]
    fn forbidden_agent_looks_like_missing_agent() {
        for agent in ["test", "2", "nope", "+1", "01", "1.0"] {
            let path = &*format!("/agents/{agent}/kubernetes/");
            let (reason, message) = authorized_agent(path, &["Bearer secret"]).unwrap_err();
            assert_eq!(reason, Reason::UnknownAgent);
            assert!(message.ends_with("there are: prod (1)"), "{message}");
        }
    }

    #[test]
    fn other_service_is_forbidden() {
        let (reason, message) = authorized_agent("/agents/prod/prometheus/", &["Bearer secret"]).unwrap_err();
        assert_eq!(reason, Reason::Forbidden);
        assert_eq!(message, "caller ci may not use the service prometheus");
    }

    #[test]
    fn credential_for_another_agent_is_forbidden() {
        let (reason, _) = authorized_agent("/agents/prod/kubernetes/", &["Bearer ci:2:secret"]).unwrap_err();
        assert_eq!(reason, Reason::Forbidden);
    }
}
