//! [`AddressRateLimiter`]: limits how often the clients of one address open connections and send unknown tokens.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::MAX_KEYS;
use crate::{
    gcra::{AddressLimit, AddressRefusal, Gcra},
    redis::RedisStore,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Limits the connections of each address, over all replicas that share a Redis.
///
/// Without Redis, or while it does not answer, each replica counts for itself. An address that was refused is refused without
/// Redis for the time that it was told to wait, so that no client can cause more load on Redis than the limits allow.
#[derive(Debug)]
pub struct AddressRateLimiter {
    connections: Gcra,
    unknown_tokens: Gcra,
    start: Instant,
    addresses: Mutex<HashMap<[u8; 16], AddressState>>,
    redis: Option<RedisStore>,
}

/// Times are durations since the start of the limiter.
#[derive(Debug, Default)]
struct AddressState {
    connections: LimitState,
    unknown_tokens: LimitState,
}

#[derive(Debug, Default)]
struct LimitState {
    /// The theoretical arrival time, if this replica counts for itself.
    arrival: Duration,
    /// The end of the last wait.
    refused_until: Duration,
}

impl AddressRateLimiter {
    /// Creates a limiter with two numbers of connections per minute: all of them, and those with unknown tokens.
    pub fn new(connections: u32, unknown_tokens: u32, redis: Option<RedisStore>) -> Self {
        Self {
            connections: Gcra::new(connections, MINUTE),
            unknown_tokens: Gcra::new(unknown_tokens, MINUTE),
            start: Instant::now(),
            addresses: Mutex::default(),
            redis,
        }
    }

    /// Refuses a connection of an address that has to wait. It counts nothing, and does not use Redis.
    ///
    /// `known` is true if the token is known to be that of an agent. `address` becomes part of a key in Redis.
    ///
    /// # Errors
    ///
    /// An earlier connection was refused, and its wait has not ended.
    pub fn check(&self, address: [u8; 16], known: bool) -> Result<(), AddressRefusal> {
        self.check_at(address, known, self.start.elapsed())
    }

    /// Counts a connection, and one with an unknown token if `known` is false.
    ///
    /// # Errors
    ///
    /// The address has reached a limit.
    pub async fn admit(&self, address: [u8; 16], known: bool) -> Result<(), AddressRefusal> {
        self.check(address, known)?;
        let limits = AddressLimit::of(known).iter().map(|limit| (*limit, self.gcra(*limit)));
        if let Some(redis) = &self.redis
            && let Ok(admitted) = redis.admit_address(address, limits).await
        {
            if let Err(refusal) = admitted {
                let until = self.start.elapsed() + refusal.wait;
                self.with_state(address, |state| state.get(refusal.limit).refused_until = until);
            }
            return admitted;
        }

        self.admit_at(address, known, self.start.elapsed())
    }

    fn check_at(&self, address: [u8; 16], known: bool, now: Duration) -> Result<(), AddressRefusal> {
        let mut addresses = self.addresses.lock();
        let Some(state) = addresses.get_mut(&address) else {
            return Ok(());
        };
        for limit in AddressLimit::of(known) {
            let wait = state.get(*limit).refused_until.saturating_sub(now);
            if !wait.is_zero() {
                return Err(AddressRefusal { limit: *limit, wait });
            }
        }
        Ok(())
    }

    fn admit_at(&self, address: [u8; 16], known: bool, now: Duration) -> Result<(), AddressRefusal> {
        self.with_state(address, |state| {
            for limit in AddressLimit::of(known) {
                let counted = state.get(*limit);
                match self.gcra(*limit).admit(counted.arrival, now) {
                    Ok(arrival) => counted.arrival = arrival,
                    Err(wait) => {
                        counted.refused_until = now + wait;
                        return Err(AddressRefusal { limit: *limit, wait });
                    }
                }
            }
            Ok(())
        })
    }

    fn gcra(&self, limit: AddressLimit) -> Gcra {
        match limit {
            AddressLimit::Connections => self.connections,
            AddressLimit::UnknownTokens => self.unknown_tokens,
        }
    }

    /// Changes the state of an address. If there are too many, those that need not wait are removed, and then all.
    fn with_state<T>(&self, address: [u8; 16], change: impl FnOnce(&mut AddressState) -> T) -> T {
        let mut addresses = self.addresses.lock();
        if addresses.len() >= MAX_KEYS {
            let now = self.start.elapsed();
            addresses.retain(|_, state| state.is_in_use(now));
        }
        if addresses.len() >= MAX_KEYS {
            addresses.clear();
        }
        change(addresses.entry(address).or_default())
    }
}

impl AddressState {
    fn get(&mut self, limit: AddressLimit) -> &mut LimitState {
        match limit {
            AddressLimit::Connections => &mut self.connections,
            AddressLimit::UnknownTokens => &mut self.unknown_tokens,
        }
    }

    fn is_in_use(&self, now: Duration) -> bool {
        [&self.connections, &self.unknown_tokens]
            .into_iter()
            .any(|limit| limit.arrival.max(limit.refused_until) > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: [u8; 16] = [1; 16];
    const SECOND: Duration = Duration::from_secs(1);

    fn admitted(limiter: &AddressRateLimiter, known: bool, now: Duration, connections: usize) -> usize {
        (0..connections).filter(|_| limiter.admit_at(ADDRESS, known, now).is_ok()).count()
    }

    #[test]
    fn known_tokens_pass_an_address_with_too_many_unknown_ones() {
        let limiter = AddressRateLimiter::new(100, 6, None);
        assert_eq!(admitted(&limiter, false, SECOND, 20), 6);
        let refusal = limiter.admit_at(ADDRESS, false, SECOND).unwrap_err();
        assert_eq!(refusal, AddressRefusal { limit: AddressLimit::UnknownTokens, wait: 10 * SECOND });
        assert_eq!(limiter.check_at(ADDRESS, false, 2 * SECOND).unwrap_err().wait, 9 * SECOND);
        assert!(limiter.check_at(ADDRESS, true, 2 * SECOND).is_ok());
        assert!(limiter.admit_at(ADDRESS, true, 2 * SECOND).is_ok());
        assert!(limiter.check_at([2; 16], false, 2 * SECOND).is_ok(), "another address");
        assert!(limiter.check_at(ADDRESS, false, 11 * SECOND).is_ok());
        assert_eq!(admitted(&limiter, false, 11 * SECOND, 20), 1);
    }

    #[test]
    fn connections_are_limited_whatever_their_token() {
        let limiter = AddressRateLimiter::new(10, 1000, None);
        assert_eq!(admitted(&limiter, true, SECOND, 5) + admitted(&limiter, false, SECOND, 20), 10);
        let refusal = limiter.check_at(ADDRESS, true, SECOND).unwrap_err();
        assert_eq!(refusal, AddressRefusal { limit: AddressLimit::Connections, wait: 6 * SECOND });
        assert_eq!(admitted(&limiter, true, 7 * SECOND, 20), 1);
    }

    #[test]
    fn memory_is_bounded() {
        let limiter = AddressRateLimiter::new(1, 1, None);
        for n in 0..2 * MAX_KEYS as u128 {
            assert!(limiter.admit_at(n.to_be_bytes(), true, Duration::from_micros(1)).is_ok());
        }
        assert!(limiter.addresses.lock().len() <= MAX_KEYS);
    }
}
