//! Tests of `KeyedRateLimiter` and of unknown tokens with Redis.

use std::time::Duration;

use store::{AddressLimit, AddressRateLimiter, KeyedRateLimiter};
use tokio::time::Instant;

use crate::{TestReplica, redis, server::Server};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn replicas_share_the_limit() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    let [here, there] =
        [here, there].map(|replica| KeyedRateLimiter::new(10, MINUTE, Some((*replica.store).clone())));
    for _ in 0..5 {
        here.admit([1; 16]).await.unwrap();
        there.admit([1; 16]).await.unwrap();
    }
    let wait = here.admit([1; 16]).await.unwrap_err();
    assert!(wait <= Duration::from_secs(6), "{wait:?}");
    assert!(there.admit([1; 16]).await.is_err());
    there.admit([2; 16]).await.unwrap();

    let key = format!("kas:limit:{}", "01".repeat(16));
    let ttl: i64 = server.run(&format!("PTTL {key}")).await;
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    let _: () = server.run(&format!("SET {key} 99999999999999999")).await;
    let wait = here.admit([1; 16]).await.unwrap_err();
    assert!(wait <= Duration::from_secs(6), "a forged value causes no longer wait: {wait:?}");
}

/// Returns how many of `attempts` connections of one address three replicas admit, and how long that took.
async fn admitted_by_three(server: &Server, known: bool, attempts: usize) -> (f64, Duration) {
    let (mut replicas, mut limiters) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let replica = TestReplica::joined(server.settings()).await;
        limiters.push(AddressRateLimiter::new(6000, 60, Some((*replica.store).clone())));
        replicas.push(replica);
    }
    let begin = Instant::now();
    let connections = (0..attempts).map(|n| limiters[n % 3].admit([1; 16], known));
    let admitted = futures_util::future::join_all(connections).await;
    (admitted.iter().filter(|admitted| admitted.is_ok()).count() as f64, begin.elapsed())
}

#[tokio::test]
async fn three_replicas_share_the_limits_of_an_address() {
    let Some(server) = redis() else { return };
    for (known, attempts, limit) in [(false, 600, 60.0), (true, 9000, 6000.0)] {
        let (admitted, took) = admitted_by_three(&server, known, attempts).await;
        // A slow machine takes a part of the minute, in which the rate admits more.
        let most = 1.05 * limit + limit * took.as_secs_f64() / 60.0;
        assert!((0.95 * limit..=most).contains(&admitted), "{admitted} of {limit} in {took:?}");
        let _: () = server.run("FLUSHALL").await;
    }
}

#[tokio::test]
async fn limits_of_an_address_are_counted_apart() {
    let Some(server) = redis() else { return };
    let replica = TestReplica::joined(server.settings()).await;
    let limiter = AddressRateLimiter::new(4, 2, Some((*replica.store).clone()));
    for _ in 0..2 {
        limiter.admit([1; 16], false).await.unwrap();
    }
    let refusal = limiter.admit([1; 16], false).await.unwrap_err();
    assert_eq!(refusal.limit, AddressLimit::UnknownTokens);
    assert!(refusal.wait <= Duration::from_secs(30), "{refusal:?}");
    let scripts = replica.store.metrics().commands.get();
    assert_eq!(limiter.admit([1; 16], false).await.unwrap_err().limit, AddressLimit::UnknownTokens);
    assert_eq!(replica.store.metrics().commands.get(), scripts, "the replica remembers the refusal");

    limiter.admit([1; 16], true).await.unwrap();
    let refusal = limiter.admit([1; 16], true).await.unwrap_err();
    assert_eq!(refusal.limit, AddressLimit::Connections, "the refused one counted as a connection");
    limiter.admit([2; 16], true).await.unwrap();

    let key = format!("kas:limit:{{{}}}:connections", "01".repeat(16));
    let ttl: i64 = server.run(&format!("PTTL {key}")).await;
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    let _: () = server.run("FLUSHALL").await;
    let _: i64 = server.run(&format!("HSET {key} a 1")).await;
    limiter.admit([3; 16], true).await.unwrap();
    let other = AddressRateLimiter::new(4, 2, Some((*replica.store).clone()));
    other.admit([1; 16], true).await.expect("a key of another type does not limit");
}

#[tokio::test]
async fn replica_counts_alone_without_redis() {
    let Some(mut server) = redis() else { return };
    let replica = TestReplica::joined(server.settings()).await;
    let limit = KeyedRateLimiter::new(2, MINUTE, Some((*replica.store).clone()));
    server.kill();
    assert!(limit.admit([1; 16]).await.is_ok() && limit.admit([1; 16]).await.is_ok());
    assert!(limit.admit([1; 16]).await.is_err());
    let addresses = AddressRateLimiter::new(100, 1, Some((*replica.store).clone()));
    assert!(addresses.admit([1; 16], false).await.is_ok());
    assert!(addresses.admit([1; 16], false).await.is_err());
    assert!(addresses.admit([1; 16], true).await.is_ok());
}

#[tokio::test]
async fn replicas_share_unknown_tokens_until_they_expire() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    assert!(!there.store.is_unknown_token([1; 16]).await);
    here.store.mark_unknown_token([1; 16], MINUTE).await.unwrap();
    assert!(there.store.is_unknown_token([1; 16]).await);
    assert!(!there.store.is_unknown_token([2; 16]).await);

    let key = format!("kas:unknown:{}", "01".repeat(16));
    let ttl: i64 = server.run(&format!("PTTL {key}")).await;
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    let _: i64 = server.run(&format!("DEL {key}")).await;
    assert!(!there.store.is_unknown_token([1; 16]).await);
    let _: i64 = server.run(&format!("HSET {key} a 1")).await;
    assert!(!there.store.is_unknown_token([1; 16]).await, "a value of another type is no mark");
}

#[tokio::test]
async fn no_token_is_unknown_without_redis() {
    let Some(mut server) = redis() else { return };
    let replica = TestReplica::joined(server.settings()).await;
    replica.store.mark_unknown_token([1; 16], MINUTE).await.unwrap();
    server.kill();
    assert!(!replica.store.is_unknown_token([1; 16]).await);
}
