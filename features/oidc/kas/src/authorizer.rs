//! The authorizer: verifies tokens, and keeps them with their rights.

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use access::{
    AuthenticatedUser, AuthorizedCaller, CallerAgents, CallerAuthorizer, Credential, FileCallers, Grant,
    Identities, Identity, LoginRequest, RequestError, Target, TokenKind, UnknownCredentials,
    UserAuthenticator, UserLoginError, VerifiedClaims, token::TokenHash, unauthorized,
};
use arc_swap::ArcSwapOption;
use environments_wire::deploys;
use futures_util::future::BoxFuture;
use moka::sync::Cache;
use oidc::{Issuer, Issuers, KeysUnavailable, TokenError, UnverifiedToken, VerifiedToken};
use parking_lot::Mutex;
use proto::{AgentId, Reason};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

use crate::{ci_job, deployments::TokenDeployments};

/// The time for which a token is not verified again. A key that its issuer has removed is used for this time longer.
const CACHE_TIME: Duration = Duration::from_secs(300);
/// The year 9999, in seconds since 1970: a later time may be none of the system.
const MAX_EXPIRES: u64 = 253_402_300_799;
/// The bytes of all cached tokens. A parsed token takes some times its length.
const CACHE_BYTES: u64 = 16 << 20;

/// Authorizes callers with OIDC tokens.
#[derive(Debug)]
pub struct OidcAuthorizer {
    pub(crate) issuers: Issuers,
    pub(crate) identities: Identities,
    callers: FileCallers,
    verified: Cache<TokenHash, Arc<CachedToken>>,
    pub(crate) unknown: Arc<UnknownCredentials>,
    deployments: Option<TokenDeployments>,
}

/// A verified token, and its rights in one version of the identity file.
#[derive(Debug)]
struct CachedToken {
    claims: VerifiedClaims,
    /// The time at which it expires, with the leeway, in seconds since 1970.
    expires: u64,
    bytes: u32,
    rights: ArcSwapOption<VersionedRights>,
    /// The agents whose deployment by the job of this token is recorded.
    deployed_with: Mutex<HashSet<AgentId>>,
}

/// A valid token with rights.
#[derive(Debug)]
struct Granted {
    grant: Arc<Grant>,
    token: Arc<CachedToken>,
    /// True if the token was verified for this request.
    login: bool,
}

#[derive(Debug)]
struct VersionedRights {
    version: u64,
    grant: Option<Arc<Grant>>,
}

impl OidcAuthorizer {
    /// Accepts tokens of these issuers. `callers` authorizes their holders, and `unknown` limits forged ones.
    pub fn new(
        issuers: Issuers,
        identities: Identities,
        callers: FileCallers,
        unknown: Arc<UnknownCredentials>,
    ) -> Self {
        let verified = Cache::builder()
            .max_capacity(CACHE_BYTES)
            .weigher(|_, cached: &Arc<CachedToken>| cached.bytes)
            .time_to_live(CACHE_TIME)
            .build();
        Self { issuers, identities, callers, verified, unknown, deployments: None }
    }

    /// Records the deployments of jobs.
    #[must_use]
    pub fn with_deployments(self, deployments: TokenDeployments) -> Self {
        Self { deployments: Some(deployments), ..self }
    }

    async fn authenticate(
        &self,
        token: &SecretString,
        address: IpAddr,
    ) -> Result<Option<AuthenticatedUser>, RequestError> {
        let (token, hash, kind) = (token.clone(), TokenHash::of(token), TokenKind::Plain);
        let credential = Credential { token, hash, csrf_token: None, kind, name: None, address };
        let granted = self.grant(&credential).await?;
        Ok(granted.map(|Granted { grant, token, .. }| AuthenticatedUser {
            grant,
            issuer: token.claims.issuer.clone(),
            username: token.claims.username.clone(),
            expires: UNIX_EPOCH + Duration::from_secs(token.expires.min(MAX_EXPIRES)),
        }))
    }

    async fn authorize(
        &self,
        credential: &Credential,
        target: &Target<'_>,
    ) -> Result<Option<AuthorizedCaller>, RequestError> {
        let Some(Granted { grant, token, login }) = self.grant(credential).await? else { return Ok(None) };
        let caller = self.callers.authorize(&grant, credential, target).await?;
        // A caller with `gitlab:**` may name ids of no agent: their records would remove all others from the list.
        let is_deployment = |caller: &&AuthorizedCaller| caller.name.is_some() && deploys(&target.service);
        if let Some(caller) = caller.as_ref().filter(is_deployment) {
            self.record_deployment(&token, caller.agent).await;
        }
        Ok(caller.map(|caller| AuthorizedCaller { login, ..caller }))
    }

    /// Records the deployment of a job with its first request to an agent.
    async fn record_deployment(&self, token: &CachedToken, agent: AgentId) {
        let Some(deployments) = &self.deployments else { return };
        if token.deployed_with.lock().contains(&agent) {
            return;
        }
        let VerifiedClaims { claims, job, .. } = &token.claims;
        let deployment = job.as_ref().and_then(|job| deployments.gitlab.deployment(claims, job, agent));
        let Some(deployment) = deployment else { return };
        let is_first = token.deployed_with.lock().insert(agent);
        if is_first && let Err(error) = deployments.records.record(deployment).await {
            // The next request tries it again.
            token.deployed_with.lock().remove(&agent);
            tracing::debug!(agent.id = %agent, %error, "deployment not recorded");
        }
    }

    /// Verifies a token, and returns its rights. Returns `None` if it is not one for this source.
    async fn grant(&self, credential: &Credential) -> Result<Option<Granted>, RequestError> {
        if self.issuers.is_empty() {
            return Ok(None);
        }
        // The expiration is checked when a request begins, as in kube-apiserver.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (cached, login) = match self.verified.get(&credential.hash) {
            Some(cached) => (cached, false),
            None => match self.verify(credential, now).await? {
                Some(cached) => (cached, true),
                None => return Ok(None),
            },
        };
        let identity = self.identities.load();
        let grant = match cached.grant(&identity) {
            _ if now >= cached.expires => Err(TokenError::Expired),
            Some(grant) => Ok(grant),
            None => Err(TokenError::NoMatchingCaller),
        };
        let grant = grant.map_err(|error| {
            let (issuer, user) = (&*cached.claims.issuer, &*cached.claims.username);
            self.issuers.metrics.count_token(issuer, Some(error));
            tracing::debug!(issuer, user, class = error.class(), "OIDC token refused");
            match error {
                TokenError::NoMatchingCaller => self.no_matching_caller(&identity, &cached.claims),
                error => refused(error),
            }
        })?;
        Ok(Some(Granted { grant, token: cached, login }))
    }

    /// Returns the error of a valid token that no entry of the identity file matches, with the claims that it lacks.
    fn no_matching_caller(&self, identity: &Identity, token: &VerifiedClaims) -> RequestError {
        let issuer = self.issuers.named(&token.issuer);
        let remedy = issuer.and_then(|issuer| {
            let mut needed = identity.oidc_claims(&token.issuer);
            needed.extend(issuer.claims());
            issuer.remedy(needed.into_iter().filter(|claim| !token.claims.contains_key(*claim)))
        });
        with_remedy(refused(TokenError::NoMatchingCaller), remedy)
    }

    /// Verifies a token. Returns `None` if it is not one for this source.
    async fn verify(
        &self,
        credential: &Credential,
        now: u64,
    ) -> Result<Option<Arc<CachedToken>>, RequestError> {
        if matches!(credential.kind, TokenKind::Session(_)) {
            return Ok(None);
        }
        let text = credential.token.expose_secret();
        let Some(token) = UnverifiedToken::parse(text).map_err(refused)? else { return Ok(None) };
        let Some(issuer) = token.issuer().and_then(|url| self.issuers.find(url)) else {
            // With a prefix it may be a token of GitLab.
            return match credential.kind {
                TokenKind::Plain => Err(refused(TokenError::UnknownIssuer)),
                TokenKind::CiJob(_) | TokenKind::Personal(_) | TokenKind::Session(_) => Ok(None),
            };
        };
        self.unknown.check(credential.address)?;
        let token = match issuer.verify(token, now).await.map_err(unavailable)? {
            Ok(token) => token,
            Err(error) => {
                if error.is_forgery() {
                    self.unknown.count(credential.address).await?;
                }
                let missing = (error == TokenError::NoUsername).then(|| issuer.username_claim());
                return Err(with_remedy(refused(error), issuer.remedy(missing)));
            }
        };
        let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let cached = Arc::new(CachedToken::new(token, bytes));
        self.verified.insert(credential.hash, Arc::clone(&cached));
        Ok(Some(cached))
    }
}

impl CachedToken {
    fn new(token: VerifiedToken, bytes: u32) -> Self {
        let job = ci_job::of_claims(&token.claims).map(Box::new);
        let VerifiedToken { issuer, claims, username, impersonation, expires, streams_end } = token;
        let claims = VerifiedClaims { issuer, claims, username, impersonation, streams_end, job };
        Self { claims, expires, bytes, rights: ArcSwapOption::empty(), deployed_with: Mutex::default() }
    }

    /// Returns the rights of the token in this version of the identity file.
    fn grant(&self, identity: &Identity) -> Option<Arc<Grant>> {
        if let Some(rights) = &*self.rights.load()
            && rights.version == identity.version()
        {
            return rights.grant.clone();
        }
        let grant = identity.oidc_grant(&self.claims);
        let rights = VersionedRights { version: identity.version(), grant: grant.clone() };
        self.rights.store(Some(Arc::new(rights)));
        grant
    }
}

impl CallerAuthorizer for OidcAuthorizer {
    fn authorize<'a>(
        &'a self,
        credential: &'a Credential,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<Option<AuthorizedCaller>, RequestError>> {
        Box::pin(self.authorize(credential, target))
    }

    fn agents<'a>(
        &'a self,
        credential: &'a Credential,
    ) -> BoxFuture<'a, Result<Option<CallerAgents>, RequestError>> {
        Box::pin(async move {
            let Some(Granted { grant, .. }) = self.grant(credential).await? else { return Ok(None) };
            self.callers.agents(&grant, credential).await
        })
    }
}

impl UserAuthenticator for OidcAuthorizer {
    fn authenticate<'a>(
        &'a self,
        token: &'a SecretString,
        address: IpAddr,
    ) -> BoxFuture<'a, Result<Option<AuthenticatedUser>, RequestError>> {
        Box::pin(self.authenticate(token, address))
    }

    fn login_issuers(&self) -> Vec<&str> {
        self.issuers.of_the_page().map(Issuer::name).collect()
    }

    fn begin_login(&self, issuer: &str, redirect: String) -> Result<Option<LoginRequest>, UserLoginError> {
        self.begin_login(issuer, redirect)
    }

    fn complete_login<'a>(
        &'a self,
        issuer: &'a str,
        state: Value,
        query: &'a str,
        address: IpAddr,
    ) -> BoxFuture<'a, Result<Option<SecretString>, UserLoginError>> {
        Box::pin(self.complete_login(issuer, state, query, address))
    }
}

fn refused(error: TokenError) -> RequestError {
    unauthorized(&format!("the OIDC token is refused ({}): {error}", error.class()))
}

fn with_remedy(mut error: RequestError, remedy: Option<String>) -> RequestError {
    if let Some(remedy) = remedy {
        error.message = format!("{}; {remedy}", error.message);
    }
    error
}

fn unavailable(error: KeysUnavailable) -> RequestError {
    RequestError::new(Reason::IdentityUnavailable, error.to_string()).with_retry_after(error.retry_after)
}
