//! Cached answers of GitLab, by credential. Concurrent requests with one credential share one request to GitLab.

use std::{sync::Arc, time::Duration};

use access::{RequestError, token::TokenHash};
use moka::{Expiry, future::Cache};
use proto::Reason;
use tokio::time::Instant;

use super::caller::GitLabCaller;

/// The most elements of all cached answers: agents, groups and roles. They use some 100 bytes each.
const CAPACITY: u64 = 500_000;
/// The weight of an answer without elements.
const BASE_WEIGHT: usize = 5;
/// The time for which an unused answer is kept, so that the next one can end the streams of a revoked credential.
const RETENTION: Duration = Duration::from_secs(3600);

/// The cached answers.
#[derive(Debug)]
pub(super) struct CallerCache {
    answers: Cache<TokenHash, Arc<Answer>>,
    ttl: Duration,
    error_ttl: Duration,
}

#[derive(Debug)]
struct Answer {
    result: Result<Arc<GitLabCaller>, RequestError>,
    /// The last caller, whose streams may be open although GitLab does not answer.
    last: Option<Arc<GitLabCaller>>,
    expires: Instant,
}

/// Removes the refusal of an unknown credential when it expires. It replaces no caller whose streams are open.
struct RefusalExpiry;

impl Expiry<TokenHash, Arc<Answer>> for RefusalExpiry {
    fn expire_after_create(
        &self,
        _: &TokenHash,
        answer: &Arc<Answer>,
        _: std::time::Instant,
    ) -> Option<Duration> {
        answer.last.is_none().then(|| answer.expires.saturating_duration_since(Instant::now()))
    }

    fn expire_after_update(
        &self,
        key: &TokenHash,
        answer: &Arc<Answer>,
        now: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        self.expire_after_create(key, answer, now)
    }
}

impl CallerCache {
    /// Creates a cache that keeps callers for `ttl` and refusals for `error_ttl`.
    pub(super) fn new(ttl: Duration, error_ttl: Duration) -> Self {
        let answers = Cache::builder()
            .max_capacity(CAPACITY)
            .weigher(|_, answer: &Arc<Answer>| u32::try_from(answer.weight()).unwrap_or(u32::MAX))
            .time_to_idle(RETENTION)
            .expire_after(RefusalExpiry)
            .build();
        Self { answers, ttl, error_ttl }
    }

    /// Returns the caller of a credential from the cache, or from `lookup`, which receives the last known caller.
    ///
    /// If the future is dropped, another request with the same credential continues with its own `lookup`.
    pub(super) async fn get<F>(
        &self,
        key: TokenHash,
        lookup: impl FnOnce(Option<Arc<GitLabCaller>>) -> F,
    ) -> Result<Arc<GitLabCaller>, RequestError>
    where
        F: Future<Output = Result<Arc<GitLabCaller>, RequestError>>,
    {
        let cached = self.answers.get(&key).await;
        if let Some(cached) = cached.as_ref().filter(|cached| !cached.is_expired()) {
            return cached.result.clone();
        }
        let previous = cached.and_then(|cached| cached.last.clone());
        let answer = async {
            let result = lookup(previous.clone()).await;
            Arc::new(self.answer(result, previous))
        };
        let entry = self.answers.entry(key).or_insert_with_if(answer, |cached| cached.is_expired()).await;
        entry.into_value().result.clone()
    }

    /// Returns the callers with requests in flight about which GitLab has to be asked again.
    pub(super) fn expired_in_use(&self) -> Vec<Arc<GitLabCaller>> {
        let expired = self.answers.iter().filter(|(_, answer)| answer.is_expired());
        expired.filter_map(|(_, answer)| answer.last.clone().filter(|caller| caller.is_in_use())).collect()
    }

    fn answer(
        &self,
        result: Result<Arc<GitLabCaller>, RequestError>,
        previous: Option<Arc<GitLabCaller>>,
    ) -> Answer {
        let (ttl, last) = match &result {
            Ok(caller) => {
                let ttl = if caller.is_provisional() { self.error_ttl } else { self.ttl };
                (ttl, Some(Arc::clone(caller)))
            }
            Err(error) => (
                error.retry_after.map_or(self.error_ttl, |after| after.min(self.error_ttl)),
                previous.filter(|_| error.reason == Reason::IdentityUnavailable),
            ),
        };
        Answer { result, last, expires: Instant::now() + ttl }
    }
}

impl Answer {
    fn is_expired(&self) -> bool {
        self.expires <= Instant::now()
    }

    fn weight(&self) -> usize {
        BASE_WEIGHT + self.last.as_ref().map_or(0, |caller| caller.weight())
    }
}
