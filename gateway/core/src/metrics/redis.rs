//! Metrics of Redis, which exist only if Redis is configured.

use prometheus_client::registry::Registry;
use store::{
    RouteStore as _, StoreHealth,
    redis::{RedisCounter, RedisMetrics, RedisStore},
};
use telemetry::CallbackMetric;

/// The name, the help text and the counter of the store.
type Row = (&'static str, &'static str, fn(&RedisMetrics) -> &RedisCounter);

const COUNTERS: [Row; 8] = [
    ("kas_redis_commands", "Commands sent to Redis; a script is one", |counts| &counts.commands),
    ("kas_redis_errors", "Commands that failed or timed out", |counts| &counts.errors),
    ("kas_redis_connections", "Attempts to connect to Redis", |counts| &counts.connections),
    ("kas_redis_rejected", "Invalid values in Redis", |counts| &counts.rejected),
    ("kas_lookups_hit", "Lookups of agents answered from the cache", |counts| &counts.hits),
    ("kas_lookups_miss", "Lookups of agents that queried Redis", |counts| &counts.misses),
    ("kas_lookups_stale", "Misses answered from an expired cache entry because Redis failed", |counts| {
        &counts.stale
    }),
    ("kas_lookups_unavailable", "Misses without an answer because Redis failed", |counts| {
        &counts.unavailable
    }),
];

/// Registers the metrics of a store.
pub fn register(registry: &mut Registry, redis: &RedisStore) {
    for (name, help, counter) in COUNTERS {
        let redis = redis.clone();
        registry
            .register_collector(CallbackMetric::counter(name, help, move || counter(redis.metrics()).get()));
    }
    let redis = redis.clone();
    let degraded = move || u64::from(redis.health() != StoreHealth::Healthy);
    let help = "1 while routes are served from memory because Redis cannot be used, else 0";
    registry.register_collector(CallbackMetric::gauge("kas_redis_degraded", help, degraded));
}
