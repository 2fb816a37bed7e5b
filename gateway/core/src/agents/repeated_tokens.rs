//! The unknown tokens that an address has sent before.
//!
//! An agentk whose token was revoked sends it again and again, in each call of its connections. It is one unknown token, and must not use
//! up the limit of an address that other agents share.

use std::{collections::HashSet, mem, time::Duration};

use access::token::TokenHash;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The time for which a token is remembered at least.
const MEMORY: Duration = Duration::from_secs(60);
/// The most tokens that are remembered in this time, each with its address.
const MAX_TOKENS: usize = 10_000;

/// The unknown tokens of the last minutes.
#[derive(Debug)]
pub struct RepeatedTokens(Mutex<Generations>);

#[derive(Debug)]
struct Generations {
    since: Instant,
    current: HashSet<([u8; 16], [u8; 16])>,
    previous: HashSet<([u8; 16], [u8; 16])>,
}

impl Default for RepeatedTokens {
    fn default() -> Self {
        let generations =
            Generations { since: Instant::now(), current: HashSet::new(), previous: HashSet::new() };
        Self(Mutex::new(generations))
    }
}

impl RepeatedTokens {
    /// Records an unknown token. Returns whether the address has sent it before.
    pub(super) fn record(&self, address: [u8; 16], token: &TokenHash) -> bool {
        let (now, key) = (Instant::now(), (address, token.digest()));
        let mut generations = self.0.lock();
        if now - generations.since >= MEMORY || generations.current.len() >= MAX_TOKENS {
            generations.since = now;
            generations.previous = mem::take(&mut generations.current);
        }
        let is_repeated = generations.previous.contains(&key);
        !generations.current.insert(key) || is_repeated
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;
    use tokio::time::advance;

    use super::*;

    fn token(number: usize) -> TokenHash {
        TokenHash::of(&SecretString::from(format!("token-{number}")))
    }

    #[tokio::test(start_paused = true)]
    async fn token_is_repeated_for_a_minute_after_it_was_sent_last() {
        let tokens = RepeatedTokens::default();
        assert!(!tokens.record([1; 16], &token(1)));
        assert!(tokens.record([1; 16], &token(1)));
        assert!(!tokens.record([2; 16], &token(1)), "another address");
        assert!(!tokens.record([1; 16], &token(2)));
        for _ in 0..5 {
            advance(MEMORY).await;
            assert!(tokens.record([1; 16], &token(1)));
        }
        advance(2 * MEMORY).await;
        tokens.record([1; 16], &token(3));
        advance(MEMORY).await;
        assert!(!tokens.record([1; 16], &token(2)), "it was forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_tokens_is_limited() {
        let tokens = RepeatedTokens::default();
        for number in 0..3 * MAX_TOKENS {
            tokens.record([1; 16], &token(number));
        }
        let generations = tokens.0.lock();
        assert!(generations.current.len() + generations.previous.len() <= 2 * MAX_TOKENS);
    }
}
