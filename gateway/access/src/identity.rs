//! Sources that know which agent holds a token. The first one is the identity file, with agents, callers and their tokens.

mod configuration;
mod current;
mod dial_target;
mod file;
mod gitlab_agents;
mod oidc;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::IpAddr,
    path::Path,
    sync::{Arc, atomic::AtomicU32},
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use http::HeaderMap;
use proto::{AgentId, AgentName, ServiceName, Verb, audit::CiJob};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

pub use self::{
    configuration::ConfigurationLocation,
    current::Identities,
    dial_target::{AgentUrl, AgentUrlError, DialCredentials, DialTarget},
    oidc::VerifiedClaims,
};
use self::{
    gitlab_agents::{GitLabAgents, any_contains},
    oidc::OidcRule,
};
use crate::{rights::ServiceRights, token::TokenHash};
use request_info::prometheus::SeriesLabels;
use settings::{AllowedNetworks, ConfigError};

/// A source of answers: who is this agent?
pub trait AgentAuthenticator: fmt::Debug + Send + Sync {
    /// Returns the agent that holds the token, or `None` if this source does not know the token.
    ///
    /// # Errors
    ///
    /// The source cannot answer now.
    fn authenticate<'a>(
        &'a self,
        token: &'a SecretString,
    ) -> BoxFuture<'a, Result<Option<AgentIdentity>, SourceUnavailable>>;

    /// Returns whether the token is that of an agent, as far as this source knows without asking another server.
    fn lookup<'a>(&'a self, token: &'a SecretString) -> BoxFuture<'a, Option<bool>>;

    /// Completes when the token is no longer one of the agent. The tunnel is cut then.
    fn revoked<'a>(&'a self, agent: AgentId, token: &'a SecretString) -> BoxFuture<'a, ()>;
}

/// An agent whose token is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentIdentity {
    /// The id of the agent.
    pub id: AgentId,
    /// The name of the agent, for messages and logs.
    pub name: AgentName,
    /// The project of the agent, if it has one.
    pub project: Option<u64>,
    /// The path of the project of an agent of GitLab, if GitLab has said it.
    pub project_path: Option<Arc<str>>,
}

/// The attributes of an agent by which settings select it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentAttributes<'a> {
    /// The id.
    pub id: AgentId,
    /// The name, if it is known.
    pub name: Option<&'a AgentName>,
    /// The path of the project of an agent of GitLab, if it is known.
    pub project_path: Option<&'a str>,
}

impl AgentIdentity {
    /// Returns the attributes by which settings select the agent.
    pub fn attributes(&self) -> AgentAttributes<'_> {
        AgentAttributes { id: self.id, name: Some(&self.name), project_path: self.project_path.as_deref() }
    }
}

/// The error of a source of identities that cannot answer now.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct SourceUnavailable {
    /// The source, and why it does not answer.
    pub message: String,
    /// The time after which another attempt is useful.
    pub retry_after: Duration,
}

/// The sources of agents in their order. Clones are cheap.
#[derive(Clone, Debug)]
pub struct AgentSources(Arc<[Arc<dyn AgentAuthenticator>]>);

/// One version of the identity file: the agents, the callers and their tokens.
#[derive(Debug, Default)]
pub struct Identity {
    agents: HashMap<AgentId, AgentName>,
    agents_by_name: HashMap<AgentName, AgentId>,
    projects: HashMap<AgentId, u64>,
    /// The UIDs of the clusters that agents are pinned to.
    clusters: HashMap<AgentId, String>,
    agent_tokens: HashMap<TokenHash, AgentId>,
    configurations: HashMap<AgentId, ConfigurationLocation>,
    /// The networks of agents that have `allowed_networks`.
    agent_networks: HashMap<AgentId, AllowedNetworks>,
    /// The agents that kas dials.
    dial_targets: HashMap<AgentId, DialTarget>,
    caller_tokens: HashMap<TokenHash, Arc<Grant>>,
    /// The entries with `oidc`, in the order of the file.
    oidc_rules: Vec<OidcRule>,
    /// The number of versions before this one.
    version: u64,
}

/// The rights of a caller's token.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The caller that holds the token.
    pub caller: Arc<Caller>,
    /// Cancelled when the token or any right of the caller is revoked. Long streams end then.
    pub revoked: CancellationToken,
    /// The requests in flight of the caller, over all of its tokens.
    pub in_flight: Arc<AtomicU32>,
    /// The time at which streams end, because the token has expired before. `None` if they do not.
    pub streams_end: Option<SystemTime>,
}

/// A person or program that sends requests to clusters.
#[derive(Debug, PartialEq, Eq)]
pub struct Caller {
    rights: Rights,
    /// The identity of the caller in the cluster.
    pub access_as: AccessAs,
    /// The user of an OIDC token, for the audit log and the kill switch.
    pub user: Option<String>,
    /// The CI job whose credential it is, for the audit log.
    pub job: Option<Box<CiJob>>,
}

/// The names of an authenticated caller, for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerNames {
    /// The name of the caller.
    pub name: String,
    /// The user of an OIDC token.
    pub user: Option<String>,
}

/// The rights of an entry of the identity file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rights {
    name: String,
    /// Agents of the file; that of the answer, if GitLab knows the caller.
    agents: AllowedAgents,
    gitlab_agents: Vec<GitLabAgents>,
    services: ServiceRights,
    /// The labels of all of its series. Callers of GitLab have those of their services.
    labels: Option<SeriesLabels>,
    networks: AllowedNetworks,
    /// May read about the requests of all callers.
    audit: bool,
    /// May read the audit logs of the clusters of its agents.
    cluster_audit: bool,
}

/// All agents of the file, or those of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedAgents {
    All,
    Only(Vec<AgentId>),
}

/// The identity of a caller in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessAs {
    /// The identity of agentk. The caller may impersonate other users as far as agentk may.
    Agent,
    /// An impersonated user. `Impersonate-*` headers of the caller are refused.
    Impersonate {
        /// The name of the user, for logs.
        username: String,
        /// The `Impersonate-*` headers of the user.
        headers: HeaderMap,
    },
}

impl AgentSources {
    /// Asks these sources, in this order.
    pub fn new(sources: impl IntoIterator<Item = Arc<dyn AgentAuthenticator>>) -> Self {
        Self(sources.into_iter().collect())
    }

    /// Returns whether the token is that of an agent, as far as this replica knows without asking another server.
    pub async fn lookup(&self, token: &SecretString) -> Option<bool> {
        let mut known = Some(false);
        for source in &*self.0 {
            match source.lookup(token).await {
                Some(true) => return Some(true),
                Some(false) => {}
                None => known = None,
            }
        }
        known
    }

    /// Returns the agent that holds the token with the source that knows it, or `None` if no source knows the token.
    ///
    /// # Errors
    ///
    /// A source cannot answer now, and none before it knows the token.
    pub async fn authenticate(
        &self,
        token: &SecretString,
    ) -> Result<Option<(AgentIdentity, Arc<dyn AgentAuthenticator>)>, SourceUnavailable> {
        for source in &*self.0 {
            if let Some(agent) = source.authenticate(token).await? {
                return Ok(Some((agent, Arc::clone(source))));
            }
        }
        Ok(None)
    }
}

impl Identity {
    /// Returns the agent that holds a token.
    pub fn agent(&self, token: &SecretString) -> Option<AgentIdentity> {
        let id = *self.agent_tokens.get(&TokenHash::of(token))?;
        Some(AgentIdentity {
            id,
            name: self.name(id)?.clone(),
            project: self.project(id),
            project_path: None,
        })
    }

    /// Returns true if the token is one of the agent. A token may have moved to another agent.
    pub fn is_token_of(&self, agent: AgentId, hash: &TokenHash) -> bool {
        self.agent_tokens.get(hash) == Some(&agent)
    }

    /// Returns whether an agent may connect from an address. Agents that are not in this file may.
    pub fn agent_may_connect_from(&self, agent: AgentId, address: IpAddr) -> bool {
        self.agent_networks.get(&agent).is_none_or(|networks| networks.contains(address))
    }

    /// Returns the number of versions that this process has read before this one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the rights of an OIDC token: those of the first entry that matches it.
    pub fn oidc_grant(&self, token: &VerifiedClaims) -> Option<Arc<Grant>> {
        self.oidc_rules.iter().find_map(|rule| rule.grant(token)).map(Arc::new)
    }

    /// Returns the claims that the entries for tokens of the issuer with this name need, in order of their names.
    pub fn oidc_claims<'a>(&'a self, issuer: &str) -> BTreeSet<&'a str> {
        let rules = self.oidc_rules.iter().filter(|rule| rule.issuer == issuer);
        rules.flat_map(|rule| &rule.claims).map(|claim| &*claim.name).collect()
    }

    /// Returns whether any caller with tokens of an issuer may use a service of an agent.
    pub fn issuer_may_use(&self, issuer: &str, agent: AgentId, service: &ServiceName) -> bool {
        self.oidc_rules.iter().any(|rule| {
            rule.issuer == issuer && rule.rights.agents.contain(agent) && rule.rights.may_use_service(service)
        })
    }

    /// Returns whether any caller with tokens of an issuer may use a service of this agent, which is one of GitLab, or `None` if an
    /// unknown attribute of the agent decides.
    pub fn issuer_may_use_agent_of_gitlab(
        &self,
        issuer: &str,
        agent: AgentAttributes<'_>,
        service: &ServiceName,
    ) -> Option<bool> {
        let rules = self.oidc_rules.iter().filter(|rule| rule.issuer == issuer);
        let rules = rules.filter(|rule| rule.rights.may_use_service(service));
        any_contains(rules.flat_map(|rule| &rule.rights.gitlab_agents), agent)
    }

    /// Checks that each issuer of an entry is configured. `path` is for errors.
    ///
    /// # Errors
    ///
    /// An entry refers to an issuer that is none of `names`.
    pub fn check_issuers(&self, path: &Path, names: &[String]) -> Result<(), ConfigError> {
        let Some(rule) = self.oidc_rules.iter().find(|rule| !names.contains(&rule.issuer)) else {
            return Ok(());
        };
        let what =
            format!("there is no issuer {:?} in oidc.issuers of the configuration of kas", rule.issuer);
        Err(ConfigError::new(path, rule.location, format!("{}.oidc.issuer", rule.key), what))
    }

    /// Returns the rights of a caller's token.
    pub fn grant(&self, token: &TokenHash) -> Option<&Arc<Grant>> {
        self.caller_tokens.get(token)
    }

    /// Iterates over the hashes of the tokens of callers, in no order.
    pub fn caller_tokens(&self) -> impl Iterator<Item = &TokenHash> {
        self.caller_tokens.keys()
    }

    /// Takes over the state of the previous version. The streams of a token continue if its caller has the same rights.
    fn inherit(&mut self, previous: &Self) {
        self.version = previous.version + 1;
        oidc::inherit(&mut self.oidc_rules, &previous.oidc_rules);
        // The limit of a caller is shared by all of its tokens, including new ones.
        let in_flight: HashMap<&str, &Arc<AtomicU32>> =
            previous.caller_tokens.values().map(|old| (old.caller.name(), &old.in_flight)).collect();
        for new in self.caller_tokens.values_mut() {
            if let Some(old) = in_flight.get(new.caller.name()) {
                Arc::make_mut(new).in_flight = Arc::clone(old);
            }
        }
        for (token, old) in &previous.caller_tokens {
            match self.caller_tokens.get_mut(token) {
                Some(new) if new.caller == old.caller => {
                    Arc::make_mut(new).revoked = old.revoked.clone();
                }
                Some(_) | None => old.revoked.cancel(),
            }
        }
    }

    /// Returns the agent with this id or name.
    pub fn find(&self, id_or_name: &str) -> Option<AgentId> {
        // No text is both an id and a name.
        self.agents_by_name.get(id_or_name).copied().or_else(|| {
            let id = id_or_name.parse().ok()?;
            self.agents.contains_key(&id).then_some(id)
        })
    }

    /// Returns the name of an agent.
    pub fn name(&self, agent: AgentId) -> Option<&AgentName> {
        self.agents.get(&agent)
    }

    /// Returns the project of an agent, if it has one.
    pub fn project(&self, agent: AgentId) -> Option<u64> {
        self.projects.get(&agent).copied()
    }

    /// Returns the UID of the cluster that an agent is pinned to, if it is.
    pub fn cluster(&self, agent: AgentId) -> Option<&str> {
        self.clusters.get(&agent).map(String::as_str)
    }

    /// Returns the agents that kas dials, in no order.
    pub fn dial_targets(&self) -> impl Iterator<Item = (AgentId, &DialTarget)> {
        self.dial_targets.iter().map(|(agent, target)| (*agent, target))
    }

    /// Returns the location of an agent's configuration, if its entry has one.
    pub fn configuration(&self, agent: AgentId) -> Option<&ConfigurationLocation> {
        self.configurations.get(&agent)
    }

    /// Returns all agents, in order of their names.
    pub fn agents(&self) -> Vec<(&AgentName, AgentId)> {
        let mut agents: Vec<_> = self.agents.iter().map(|(id, name)| (name, *id)).collect();
        agents.sort();
        agents
    }

    /// Returns the agents that a caller may use, in order of their names.
    pub fn agents_of(&self, caller: &Caller) -> Vec<(&AgentName, AgentId)> {
        let mut agents = self.agents();
        agents.retain(|(_, id)| caller.may_use(*id));
        agents
    }

    /// Returns the numbers of agents and of callers' tokens.
    pub fn counts(&self) -> (usize, usize) {
        (self.agents.len(), self.caller_tokens.len())
    }
}

impl Grant {
    /// Creates the rights of a caller that are not revoked.
    pub fn new(caller: Caller, in_flight: Arc<AtomicU32>) -> Self {
        Self { caller: Arc::new(caller), revoked: CancellationToken::new(), in_flight, streams_end: None }
    }
}

impl Caller {
    /// Creates a caller of one agent, without restrictions to labels.
    pub fn of_agent(name: String, agent: AgentId, services: ServiceRights, access_as: AccessAs) -> Self {
        Self { access_as, ..Self::of_agents(name, vec![agent], services) }
    }

    /// Creates a caller whose rights for agents are known for each of them alone.
    pub fn of_no_agent(name: String) -> Self {
        Self::of_agents(name, Vec::new(), ServiceRights::Only(Vec::new()))
    }

    fn of_agents(name: String, agents: Vec<AgentId>, services: ServiceRights) -> Self {
        let agents = AllowedAgents::Only(agents);
        let networks = AllowedNetworks::default();
        let audit = ServiceName::AUDIT.parse().expect("it is a service name");
        let cluster_audit = matches!(&services, ServiceRights::Only(_)) && services.allow(&audit, Verb::Read);
        Self {
            rights: Rights {
                name,
                agents,
                gitlab_agents: Vec::new(),
                services,
                labels: None,
                networks,
                audit: false,
                cluster_audit,
            },
            access_as: AccessAs::Agent,
            user: None,
            job: None,
        }
    }

    /// Adds the CI job whose credential it is.
    #[must_use]
    pub fn with_job(self, job: CiJob) -> Self {
        Self { job: Some(Box::new(job)), ..self }
    }

    /// Returns the name of the entry, which is also the user name of basic authentication.
    pub fn name(&self) -> &str {
        &self.rights.name
    }

    /// Returns the names of the caller.
    pub fn names(&self) -> CallerNames {
        CallerNames { name: self.rights.name.clone(), user: self.user.clone() }
    }

    /// Returns whether the caller may use an agent, which is not one of GitLab that its entry names.
    pub fn may_use(&self, agent: AgentId) -> bool {
        self.rights.agents.contain(agent)
    }

    /// Returns whether the entry of the caller names agents of GitLab.
    pub fn may_use_agents_of_gitlab(&self) -> bool {
        !self.rights.gitlab_agents.is_empty()
    }

    /// Returns whether the entry of the caller names this agent, which is one of GitLab.
    pub fn may_use_agent_of_gitlab(&self, agent: AgentAttributes<'_>) -> bool {
        self.rights.gitlab_agents.iter().any(|agents| agents.contain(agent))
    }

    /// Returns the same, or `None` if an unknown attribute of the agent decides.
    pub fn may_use_agent_of_gitlab_if_known(&self, agent: AgentAttributes<'_>) -> Option<bool> {
        any_contains(&self.rights.gitlab_agents, agent)
    }

    /// Returns whether the caller may use all agents of the file.
    pub fn may_use_all(&self) -> bool {
        self.rights.agents == AllowedAgents::All
    }

    /// Returns whether the caller may do this with a service of its agents.
    pub fn may(&self, service: &ServiceName, verb: Verb) -> bool {
        self.rights.may(service, verb)
    }

    /// Returns those of the services that the caller may use, each with its verbs.
    pub fn verbs_of(
        &self,
        services: impl IntoIterator<Item = &'static str>,
    ) -> BTreeMap<&'static str, Vec<Verb>> {
        let rights = services.into_iter().filter_map(|name| {
            let service: ServiceName = name.parse().ok()?;
            let verbs: Vec<_> =
                service.verbs().iter().copied().filter(|verb| self.may(&service, *verb)).collect();
            (!verbs.is_empty()).then_some((name, verbs))
        });
        rights.collect()
    }

    /// Returns whether the caller may do anything with a service of its agents.
    pub fn may_use_service(&self, service: &ServiceName) -> bool {
        self.rights.may_use_service(service)
    }

    /// Returns whether the caller may read about the requests of all callers, and not only about its own.
    pub fn may_audit(&self) -> bool {
        self.rights.audit
    }

    /// Returns whether the caller may connect from an address.
    pub fn may_connect_from(&self, address: IpAddr) -> bool {
        self.rights.networks.contains(address)
    }

    /// Returns the labels to which requests to this service are restricted. Only `prometheus` and `prometheus.<name>` are
    /// restricted.
    pub fn labels(&self, service: &ServiceName) -> Option<&SeriesLabels> {
        let of_entry = self.rights.labels.as_ref().filter(|_| service.is_prometheus());
        of_entry.or_else(|| self.rights.services.labels(service))
    }
}

impl Rights {
    /// Returns whether these rights allow this. That to the audit log of a cluster is one of its own.
    fn may(&self, service: &ServiceName, verb: Verb) -> bool {
        match service.as_str() {
            ServiceName::AUDIT => self.cluster_audit,
            _ => self.services.allow(service, verb),
        }
    }

    fn may_use_service(&self, service: &ServiceName) -> bool {
        service.verbs().iter().any(|verb| self.may(service, *verb))
    }
}

impl AllowedAgents {
    fn contain(&self, agent: AgentId) -> bool {
        match self {
            Self::All => true,
            Self::Only(list) => list.contains(&agent),
        }
    }
}
