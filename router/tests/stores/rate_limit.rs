//! Tests of `KeyedRateLimiter` with Redis.

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
