//! The agents of GitLab: a source that asks GitLab for the agent of each token, and caches the answers.

mod cache;

use std::{sync::Arc, time::Duration};

use access::token::{self, TokenHash};
use access::{AgentAuthenticator, AgentIdentity, Identities, SourceUnavailable};
use futures_util::future::BoxFuture;
use proto::AgentId;
use secrecy::{ExposeSecret as _, SecretString};
use store::{KeyedRateLimiter, redis::RedisStore};
use tokio::time::{Instant, sleep, sleep_until};

use self::cache::{CachedAgent, TokenCache};
use crate::{AgentInfo, BudgetShare, GitLabClient};

/// The key of the limit of lookups, which is one for the fleet.
const LOOKUPS: [u8; 16] = *b"gitlab lookups\0\0";
/// The period of the limit of lookups.
const PERIOD: Duration = Duration::from_secs(10);
/// The lookups that all replicas may send, as a multiple of those that one may send.
const FLEET_FACTOR: u32 = 4;
/// The longest token in bytes. Those of GitLab have 50 characters and a prefix.
const MAX_TOKEN: usize = 512;

/// The agents of GitLab. Clones are cheap, and share the cache.
#[derive(Clone, Debug)]
pub struct GitLabAgents(Arc<GitLabAgentsState>);

#[derive(Debug)]
struct GitLabAgentsState {
    client: GitLabClient,
    /// The identity file, whose agents GitLab cannot replace.
    identities: Identities,
    cache: TokenCache,
    /// `agent.info_cache_error_ttl`.
    error_ttl: Duration,
    /// The negative cache that all replicas share.
    redis: Option<RedisStore>,
    /// The limit of lookups of tokens that this replica does not know, over all replicas.
    lookups: KeyedRateLimiter,
}

/// The times for which the responses of GitLab are used again.
#[derive(Clone, Copy, Debug)]
pub struct CacheTtls {
    /// The time of a response.
    pub responses: Duration,
    /// The time of an error, and of a response that there is nothing.
    pub errors: Duration,
}

impl GitLabAgents {
    /// Asks `client`, and caches agents and unknown tokens, these also in Redis.
    ///
    /// A replica sends at most `per_second` requests. All together look up at most four times as many tokens that they do not know.
    pub fn new(
        client: GitLabClient,
        identities: Identities,
        ttls: CacheTtls,
        per_second: u32,
        redis: Option<RedisStore>,
    ) -> Self {
        let limit = per_second.saturating_mul(FLEET_FACTOR * PERIOD.as_secs() as u32);
        Self(Arc::new(GitLabAgentsState {
            client,
            identities,
            cache: TokenCache::new(ttls),
            error_ttl: ttls.errors,
            lookups: KeyedRateLimiter::new(limit, PERIOD, redis.clone()),
            redis,
        }))
    }

    /// Returns the last answer of GitLab about an agent that connected to this replica, at most some minutes old.
    pub async fn info(&self, agent: AgentId) -> Option<Arc<AgentInfo>> {
        self.0.cache.info(agent).await
    }

    /// Returns whether an agent is that of the identity file. All others are agents of GitLab.
    pub(crate) fn is_of_identity_file(&self, agent: AgentId) -> bool {
        self.0.identities.load().name(agent).is_some()
    }

    async fn lookup(&self, token: &SecretString) -> Arc<CachedAgent> {
        let hash = TokenHash::of(token);
        let inner = &self.0;
        inner.cache.get(hash, |known| inner.query(token, hash.digest(), known)).await
    }
}

impl GitLabAgentsState {
    /// Asks Redis and GitLab. `known` is true if the token was that of an agent before: only GitLab can revoke it then.
    async fn query(
        &self,
        token: &SecretString,
        digest: [u8; 16],
        known: bool,
    ) -> Result<Option<AgentInfo>, SourceUnavailable> {
        if !known {
            if let Some(redis) = &self.redis
                && redis.is_unknown_token(digest).await
            {
                return Ok(None);
            }
            self.lookups.admit(LOOKUPS).await.map_err(|wait| SourceUnavailable {
                message: "many agents with unknown tokens connect at the same time".to_owned(),
                retry_after: wait,
            })?;
        }
        let share = if known { BudgetShare::Rechecks } else { BudgetShare::Agents };
        let found = self.client.with_share(share).agent_info(token).await?;
        if found.is_none()
            && let Some(redis) = &self.redis
            && let Err(error) = redis.mark_unknown_token(digest, self.error_ttl).await
        {
            tracing::debug!(%error, "unknown token not recorded in Redis");
        }
        Ok(found)
    }

    /// Returns whether GitLab may have this agent. An id of the identity file is that of another agent.
    fn accepts(&self, info: &AgentInfo) -> bool {
        let name = self.identities.load().name(info.agent).cloned();
        if let Some(name) = &name {
            tracing::warn!(
                agent.id = %info.agent, agent.name = %info.name, file.name = %name,
                "agent of GitLab refused: the identity file has an agent with its id; give that one another id"
            );
        }
        name.is_none()
    }
}

impl AgentAuthenticator for GitLabAgents {
    fn authenticate<'a>(
        &'a self,
        token: &'a SecretString,
    ) -> BoxFuture<'a, Result<Option<AgentIdentity>, SourceUnavailable>> {
        Box::pin(async move {
            if !is_plausible(token) {
                return Ok(None);
            }
            let cached = self.lookup(token).await;
            let info = cached.result.clone()?.filter(|info| self.0.accepts(info));
            Ok(info.map(|info| AgentIdentity {
                id: info.agent,
                name: info.name.clone(),
                project: Some(info.project),
                project_path: info.project_path(),
            }))
        })
    }

    fn lookup<'a>(&'a self, token: &'a SecretString) -> BoxFuture<'a, Option<bool>> {
        Box::pin(async move {
            if is_plausible(token) { self.0.cache.lookup(&TokenHash::of(token)).await } else { Some(false) }
        })
    }

    /// Asks GitLab again whenever the cached answer has expired. GitLab thus shows the agent as connected, and a revoked token
    /// ends its tunnels. The future does not complete because GitLab does not answer.
    fn revoked<'a>(&'a self, agent: AgentId, token: &'a SecretString) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            loop {
                let cached = self.lookup(token).await;
                match &cached.result {
                    Ok(Some(info)) if info.agent == agent && self.0.accepts(info) => {
                        let until = cached.valid_until.max(Instant::now());
                        tokio::select! {
                            () = sleep_until(until) => {}
                            () = cached.revoked.cancelled() => {}
                            // From then on, the id is that of another agent.
                            () = self.0.identities.listed(agent) => {}
                        }
                    }
                    Ok(_) => return,
                    Err(_) => {
                        // Not all tunnels at the same time, when GitLab is available again.
                        let pause = self.0.error_ttl.mul_f64(rand::random_range(0.5..1.0));
                        tokio::select! {
                            () = sleep(pause) => {}
                            () = cached.revoked.cancelled() => {}
                        }
                    }
                }
            }
        })
    }
}

/// Returns whether a token can be one of GitLab. A token of the identity file that was removed there is not sent to GitLab.
fn is_plausible(token: &SecretString) -> bool {
    let token = token.expose_secret();
    let printable = token.bytes().all(|byte| byte.is_ascii_graphic());
    printable && (1..=MAX_TOKEN).contains(&token.len()) && !token.starts_with(token::PREFIX)
}
