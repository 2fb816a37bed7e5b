//! The people who log in to the web page at GitLab.

use std::net::IpAddr;

use access::{
    AuthenticatedUser, LoginRequest, RequestError, UserAgent, UserAgents, UserAuthenticator, UserLoginError,
};
use futures_util::future::BoxFuture;
use secrecy::SecretString;
use serde_json::Value;

use super::{GitLabAuthorizer, caller::CallerInfo, user::AccessType};
use crate::login::{self, GitLabLogins, LoginAgent, LoginAgents};

impl GitLabAuthorizer {
    /// Returns the connected agents that the user of a login may use.
    pub(super) async fn agents_of_login(
        &self,
        token: &SecretString,
        address: IpAddr,
    ) -> Result<Option<UserAgents>, RequestError> {
        let Some(logins) = self.logins.as_ref().filter(|_| GitLabLogins::is_login(token)) else {
            return Ok(None);
        };
        let LoginAgents { agents, missing } = logins.agents(token, address).await?;
        let agents = agents.into_iter().filter_map(|LoginAgent { name, user, services }| {
            let id = user.agent;
            let access_type = AccessType::OauthLogin;
            let caller = CallerInfo::User { user: user.into(), access_type, services }.caller(id).ok()?;
            (!self.agents.names.is_in_file(id)).then_some(UserAgent { id, name, caller })
        });
        Ok(Some(UserAgents { agents: agents.collect(), missing }))
    }
}

impl UserAuthenticator for GitLabAuthorizer {
    fn authenticate<'a>(
        &'a self,
        token: &'a SecretString,
        address: IpAddr,
    ) -> BoxFuture<'a, Result<Option<AuthenticatedUser>, RequestError>> {
        Box::pin(async move {
            match self.logins.as_ref().filter(|_| GitLabLogins::is_login(token)) {
                Some(logins) => logins.authenticate(token, address).await.map(Some),
                None => Ok(None),
            }
        })
    }

    fn login_issuers(&self) -> Vec<&str> {
        self.logins.iter().map(|_| login::LOGIN_ISSUER).collect()
    }

    fn begin_login(&self, issuer: &str, redirect: String) -> Result<Option<LoginRequest>, UserLoginError> {
        let logins = self.logins.as_ref().filter(|_| issuer == login::LOGIN_ISSUER);
        Ok(logins.map(|logins| logins.begin_login(redirect)))
    }

    fn complete_login<'a>(
        &'a self,
        issuer: &'a str,
        state: Value,
        query: &'a str,
        address: IpAddr,
    ) -> BoxFuture<'a, Result<Option<SecretString>, UserLoginError>> {
        Box::pin(async move {
            match self.logins.as_ref().filter(|_| issuer == login::LOGIN_ISSUER) {
                Some(logins) => logins.complete_login(state, query, address).await,
                None => Ok(None),
            }
        })
    }

    fn agents<'a>(
        &'a self,
        token: &'a SecretString,
        address: IpAddr,
    ) -> BoxFuture<'a, Result<Option<UserAgents>, RequestError>> {
        Box::pin(self.agents_of_login(token, address))
    }

    fn log_out<'a>(&'a self, token: &'a SecretString) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(logins) = self.logins.as_ref().filter(|_| GitLabLogins::is_login(token)) {
                logins.log_out(token).await;
            }
        })
    }
}
