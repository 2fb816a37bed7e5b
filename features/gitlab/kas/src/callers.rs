//! Callers that GitLab knows: CI jobs, and users with a personal access token or a browser session.
//!
//! | file | content |
//! |---|---|
//! | `job`, `user` | the responses of GitLab, and the errors for callers |
//! | `rights` | the services of jobs and users, with the verbs of each |
//! | `own_sync` | the right of a job to sync the manifests in its own project |
//! | `impersonation` | the identities of jobs and users in the cluster |
//! | `credential_kind` | the kinds of credentials |
//! | `fleet` | all agents of a caller |
//! | `logins` | the people who log in to the web page |
//! | `caller` | [`caller::GitLabCaller`]: a job or user with its rights for each agent |
//! | `deployments` | [`deployments::JobDeployments`]: the records of the deployments of jobs |
//! | `cache` | [`cache::CallerCache`]: one request to GitLab per credential and minute |

mod cache;
mod caller;
mod credential_kind;
mod deployments;
mod fleet;
mod impersonation;
mod job;
mod logins;
mod own_sync;
mod rights;
mod user;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use access::{
    AuthorizedCaller, CallerAgents, CallerAuthorizer, Credential, Grant, ProjectAgentName, RequestError,
    Target, UnknownCredentials, unauthorized,
};
use environments_wire::{DeploymentRecords, deploys};
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use gitops_wire::ManifestOrigins;
use proto::{AgentId, AgentName, Reason, ServiceName};
use secrecy::ExposeSecret as _;
use store::Store;
use tokio::time::{sleep, timeout};

use self::{
    cache::CallerCache,
    caller::{CallerInfo, GitLabCaller},
    credential_kind::CredentialKind,
    deployments::JobDeployments,
    user::{AccessType, UserInfo, UserRequest},
};
use super::{AgentNames, in_flight::InFlightCounters};
use crate::{
    BudgetShare, Endpoint, GitLabClient, GitLabError, Usage,
    agent_facts::AgentFactsLookup,
    budget::MAX_IN_FLIGHT,
    login::{GitLabLogins, LoginSettings},
};

/// The time that a caller waits for GitLab, with all attempts.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The period in which kas looks for streams that GitLab does not confirm.
const UNCONFIRMED_CHECK: Duration = Duration::from_secs(10);
/// `Retry-After` after this time.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Authorizes CI jobs and users by GitLab.
#[derive(Debug)]
pub struct GitLabAuthorizer {
    client: GitLabClient,
    agents: GitLabAgentDirectory,
    /// The logins at the web page, if the configuration has the application for them.
    logins: Option<GitLabLogins>,
    callers: CallerCache,
    in_flight: InFlightCounters,
    usage: Usage,
    deployments: JobDeployments,
    unknown: Arc<UnknownCredentials>,
    /// The time for which an answer of GitLab is valid.
    ttl: Duration,
    /// The time for which streams go on without an answer of GitLab.
    recheck_timeout: Duration,
}

/// The agents of GitLab, with the facts that GitLab's answers about callers do not have.
#[derive(Clone, Debug)]
pub struct GitLabAgentDirectory {
    /// Their names.
    pub names: AgentNames,
    /// Their projects, and the lists `user_access.services` of their configurations.
    pub facts: AgentFactsLookup,
    /// The projects in which their manifests are.
    pub manifests: Arc<dyn ManifestOrigins>,
}

/// The times for which GitLab's answers about a caller are valid.
#[derive(Clone, Copy, Debug)]
pub struct CallerValidity {
    /// The time for which an answer is valid.
    pub ttl: Duration,
    /// The time for which an error is not asked about again.
    pub error_ttl: Duration,
    /// The time for which streams go on without an answer.
    pub recheck_timeout: Duration,
}

impl GitLabAuthorizer {
    /// Creates a source of the callers that GitLab knows.
    pub fn new(
        client: GitLabClient,
        agents: GitLabAgentDirectory,
        in_flight: InFlightCounters,
        usage: Usage,
        deployments: Arc<dyn DeploymentRecords>,
        unknown: Arc<UnknownCredentials>,
        validity: CallerValidity,
    ) -> Self {
        let CallerValidity { ttl, error_ttl, recheck_timeout } = validity;
        let callers = CallerCache::new(ttl, error_ttl);
        let deployments = JobDeployments::new(&client, deployments);
        let logins = None;
        Self { client, agents, logins, callers, in_flight, usage, deployments, unknown, ttl, recheck_timeout }
    }

    /// Lets people log in to the web page at GitLab.
    #[must_use]
    pub fn with_logins(self, settings: &LoginSettings, store: Arc<dyn Store>) -> Self {
        let logins = GitLabLogins::new(
            self.client.clone(),
            settings,
            store,
            self.agents.facts.clone(),
            self.in_flight.clone(),
            Arc::clone(&self.unknown),
            self.ttl,
        );
        Self { logins: Some(logins), ..self }
    }

    /// Ends the streams of credentials that GitLab revokes, or does not confirm, and logins whose time is over, and describes the deployments
    /// of jobs. The future never completes.
    pub async fn run(&self) {
        let logins = async {
            if let Some(logins) = &self.logins {
                logins.run().await;
            }
        };
        tokio::join!(self.recheck(), self.end_unconfirmed(), self.deployments.run(), logins);
    }

    /// Asks GitLab again about callers with open streams, so that the streams of a revoked credential end after at most twice
    /// the time for which an answer is valid.
    async fn recheck(&self) {
        loop {
            sleep(self.ttl).await;
            let recheck = |caller: Arc<GitLabCaller>| async move {
                let (kind, agent) = caller.asked_as;
                // The result is in the cache, and a refusal has ended the streams.
                let _ = self.caller(&caller.credential, kind, agent, BudgetShare::Rechecks).await;
            };
            let expired = stream::iter(self.callers.expired_in_use());
            expired.for_each_concurrent(MAX_IN_FLIGHT, recheck).await;
        }
    }

    /// Ends the streams of callers about whom GitLab has not answered for too long: they may have been revoked.
    async fn end_unconfirmed(&self) {
        loop {
            sleep(UNCONFIRMED_CHECK.min(self.recheck_timeout)).await;
            let mut callers = self.callers.expired_in_use();
            callers.retain(|caller| caller.unconfirmed_for() >= self.recheck_timeout && caller.revoke());
            if !callers.is_empty() {
                let callers = callers.len();
                tracing::warn!(
                    callers,
                    "streams ended: GitLab does not confirm the credentials of their callers"
                );
            }
        }
    }

    /// Returns the job or user of a credential, which is for this agent, and whether GitLab was asked now.
    async fn caller(
        &self,
        credential: &Credential,
        kind: CredentialKind,
        agent: AgentId,
        share: BudgetShare,
    ) -> Result<(Arc<GitLabCaller>, bool), RequestError> {
        let key = kind.cache_key(credential, agent);
        let asked = AtomicBool::new(false);
        let lookup = async |previous: Option<Arc<GitLabCaller>>| {
            let share = if previous.is_some() { share } else { BudgetShare::UnknownCallers };
            if previous.is_none() {
                self.unknown.check(credential.address)?;
            }
            asked.store(true, Relaxed);
            let error = match self.request(credential, kind, agent, share).await {
                Ok(info) => {
                    let asked_as = (kind, agent);
                    return Ok(GitLabCaller::new(credential, asked_as, info, &self.in_flight, previous));
                }
                Err(error) => error,
            };
            match previous {
                // The streams of a caller go on for a while if GitLab does not answer.
                _ if error.reason == Reason::IdentityUnavailable => {}
                Some(previous) => {
                    previous.revoke();
                }
                // The answer was not limited: the next one is.
                // The search for a login has counted it.
                None if matches!(kind, CredentialKind::User(AccessType::OauthLogin)) => {}
                None if error.reason == Reason::Unauthorized => {
                    drop(self.unknown.count(credential.address).await);
                }
                None => {}
            }
            Err(error)
        };
        let caller = self.callers.get(key, lookup).await?;
        Ok((caller, asked.load(Relaxed)))
    }

    /// Requests the holder of the credential from GitLab.
    async fn request(
        &self,
        credential: &Credential,
        kind: CredentialKind,
        agent: AgentId,
        share: BudgetShare,
    ) -> Result<CallerInfo, RequestError> {
        let client = self.client.with_share(share);
        match kind {
            CredentialKind::Job => {
                let token = crate::Credential::Job(&credential.token);
                let response = client.get(Endpoint::AllowedAgents, &[], token);
                let job = within_timeout(response).await.map_err(|error| job::refusal(&error))?;
                Ok(CallerInfo::Job(job))
            }
            CredentialKind::User(AccessType::OauthLogin) => {
                let logins = self.logins.as_ref().ok_or_else(no_logins)?;
                if self.agents.names.is_in_file(agent) {
                    // People who have not logged in learn nothing about the agents of the file.
                    logins.authenticate(&credential.token, credential.address).await?;
                    return Err(same_id(agent));
                }
                let found = logins.user(&credential.token, credential.address, agent, share).await;
                let (user, services) = found?;
                Ok(CallerInfo::User { user: user.into(), access_type: AccessType::OauthLogin, services })
            }
            CredentialKind::User(access_type) => {
                let body = UserRequest {
                    agent_id: agent,
                    access_type,
                    access_key: credential.token.expose_secret(),
                    csrf_token: credential.csrf_token.as_ref().map(|token| token.expose_secret()),
                };
                let none = crate::Credential::None;
                let response = client.post(Endpoint::AuthorizeProxyUser, &body, none);
                let user: UserInfo =
                    within_timeout(response).await.map_err(|error| self.refusal(&error, agent))?;
                if user.agent.id != agent {
                    let message = "its response is about another agent".to_owned();
                    let error = GitLabError::Unavailable { message, retry_after: RETRY_AFTER };
                    return Err(user::refusal(&error, agent));
                }
                let services = self.agents.facts.user_services(agent).await;
                Ok(CallerInfo::User { user, access_type, services })
            }
        }
    }

    /// Authorizes the request of a job or user. Returns its rights, and the name of the agent and the path of its project if they are
    /// known.
    async fn authorize_caller(
        &self,
        caller: &GitLabCaller,
        agent: AgentId,
        target: &Target<'_>,
    ) -> Result<(Arc<Grant>, Option<ProjectAgentName>), RequestError> {
        let grant = caller.grant(agent)?;
        if self.agents.names.is_in_file(agent) {
            return Err(same_id(agent));
        }
        let name = self.agents.names.of_gitlab(agent).await;
        if let Some(text) = target.agent.as_deref() {
            check_path(text, agent, name.as_ref().map(|name| &name.name))?;
        }
        if target.service.as_str() == ServiceName::PROVISION {
            return Ok((caller.environment_grant(agent, target.path, &grant)?, name));
        }
        if !grant.caller.may(&target.service, target.verb()) && !self.syncs_own(caller, agent, target).await?
        {
            return Err(caller.may_not(&grant.caller, target));
        }
        Ok((grant, name))
    }

    /// Returns the error for a user. A 404 also means that GitLab has switched kas off.
    fn refusal(&self, error: &GitLabError, agent: AgentId) -> RequestError {
        if error.is_status(http::StatusCode::NOT_FOUND) && *self.client.switched_off().borrow() {
            let message = "it has switched kas off".to_owned();
            return user::refusal(&GitLabError::Unavailable { message, retry_after: RETRY_AFTER }, agent);
        }
        user::refusal(error, agent)
    }
}

impl CallerAuthorizer for GitLabAuthorizer {
    fn authorize<'a>(
        &'a self,
        credential: &'a Credential,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<Option<AuthorizedCaller>, RequestError>> {
        Box::pin(async move {
            let Some((kind, agent)) = CredentialKind::of(credential, target)? else { return Ok(None) };
            let (caller, login) = self.caller(credential, kind, agent, BudgetShare::KnownCallers).await?;
            let authorized = self.authorize_caller(&caller, agent, target).await;
            let (grant, name) = authorized.map_err(|error| error.with_caller(caller.names()))?;
            if target.service.as_str() == ServiceName::KUBERNETES {
                let (kind, subject) = caller.usage(agent);
                self.usage.count_request(kind, subject);
            }
            if deploys(&target.service)
                && let Some(deployment) = caller.take_deployment(agent)
                && let Err(error) = self.deployments.record(deployment, &credential.token).await
            {
                caller.put_back_deployment(agent);
                tracing::debug!(agent.id = %agent, %error, "deployment not recorded");
            }
            let environment = caller.managed_environment(agent, &target.service)?;
            let (name, project_path) =
                name.map_or((None, None), |known| (Some(known.name), known.project_path));
            Ok(Some(AuthorizedCaller { grant, agent, name, project_path, login, environment }))
        })
    }

    fn agents<'a>(
        &'a self,
        credential: &'a Credential,
    ) -> BoxFuture<'a, Result<Option<CallerAgents>, RequestError>> {
        Box::pin(async move {
            match CredentialKind::with_agent(credential) {
                Some(named) => self.agents_of_caller(credential, named).await.map(Some),
                None if credential.name.is_none() => self.agents_of_user(credential).await,
                None => Ok(None),
            }
        })
    }
}

/// Returns the error for the token of a login without the setting for logins.
fn no_logins() -> RequestError {
    unauthorized(
        "people cannot log in at GitLab any more: gitlab.login is missing in the configuration of kas",
    )
}

/// Checks that the path names the agent of the credential.
fn check_path(text: &str, agent: AgentId, name: Option<&AgentName>) -> Result<(), RequestError> {
    let id = text.parse::<AgentId>().ok();
    if id == Some(agent) || name.is_some_and(|name| name.as_str() == text) {
        return Ok(());
    }
    let what = match (id, name) {
        (None, None) => format!(
            "the path names the agent {text:?}, and the name of agent {agent}, for which the credential is, is unknown while it \
             is not connected: use its id in the path"
        ),
        _ => "the credential is for another agent than the path names".to_owned(),
    };
    Err(RequestError::new(Reason::Forbidden, what))
}

fn same_id(agent: AgentId) -> RequestError {
    let what = format!(
        "Forbidden: agentId is not allowed: agent {agent} of GitLab cannot be used, because the identity file of kas has another \
         agent with this id"
    );
    RequestError::new(Reason::Forbidden, what)
}

async fn within_timeout<T>(response: impl Future<Output = Result<T, GitLabError>>) -> Result<T, GitLabError> {
    timeout(LOOKUP_TIMEOUT, response).await.unwrap_or_else(|_| {
        let message = format!("it did not respond within {} s", LOOKUP_TIMEOUT.as_secs());
        Err(GitLabError::Unavailable { message, retry_after: RETRY_AFTER })
    })
}
