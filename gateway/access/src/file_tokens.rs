//! Callers of the identity file.

use std::{future::ready, sync::Arc};

use futures_util::future::BoxFuture;
use proto::{AgentId, Reason, ServiceName};

use super::{AuthorizedCaller, CallerAuthorizer, Credential, TokenKind, unauthorized};
use crate::{
    error::RequestError,
    identity::{Caller, Grant, Identities, Identity},
    target::Target,
};

impl CallerAuthorizer for Identities {
    fn authorize<'a>(
        &'a self,
        credential: &'a Credential,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<Option<AuthorizedCaller>, RequestError>> {
        let identity = self.load();
        let authorized = match identity.grant(&credential.hash) {
            Some(grant) => identity.authorize(grant, credential, target),
            None => Ok(None),
        };
        Box::pin(ready(authorized))
    }
}

impl Identity {
    /// Authorizes the request of a caller with these rights, whose credential is valid. Returns `None` if the user name of basic
    /// authentication is that of another caller.
    ///
    /// # Errors
    ///
    /// The errors of [`CallerAuthorizer::authorize`], with the names of the caller.
    pub fn authorize(
        &self,
        grant: &Arc<Grant>,
        credential: &Credential,
        target: &Target<'_>,
    ) -> Result<Option<AuthorizedCaller>, RequestError> {
        // A token must not be accepted as a cookie, which browsers send without the will of the user.
        if matches!(credential.kind, TokenKind::Session(_)) {
            return Ok(None);
        }
        let caller = &grant.caller;
        if credential.name.as_ref().is_some_and(|name| *name != caller.name()) {
            return Ok(None);
        }
        authorize_caller(self, grant, credential, target)
            .map(Some)
            .map_err(|error| error.with_caller(caller.names()))
    }
}

/// Authorizes the request of a caller whose credential is valid.
fn authorize_caller(
    identity: &Identity,
    grant: &Arc<Grant>,
    credential: &Credential,
    target: &Target<'_>,
) -> Result<AuthorizedCaller, RequestError> {
    let caller = &grant.caller;
    // Before anything about the rights of the caller is reported: its token may be stolen.
    if !caller.may_connect_from(credential.address) {
        let key = format!("the entry of caller {} in the identity file", caller.name());
        return Err(RequestError::address_not_allowed(credential.address, key));
    }
    let of_credential = credential.kind.agent();
    let named = match &target.agent {
        Some(name) => identity.find(name).or_else(|| name.parse().ok().filter(|_| is_auditor(caller, target))),
        None => Some(of_credential.ok_or_else(|| {
            unauthorized("at this path the credential names the agent: use Bearer ci:<agent id>:<token> or pat:<agent id>:<token>")
        })?),
    };
    // An agent that the caller may not use is reported like an agent that does not exist.
    let (agent, name) = named
        .filter(|agent| caller.may_use(*agent))
        .map(|agent| (agent, identity.name(agent).cloned()))
        .filter(|(_, name)| name.is_some() || is_auditor(caller, target))
        .ok_or_else(|| unknown_agent(identity, caller, target, of_credential))?;
    if of_credential.is_some_and(|named| named != agent) {
        return Err(RequestError::new(
            Reason::Forbidden,
            "the credential is for another agent than the path names",
        ));
    }
    if !caller.may_use_service(&target.service) {
        let right = match target.service.as_str() {
            ServiceName::AUDIT => " (cluster_audit: true in the identity file of kas allows it)",
            _ => "",
        };
        let what = format!("caller {} may not use the service {}{right}", caller.name(), target.service);
        return Err(RequestError::new(Reason::Forbidden, what));
    }

    let grant = Arc::clone(grant);
    Ok(AuthorizedCaller { grant, agent, name, project_path: None, login: false, environment: None })
}

/// Returns whether the caller asks for an audit log, and may read those of all clusters: also those of GitLab's agents, which are not in
/// the file, and whose callers in GitLab have no such right.
fn is_auditor(caller: &Caller, target: &Target<'_>) -> bool {
    target.service.as_str() == ServiceName::AUDIT
        && caller.may_use_all()
        && caller.may_use_service(&target.service)
}

fn unknown_agent(
    identity: &Identity,
    caller: &Caller,
    target: &Target<'_>,
    of_credential: Option<AgentId>,
) -> RequestError {
    let named = match (&target.agent, of_credential) {
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
    let what = format!("there is no agent {named} for caller {}; there are: {known}", caller.name());
    RequestError::new(Reason::UnknownAgent, what)
}

#[cfg(test)]
mod tests {
    use std::{
        borrow::Cow,
        net::{IpAddr, Ipv4Addr},
        path::Path,
    };

    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use futures_util::FutureExt as _;
    use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
    use prometheus_client::metrics::counter::Counter;
    use secrecy::SecretString;

    use super::*;
    use crate::{
        AccessControl, BrowserSession, SessionParser, UnknownCredentials, target::UrlPathPrefix,
        token::TokenHash,
    };

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    /// No request has a browser session.
    #[derive(Debug)]
    struct NoSessions;

    impl SessionParser for NoSessions {
        fn parse(&self, _: &HeaderMap, _: Option<&str>) -> Result<Option<BrowserSession>, &'static str> {
            Ok(None)
        }

        fn without_credentials<'a>(&self, path: &'a str) -> Cow<'a, str> {
            Cow::Borrowed(path)
        }
    }

    fn identity() -> Identity {
        let hash = |token: &str| TokenHash::of(&SecretString::from(token));
        let text = format!(
            "agents: [{{id: 1, name: prod, tokens: []}}, {{id: 2, name: test, tokens: []}}]\n\
             callers:\n\
             - {{name: ci, tokens: ['{}'], agents: [prod], services: [kubernetes], allowed_networks: [192.0.2.0/24]}}\n\
             - {{name: office, tokens: ['{}'], agents: [prod], services: ['*'], allowed_networks: [198.51.100.0/24]}}\n\
             - {{name: auditor, tokens: ['{}'], agents: ['*'], services: [kubernetes], cluster_audit: true}}\n\
             - {{name: of-one, tokens: ['{}'], agents: [prod], services: [kubernetes], cluster_audit: true}}",
            hash("secret"),
            hash("elsewhere"),
            hash("all"),
            hash("one"),
        );
        Identity::parse(Path::new("id.yaml"), &text).unwrap()
    }

    fn authorized_agent(path: &str, authorization: &[&str]) -> Result<AgentId, (Reason, String)> {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        let path = path.parse().unwrap();
        let target = Target::parse(&path, &UrlPathPrefix::default()).unwrap();
        let file: Arc<dyn CallerAuthorizer> = Arc::new(Identities::new(identity()));
        let unknown = Arc::new(UnknownCredentials::new(60, Counter::default()));
        let access_control = AccessControl::new([file], Arc::new(NoSessions), unknown);
        let authorized = access_control.authorize(&headers, &target, ADDRESS).now_or_never();
        authorized.unwrap().map(|caller| caller.agent).map_err(|failure| (failure.reason, failure.message))
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

    /// The holder of a stolen token learns no agent.
    #[test]
    fn token_from_another_network_is_refused_at_any_path() {
        for path in ["/agents/prod/kubernetes/", "/agents/nope/kubernetes/", "/k8s-proxy/api"] {
            let (reason, message) = authorized_agent(path, &["Bearer elsewhere"]).unwrap_err();
            assert_eq!(reason, Reason::AddressNotAllowed, "{path}");
            assert_eq!(
                message,
                "requests from 192.0.2.7 are not allowed: it is in none of the networks of the entry of caller \
                 office in the identity file"
            );
        }
    }

    #[test]
    fn auditor_of_all_agents_reads_the_audit_logs_of_agents_of_gitlab() {
        for (path, token, expected) in [
            ("/agents/42/audit", "all", Ok(AgentId(42))),
            ("/agents/prod/audit", "all", Ok(AgentId(1))),
            ("/agents/of-gitlab/audit", "all", Err(Reason::UnknownAgent)),
            ("/agents/42/kubernetes/api", "all", Err(Reason::UnknownAgent)),
            ("/agents/prod/audit", "one", Ok(AgentId(1))),
            ("/agents/42/audit", "one", Err(Reason::UnknownAgent)),
            ("/agents/prod/audit", "secret", Err(Reason::Forbidden)),
        ] {
            let authorized = authorized_agent(path, &[&format!("Bearer {token}")]);
            assert_eq!(authorized.map_err(|(reason, _)| reason), expected, "{path} {token}");
        }
        let of_credential = authorized_agent("/k8s-proxy/api", &["Bearer ci:42:all"]);
        assert_eq!(of_credential.unwrap_err().0, Reason::UnknownAgent);
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
