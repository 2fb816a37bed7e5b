//! Records and events that released versions have written to Redis are still read, and those of today begin with the same
//! elements.
//!
//! `recorded/<version>` has the texts of that version. A change of a format adds a file; it does not change one.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{fs, path::Path};

use proto::{AgentId, Epoch, events};
use serde_json::Value;
use store::redis::{
    DisabledRecord,
    wire::{
        Heartbeat, RedisEvent, RedisEventKind, RouteRecord, decode_logged_event, decode_project,
        encode_logged_event, encode_project,
    },
};

/// Returns a recorded text.
fn recorded(name: &str) -> Vec<u8> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/0.1");
    fs::read(directory.join(format!("{name}.json"))).unwrap()
}

/// Returns whether a value of today has all elements and keys of a recorded one.
fn contains(today: &Value, then: &Value) -> bool {
    match (today, then) {
        (Value::Array(today), Value::Array(then)) => {
            today.len() >= then.len() && today.iter().zip(then).all(|(today, then)| contains(today, then))
        }
        (Value::Object(today), Value::Object(then)) => {
            then.iter().all(|(key, then)| today.get(key).is_some_and(|today| contains(today, then)))
        }
        _ => today == then,
    }
}

fn assert_written(name: &str, today: &str) {
    let then: Value = serde_json::from_slice(&recorded(name)).unwrap();
    assert!(contains(&serde_json::from_str(today).unwrap(), &then), "{name} is now {today}");
}

#[test]
fn recorded_heartbeat_is_read_and_written() {
    let heartbeat = Heartbeat::decode(&recorded("heartbeat")).unwrap();
    assert_eq!((&*heartbeat.url, heartbeat.tunnels), ("https://10.0.0.1:8155", Some(7)));
    assert_written("heartbeat", &heartbeat.encode());
}

#[test]
fn recorded_routes_are_read_and_written() {
    for (name, cluster) in
        [("route-without-cluster", None), ("route", Some("0b5c1e4f-6a0e-4b0e-9a53-1c6e1f0d2a7b"))]
    {
        let record = RouteRecord::decode(&recorded(name)).unwrap();
        assert_eq!(record.epoch, Epoch(5));
        let instance = &record.instances[0];
        assert_eq!((instance.tunnels, instance.reported.pod_name.as_deref()), (2, Some("agentk-7d9c")));
        assert_eq!(instance.reported.cluster.as_deref(), cluster);
        assert_written(name, &record.encode());
    }
}

#[test]
fn recorded_events_are_read_and_written() {
    let kind = |name: &str| {
        let event = RedisEvent::decode(&recorded(name)).unwrap();
        assert_written(name, &event.encode());
        event.kind
    };
    assert!(matches!(kind("event-heartbeat"), RedisEventKind::Heartbeat(beat) if beat.fleet == "default"));
    assert_eq!(kind("event-changed"), RedisEventKind::Changed(vec![AgentId(7), AgentId(u64::MAX)]));
    assert!(matches!(kind("event-pushed"), RedisEventKind::Pushed(pushes) if pushes.len() == 1));
    assert_eq!(kind("event-disabled"), RedisEventKind::Disabled);
    assert_eq!(kind("event-logged"), RedisEventKind::Logged);
    assert_eq!(kind("event-left"), RedisEventKind::Left);
}

#[test]
fn recorded_project_is_read_and_written() {
    let agents = decode_project(&recorded("project")).unwrap();
    assert_eq!((agents[0].0, agents[1].1.as_str()), (AgentId(7), "staging"));
    assert_written("project", &encode_project(&agents.into_iter().collect()));
}

#[test]
fn recorded_event_of_the_log_is_read_and_written() {
    let event = decode_logged_event(&recorded("logged-event"), Some).unwrap();
    assert_eq!(
        (event.content.kind, event.content.subject.project.as_str()),
        (events::EventKind::Sync, "shop/web")
    );
    assert_written("logged-event", &encode_logged_event(&event, str::to_owned));
}

#[test]
fn recorded_rules_of_the_kill_switch_are_read_and_written() {
    let record = DisabledRecord::decode(&recorded("disabled")).unwrap();
    assert_eq!(record.version, 1_732_309_881_203_774);
    assert!(record.rules.get().contains(r#""agent":"production""#), "{}", record.rules);
    assert_written("disabled", &record.encode());
}
