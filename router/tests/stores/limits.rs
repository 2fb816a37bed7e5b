//! The rate limit that replicas share.

use std::time::Duration;

use router::RateLimit;

use crate::{Member, redis};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn replicas_count_together() {
    let Some(server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    let [here, there] = [here, there].map(|member| RateLimit::new(10, MINUTE, Some((*member.store).clone())));
    for _ in 0..5 {
        here.admit([1; 16]).await.unwrap();
        there.admit([1; 16]).await.unwrap();
    }
    let wait = here.admit([1; 16]).await.unwrap_err();
    assert!(wait <= Duration::from_secs(6), "{wait:?}");
    assert!(there.admit([1; 16]).await.is_err());
    there.admit([2; 16]).await.unwrap();

    let key = format!("kas:limit:{}", "01".repeat(16));
    let life: i64 = server.run(&format!("PTTL {key}")).await;
    assert!((1..=60_000).contains(&life), "{life}");
    let _: () = server.run(&format!("SET {key} 99999999999999999")).await;
    let wait = here.admit([1; 16]).await.unwrap_err();
    assert!(wait <= Duration::from_secs(6), "a forged value locks nobody out for longer: {wait:?}");
}

#[tokio::test]
async fn while_redis_is_down_each_counts_alone() {
    let Some(mut server) = redis().await else { return };
    let member = Member::joined(server.settings()).await;
    let limit = RateLimit::new(2, MINUTE, Some((*member.store).clone()));
    server.kill();
    assert!(limit.admit([1; 16]).await.is_ok() && limit.admit([1; 16]).await.is_ok());
    assert!(limit.admit([1; 16]).await.is_err());
}
