//! Users: their tokens, and their logins at the issuers of these tokens.

use std::{fmt, future::ready, net::IpAddr, sync::Arc, time::SystemTime};

use futures_util::future::BoxFuture;
use proto::AgentId;
use secrecy::SecretString;
use serde_json::Value;

use crate::{Caller, Grant, MissingAgents, ProjectAgentName, RequestError};

/// A source of callers whose tokens name a user.
pub trait UserAuthenticator: fmt::Debug + Send + Sync {
    /// Authenticates the holder of a token, before it names an agent. Returns `None` if the token is not one of this source.
    ///
    /// # Errors
    ///
    /// * `unauthorized`: the token is refused, or no entry of the identity file matches it.
    /// * `identity-unavailable`: kas cannot verify the token now.
    /// * `too-many-requests`: the address has sent too many unknown credentials.
    fn authenticate<'a>(
        &'a self,
        token: &'a SecretString,
        address: IpAddr,
    ) -> BoxFuture<'a, Result<Option<AuthenticatedUser>, RequestError>>;

    /// Returns the names of the issuers at which people log in with a browser.
    fn login_issuers(&self) -> Vec<&str>;

    /// Begins a login at an issuer of [`Self::login_issuers`], which sends the browser back to `redirect`. Returns `None` if there is no
    /// such issuer.
    ///
    /// # Errors
    ///
    /// The issuer does not respond, or people cannot log in there.
    fn begin_login(&self, issuer: &str, redirect: String) -> Result<Option<LoginRequest>, UserLoginError>;

    /// Completes a login for which the issuer has sent the browser back. `state` is that of the [`LoginRequest`], and `query` that of the
    /// redirect. Returns the token, or `None` if they are not of a login at this issuer.
    ///
    /// # Errors
    ///
    /// The issuer refuses the login or does not respond, or the address has sent too many unknown credentials.
    fn complete_login<'a>(
        &'a self,
        issuer: &'a str,
        state: Value,
        query: &'a str,
        address: IpAddr,
    ) -> BoxFuture<'a, Result<Option<SecretString>, UserLoginError>>;

    /// Returns the agents of GitLab that the holder of a token may use, or `None` if its entry of the identity file has its agents.
    ///
    /// # Errors
    ///
    /// As [`Self::authenticate`].
    fn agents<'a>(
        &'a self,
        _token: &'a SecretString,
        _address: IpAddr,
    ) -> BoxFuture<'a, Result<Option<UserAgents>, RequestError>> {
        Box::pin(ready(Ok(None)))
    }

    /// Ends a login, because its user has logged out. What this source keeps of the login is removed.
    fn log_out<'a>(&'a self, _token: &'a SecretString) -> BoxFuture<'a, ()> {
        Box::pin(ready(()))
    }
}

/// The sources of users in their order. Clones are cheap.
#[derive(Clone, Debug)]
pub struct UserSources(Arc<[Arc<dyn UserAuthenticator>]>);

/// The agents of GitLab that a user may use.
#[derive(Debug)]
pub struct UserAgents {
    /// The agents, in order of their ids.
    pub agents: Vec<UserAgent>,
    /// The reason for which some may be missing.
    pub missing: Option<MissingAgents>,
}

/// An agent of GitLab that a user may use.
#[derive(Debug)]
pub struct UserAgent {
    /// Its id.
    pub id: AgentId,
    /// Its name and the path of its project.
    pub name: ProjectAgentName,
    /// The rights of the user for the agent.
    pub caller: Caller,
}

impl UserSources {
    /// Asks these sources, in this order.
    pub fn new(sources: impl IntoIterator<Item = Arc<dyn UserAuthenticator>>) -> Self {
        Self(sources.into_iter().collect())
    }

    /// Authenticates the holder of a token. Returns `None` if no source knows the token.
    ///
    /// # Errors
    ///
    /// The first source that knows the token refuses it, or does not answer.
    pub async fn authenticate(
        &self,
        token: &SecretString,
        address: IpAddr,
    ) -> Result<Option<AuthenticatedUser>, RequestError> {
        for source in &*self.0 {
            if let Some(user) = source.authenticate(token, address).await? {
                return Ok(Some(user));
            }
        }
        Ok(None)
    }

    /// Returns the names of the issuers at which people log in with a browser.
    pub fn login_issuers(&self) -> Vec<&str> {
        self.0.iter().flat_map(|source| source.login_issuers()).collect()
    }

    /// Begins a login at an issuer. Returns `None` if there is no such issuer.
    ///
    /// # Errors
    ///
    /// The issuer does not respond, or people cannot log in there.
    pub fn begin_login(&self, issuer: &str, redirect: &str) -> Result<Option<LoginRequest>, UserLoginError> {
        for source in &*self.0 {
            if let Some(login) = source.begin_login(issuer, redirect.to_owned())? {
                return Ok(Some(login));
            }
        }
        Ok(None)
    }

    /// Completes a login for which the issuer has sent the browser back. Returns the token, or `None` if `state` and `query` are not of a
    /// login at this issuer.
    ///
    /// # Errors
    ///
    /// The issuer refuses the login or does not respond, or the address has sent too many unknown credentials.
    pub async fn complete_login(
        &self,
        issuer: &str,
        state: &Value,
        query: &str,
        address: IpAddr,
    ) -> Result<Option<SecretString>, UserLoginError> {
        for source in &*self.0 {
            if let Some(token) = source.complete_login(issuer, state.clone(), query, address).await? {
                return Ok(Some(token));
            }
        }
        Ok(None)
    }

    /// Returns the agents of GitLab that the holder of a token may use, or `None` if its entry of the identity file has its agents.
    ///
    /// # Errors
    ///
    /// The first source that knows the token refuses it, or does not answer.
    pub async fn agents(
        &self,
        token: &SecretString,
        address: IpAddr,
    ) -> Result<Option<UserAgents>, RequestError> {
        for source in &*self.0 {
            if let Some(agents) = source.agents(token, address).await? {
                return Ok(Some(agents));
            }
        }
        Ok(None)
    }

    /// Ends a login, because its user has logged out.
    pub async fn log_out(&self, token: &SecretString) {
        for source in &*self.0 {
            source.log_out(token).await;
        }
    }
}

/// The holder of a valid token that names a user.
#[derive(Debug)]
pub struct AuthenticatedUser {
    /// Its rights.
    pub grant: Arc<Grant>,
    /// The name of the issuer.
    pub issuer: String,
    /// The name of the user in a cluster.
    pub username: String,
    /// The time at which the token expires.
    pub expires: SystemTime,
}

/// A login that has begun. It is no `Debug`, because its state has the secret of the login (PKCE).
pub struct LoginRequest {
    /// The page of the issuer, to which the browser goes.
    pub url: String,
    /// The state of the login, which the browser keeps until it comes back.
    pub state: Value,
}

/// The reason for which a login at an issuer has failed.
#[derive(Debug, thiserror::Error)]
pub enum UserLoginError {
    /// The issuer does not respond. Another attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// The issuer has refused the login.
    #[error("{0}")]
    Refused(String),
    /// People cannot log in there, or the response of the issuer is not valid.
    #[error("{0}")]
    Failed(String),
    /// The address has sent too many unknown credentials.
    #[error(transparent)]
    Limited(RequestError),
}
