//! May this caller ask this of this agent?

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, header::AUTHORIZATION};
use proto::{AgentId, Reason};
use secrecy::SecretString;

use crate::{
    failure::Failure,
    identity::{Caller, Grant, Identity},
    target::Target,
};

/// A request that may be passed on.
#[derive(Debug)]
pub struct Access {
    /// Who asks, and for how long they may.
    pub grant: Arc<Grant>,
    /// Whom.
    pub agent: AgentId,
}

/// What an `Authorization` header says.
struct Credential {
    token: SecretString,
    /// `ci:<agent id>:<token>` and `pat:<agent id>:<token>` name the agent.
    agent: Option<AgentId>,
    /// Basic authentication names the caller.
    name: Option<String>,
}

/// Authenticates the caller and authorizes the request.
pub fn authorize(identity: &Identity, headers: &HeaderMap, target: &Target<'_>) -> Result<Access, Failure> {
    let credential = Credential::parse(headers)?;
    let grant = identity
        .grant(&credential.token)
        .filter(|grant| credential.name.as_ref().is_none_or(|name| *name == grant.caller.name))
        .ok_or_else(|| unauthorized("the token is unknown or was revoked"))?;
    let caller = &grant.caller;
    let named = match target.agent {
        Some(name) => identity.find(name),
        None => Some(credential.agent.ok_or_else(|| {
            unauthorized("at this path the credential names the agent: use Bearer ci:<agent id>:<token> or pat:<agent id>:<token>")
        })?),
    };
    // An agent that the caller may not use is not told apart from one that does not exist.
    let agent = named
        .filter(|agent| caller.may_use(*agent) && identity.name(*agent).is_some())
        .ok_or_else(|| unknown_agent(identity, caller, target, &credential))?;
    if credential.agent.is_some_and(|credential| credential != agent) {
        return Err(Failure::new(
            Reason::Forbidden,
            "the credential is for another agent than the path names",
        ));
    }
    if !caller.may_ask(&target.service) {
        let what = format!("caller {} may not use the service {}", caller.name, target.service);
        return Err(Failure::new(Reason::Forbidden, what));
    }

    Ok(Access { grant: Arc::clone(grant), agent })
}

impl Credential {
    fn parse(headers: &HeaderMap) -> Result<Self, Failure> {
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

fn unauthorized(what: &str) -> Failure {
    Failure::new(Reason::Unauthorized, what)
}

fn unknown_agent(
    identity: &Identity,
    caller: &Caller,
    target: &Target<'_>,
    credential: &Credential,
) -> Failure {
    let named = match (target.agent, credential.agent) {
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
    Failure::new(Reason::UnknownAgent, what)
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

    fn ask(path: &str, authorization: &[&str]) -> Result<AgentId, (Reason, String)> {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        let path = path.parse().unwrap();
        let target = Target::parse(&path).unwrap();
        authorize(&identity(), &headers, &target)
            .map(|access| access.agent)
            .map_err(|failure| (failure.reason, failure.message))
    }

    #[test]
    fn a_known_token_reaches_its_agent_by_id_name_or_credential() {
        let basic = format!("Basic {}", STANDARD.encode("ci:secret"));
        for (path, authorization) in [
            ("/agents/prod/kubernetes/api", "Bearer secret"),
            ("/agents/1/kubernetes/api", "bearer secret"),
            ("/agents/1/kubernetes/api", &*basic),
            ("/agents/1/kubernetes/api", "Bearer ci:1:secret"),
            ("/k8s-proxy/api", "Bearer ci:1:secret"),
            ("/k8s-proxy/api", "Bearer pat:1:secret"),
        ] {
            assert_eq!(ask(path, &[authorization]), Ok(AgentId(1)), "{path} {authorization}");
        }
    }

    #[test]
    fn a_bad_credential_is_401() {
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
            let (reason, message) = ask("/agents/prod/kubernetes/api", authorization).unwrap_err();
            assert_eq!(reason, Reason::Unauthorized, "{authorization:?}");
            assert!(!message.contains("secret"), "{message}");
        }
        assert_eq!(ask("/k8s-proxy/api", &["Bearer secret"]).unwrap_err().0, Reason::Unauthorized);
    }

    #[test]
    fn an_agent_out_of_reach_looks_like_one_that_does_not_exist() {
        for agent in ["test", "2", "nope", "+1", "01", "1.0"] {
            let path = &*format!("/agents/{agent}/kubernetes/");
            let (reason, message) = ask(path, &["Bearer secret"]).unwrap_err();
            assert_eq!(reason, Reason::UnknownAgent);
            assert!(message.ends_with("there are: prod (1)"), "{message}");
        }
    }

    #[test]
    fn a_service_out_of_reach_is_forbidden() {
        let (reason, message) = ask("/agents/prod/prometheus/", &["Bearer secret"]).unwrap_err();
        assert_eq!(reason, Reason::Forbidden);
        assert_eq!(message, "caller ci may not use the service prometheus");
    }

    #[test]
    fn the_credential_and_the_path_must_not_contradict_each_other() {
        let (reason, _) = ask("/agents/prod/kubernetes/", &["Bearer ci:2:secret"]).unwrap_err();
        assert_eq!(reason, Reason::Forbidden);
    }
}
