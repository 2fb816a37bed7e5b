//! Records that a writer of Redis has forged, changed or copied, while replicas share a secret.

use std::{sync::Arc, time::SystemTime};

use proto::{
    AgentId,
    events::{Event, EventContent, EventKind, Severity},
    notify::ProjectEvent,
};
use store::{
    EventPosition, EventStore as _, NewEvent, ProjectEventStore as _,
    redis::{RecordAuthenticator, RecordPlace, RedisSettings},
};

use crate::{TestReplica, redis, server::Server};

/// MACs that everybody who knows the word can compute.
#[derive(Debug)]
struct Word(&'static str);

impl RecordAuthenticator for Word {
    fn sign(&self, RecordPlace { kind, key }: RecordPlace<'_>, record: &[u8]) -> String {
        let sum: u64 = record.iter().zip(1..).map(|(byte, place)| u64::from(*byte) * place).sum();
        format!("{} {kind} {key} {sum}", self.0)
    }

    fn verify(&self, place: RecordPlace<'_>, record: &[u8], mac: &str) -> bool {
        self.sign(place, record) == mac
    }
}

fn with(word: Option<&'static str>, server: &Server) -> RedisSettings {
    RedisSettings { records: word.map(|word| Arc::new(Word(word)) as _), ..server.settings() }
}

/// A server with a replica of the secret, a writer that knows another one, and a writer that knows none.
async fn attacked() -> Option<(Server, TestReplica, [TestReplica; 2])> {
    let server = redis()?;
    let ours = TestReplica::joined(with(Some("ours"), &server)).await;
    let theirs = TestReplica::joined(with(Some("theirs"), &server)).await;
    let unsigned = TestReplica::joined(with(None, &server)).await;
    Some((server, ours, [theirs, unsigned]))
}

/// Runs a command with raw words, and returns its result as bytes.
async fn run(server: &Server, words: &[&[u8]]) -> Vec<u8> {
    let mut cmd = redis::cmd(str::from_utf8(words[0]).unwrap());
    cmd.arg(&words[1..]);
    match server.run_cmd::<redis::Value>(cmd).await {
        redis::Value::BulkString(bytes) => bytes,
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn forged_views_have_no_effect() {
    let Some((server, ours, writers)) = attacked().await else { return };
    let (agent, other) = (AgentId(7), AgentId(8));
    let rejected = ours.store.metrics().rejected.get();
    for writer in &writers {
        writer.store.write_views(agent, "{\"a\":1}").await.unwrap();
        assert_eq!(ours.store.read_views(agent).await.unwrap(), None);
    }
    assert!(ours.store.metrics().rejected.get() >= rejected + 2, "they are counted");
    ours.store.write_views(agent, "{\"a\":1}").await.unwrap();
    assert_eq!(ours.store.read_views(agent).await.unwrap().unwrap(), b"{\"a\":1}");
    let stored = run(&server, &[b"GET", b"kas:views:7"]).await;
    run(&server, &[b"SET", b"kas:views:8", &stored]).await;
    assert_eq!(ours.store.read_views(other).await.unwrap(), None, "a copy for another agent");
    let changed = String::from_utf8(stored).unwrap().replace("\"a\":1", "\"a\":2");
    run(&server, &[b"SET", b"kas:views:7", changed.as_bytes()]).await;
    assert_eq!(ours.store.read_views(agent).await.unwrap(), None);
}

#[tokio::test]
async fn forged_environments_have_no_effect() {
    let Some((_server, ours, [theirs, unsigned])) = attacked().await else { return };
    ours.store.write_environments(AgentId(7), Some("{\"agent\":\"7\"}")).await.unwrap();
    theirs.store.write_environments(AgentId(8), Some("{\"agent\":\"8\"}")).await.unwrap();
    unsigned.store.write_environments(AgentId(9), Some("{\"agent\":\"9\"}")).await.unwrap();
    assert_eq!(ours.store.environments().await.unwrap(), [b"{\"agent\":\"7\"}"]);
    assert_eq!(unsigned.store.environments().await.unwrap().len(), 3, "without a secret, all are believed");
}

#[tokio::test]
async fn forged_deployments_have_no_effect() {
    let Some((_server, ours, [theirs, unsigned])) = attacked().await else { return };
    ours.store.push_deployment("{\"job\":1}").await.unwrap();
    theirs.store.push_deployment("{\"job\":2}").await.unwrap();
    unsigned.store.push_deployment("{\"job\":3}").await.unwrap();
    assert_eq!(ours.store.deployments().await.unwrap(), [b"{\"job\":1}"]);
}

#[tokio::test]
async fn forged_project_events_have_no_effect() {
    let Some((server, ours, writers)) = attacked().await else { return };
    let event = |id: &str, project: &str, reference: &str| -> ProjectEvent {
        let event = serde_json::json!({
            "id": id, "project": project, "ref": reference, "time": "2026-11-24T10:00:00Z",
        });
        serde_json::from_value(event).unwrap()
    };
    ours.store.name_projects(&["shop/web".to_owned(), "shop/api".to_owned()]).await.unwrap();
    ours.store.record_event(&event("real", "shop/web", "refs/heads/main")).await.unwrap();
    for (writer, reference) in writers.iter().zip(["refs/heads/a", "refs/heads/b"]) {
        writer.store.record_event(&event("forged", "shop/web", reference)).await.unwrap();
    }
    let ids = async |project: &str| {
        let events = ours.store.latest_events(project).await.unwrap();
        events.iter().map(|event| event.id().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("shop/web").await, ["real"]);
    let keys: Vec<String> = server.run("KEYS *shop/web*").await;
    let field = "rrefs/heads/main".as_bytes();
    let stored = run(&server, &[b"HGET", keys[0].as_bytes(), field]).await;
    let copy = keys[0].replace("shop/web", "shop/api");
    run(&server, &[b"HSET", copy.as_bytes(), field, &stored]).await;
    assert_eq!(ids("shop/api").await, [] as [&str; 0], "a copy for another project");
}

#[tokio::test]
async fn forged_events_have_no_effect() {
    let Some((server, ours, writers)) = attacked().await else { return };
    let event = |message: &str| {
        let content = EventContent::new(EventKind::Sync, Severity::Error, message);
        let event = Event { time: SystemTime::UNIX_EPOCH, agent: None, content };
        NewEvent::new(format!("key of {message}"), event)
    };
    for (writer, message) in writers.iter().zip(["of another secret", "of no secret"]) {
        writer.store.append_events(vec![event(message)]).await.unwrap();
    }
    ours.store.append_events(vec![event("real")]).await.unwrap();
    let mut changes = ours.store.event_changes();
    let page = loop {
        let page = ours.store.events(EventPosition::START, 100);
        if !page.events.is_empty() {
            break page;
        }
        changes.changed().await.unwrap();
    };
    let messages: Vec<_> = page.events.iter().map(|event| &*event.event.content.message).collect();
    assert_eq!(messages, ["real"]);
    let log: Vec<(String, Vec<String>)> = server.run("XRANGE {kas}:event-log - +").await;
    let real = log.iter().find(|(_, fields)| fields.contains(&"key of real".to_owned())).unwrap();
    let text = real.1.last().unwrap();
    // Under another key it would be another event.
    run(&server, &[b"XADD", b"{kas}:event-log", b"*", b"k", b"another", b"s", b"kas", b"e", text.as_bytes()])
        .await;
    let late = TestReplica::joined(with(Some("ours"), &server)).await;
    assert_eq!(late.store.events(EventPosition::START, 100).events.len(), 1);
    assert_eq!(late.store.metrics().rejected.get(), 3, "they are counted");
}
