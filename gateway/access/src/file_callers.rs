//! Callers of the identity file, and those with an OIDC token that one of its entries matches: the agents and services of their entries.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use proto::{AgentId, AgentName, Reason, ServiceName};

use super::{AuthorizedCaller, CallerAuthorizer, Credential, ProjectAgents, TokenKind, unauthorized};
use crate::{
    caller_agents::{CallerAgents, MissingAgents, agents_of_entry},
    error::RequestError,
    identity::{AgentAttributes, Caller, Grant, Identities, Identity},
    missing_right::missing_right,
    target::Target,
};

/// Authorizes callers with the tokens of the identity file. Clones are cheap.
#[derive(Clone, Debug)]
pub struct FileCallers {
    identities: Identities,
    /// The agents of GitLab, if there is one.
    project_agents: Option<Arc<dyn ProjectAgents>>,
}

/// The agent of a request, which its caller may use.
struct NamedAgent {
    id: AgentId,
    name: Option<AgentName>,
    project_path: Option<Arc<str>>,
}

impl FileCallers {
    /// Authorizes callers for the agents of the file, and for those of GitLab that their entries name.
    pub fn new(identities: Identities, project_agents: Option<Arc<dyn ProjectAgents>>) -> Self {
        Self { identities, project_agents }
    }

    /// Authorizes the request of a caller with these rights, whose credential is valid. Returns `None` if the user name of basic
    /// authentication is that of another caller.
    ///
    /// # Errors
    ///
    /// The errors of [`CallerAuthorizer::authorize`], with the names of the caller.
    pub async fn authorize(
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
        self.authorize_caller(grant, credential, target)
            .await
            .map(Some)
            .map_err(|error| error.with_caller(caller.names()))
    }

    /// Returns the agents that a caller with these rights may use, or the one that its credential names. Returns `None` if the user name of
    /// basic authentication is that of another caller.
    ///
    /// # Errors
    ///
    /// `address-not-allowed`: the caller may not connect from its address.
    pub async fn agents(
        &self,
        grant: &Arc<Grant>,
        credential: &Credential,
    ) -> Result<Option<CallerAgents>, RequestError> {
        let caller = &grant.caller;
        let is_other = credential.name.as_ref().is_some_and(|name| *name != caller.name());
        if is_other || matches!(credential.kind, TokenKind::Session(_)) {
            return Ok(None);
        }
        check_address(caller, credential).map_err(|error| error.with_caller(caller.names()))?;
        let identity = self.identities.load_full();
        let (mut agents, missing) = agents_of_entry(&identity, self.project_agents.as_deref(), caller).await;
        if let Some(named) = credential.kind.agent() {
            agents.retain(|agent| agent.id == named);
        }
        let missing = missing.map(MissingAgents::Unreadable);
        Ok(Some(CallerAgents { grant: Arc::clone(grant), agents, missing }))
    }

    /// Authorizes the request of a caller whose credential is valid.
    async fn authorize_caller(
        &self,
        grant: &Arc<Grant>,
        credential: &Credential,
        target: &Target<'_>,
    ) -> Result<AuthorizedCaller, RequestError> {
        let caller = &grant.caller;
        check_address(caller, credential)?;
        let of_credential = credential.kind.agent();
        let identity = self.identities.load_full();
        let agent = match &target.agent {
            Some(text) => match identity.find(text) {
                Some(agent) => Some(agent),
                None => text.parse().ok(),
            },
            None => Some(of_credential.ok_or_else(|| {
                unauthorized("at this path the credential names the agent: use Bearer ci:<agent id>:<token> or pat:<agent id>:<token>")
            })?),
        };
        // An agent that the caller may not use is reported like an agent that does not exist.
        let agent = match agent {
            Some(agent) => self.find(&identity, caller, agent, target).await?,
            None => None,
        };
        let agent = agent.ok_or_else(|| unknown_agent(&identity, caller, target, of_credential))?;
        if of_credential.is_some_and(|named| named != agent.id) {
            return Err(RequestError::new(
                Reason::Forbidden,
                "the credential is for another agent than the path names",
            ));
        }
        if !caller.may(&target.service, target.verb()) {
            let right = match target.service.as_str() {
                ServiceName::AUDIT => "cluster_audit",
                _ => "services",
            };
            let remedy = format!("{right} of its entry in the identity file of kas can allow it");
            return Err(missing_right(caller, target, &remedy));
        }

        let NamedAgent { id: agent, name, project_path } = agent;
        let grant = Arc::clone(grant);
        Ok(AuthorizedCaller { grant, agent, name, project_path, login: false, environment: None })
    }

    /// Returns the agent with this id, if the caller may use it.
    async fn find(
        &self,
        identity: &Identity,
        caller: &Caller,
        id: AgentId,
        target: &Target<'_>,
    ) -> Result<Option<NamedAgent>, RequestError> {
        if let Some(name) = identity.name(id) {
            let named = NamedAgent { id, name: Some(name.clone()), project_path: None };
            return Ok(caller.may_use(id).then_some(named));
        }
        let auditor = is_auditor(caller, target);
        // A search may ask other replicas, so that other callers must not cause one.
        if !auditor && !caller.may_use_agents_of_gitlab() {
            return Ok(None);
        }
        let unnamed = AgentAttributes { id, name: None, project_path: None };
        let allowed = auditor || caller.may_use_agent_of_gitlab(unnamed);
        let known = match &self.project_agents {
            Some(agents) => agents.find(id).await,
            None => Ok(None),
        };
        let (name, project_path) = match known {
            Ok(known) => known.map_or((None, None), |known| (Some(known.name), known.project_path)),
            // The names are for messages then.
            Err(_) if allowed => (None, None),
            Err(error) => return Err(error),
        };
        let attributes = AgentAttributes { id, name: name.as_ref(), project_path: project_path.as_deref() };
        let allowed = allowed || caller.may_use_agent_of_gitlab(attributes);
        Ok(allowed.then_some(NamedAgent { id, name, project_path }))
    }
}

impl CallerAuthorizer for FileCallers {
    fn authorize<'a>(
        &'a self,
        credential: &'a Credential,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<Option<AuthorizedCaller>, RequestError>> {
        Box::pin(async move {
            let grant = self.identities.load().grant(&credential.hash).cloned();
            match grant {
                Some(grant) => Self::authorize(self, &grant, credential, target).await,
                None => Ok(None),
            }
        })
    }

    fn agents<'a>(
        &'a self,
        credential: &'a Credential,
    ) -> BoxFuture<'a, Result<Option<CallerAgents>, RequestError>> {
        Box::pin(async move {
            let grant = self.identities.load().grant(&credential.hash).cloned();
            match grant {
                Some(grant) => Self::agents(self, &grant, credential).await,
                None => Ok(None),
            }
        })
    }
}

/// Checks the address of a caller before anything about its rights is reported: its token may be stolen.
fn check_address(caller: &Caller, credential: &Credential) -> Result<(), RequestError> {
    if caller.may_connect_from(credential.address) {
        return Ok(());
    }
    let key = format!("the entry of caller {} in the identity file", caller.name());
    Err(RequestError::address_not_allowed(credential.address, key))
}

/// Returns whether the caller asks for an audit log, and may read those of all clusters: also those of GitLab's agents, which are not in
/// the file.
fn is_auditor(caller: &Caller, target: &Target<'_>) -> bool {
    target.service.as_str() == ServiceName::AUDIT
        && caller.may_use_all()
        && caller.may(&target.service, target.verb())
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
    let of_gitlab = if caller.may_use_agents_of_gitlab() {
        ", and agents of GitLab by their ids; one that its entry names by a project or a group has to be connected"
    } else {
        ""
    };
    let what =
        format!("there is no agent {named} for caller {}; there are: {known}{of_gitlab}", caller.name());
    RequestError::new(Reason::UnknownAgent, what)
}

#[cfg(test)]
mod tests {
    use std::{
        borrow::Cow,
        future::ready,
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
        AccessControl, BrowserSession, ConnectedProjectAgents, ProjectAgentName, SessionParser,
        UnknownCredentials, target::UrlPathPrefix, token::TokenHash,
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
             - {{name: of-one, tokens: ['{}'], agents: [prod], services: [kubernetes], cluster_audit: true}}\n\
             - {{name: of-gitlab, tokens: ['{}'], agents: ['gitlab:42', 'gitlab:1', 'gitlab:shop/**', 'gitlab:web/site:prod'], \
                 services: [kubernetes, {{service: gitops, verbs: [read, sync]}}]}}",
            hash("secret"),
            hash("elsewhere"),
            hash("all"),
            hash("one"),
            hash("gitlab"),
        );
        Identity::parse(Path::new("id.yaml"), &text).unwrap()
    }

    /// The agents of GitLab.
    #[derive(Debug)]
    struct Connected;

    impl ProjectAgents for Connected {
        fn find(&self, agent: AgentId) -> BoxFuture<'_, Result<Option<ProjectAgentName>, RequestError>> {
            let known = match agent.0 {
                1 | 50 => Some(("prod", Some("shop/eu/web"))),
                51 => Some(("prod", Some("web/site"))),
                52 => Some(("test", Some("web/site"))),
                53 => Some(("prod", None)),
                _ => None,
            };
            Box::pin(ready(Ok(known.map(|(name, path)| ProjectAgentName {
                name: name.parse().unwrap(),
                project_path: path.map(Into::into),
            }))))
        }

        fn list(&self) -> BoxFuture<'_, ConnectedProjectAgents> {
            Box::pin(ready(ConnectedProjectAgents::default()))
        }
    }

    fn authorized_agent(path: &str, authorization: &[&str]) -> Result<AgentId, (Reason, String)> {
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        let path = path.parse().unwrap();
        let target = Target::parse(&path, &UrlPathPrefix::default()).unwrap();
        let file: Arc<dyn CallerAuthorizer> =
            Arc::new(FileCallers::new(Identities::new(identity()), Some(Arc::new(Connected))));
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
    fn agent_of_gitlab_is_named_by_id_by_project_or_by_group() {
        for (agent, expected) in [
            (42, true),
            (50, true),
            (51, true),
            // GitLab has an agent 1, too. The id is that of the file here, and the entry does not name that one.
            (1, false),
            (2, false),
            (52, false),
            // Its project is unknown.
            (53, false),
            (54, false),
        ] {
            let path = format!("/agents/{agent}/kubernetes/api");
            let authorized = authorized_agent(&path, &["Bearer gitlab"]);
            if expected {
                assert_eq!(authorized, Ok(AgentId(agent)), "{path}");
            } else {
                let (reason, message) = authorized.unwrap_err();
                assert_eq!(reason, Reason::UnknownAgent, "{path}");
                assert!(message.contains("there are: none, and agents of GitLab by their ids"), "{message}");
            }
        }
        assert_eq!(authorized_agent("/k8s-proxy/api", &["Bearer ci:51:gitlab"]), Ok(AgentId(51)));
        // `*` and names are agents of the file.
        for (path, token) in [
            ("/agents/50/kubernetes/api", "all"),
            ("/agents/50/kubernetes/api", "secret"),
            ("/agents/prod/kubernetes/api", "gitlab"),
        ] {
            let (reason, _) = authorized_agent(path, &[&format!("Bearer {token}")]).unwrap_err();
            assert_eq!(reason, Reason::UnknownAgent, "{path} {token}");
        }
    }

    #[test]
    fn verb_of_a_service_needs_its_right() {
        for (path, expected) in [
            ("projects", Ok(())),
            ("projects/web/diff", Ok(())),
            ("projects/web/sync", Ok(())),
            (
                "projects/web/approve",
                Err("caller of-gitlab may not approve with the service gitops: services of"),
            ),
            (
                "projects/web/resume",
                Err("caller of-gitlab may not suspend with the service gitops: services of"),
            ),
        ] {
            let authorized = authorized_agent(&format!("/agents/50/gitops/v1/{path}"), &["Bearer gitlab"]);
            match (authorized, expected) {
                (Ok(AgentId(50)), Ok(())) => {}
                (Err((Reason::Forbidden, message)), Err(expected)) => {
                    assert!(message.starts_with(expected), "{message}");
                }
                (authorized, _) => panic!("{path}: {authorized:?}"),
            }
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
        assert_eq!(
            message,
            "caller ci may not use the service prometheus: services of its entry in the identity file of kas can allow it"
        );
    }

    #[test]
    fn credential_for_another_agent_is_forbidden() {
        let (reason, _) = authorized_agent("/agents/prod/kubernetes/", &["Bearer ci:2:secret"]).unwrap_err();
        assert_eq!(reason, Reason::Forbidden);
    }
}
