//! The answers of GitLab about tokens, each for a limited time.

use std::{sync::Arc, time::Duration};

use access::{SourceUnavailable, token::TokenHash};
use moka::future::Cache;
use proto::AgentId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{AgentInfo, CacheTtls};

/// The most tokens in the cache, at some hundred bytes each.
const CAPACITY: u64 = 200_000;
/// The time after which an unused entry is removed. Expired entries are kept until then, so that a revocation is noticed.
const IDLE: Duration = Duration::from_secs(3600);

/// The cached answers.
#[derive(Debug)]
pub(super) struct TokenCache {
    tokens: Cache<TokenHash, Arc<CachedAgent>>,
    agents: Cache<AgentId, Arc<AgentInfo>>,
    ttl: Duration,
    error_ttl: Duration,
}

/// One answer.
#[derive(Debug)]
pub(super) struct CachedAgent {
    /// The agent of the token, or `None` if GitLab does not know it.
    pub(super) result: Result<Option<Arc<AgentInfo>>, SourceUnavailable>,
    /// The time at which the answer expires. An error is never used again.
    pub(super) valid_until: Instant,
    /// Cancelled when a later answer is another one.
    pub(super) revoked: CancellationToken,
    /// The agent of the last answer that was no error.
    agent: Option<AgentId>,
}

impl TokenCache {
    /// Keeps agents and unknown tokens for these times.
    pub(super) fn new(ttls: CacheTtls) -> Self {
        let CacheTtls { responses: ttl, errors: error_ttl } = ttls;
        let tokens = Cache::builder().max_capacity(CAPACITY).time_to_idle(IDLE).build();
        let agents = Cache::builder().max_capacity(CAPACITY).time_to_live(IDLE).build();
        Self { tokens, agents, ttl, error_ttl }
    }

    /// Returns the cached answer about a token, or that of `query`. Concurrent callers share one query.
    ///
    /// `query` gets whether the token was that of an agent before.
    pub(super) async fn get<F>(&self, token: TokenHash, query: impl FnOnce(bool) -> F) -> Arc<CachedAgent>
    where
        F: Future<Output = Result<Option<AgentInfo>, SourceUnavailable>>,
    {
        let cached = self.tokens.get(&token).await;
        if let Some(cached) = cached.as_ref().filter(|cached| cached.is_valid()) {
            return Arc::clone(cached);
        }
        let fetch = async {
            let known = cached.as_ref().is_some_and(|cached| cached.agent.is_some());
            let result = query(known).await.map(|found| found.map(Arc::new));
            if let Ok(Some(info)) = &result {
                self.agents.insert(info.agent, Arc::clone(info)).await;
            }
            Arc::new(self.next(cached.as_deref(), result))
        };
        self.tokens.entry(token).or_insert_with_if(fetch, |cached| !cached.is_valid()).await.into_value()
    }

    /// Returns whether GitLab knows a token: that of an agent, even if the answer has expired, or none by a valid answer.
    pub(super) async fn lookup(&self, token: &TokenHash) -> Option<bool> {
        let cached = self.tokens.get(token).await?;
        match cached.agent {
            Some(_) => Some(true),
            None => (cached.result.is_ok() && cached.is_valid()).then_some(false),
        }
    }

    /// Returns the last answer about an agent.
    pub(super) async fn info(&self, agent: AgentId) -> Option<Arc<AgentInfo>> {
        self.agents.get(&agent).await
    }

    /// Returns the entry that replaces `previous`, whose tunnels continue if the answer is the same or an error.
    fn next(
        &self,
        previous: Option<&CachedAgent>,
        result: Result<Option<Arc<AgentInfo>>, SourceUnavailable>,
    ) -> CachedAgent {
        let now = Instant::now();
        let (valid_for, agent) = match &result {
            // Agents that connected at the same time are not looked up at the same time again.
            Ok(Some(info)) => (self.ttl.mul_f64(rand::random_range(0.9..1.0)), Some(info.agent)),
            Ok(None) => (self.error_ttl, None),
            Err(_) => (Duration::ZERO, previous.and_then(|previous| previous.agent)),
        };
        let revoked = match previous {
            Some(previous) if previous.agent == agent => previous.revoked.clone(),
            Some(previous) => {
                previous.revoked.cancel();
                CancellationToken::new()
            }
            None => CancellationToken::new(),
        };
        CachedAgent { result, valid_until: now + valid_for, revoked, agent }
    }
}

impl CachedAgent {
    fn is_valid(&self) -> bool {
        Instant::now() < self.valid_until
    }
}
