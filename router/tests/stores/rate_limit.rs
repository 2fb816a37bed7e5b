//! Tests of `KeyedRateLimiter` and of unknown tokens with Redis.

use std::time::Duration;

use router::KeyedRateLimiter;

use crate::{TestReplica, redis};

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

#[tokio::test]
async fn replica_counts_alone_without_redis() {
    let Some(mut server) = redis() else { return };
    let replica = TestReplica::joined(server.settings()).await;
    let limit = KeyedRateLimiter::new(2, MINUTE, Some((*replica.store).clone()));
    server.kill();
    assert!(limit.admit([1; 16]).await.is_ok() && limit.admit([1; 16]).await.is_ok());
    assert!(limit.admit([1; 16]).await.is_err());
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
