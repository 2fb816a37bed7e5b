//! The lookup of the routes of an agent: those of other replicas from the cache or from Redis, that of this replica from memory.
//!
//! An entry of the cache is valid for a short time, or until an event invalidates it. Invalid entries are kept and used while Redis is
//! down. An event of another replica also wakes the callers that wait for the agent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use moka::future::Cache;
use proto::AgentId;
use redis::{FromRedisValue, ScriptInvocation};
use tokio::time::Instant;

use super::{
    RedisMetrics, RedisState,
    wire::{self, MAX_RECORD, RouteRecord},
};
use crate::{
    routes::{AgentRoutes, Route, StoreError},
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
    /// Returns the routes of the agent: those of other replicas from the cache or from Redis, that of this replica from
    /// memory.
    pub(super) async fn lookup(&self, agent: AgentId) -> Result<AgentRoutes, StoreError> {
        let query = |previous| self.query_routes(agent, previous);
        let found = self.cache.get(agent, &self.metrics, query).await;
        self.with_local_route(agent, found)
    }

    /// Reads the routes of other replicas. `previous` is the last known answer.
    async fn query_routes(
        &self,
        agent: AgentId,
        previous: Option<AgentRoutes>,
    ) -> Result<AgentRoutes, StoreError> {
        let others = self.members.lock().ids();
        let mut script = self.scripts.lookup.key(self.keys.gone());
        for other in &others {
            script.key(self.keys.routes(*other));
        }
        script.arg(agent.0).arg(MAX_RECORD);
        let found: Vec<Vec<u8>> = self.query(&script).await?;

        let (gone, records) = found.split_first().ok_or_else(empty_answer)?;
        let disconnected_since = self.decode_seconds(gone).and_then(wire::from_unix_seconds);
        let mut routes = Vec::new();
        let members = self.members.lock();
        for (replica, record) in others.into_iter().zip(records) {
            // Redis may have lost the records of an unconfirmed replica: its previous route stays valid.
            let previous = || {
                let known = previous.iter().flat_map(|previous| &previous.routes);
                known.copied().find(|route| route.replica == replica && members.is_unconfirmed(replica))
            };
            let route = self.decode_record(record).map(|record| Route { replica, epoch: record.epoch });
            routes.extend(route.or_else(previous));
        }
        Ok(AgentRoutes { routes, disconnected_since })
    }

    /// Runs a script for a request. After an error, the sync task replaces the connection.
    pub(super) async fn query<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        let connection = self.connection()?;
        connection.run(script, &self.metrics).await.map_err(|error| {
            self.discard(&connection);
            StoreError(error.to_string())
        })
    }

    /// Removes the routes of dead replicas and adds the route of this one. A local route is an answer without Redis.
    fn with_local_route(
        &self,
        agent: AgentId,
        found: Result<AgentRoutes, StoreError>,
    ) -> Result<AgentRoutes, StoreError> {
        let routes = self.routes.lock();
        let local = routes.get(agent).map(|record| Route { replica: self.replica, epoch: record.epoch });
        let found = match (found, local) {
            (Ok(found), _) => found,
            (Err(_), Some(_)) => AgentRoutes::default(),
            (Err(error), None) => return Err(error),
        };

        let members = self.members.lock();
        let live = found.routes.into_iter().filter(|route| members.get(route.replica).is_some());
        let all: Vec<Route> = live.chain(local).collect();
        let disconnected = found.disconnected_since.max(routes.disconnected_since(agent));
        Ok(AgentRoutes { disconnected_since: disconnected.filter(|_| all.is_empty()), routes: all })
    }

    /// Decodes a record; `None` if there is none or it cannot be used.
    pub(super) fn decode_record(&self, text: &[u8]) -> Option<RouteRecord> {
        if text.is_empty() {
            return None;
        }
        RouteRecord::decode(text).inspect_err(|error| self.reject("route record", error)).ok()
    }

    /// Decodes a time in seconds; `None` if there is none or it is no number.
    pub(super) fn decode_seconds(&self, text: &[u8]) -> Option<u64> {
        if text.is_empty() {
            return None;
        }
        let seconds = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        if seconds.is_none() {
            self.reject("time", &"it is not a number of seconds");
        }
        seconds
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

pub(super) fn empty_answer() -> StoreError {
    StoreError("Redis returned an empty answer".to_owned())
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;
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
