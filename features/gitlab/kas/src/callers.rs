//! Callers that GitLab knows: CI jobs, and users with a personal access token or a browser session.
//!
//! | file | content |
//! |---|---|
//! | `job`, `user` | the responses of GitLab, and the errors for callers |
//! | `rights` | the services of jobs and users, with the verbs of each |
//! | `impersonation` | the identities of jobs and users in the cluster |
//! | `caller` | [`caller::GitLabCaller`]: a job or user with its rights for each agent |
//! | `cache` | [`cache::CallerCache`]: one request to GitLab per credential and minute |

mod cache;
mod caller;
mod impersonation;
mod job;
mod rights;
mod user;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use access::{AuthorizedCaller, CallerAuthorizer, Credential, TokenKind, UnknownCredentials};
use access::{Grant, ProjectAgentName, RequestError, Target, token::TokenHash};
use environments_wire::DeploymentRecorder;
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use proto::{AgentId, AgentName, Reason, ServiceName, Verb};
use secrecy::ExposeSecret as _;
use tokio::time::{sleep, timeout};

use self::{
    cache::CallerCache,
    caller::{CallerInfo, GitLabCaller},
    user::{AccessType, UserInfo, UserRequest},
};
use super::{AgentNames, in_flight::InFlightCounters};
use crate::{
    BudgetShare, Endpoint, GitLabClient, GitLabError, Usage, agent_facts::AgentFactsLookup,
    budget::MAX_IN_FLIGHT,
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
    callers: CallerCache,
    in_flight: InFlightCounters,
    usage: Usage,
    deployments: Arc<dyn DeploymentRecorder>,
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
        deployments: Arc<dyn DeploymentRecorder>,
        unknown: Arc<UnknownCredentials>,
        validity: CallerValidity,
    ) -> Self {
        let CallerValidity { ttl, error_ttl, recheck_timeout } = validity;
        let callers = CallerCache::new(ttl, error_ttl);
        Self { client, agents, callers, in_flight, usage, deployments, unknown, ttl, recheck_timeout }
    }

    /// Ends the streams of credentials that GitLab revokes, or does not confirm. The future never completes.
    pub async fn run(&self) {
        tokio::join!(self.recheck(), self.end_unconfirmed());
    }

    /// Asks GitLab again about callers with open streams, so that the streams of a revoked credential end after at most twice
    /// the time for which an answer is valid.
    async fn recheck(&self) {
        loop {
            sleep(self.ttl).await;
            let recheck = |caller: Arc<GitLabCaller>| async move {
                if let Some((kind, agent)) = CredentialKind::of(&caller.credential) {
                    // The result is in the cache, and a refusal has ended the streams.
                    let _ = self.caller(&caller.credential, kind, agent, BudgetShare::Rechecks).await;
                }
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
                Ok(info) => return Ok(GitLabCaller::new(credential, info, &self.in_flight, previous)),
                Err(error) => error,
            };
            match previous {
                // The streams of a caller go on for a while if GitLab does not answer.
                _ if error.reason == Reason::IdentityUnavailable => {}
                Some(previous) => {
                    previous.revoke();
                }
                // The answer was not limited: the next one is.
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
            CredentialKind::User(access_type) => {
                let body = UserRequest {
                    agent_id: agent,
                    access_type,
                    access_key: credential.token.expose_secret(),
                    csrf_token: credential.csrf_token.as_ref().map(|token| token.expose_secret()),
                };
                let none = crate::Credential::None;
                let response = client.post(Endpoint::AuthorizeProxyUser, &body, none);
                let user: UserInfo = within_timeout(response).await.map_err(|error| self.refusal(&error))?;
                if user.agent.id != agent {
                    let message = "its response is about another agent".to_owned();
                    let error = GitLabError::Unavailable { message, retry_after: RETRY_AFTER };
                    return Err(user::refusal(&error));
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
        if !grant.caller.may(&target.service, target.verb()) {
            return Err(caller.may_not(&grant.caller, target));
        }
        Ok((grant, name))
    }

    /// Returns the error for a user. A 404 also means that GitLab has switched kas off.
    fn refusal(&self, error: &GitLabError) -> RequestError {
        if error.is_status(http::StatusCode::NOT_FOUND) && *self.client.switched_off().borrow() {
            let message = "it has switched kas off".to_owned();
            return user::refusal(&GitLabError::Unavailable { message, retry_after: RETRY_AFTER });
        }
        user::refusal(error)
    }
}

impl CallerAuthorizer for GitLabAuthorizer {
    fn authorize<'a>(
        &'a self,
        credential: &'a Credential,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<Option<AuthorizedCaller>, RequestError>> {
        Box::pin(async move {
            let Some((kind, agent)) = CredentialKind::of(credential) else { return Ok(None) };
            let (caller, login) = self.caller(credential, kind, agent, BudgetShare::KnownCallers).await?;
            let authorized = self.authorize_caller(&caller, agent, target).await;
            let (grant, name) = authorized.map_err(|error| error.with_caller(caller.names()))?;
            if target.service.as_str() == ServiceName::KUBERNETES {
                let (kind, subject) = caller.usage(agent);
                self.usage.count_request(kind, subject);
            }
            // A job that only reads the graph or the state of manifests deploys nothing.
            if is_of_deployment(&target.service)
                && let Some(deployment) = caller.take_deployment(agent)
                && let Err(error) = self.deployments.record(deployment).await
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
}

/// The kinds of credentials that GitLab knows.
#[derive(Clone, Copy, Debug)]
enum CredentialKind {
    Job,
    User(AccessType),
}

impl CredentialKind {
    /// Returns the kind of a credential and its agent, or `None` if GitLab does not know such credentials.
    fn of(credential: &Credential) -> Option<(Self, AgentId)> {
        // GitLab has no user names in credentials, and a password manager would send the wrong one.
        if credential.name.is_some() {
            return None;
        }
        match credential.kind {
            TokenKind::Plain => None,
            TokenKind::CiJob(agent) => Some((Self::Job, agent)),
            TokenKind::Personal(agent) => Some((Self::User(AccessType::PersonalAccessToken), agent)),
            TokenKind::Session(agent) => Some((Self::User(AccessType::SessionCookie), agent)),
        }
    }

    /// Returns the key of the cache: the answer of GitLab about a job has all of its agents, that about a user has one.
    fn cache_key(self, credential: &Credential, agent: AgentId) -> TokenHash {
        let context = match self {
            Self::Job => "ci".to_owned(),
            Self::User(access_type) => format!("{} {agent}", access_type.as_str()),
        };
        TokenHash::of_credential(&context, &credential.token, credential.csrf_token.as_ref())
    }
}

/// Returns whether a job with an environment that uses the service deploys.
fn is_of_deployment(service: &ServiceName) -> bool {
    !matches!(service.verbs(), [Verb::Read, ..])
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
