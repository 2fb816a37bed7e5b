//! Answers of GitLab to the holder of one token, in a cache of bounded size.

use std::{sync::Arc, time::Duration};

use access::token::TokenHash;
use environments_wire::GitLabToken;
use moka::future::Cache;
use tokio::time::Instant;

use super::credential;
use crate::CacheTtls;

/// The answers, by token. Requests for the same one at the same time share it.
#[derive(Debug)]
pub(super) struct TokenAnswers<T: Send + Sync + 'static>(Cache<TokenHash, Arc<Answer<T>>>);

#[derive(Debug)]
struct Answer<T> {
    value: T,
    expires: Instant,
}

impl<T: Clone + Send + Sync + 'static> TokenAnswers<T> {
    /// Keeps so many elements in all answers. `count` returns those of one.
    pub(super) fn new(capacity: u64, ttls: CacheTtls, count: fn(&T) -> usize) -> Self {
        let weight = move |_: &TokenHash, answer: &Arc<Answer<T>>| {
            u32::try_from(count(&answer.value) + 1).unwrap_or(u32::MAX)
        };
        let longest = ttls.responses.max(ttls.errors);
        Self(Cache::builder().max_capacity(capacity).weigher(weight).time_to_live(longest).build())
    }

    /// Returns the answer with this name from the cache, or that of `request`, with the time for which it is kept.
    pub(super) async fn get(
        &self,
        name: &str,
        token: &GitLabToken,
        request: impl Future<Output = (T, Duration)>,
    ) -> T {
        let (kind, secret, _) = credential(token);
        let answer = async {
            let (value, ttl) = request.await;
            Arc::new(Answer { value, expires: Instant::now() + ttl })
        };
        let key = TokenHash::of_credential(&format!("{kind} {name}"), secret, None);
        let expired = |answer: &Arc<Answer<T>>| answer.expires <= Instant::now();
        self.0.entry(key).or_insert_with_if(answer, expired).await.into_value().value.clone()
    }
}
