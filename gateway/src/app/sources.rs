//! The sources of agents and callers, and their order.

use access::{
    AccessControl, ApiTokenVerifier, CallerAuthorizer, FileCallers, Identity, ProjectAgents,
    UnknownCredentials, UserAuthenticator,
};
use kas_environments::{Deployments, EnvironmentFile};
use kas_gitlab::{
    AgentFactsLookup, AgentNames, CallerValidity, GitLabAgentDirectory, GitLabAgents, GitLabAuthorizer,
    GitLabClient, GitLabSessions, InFlightCounters, InternalApiAuthorizer,
};
use kas_listen::metrics::Limit;
use kas_oidc::OidcAuthorizer;
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
    pub(super) oidc: Arc<dyn UserAuthenticator>,
    /// The jobs and users of GitLab, if one is configured.
    pub(super) gitlab: Option<Arc<GitLabAuthorizer>>,
}

/// Returns the sources of callers.
pub(super) fn access_control(
    shared: &SharedState,
    issuers: &Issuers,
    gitlab: Option<(GitLabClient, GitLabAgents)>,
    api_tokens: Option<ApiTokenVerifier>,
    facts: Option<AgentFactsLookup>,
    deployments: Deployments,
    config: &Config,
) -> CallerSources {
    let identities = &shared.identities;
    let gitlab = gitlab
        .map(|(client, agents)| (client, AgentNames::new(identities.clone(), agents, shared.store.clone())));
    let in_flight = InFlightCounters::default();
    let kubernetes_api = &config.agent.kubernetes_api;
    let limit = kubernetes_api.limits.unknown_credentials_per_address_per_minute;
    let refused = shared.metrics.limit_counter(Limit::UnknownCredentialsPerAddress).clone();
    let unknown = Arc::new(UnknownCredentials::new(limit, refused));
    let project_agents = facts.clone().map(|facts| Arc::new(facts) as Arc<dyn ProjectAgents>);
    let file = FileCallers::new(identities.clone(), project_agents);
    let mut sources: Vec<Arc<dyn CallerAuthorizer>> = vec![Arc::new(file.clone())];
    if let Some(verifier) = api_tokens {
        let names = gitlab.as_ref().map(|(_, names)| names.clone());
        sources.push(Arc::new(InternalApiAuthorizer::new(
            verifier,
            identities.clone(),
            names,
            in_flight.clone(),
        )));
    }
    let oidc = Arc::new(OidcAuthorizer::new(issuers.clone(), identities.clone(), file, Arc::clone(&unknown)));
    sources.push(Arc::clone(&oidc) as Arc<dyn CallerAuthorizer>);
    let gitlab = gitlab.zip(facts).map(|((client, names), facts)| {
        Arc::new(GitLabAuthorizer::new(
            client,
            GitLabAgentDirectory { names, facts },
            in_flight,
            shared.usage.clone(),
            Arc::new(deployments),
            Arc::clone(&unknown),
            CallerValidity {
                ttl: kubernetes_api.allowed_agent_cache_ttl,
                error_ttl: kubernetes_api.allowed_agent_cache_error_ttl,
                recheck_timeout: kubernetes_api.stream_recheck_timeout,
            },
        ))
    });
    sources.extend(gitlab.clone().map(|source| source as Arc<dyn CallerAuthorizer>));
    // Without a GitLab, too: the CSRF token of its pages may be in a query, and must not reach a cluster.
    let access = AccessControl::new(sources, Arc::new(GitLabSessions), unknown);
    CallerSources { access, oidc, gitlab }
}
