//! Users: their tokens, and their logins at the issuers of these tokens.

use std::{fmt, net::IpAddr, sync::Arc, time::SystemTime};

use futures_util::future::BoxFuture;
use secrecy::SecretString;

use crate::{Grant, RequestError};

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
        state: serde_json::Value,
        query: &'a str,
        address: IpAddr,
    ) -> BoxFuture<'a, Result<Option<SecretString>, UserLoginError>>;
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
    pub state: serde_json::Value,
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
