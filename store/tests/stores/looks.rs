//! Tests of looks that replicas share.

use std::time::Duration;

use store::redis::SharedLook;

use crate::{TestReplica, redis, server::Server};

const KEY: [u8; 16] = [1; 16];
const FOUND: [u8; 16] = [0xab; 16];
const AGE: Duration = Duration::from_secs(60);

fn key() -> String {
    format!("kas:look:{}", "01".repeat(16))
}

async fn now(server: &Server) -> u64 {
    let (seconds, micros): (u64, u64) = server.run("TIME").await;
    seconds * 1000 + micros / 1000
}

#[tokio::test]
async fn replica_learns_of_the_look_of_another() {
    let Some(server) = redis() else { return };
    let [here, there] =
        [TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await];
    assert_eq!(here.store.claim_look(KEY, AGE).await.unwrap(), SharedLook::Claimed);
    assert_eq!(there.store.claim_look(KEY, AGE).await.unwrap(), SharedLook::Running);
    assert_eq!(there.store.claim_look([2; 16], AGE).await.unwrap(), SharedLook::Claimed, "another version");
    here.store.record_look(KEY, Some(FOUND)).await.unwrap();
    let SharedLook::Ended { age, found } = there.store.claim_look(KEY, AGE).await.unwrap() else { panic!() };
    assert!(found == Some(FOUND) && age < AGE);
    here.store.record_look(KEY, None).await.unwrap();
    let failed = there.store.claim_look(KEY, AGE).await.unwrap();
    assert!(matches!(failed, SharedLook::Ended { found: None, .. }), "{failed:?}");

    // A record that is too old, and a claim whose replica has died.
    for (age, found) in [(61_000, "ab".repeat(16)), (5_001, String::new())] {
        let _: () = server.run(&format!("SET {} [1,{},\"{found}\"]", key(), now(&server).await - age)).await;
        assert_eq!(there.store.claim_look(KEY, AGE).await.unwrap(), SharedLook::Claimed, "{age}");
    }
    let ttl: i64 = server.run(&format!("PTTL {}", key())).await;
    assert!((1..=5000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn forged_look_is_ignored_or_as_good_as_none() {
    let Some(server) = redis() else { return };
    let replica = TestReplica::joined(server.settings()).await;
    let later = now(&server).await + 3_600_000;
    for text in [
        "garbage".to_owned(),
        format!("[1,{later},\"{}\"]", "ab".repeat(16)),
        format!("[1,{later},\"\"]"),
        format!("[1,{},\"ab\"]", "9".repeat(60)),
        format!("[2,{},\"ab\"]", now(&server).await),
    ] {
        let _: () = server.run(&format!("SET {} {text}", key())).await;
        assert_eq!(replica.store.claim_look(KEY, AGE).await.unwrap(), SharedLook::Claimed, "{text}");
    }
    let _: () = server.run(&format!("SET {} [1,{},\"abc\"]", key(), now(&server).await)).await;
    let short = replica.store.claim_look(KEY, AGE).await.unwrap();
    assert!(matches!(short, SharedLook::Ended { found: None, .. }), "{short:?}");
    let _: () = server.run(&format!("DEL {}", key())).await;
    let _: () = server.run(&format!("LPUSH {} a", key())).await;
    assert_eq!(replica.store.claim_look(KEY, AGE).await.unwrap(), SharedLook::Claimed, "a list");
}
