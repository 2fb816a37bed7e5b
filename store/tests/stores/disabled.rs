//! Tests of the record of the kill switch, which all replicas read.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json, value::to_raw_value};
use store::redis::{DisabledRecord, ReplaceError};
use tokio::time::{Instant, timeout};

use crate::{TIMEOUT, TestReplica, redis, server::Server};

/// The time within which every replica has the record.
const BOUND: Duration = Duration::from_secs(1);

async fn replace(replica: &TestReplica, rules: Value) {
    let rules = to_raw_value(&rules).unwrap();
    replica.store.edit_disabled().await.unwrap().replace(rules, 1).await.unwrap();
}

/// Waits until the replica has found a record with these rules, and accepts it.
async fn wait_accepted(replica: &TestReplica, rules: &Value) {
    let rules = rules.to_string();
    let mut records = replica.store.disabled_records();
    let decoded =
        |text: &Option<Arc<[u8]>>| text.as_deref().and_then(|text| DisabledRecord::decode(text).ok());
    let found = records.wait_for(|text| decoded(text).is_some_and(|record| record.rules.get() == rules));
    let text = timeout(TIMEOUT, found).await.expect("the record arrives").unwrap().clone();
    replica.store.accept_disabled(decoded(&text).unwrap());
}

async fn stored(server: &Server) -> String {
    server.run("GET {kas}:disabled").await
}

#[tokio::test]
async fn record_reaches_three_replicas_within_a_second() {
    let Some(server) = redis() else { return };
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(TestReplica::joined(server.settings()).await);
    }
    let begin = Instant::now();
    replace(&replicas[0], json!("first")).await;
    for replica in &replicas {
        wait_accepted(replica, &json!("first")).await;
    }
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    assert_eq!(stored(&server).await, "[1,1,\"first\"]");
    replace(&replicas[0], json!("second")).await;
    assert_eq!(stored(&server).await, "[1,2,\"second\"]", "a later version although the time is the same");

    let late = TestReplica::joined(server.settings()).await;
    wait_accepted(&late, &json!("second")).await;
}

#[tokio::test]
async fn lost_record_is_written_back_and_a_newer_one_wins() {
    let Some(mut server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    replace(&here, json!("old")).await;
    wait_accepted(&here, &json!("old")).await;
    replace(&here, json!("new")).await;
    wait_accepted(&there, &json!("new")).await;

    server.kill();
    there.wait_degraded().await;
    server.restart();
    here.wait_healthy().await;
    there.wait_healthy().await;
    wait_accepted(&here, &json!("new")).await;
    assert_eq!(stored(&server).await, "[1,2,\"new\"]");

    let _: i64 = server.run("DEL {kas}:disabled").await;
    let restored = async {
        while server.run::<usize>("EXISTS {kas}:disabled").await == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TIMEOUT, restored).await.expect("the next audit notices it");
    assert_eq!(stored(&server).await, "[1,2,\"new\"]");
}

#[tokio::test]
async fn malformed_record_is_offered_and_not_replaced_by_replicas() {
    let Some(server) = redis() else { return };
    let here = TestReplica::joined(server.settings()).await;
    replace(&here, json!("good")).await;
    wait_accepted(&here, &json!("good")).await;
    let _: () = server.run("SET {kas}:disabled garbage").await;
    let mut records = here.store.disabled_records();
    let garbage = records.wait_for(|text| text.as_deref() == Some(&b"garbage"[..]));
    timeout(TIMEOUT, garbage).await.expect("the next audit notices it").unwrap();
    assert_eq!(stored(&server).await, "garbage", "an operator sees it");

    replace(&here, json!("better")).await;
    wait_accepted(&here, &json!("better")).await;
    let _: i64 = server.run("DEL {kas}:disabled").await;
    let _: i64 = server.run("HSET {kas}:disabled a 1").await;
    let editor = here.store.edit_disabled().await.unwrap();
    assert_eq!((editor.text(), editor.replicas), (Some(&b"!"[..]), 0), "the other replicas");
    editor.replace(to_raw_value("best").unwrap(), 1).await.unwrap();
    wait_accepted(&here, &json!("best")).await;
}

#[tokio::test]
async fn two_operators_do_not_overwrite_each_other() {
    let Some(server) = redis() else { return };
    let here = TestReplica::joined(server.settings()).await;
    let (first, second) =
        (here.store.edit_disabled().await.unwrap(), here.store.edit_disabled().await.unwrap());
    first.replace(to_raw_value("a").unwrap(), 5).await.unwrap();
    let error = second.replace(to_raw_value("b").unwrap(), 9).await.unwrap_err();
    assert!(matches!(error, ReplaceError::Conflict), "{error}");
    let long = to_raw_value(&"x".repeat(65_536)).unwrap();
    let error = here.store.edit_disabled().await.unwrap().replace(long, 9).await.unwrap_err();
    assert!(matches!(error, ReplaceError::TooLong), "{error}");
    assert_eq!(stored(&server).await, "[1,5,\"a\"]");
}
