//! Cached lookups. An entry is valid for a short time, or until an event invalidates it. Invalid entries are kept and
//! used while Redis is down.
//!
//! An event of another replica also wakes the callers that wait for the agent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use moka::future::Cache;
use proto::AgentId;
use tokio::time::Instant;

use super::{
    RedisMetrics, RedisState, RedisStoreError,
    client::RedisConnection,
    members::Effect,
    wire::{RedisEvent, RedisEventKind},
};
use crate::{
    routes::{AgentRoutes, StoreError},
    waiters::RouteChange,
};

/// The highest number of agents in the cache, at some hundred bytes each.
const CAPACITY: u64 = 100_000;
/// The age up to which an entry is used while Redis is down.
const STALE_TTL: Duration = Duration::from_secs(3600);
/// The time that an entry with routes is valid without an event: a bound for changes that cause none.
const POSITIVE_TTL: Duration = Duration::from_secs(30);
/// The time that an entry without routes is valid.
const NEGATIVE_TTL: Duration = Duration::from_secs(5);
/// The number of invalidation counters. Agents share them, so that an event sometimes invalidates another agent too.
const STRIPES: usize = 1024;

/// A version that is never the present one.
const INVALID: (u64, u64) = (u64::MAX, u64::MAX);

/// The cached routes of agents at other replicas.
#[derive(Debug)]
pub(super) struct LookupCache {
    cache: Cache<AgentId, Arc<CachedLookup>>,
    /// The number of invalidations of each stripe of agents.
    stripes: Box<[AtomicU64]>,
    /// The number of invalidations of everything.
    all: AtomicU64,
}

#[derive(Debug)]
struct CachedLookup {
    result: Result<AgentRoutes, StoreError>,
    started: Instant,
    /// The invalidation counters from before the query: an event during the query invalidates its result.
    version: (u64, u64),
}

impl LookupCache {
    pub(super) fn new() -> Self {
        let cache = Cache::builder().max_capacity(CAPACITY).time_to_live(STALE_TTL).build();
        let stripes = (0..STRIPES).map(|_| AtomicU64::new(0)).collect();
        Self { cache, stripes, all: AtomicU64::new(0) }
    }

    /// Returns the cached routes of the agent, or those that `query` returns. Concurrent callers share one query.
    ///
    /// `query` receives the last known routes. They are also the result if the query fails.
    pub(super) async fn get<F>(
        &self,
        agent: AgentId,
        metrics: &RedisMetrics,
        query: impl FnOnce(Option<AgentRoutes>) -> F,
    ) -> Result<AgentRoutes, StoreError>
    where
        F: Future<Output = Result<AgentRoutes, StoreError>>,
    {
        let cached = self.cache.get(&agent).await;
        if let Some(cached) = cached.as_ref().filter(|cached| self.is_valid(agent, cached)) {
            metrics.hits.increment();
            return cached.result.clone();
        }

        let previous = cached.and_then(|cached| cached.result.clone().ok());
        let fetch = async {
            let (started, version) = (Instant::now(), self.version(agent));
            metrics.misses.increment();
            let result = match query(previous.clone()).await {
                Ok(routes) => return Arc::new(CachedLookup { result: Ok(routes), started, version }),
                Err(error) => previous.ok_or(error),
            };
            match result {
                Ok(_) => metrics.stale.increment(),
                Err(_) => metrics.unavailable.increment(),
            }
            // The next caller sends another query.
            Arc::new(CachedLookup { result, started, version: INVALID })
        };
        let entry = self.cache.entry(agent).or_insert_with_if(fetch, |cached| !self.is_valid(agent, cached));
        entry.await.into_value().result.clone()
    }

    /// Invalidates the cached lookup: the next request queries Redis, and uses the old result only if that fails.
    pub(super) fn invalidate(&self, agent: AgentId) {
        self.stripe(agent).fetch_add(1, SeqCst);
    }

    /// Invalidates all cached lookups.
    pub(super) fn invalidate_all(&self) {
        self.all.fetch_add(1, SeqCst);
    }

    fn is_valid(&self, agent: AgentId, cached: &CachedLookup) -> bool {
        let ttl = match &cached.result {
            Ok(found) if found.routes.is_empty() => NEGATIVE_TTL,
            Ok(_) => POSITIVE_TTL,
            Err(_) => return false,
        };
        cached.version == self.version(agent) && cached.started.elapsed() < ttl
    }

    fn version(&self, agent: AgentId) -> (u64, u64) {
        (self.all.load(SeqCst), self.stripe(agent).load(SeqCst))
    }

    fn stripe(&self, agent: AgentId) -> &AtomicU64 {
        &self.stripes[agent.0 as usize % STRIPES]
    }
}

impl RedisState {
    /// Handles the payload of one event. An event that cannot be decoded is counted and ignored.
    pub(super) async fn handle_event(
        &self,
        connection: &RedisConnection,
        payload: &[u8],
    ) -> Result<(), RedisStoreError> {
        let event = match RedisEvent::decode(payload) {
            Ok(event) => event,
            Err(error) => {
                self.reject("event", &error);
                return Ok(());
            }
        };
        let replica = event.replica;
        if let RedisEventKind::Heartbeat(heartbeat) = &event.kind
            && let Err(error) = self.authenticate(replica, heartbeat)
        {
            self.reject_replica(replica, heartbeat, &error);
            return Ok(());
        }
        if let RedisEventKind::Pushed(pushes) = &event.kind
            && replica != self.replica
        {
            pushes.iter().for_each(|push| self.pushes.send(push.clone()));
        }
        if matches!(event.kind, RedisEventKind::Disabled) {
            self.disabled_changed.notify_one();
        }
        if matches!(event.kind, RedisEventKind::Logged) {
            self.log_changed.notify_one();
        }
        let effect = self.members.lock().handle_event(event);
        match effect {
            Effect::None => {}
            Effect::InvalidateAgents(agents) => {
                for agent in agents {
                    self.cache.invalidate(agent);
                    self.wake(agent);
                }
            }
            Effect::InvalidateAll => self.invalidate_all(),
            Effect::OtherFleet(fleet) => {
                self.reject("replica", &format!("{replica} belongs to fleet {fleet:?}"));
            }
            Effect::OwnEvent => self.cleanup_dead_replicas(connection).await?,
        }
        Ok(())
    }

    /// Invalidates every cached lookup and wakes every waiting caller.
    pub(super) fn invalidate_all(&self) {
        self.cache.invalidate_all();
        self.waiters.wake_all();
        self.route_changes.send(RouteChange::All);
    }

    /// Wakes those that wait for a change of the routes of an agent.
    pub(super) fn wake(&self, agent: AgentId) {
        self.waiters.wake(agent);
        self.route_changes.send(RouteChange::Agent(agent));
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;
    use crate::routes::Route;
    use proto::{Epoch, ReplicaId};
    use tokio::{join, sync::Notify, time::advance};

    const AGENT: AgentId = AgentId(7);

    fn found() -> AgentRoutes {
        let route = Route { replica: ReplicaId::random(), epoch: Epoch(1) };
        AgentRoutes { routes: vec![route], disconnected_since: None }
    }

    fn down() -> Result<AgentRoutes, StoreError> {
        Err(StoreError("down".into()))
    }

    /// Looks the agent up and returns whether this queried Redis, which answers with `result`.
    async fn queries(cache: &LookupCache, result: Result<AgentRoutes, StoreError>) -> bool {
        let metrics = RedisMetrics::default();
        let answer = cache.get(AGENT, &metrics, |_| ready(result)).await;
        answer.is_ok() && metrics.misses.get() == 1
    }

    #[tokio::test(start_paused = true)]
    async fn entry_is_valid_for_its_ttl_or_until_invalidated() {
        let cache = LookupCache::new();
        assert!(queries(&cache, Ok(found())).await);
        assert!(!queries(&cache, Ok(found())).await);
        cache.invalidate(AGENT);
        assert!(queries(&cache, Ok(found())).await);
        cache.invalidate_all();
        assert!(queries(&cache, Ok(found())).await);
        advance(POSITIVE_TTL).await;
        assert!(queries(&cache, Ok(AgentRoutes::default())).await);
        assert!(!queries(&cache, Ok(found())).await);
        advance(NEGATIVE_TTL).await;
        assert!(queries(&cache, Ok(found())).await);
    }

    #[tokio::test(start_paused = true)]
    async fn invalidation_during_a_query_invalidates_its_result() {
        let (cache, metrics) = (LookupCache::new(), RedisMetrics::default());
        let query = |_| async {
            cache.invalidate(AGENT);
            Ok(AgentRoutes::default())
        };
        cache.get(AGENT, &metrics, query).await.unwrap();
        assert!(queries(&cache, Ok(found())).await);
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_lookups_share_one_query() {
        let (cache, metrics, go) = (LookupCache::new(), RedisMetrics::default(), Notify::new());
        let query = |_| async {
            go.notified().await;
            Ok(found())
        };
        let first = cache.get(AGENT, &metrics, query);
        let second = cache.get(AGENT, &metrics, |_| async { panic!("the first query is not finished") });
        let (first, second, ()) = join!(first, second, async { go.notify_one() });
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(metrics.misses.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_entry_is_used_until_redis_answers_again() {
        let (cache, metrics) = (LookupCache::new(), RedisMetrics::default());
        let nothing = cache.get(AGENT, &metrics, |_| ready(down())).await;
        assert!(nothing.unwrap_err().to_string().contains("down"));
        let cached = found();
        cache.get(AGENT, &metrics, |_| ready(Ok(cached.clone()))).await.unwrap();
        cache.invalidate_all();
        for _ in 0..2 {
            let stale = cache.get(AGENT, &metrics, |_| ready(down())).await.unwrap();
            assert_eq!(stale.routes, cached.routes);
        }
        assert_eq!((metrics.unavailable.get(), metrics.stale.get()), (1, 2));
        let fresh = cache.get(AGENT, &metrics, |_| ready(Ok(AgentRoutes::default()))).await.unwrap();
        assert!(fresh.routes.is_empty());
    }
}
