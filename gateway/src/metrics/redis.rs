//! What is counted of Redis; nothing of it is there without Redis.

use prometheus_client::registry::Registry;
use router::{
    Health, RouteStore as _,
    redis::{Count, Counts, RedisStore},
};
use telemetry::Count as Collector;

/// Name, help, and which of the store's counters it is.
type Row = (&'static str, &'static str, fn(&Counts) -> &Count);

const COUNTERS: [Row; 8] = [
    ("kas_redis_commands", "Commands sent to Redis; a script is one", |counts| &counts.commands),
    ("kas_redis_errors", "Commands that Redis did not answer, or answered with an error", |counts| {
        &counts.errors
    }),
    ("kas_redis_connections", "Connections to Redis that were made or tried", |counts| &counts.connections),
    ("kas_redis_rejected", "Texts in Redis that kas cannot use", |counts| &counts.rejected),
    ("kas_lookups_hit", "Lookups of agents that were answered from memory", |counts| &counts.hits),
    ("kas_lookups_miss", "Lookups of agents for which Redis was asked", |counts| &counts.misses),
    ("kas_lookups_stale", "Misses that Redis did not answer and an old answer served", |counts| {
        &counts.stale
    }),
    ("kas_lookups_unavailable", "Misses that Redis did not answer and nothing served", |counts| {
        &counts.unavailable
    }),
];

/// Registers everything.
pub fn register(registry: &mut Registry, redis: &RedisStore) {
    for (name, help, counter) in COUNTERS {
        let redis = redis.clone();
        registry.register_collector(Collector::new(name, help, move || counter(redis.counts()).get()));
    }
    let redis = redis.clone();
    let degraded = move || u64::from(redis.health() != Health::Healthy);
    let help = "1 while routes are served from memory because Redis cannot be used, else 0";
    registry.register_collector(Collector::gauge("kas_redis_degraded", help, degraded));
}
