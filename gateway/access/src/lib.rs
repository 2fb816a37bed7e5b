//! Authorizes callers for agents, each with an identity in the cluster, and authenticates agents by their tokens.
//!
//! ```text
//!  caller ──► Credential ──► AccessControl ──► CallerAuthorizer (1..n) ──► AuthorizedCaller { Grant, agent }
//!  agent ───► token ───────► AgentSources ───► AgentAuthenticator (1..n) ──► AgentIdentity
//! ```
//!
//! The source of this crate is the identity file ([`Identities`]): its agents, and the tokens of its callers ([`FileCallers`]). Its entries
//! for the tokens of OIDC issuers have the rights of [`VerifiedClaims`]. Other crates bring more sources. A source that refuses says why
//! as a [`RequestError`], which is rendered in the dialect of the client. [`kill_switch`] has the rules by which the operator disables
//! requests.
#![warn(missing_docs)]

mod address;
mod api_token;
mod caller_agents;
mod configuration;
mod credential;
mod error;
mod file_callers;
mod identity;
pub mod kill_switch;
mod missing_right;
mod rights;
pub mod sealed;
mod selector;
mod target;
pub mod token;
mod unknown;
mod user;

use std::{borrow::Cow, fmt, future::ready, net::IpAddr, sync::Arc};

use futures_util::future::BoxFuture;
use http::HeaderMap;
use proto::{
    AgentId, AgentName, Reason,
    provision::{EnvironmentJob, EnvironmentKey},
};

pub use self::{
    address::{address_key, site},
    api_token::{ApiTokenError, ApiTokenVerifier},
    caller_agents::{CallerAgent, CallerAgents, MissingAgents, agents_of_entry},
    configuration::{
        ConfigurationFile, ConfigurationObserver, ConfigurationSource, FileKey, ReadError, Reading,
        RepositoryPlace, is_about_managed_resources, read_repository, template_path,
    },
    credential::{BrowserSession, Credential, MAX_TOKEN, SessionParser, TokenKind, take_websocket_token},
    error::{DocsUrl, ErrorDialect, ErrorFormat, RequestError},
    file_callers::FileCallers,
    identity::{
        AccessAs, AgentAttributes, AgentAuthenticator, AgentIdentity, AgentSources, AgentUrl, AgentUrlError,
        Caller, CallerNames, ConfigurationLocation, DialCredentials, DialTarget, Grant, Identities, Identity,
        SourceUnavailable, VerifiedClaims,
    },
    missing_right::missing_right,
    rights::ServiceRights,
    selector::{AgentSelector, InvalidAgentSelector},
    target::{Target, UrlPathPrefix},
    unknown::UnknownCredentials,
    user::{
        AuthenticatedUser, LoginRequest, UserAgent, UserAgents, UserAuthenticator, UserLoginError,
        UserSources,
    },
};

/// A source of answers: may this caller reach this agent, and as whom?
pub trait CallerAuthorizer: fmt::Debug + Send + Sync {
    /// Authenticates the caller, and authorizes its request to the agent that the path or the credential names. Returns `None`
    /// if this source does not know the credential, so that another source may answer.
    ///
    /// # Errors
    ///
    /// * `unauthorized`: the credential is of this source and is not valid, or neither it nor the path names an agent.
    /// * `unknown-agent`: there is no such agent, or the caller may not use it.
    /// * `address-not-allowed`: the caller may not connect from its address.
    /// * `forbidden`: the caller may not use the service, or the credential is for another agent.
    /// * `identity-unavailable`: the source cannot answer now.
    fn authorize<'a>(
        &'a self,
        credential: &'a Credential,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<Option<AuthorizedCaller>, RequestError>>;

    /// Returns the agents that the holder of a credential may use. Returns `None` if this source does not know the credential, or its
    /// holders have no agents of their own.
    ///
    /// # Errors
    ///
    /// As [`Self::authorize`].
    fn agents<'a>(&'a self, _: &'a Credential) -> BoxFuture<'a, Result<Option<CallerAgents>, RequestError>> {
        Box::pin(ready(Ok(None)))
    }
}

/// The agents of the projects of GitLab, which are not in the identity file.
pub trait ProjectAgents: fmt::Debug + Send + Sync {
    /// Returns the names of an agent, or `None` if it is connected to no replica.
    ///
    /// # Errors
    ///
    /// `identity-unavailable`: a replica holds the agent and does not say its names.
    fn find(&self, agent: AgentId) -> BoxFuture<'_, Result<Option<ProjectAgentName>, RequestError>>;

    /// Returns the agents that are connected to any replica.
    fn list(&self) -> BoxFuture<'_, ConnectedProjectAgents>;
}

/// The connected agents of GitLab.
#[derive(Clone, Debug, Default)]
pub struct ConnectedProjectAgents {
    /// The agents, in order of their ids.
    pub agents: Vec<(AgentId, ProjectAgentName)>,
    /// The reason for which some may be missing.
    pub missing: Option<String>,
}

/// The name of an agent of GitLab, which is unique in its project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectAgentName {
    /// The name.
    pub name: AgentName,
    /// The path of the project, if it is known.
    pub project_path: Option<Arc<str>>,
}

/// A caller that may send its request to the agent.
#[derive(Debug)]
pub struct AuthorizedCaller {
    /// The rights of the caller.
    pub grant: Arc<Grant>,
    /// The agent that the path or the credential names.
    pub agent: AgentId,
    /// The name of the agent, or `None` if it is unknown: the agent of GitLab is connected to no replica.
    pub name: Option<AgentName>,
    /// The path of the project of an agent of GitLab, if it is known.
    pub project_path: Option<Arc<str>>,
    /// True if GitLab or an issuer was asked for this request, and not a file or a cache. The audit log has such requests.
    pub login: bool,
    /// The environment of the CI job, if its objects have to exist before its first request.
    pub environment: Option<Arc<ManagedEnvironment>>,
}

/// The environment of a CI job, whose objects agentk makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedEnvironment {
    /// The environment.
    pub key: EnvironmentKey,
    /// The job.
    pub job: EnvironmentJob,
}

/// The sources of access in their order. Clones are cheap.
#[derive(Clone, Debug)]
pub struct AccessControl {
    sources: Arc<[Arc<dyn CallerAuthorizer>]>,
    sessions: Arc<dyn SessionParser>,
    unknown: Arc<UnknownCredentials>,
}

impl AccessControl {
    /// Asks these sources, in this order. `sessions` parses the credentials that are no header `Authorization`, and `unknown` limits the
    /// credentials that no source knows.
    pub fn new(
        sources: impl IntoIterator<Item = Arc<dyn CallerAuthorizer>>,
        sessions: Arc<dyn SessionParser>,
        unknown: Arc<UnknownCredentials>,
    ) -> Self {
        Self { sources: sources.into_iter().collect(), sessions, unknown }
    }

    /// Authenticates the caller by its `Authorization` header or its browser session, and authorizes its request from `address`.
    ///
    /// # Errors
    ///
    /// The error of the first source that knows the credential. `unauthorized` if none does, or `too-many-requests` if the address has
    /// sent too many of such credentials.
    pub async fn authorize(
        &self,
        headers: &HeaderMap,
        target: &Target<'_>,
        address: IpAddr,
    ) -> Result<AuthorizedCaller, RequestError> {
        let credential = Credential::parse(headers, target.query(), address, &*self.sessions)?;
        for source in &*self.sources {
            if let Some(caller) = source.authorize(&credential, target).await? {
                return Ok(caller);
            }
        }
        self.unknown.count(address).await?;
        Err(unauthorized("the token is unknown or was revoked"))
    }
}

impl AccessControl {
    /// Authenticates the caller by the headers of its request from `address`, and returns its credential with the agents that it may use.
    ///
    /// # Errors
    ///
    /// As [`Self::authorize`].
    pub async fn agents(
        &self,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<(Credential, CallerAgents), RequestError> {
        let credential = Credential::parse(headers, None, address, &*self.sessions)?;
        for source in &*self.sources {
            if let Some(agents) = source.agents(&credential).await? {
                return Ok((credential, agents));
            }
        }
        self.unknown.count(address).await?;
        Err(unauthorized("the token is unknown or was revoked"))
    }

    /// Removes the credentials of a browser session from a path with a query.
    pub fn without_credentials<'a>(&self, path: &'a str) -> Cow<'a, str> {
        self.sessions.without_credentials(path)
    }

    /// Checks an address before an unknown credential is looked up in place of [`Self::authorize`]. It counts nothing.
    ///
    /// # Errors
    ///
    /// The address has sent too many unknown credentials.
    pub fn check_unknown(&self, address: IpAddr) -> Result<(), RequestError> {
        self.unknown.check(address)
    }

    /// Counts a credential that is unknown to whoever has checked it in place of [`Self::authorize`].
    ///
    /// # Errors
    ///
    /// The address has sent too many of them.
    pub async fn count_unknown(&self, address: IpAddr) -> Result<(), RequestError> {
        self.unknown.count(address).await
    }
}

/// Returns an `unauthorized` error.
pub fn unauthorized(what: &str) -> RequestError {
    RequestError::new(Reason::Unauthorized, what)
}
