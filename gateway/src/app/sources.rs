//! The sources of agents and callers, and their order.

use access::{
    AccessControl, ApiTokenVerifier, CallerAuthorizer, FileCallers, Identity, ProjectAgents,
    UnknownCredentials, UserAuthenticator, UserSources,
};
use gitops_wire::ManifestOrigins;
use kas_environments::{Deployments, EnvironmentFile};
use kas_gitlab::{
    AgentFactsLookup, AgentNames, CallerValidity, GitLabAgentDirectory, GitLabAgents, GitLabAuthorizer,
    GitLabClient, GitLabSessions, InFlightCounters, InternalApiAuthorizer, LoginSettings,
};
use kas_listen::metrics::Limit;
use kas_oidc::{OidcAuthorizer, TokenDeployments};
use oidc::Issuers;
use std::sync::Arc;

use super::shared::SharedState;
use crate::config::Config;
use kas_core::feature::KasFeature;

/// The sources of agents and callers.
#[derive(Debug, Default)]
pub struct ReplicaSources {
    /// The identity file.
    pub identity: Identity,
    /// The issuers of OIDC tokens.
    pub issuers: Issuers,
    /// The GitLab, if one is configured.
    pub gitlab: Option<GitLabClient>,
    /// The logins of people to the web page at that GitLab, if there are any.
    pub gitlab_login: Option<LoginSettings>,
    /// The TLS configuration of connections to Gitaly. Without it, they trust the authorities of the system.
    pub gitaly_tls: Option<Arc<rustls::ClientConfig>>,
    /// The tokens of GitLab and other clients of the internal API, if it is configured.
    pub api_tokens: Option<ApiTokenVerifier>,
    /// The file of environments, if there is one.
    pub environments: Option<EnvironmentFile>,
    /// Features beside those of the program.
    pub features: Vec<Box<dyn KasFeature>>,
}

impl From<Identity> for ReplicaSources {
    fn from(identity: Identity) -> Self {
        Self { identity, ..Self::default() }
    }
}

/// The sources of callers.
pub(super) struct CallerSources {
    /// All of them, in their order.
    pub(super) access: AccessControl,
    /// The users who log in to the web page.
    pub(super) users: UserSources,
    /// The agents of GitLab, if one is configured.
    pub(super) project_agents: Option<Arc<dyn ProjectAgents>>,
    /// The jobs and users of GitLab, if one is configured.
    pub(super) gitlab: Option<Arc<GitLabAuthorizer>>,
}

/// The parts of a replica that know a GitLab.
pub(super) struct GitLabParts {
    pub(super) client: GitLabClient,
    pub(super) agents: GitLabAgents,
    pub(super) facts: AgentFactsLookup,
    pub(super) manifests: Arc<dyn ManifestOrigins>,
    /// The logins of people to the web page, if there are any.
    pub(super) login: Option<LoginSettings>,
}

/// Returns the sources of callers.
pub(super) fn access_control(
    shared: &SharedState,
    issuers: &Issuers,
    gitlab: Option<GitLabParts>,
    api_tokens: Option<ApiTokenVerifier>,
    deployments: Deployments,
    config: &Config,
) -> CallerSources {
    let identities = &shared.identities;
    let names = gitlab
        .as_ref()
        .map(|gitlab| AgentNames::new(identities.clone(), gitlab.agents.clone(), shared.store.clone()));
    let in_flight = InFlightCounters::default();
    let kubernetes_api = &config.agent.kubernetes_api;
    let limit = kubernetes_api.limits.unknown_credentials_per_address_per_minute;
    let refused = shared.metrics.limit_counter(Limit::UnknownCredentialsPerAddress).clone();
    let unknown = Arc::new(UnknownCredentials::new(limit, refused));
    let facts = gitlab.as_ref().map(|gitlab| gitlab.facts.clone());
    let project_agents = facts.map(|facts| Arc::new(facts) as Arc<dyn ProjectAgents>);
    let file = FileCallers::new(identities.clone(), project_agents.clone());
    let mut sources: Vec<Arc<dyn CallerAuthorizer>> = vec![Arc::new(file.clone())];
    if let Some(verifier) = api_tokens {
        let (identities, in_flight) = (identities.clone(), in_flight.clone());
        sources.push(Arc::new(InternalApiAuthorizer::new(verifier, identities, names.clone(), in_flight)));
    }
    let oidc = OidcAuthorizer::new(issuers.clone(), identities.clone(), file, Arc::clone(&unknown));
    let oidc = Arc::new(match &config.gitlab {
        Some(section) => {
            let urls = [Some(section.address.to_string()), section.external_url.clone()];
            let records = Arc::new(deployments.clone());
            oidc.with_deployments(TokenDeployments::new(records, urls.into_iter().flatten()))
        }
        None => oidc,
    });
    sources.push(Arc::clone(&oidc) as Arc<dyn CallerAuthorizer>);
    let gitlab = gitlab.zip(names).map(|(GitLabParts { client, facts, manifests, login, .. }, names)| {
        let authorizer = GitLabAuthorizer::new(
            client,
            GitLabAgentDirectory { names, facts, manifests },
            in_flight,
            shared.usage.clone(),
            Arc::new(deployments),
            Arc::clone(&unknown),
            CallerValidity {
                ttl: kubernetes_api.allowed_agent_cache_ttl,
                error_ttl: kubernetes_api.allowed_agent_cache_error_ttl,
                recheck_timeout: kubernetes_api.stream_recheck_timeout,
            },
        );
        Arc::new(match login {
            Some(login) => authorizer.with_logins(&login, Arc::clone(&shared.store)),
            None => authorizer,
        })
    });
    let users = [oidc as Arc<dyn UserAuthenticator>].into_iter();
    let users = users.chain(gitlab.clone().map(|source| source as Arc<dyn UserAuthenticator>));
    let users = UserSources::new(users);
    sources.extend(gitlab.clone().map(|source| source as Arc<dyn CallerAuthorizer>));
    // Without a GitLab, too: the CSRF token of its pages may be in a query, and must not reach a cluster.
    let access = AccessControl::new(sources, Arc::new(GitLabSessions), unknown);
    CallerSources { access, users, project_agents, gitlab }
}
