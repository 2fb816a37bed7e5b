//! The limits of calls to Gitaly: for each server, for each agent, and for all calls together.

use std::time::Duration;

use proto::AgentId;
use sha2::{Digest as _, Sha256};
use store::{KeyedRateLimiter, redis::RedisStore};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{sleep, timeout},
};

use super::GitalyAddress;
use crate::gitaly::GitalyConfig;

/// The longest wait of a call for its limits. It has its own time after that.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(20);

/// Calls for one agent per second, and at once. A poll has one or two calls, and a push event starts a poll.
const PER_AGENT: CallRate = CallRate { per_second: 2, burst: 20 };

/// The calls per second, and at once after a quiet time.
#[derive(Clone, Copy)]
struct CallRate {
    per_second: u32,
    burst: u32,
}

/// The calls that wait for one limit, in the order of their arrival. Only the first one uses the limiter, and so Redis.
#[derive(Debug)]
pub(super) struct CallQueue(Semaphore);

/// Delays calls above the limits. With Redis, the limits are those of all replicas together.
#[derive(Debug)]
pub(super) struct CallLimits {
    global: KeyedRateLimiter,
    global_queue: CallQueue,
    per_server: KeyedRateLimiter,
    per_agent: KeyedRateLimiter,
}

impl CallLimits {
    pub(super) fn new(config: &GitalyConfig, redis: Option<&RedisStore>) -> Self {
        let GitalyConfig { global_api_rate_limit: global, per_server_api_rate_limit: server } = config;
        Self {
            global: limiter(
                CallRate { per_second: global.refill_rate_per_second, burst: global.bucket_size },
                redis,
            ),
            global_queue: CallQueue::default(),
            per_server: limiter(
                CallRate { per_second: server.refill_rate_per_second, burst: server.bucket_size },
                redis,
            ),
            per_agent: limiter(PER_AGENT, redis),
        }
    }

    /// Waits until a call to the server is admitted, for the agent if there is one.
    ///
    /// # Errors
    ///
    /// The configuration key of the limit, if the wait is longer than [`MAX_WAIT`].
    pub(super) async fn admit(
        &self,
        server: &GitalyAddress,
        server_queue: &CallQueue,
        agent: Option<AgentId>,
    ) -> Result<(), &'static str> {
        let mut limit = "per_server_api_rate_limit";
        let admitted = async {
            if let Some(agent) = agent {
                wait(&self.per_agent, digest("agent", &agent.to_string())).await;
            }
            {
                let _permit = server_queue.acquire().await;
                wait(&self.per_server, digest("server", &server.to_string())).await;
            }
            limit = "global_api_rate_limit";
            let _permit = self.global_queue.acquire().await;
            wait(&self.global, digest("global", "")).await;
        };
        timeout(MAX_WAIT, admitted).await.map_err(|_| limit)
    }
}

impl Default for CallQueue {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

impl CallQueue {
    async fn acquire(&self) -> SemaphorePermit<'_> {
        self.0.acquire().await.expect("never closed")
    }
}

fn limiter(rate: CallRate, redis: Option<&RedisStore>) -> KeyedRateLimiter {
    let CallRate { per_second, burst } = rate;
    KeyedRateLimiter::new(burst, Duration::from_secs(burst.into()) / per_second.max(1), redis.cloned())
}

async fn wait(limiter: &KeyedRateLimiter, key: [u8; 16]) {
    while let Err(delay) = limiter.admit(key).await {
        sleep(delay).await;
    }
}

/// Returns the key of a limit, which no token of an agent has.
fn digest(kind: &str, name: &str) -> [u8; 16] {
    let hash = Sha256::new().chain_update(format!("gitaly/{kind}/{name}")).finalize();
    *hash.first_chunk().expect("a hash has 32 bytes")
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn limits() -> CallLimits {
        CallLimits::new(&GitalyConfig::default(), None)
    }

    #[tokio::test(start_paused = true)]
    async fn server_has_a_burst_and_then_a_steady_rate() {
        let (limits, queue) = (limits(), CallQueue::default());
        let (server, start) = ("tcp://a:1".parse().unwrap(), Instant::now());
        for _ in 0..40 {
            limits.admit(&server, &queue, None).await.unwrap();
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..15 {
            limits.admit(&server, &queue, None).await.unwrap();
        }
        assert!((start.elapsed().as_secs_f64() - 1.0).abs() < 0.1, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn all_servers_together_have_a_limit() {
        let (limits, start) = (limits(), Instant::now());
        for server in 0..100 {
            let server = format!("tcp://gitaly-{server}:1").parse().unwrap();
            limits.admit(&server, &CallQueue::default(), None).await.unwrap();
        }
        assert!((start.elapsed().as_secs_f64() - 1.0).abs() < 0.1, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn one_agent_does_not_delay_another() {
        let (limits, queue) = (limits(), CallQueue::default());
        let (server, start) = ("tcp://a:1".parse().unwrap(), Instant::now());
        for _ in 0..22 {
            limits.admit(&server, &queue, Some(AgentId(1))).await.unwrap();
        }
        assert!((start.elapsed().as_secs_f64() - 1.0).abs() < 0.1, "{:?}", start.elapsed());
        let later = Instant::now();
        limits.admit(&server, &queue, Some(AgentId(2))).await.unwrap();
        assert_eq!(later.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn wait_is_bounded_and_names_its_limit() {
        let (limits, queue) = (limits(), CallQueue::default());
        let server = "tcp://a:1".parse().unwrap();
        let calls = (0..1000).map(|_| limits.admit(&server, &queue, None));
        let results = futures_util::future::join_all(calls).await;
        let refused: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        // 40 at once, and 15 in each of 20 s.
        assert!((655..=665).contains(&refused.len()), "{}", refused.len());
        assert!(refused.iter().all(|limit| *limit == "per_server_api_rate_limit"));
    }
}
