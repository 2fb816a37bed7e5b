//! Issuers, and the task that fetches the keys of each.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_saphyr::Spanned;
use settings::ConfigError;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    DocumentSource, FetchError, IssuerClient, LoginError, OidcConfig, OidcMetrics, PageLogin,
    ProviderMetadata, TokenError, UnverifiedToken, VerifiedToken, key_state::KeyState, keys::JwkSet,
    page_login::PageClient, policy::TokenPolicy, scope_of,
};

/// The time that a request waits for keys: two documents of five seconds each, and some time for the rest.
const WAIT: Duration = Duration::from_secs(11);

/// The issuers of the configuration. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub struct Issuers {
    issuers: Arc<[Issuer]>,
    /// The metrics of all issuers.
    pub metrics: OidcMetrics,
}

/// An issuer, and its keys.
#[derive(Debug)]
pub struct Issuer {
    policy: TokenPolicy,
    source: Arc<dyn DocumentSource>,
    keys: watch::Sender<KeyState>,
    /// The last discovery document.
    metadata: watch::Sender<Option<Arc<ProviderMetadata>>>,
    page: Option<PageClient>,
    /// A request needs keys that are not there.
    wanted: Notify,
    metrics: OidcMetrics,
}

/// kas cannot verify tokens of an issuer, because it has no current keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the keys of the issuer {issuer} are not available")]
pub struct KeysUnavailable {
    /// The name of the issuer.
    pub issuer: String,
    /// The time after which kas will have tried again.
    pub retry_after: Duration,
}

impl Issuers {
    /// Checks the section `oidc` of a configuration file. Files with authorities are read, and no issuer is contacted.
    pub fn read(file: &Path, config: &OidcConfig) -> Result<Self, ConfigError> {
        Self::with_sources(file, config, |index, authority| {
            let entry = &config.issuers[index];
            let path = authority.as_ref().map(|path| path.value.clone());
            let client = IssuerClient::new(path).within(&entry.allowed_networks, &entry.issuer.value);
            match (client.check(), authority) {
                (Err(error), Some(path)) => {
                    let key = format!("oidc.issuers[{index}].ca_certificate_file");
                    Err(ConfigError::new(file, path.referenced, key, error.to_string()))
                }
                _ => Ok(Arc::new(client) as Arc<dyn DocumentSource>),
            }
        })
    }

    /// Checks the section `oidc` of a configuration file, with a source of documents for each issuer.
    pub fn with_sources(
        file: &Path,
        config: &OidcConfig,
        source: impl Fn(usize, Option<&Spanned<PathBuf>>) -> Result<Arc<dyn DocumentSource>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let metrics = OidcMetrics::default();
        let mut issuers: Vec<Issuer> = Vec::new();
        for (index, entry) in config.issuers.iter().enumerate() {
            let mut policy = TokenPolicy::new(file, index, entry)?;
            for (key, at, taken) in [
                ("name", &entry.name, issuers.iter().any(|other| other.policy.name == policy.name)),
                ("issuer", &entry.issuer, issuers.iter().any(|other| other.policy.issuer == policy.issuer)),
            ] {
                if taken {
                    let what = format!("another issuer has the {key} {}", at.value);
                    let key = format!("oidc.issuers[{index}].{key}");
                    return Err(ConfigError::new(file, at.referenced, key, what));
                }
            }
            for other in &mut issuers {
                other.policy.reserve_names_of(&policy);
                policy.reserve_names_of(&other.policy);
            }
            issuers.push(Issuer {
                policy,
                source: source(index, entry.ca_certificate_file.as_ref())?,
                keys: watch::Sender::default(),
                metadata: watch::Sender::default(),
                page: PageClient::of(entry),
                wanted: Notify::new(),
                metrics: metrics.clone(),
            });
        }
        Ok(Self { issuers: issuers.into(), metrics })
    }

    /// Returns the names of the issuers.
    pub fn names(&self) -> Vec<String> {
        self.issuers.iter().map(|issuer| issuer.policy.name.clone()).collect()
    }

    /// Iterates over the issuers at which people log in to the web page.
    pub fn of_the_page(&self) -> impl Iterator<Item = &Issuer> {
        self.issuers.iter().filter(|issuer| issuer.page.is_some())
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.issuers.is_empty()
    }

    /// Returns the issuer with this URL.
    pub fn find(&self, url: &str) -> Option<&Issuer> {
        self.issuers.iter().find(|issuer| issuer.policy.issuer == url)
    }

    /// Returns the issuer with this name.
    pub fn named(&self, name: &str) -> Option<&Issuer> {
        self.issuers.iter().find(|issuer| issuer.policy.name == name)
    }

    /// Fetches the keys of all issuers, and again when they are due. The future never completes, unless there are no issuers.
    pub async fn run(&self) {
        futures_util::future::join_all(self.issuers.iter().map(Issuer::run)).await;
    }
}

/// Returns the scopes of these claims, separated by spaces.
fn scopes_of<'a>(claims: impl Iterator<Item = &'a str>) -> String {
    let mut scopes = Vec::new();
    for scope in claims.map(scope_of) {
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    scopes.join(" ")
}

impl Issuer {
    /// Returns its name in the configuration.
    pub fn name(&self) -> &str {
        &self.policy.name
    }

    /// Returns its URL, as in the claim `iss`.
    pub fn url(&self) -> &str {
        &self.policy.issuer
    }

    /// Returns the means for a login to the web page, which needs these claims besides those of [`Self::claims`].
    ///
    /// # Errors
    ///
    /// kas has not reached the issuer yet, or people cannot log in to the page there.
    pub fn page_login<'a>(
        &'a self,
        claims: impl IntoIterator<Item = &'a str>,
    ) -> Result<PageLogin, LoginError> {
        let metadata = self.metadata.borrow().clone();
        let (Some(page), Some(metadata)) = (&self.page, metadata) else {
            let what = format!("kas has not reached the issuer {} yet", self.policy.name);
            return Err(LoginError::Unavailable(FetchError::new(what)));
        };
        page.login(Arc::clone(&self.source), &self.policy.issuer, &metadata, self.claims().chain(claims))
    }

    /// Returns the claim with the name of the user.
    pub fn username_claim(&self) -> &str {
        &self.policy.username.claim
    }

    /// Returns the claims that kas takes from a token: the user, and the groups if users have some.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        let groups = self.policy.groups.as_ref();
        [&*self.policy.username.claim].into_iter().chain(groups.map(|groups| &*groups.claim))
    }

    /// Returns what a person has to do whose token lacks these claims, or `None` if there are none.
    pub fn remedy<'a>(&self, missing: impl IntoIterator<Item = &'a str>) -> Option<String> {
        let missing: Vec<&str> = missing.into_iter().collect();
        if missing.is_empty() {
            return None;
        }
        // Each token has `sub`.
        let all = self.claims().filter(|claim| *claim != "sub").chain(missing.iter().copied());
        let TokenPolicy { name, issuer, audiences, .. } = &self.policy;
        Some(format!(
            "it has no {}: if the issuer has the scope {}, write the kubeconfig again with `kas kubeconfig --exec {name}`, or use \
             `kas login --issuer {issuer} --client-id {} --scopes \"openid {} offline_access\"`",
            missing.join(" and "),
            scopes_of(missing.iter().copied()),
            audiences[0],
            scopes_of(all),
        ))
    }

    /// Verifies a token of this issuer at the time `now`, in seconds since 1970. Waits for keys if there are none for the token.
    ///
    /// # Errors
    ///
    /// The inner error is the reason for which the token is refused.
    pub async fn verify(
        &self,
        token: UnverifiedToken<'_>,
        now: u64,
    ) -> Result<Result<VerifiedToken, TokenError>, KeysUnavailable> {
        let verified = match token.algorithm(&self.policy) {
            Ok(algorithm) => {
                let keys = self.keys_for(|keys| keys.has(token.key_id(), algorithm)).await?;
                token.verify(&self.policy, &keys, now)
            }
            Err(error) => Err(error),
        };
        self.metrics.count_token(&self.policy.name, verified.as_ref().err().copied());
        Ok(verified)
    }

    /// Returns the keys. If the token has none of them, they are fetched first, as often as that is allowed.
    async fn keys_for(&self, suffice: impl Fn(&JwkSet) -> bool) -> Result<Arc<JwkSet>, KeysUnavailable> {
        let mut states = self.keys.subscribe();
        let before = states.borrow_and_update().clone();
        if let Some(keys) = before.usable(Instant::now()).filter(|keys| suffice(keys)) {
            return Ok(Arc::clone(keys));
        }
        if before.until_allowed(Instant::now()).is_zero() {
            self.wanted.notify_one();
            // Fails if the time is over: the state that there is decides.
            let _ = timeout(WAIT, states.wait_for(|state| state.attempts > before.attempts)).await;
        }
        let (now, state) = (Instant::now(), states.borrow());
        let unavailable = || KeysUnavailable {
            issuer: self.policy.name.clone(),
            retry_after: state.until_due(now, 0.0).min(state.until_allowed(now)).max(Duration::from_secs(1)),
        };
        let keys = state.usable(now).ok_or_else(unavailable)?;
        // The issuer may have a new key, and does not respond.
        if state.failed() && !suffice(keys) {
            return Err(unavailable());
        }
        Ok(Arc::clone(keys))
    }

    async fn run(&self) {
        loop {
            let fetched = self.fetch().await;
            self.record(fetched);
            let due = sleep(self.keys.borrow().until_due(Instant::now(), rand::random()));
            tokio::select! {
                () = due => {}
                () = self.wait_until_wanted() => {}
            }
        }
    }

    async fn wait_until_wanted(&self) {
        loop {
            self.wanted.notified().await;
            // It may be the request that the last fetch served.
            if self.keys.borrow().until_allowed(Instant::now()).is_zero() {
                return;
            }
        }
    }

    /// Fetches the discovery document and the keys. A request that is cancelled does not cancel this.
    async fn fetch(&self) -> Result<JwkSet, FetchError> {
        let metadata = ProviderMetadata::fetch(&*self.source, &self.policy.issuer).await?;
        let keys = JwkSet::parse(&self.source.get(&metadata.jwks_uri).await?);
        self.metadata.send_replace(Some(Arc::new(metadata)));
        keys
    }

    fn record(&self, fetched: Result<JwkSet, FetchError>) {
        let issuer = &*self.policy.name;
        let now = Instant::now();
        let had_failed = self.keys.borrow().failed();
        let succeeded = fetched.is_ok();
        match &fetched {
            Ok(_) if had_failed => tracing::info!(issuer, "the issuer of OIDC tokens responds again"),
            Err(error) if !had_failed => {
                tracing::warn!(issuer, %error, "the keys of an OIDC issuer cannot be fetched; kas uses the last ones for 6 h");
            }
            Ok(_) | Err(_) => {}
        }
        self.keys.send_modify(|state| state.record(fetched.ok().map(Arc::new), now));
        self.metrics.record_fetch(issuer, succeeded, self.keys.borrow().usable(now).is_some());
    }
}
