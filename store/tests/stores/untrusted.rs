//! Tests of unusable values in Redis.

use std::{sync::Arc, time::Duration};

use proto::{AgentId, ReplicaId, notify::ProjectEvent};
use store::{
    EndedSessions, NewSession, ProjectEventStore as _, RecordedEvent, RouteStore as _, SessionHolder,
    SessionId, SessionLimits, SessionStore as _,
    redis::{MAX_DEPLOYMENTS, RedisSettings, UrlAuthenticator},
};

use crate::{TestReplica, redis, server::Server};

async fn put(server: &Server, command: &str, key: &str, words: &[&[u8]]) {
    let mut cmd = redis::cmd(command);
    cmd.arg(key).arg(words);
    let _: redis::Value = server.run_cmd(cmd).await;
}

#[tokio::test]
async fn unusable_records_are_ignored_and_counted() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.wait_routes(1, &[here.route(1)]).await;

    let routes = format!("{{kas}}:routes:{}", here.id);
    let long = vec![b'9'; 1 << 20];
    let bad: [&[u8]; 5] = [b"\0\xff\x00garbage", b"[2,1,[]]", b"{}", b"", &long];
    for (agent, record) in (100..).zip(bad) {
        put(&server, "HSET", &routes, &[agent.to_string().as_bytes(), record]).await;
        let rejected = there.store.metrics().rejected.get();
        assert!(there.store.lookup(AgentId(agent)).await.unwrap().routes.is_empty());
        assert!(record.is_empty() || there.store.metrics().rejected.get() > rejected, "{agent}");
    }
    put(&server, "HSET", &routes, &[b"not a number", b"[1,1,[]]"]).await;
    put(&server, "HSET", "{kas}:gone", &[b"200", b"yesterday"]).await;
    assert_eq!(there.store.lookup(AgentId(200)).await.unwrap().disconnected_since, None);
    let agents: Vec<AgentId> = [1].into_iter().chain(100..300).map(AgentId).collect();
    let list = there.store.list_instances(&agents).await;
    assert_eq!(list.connected.iter().map(|entry| entry.agent).collect::<Vec<_>>(), [AgentId(1)]);
    assert!(list.disconnected.is_empty() && list.error.is_none(), "{list:?}");
}

#[tokio::test]
async fn unusable_heartbeats_and_events_add_no_replica() {
    let Some(server) = redis() else { return };
    let heartbeats: [&[u8]; 4] = [
        b"garbage",
        br#"[2,{"url":"http://a:1","fleet":"blue","kas":"9","started":0}]"#,
        br#"[1,{"url":"file:///etc/passwd","fleet":"blue","kas":"1","started":0}]"#,
        br#"[1,{"url":"http://a:1/x","fleet":"blue","kas":"1","started":0}]"#,
    ];
    let ids: Vec<ReplicaId> = heartbeats.iter().map(|_| ReplicaId::random()).collect();
    for (id, heartbeat) in ids.iter().zip(heartbeats) {
        put(&server, "SET", &format!("{{kas}}:replica:{id}"), &[heartbeat]).await;
        put(&server, "SADD", "{kas}:replicas", &[id.to_string().as_bytes()]).await;
    }
    put(&server, "SADD", "{kas}:replicas", &[b"short", &[b'x'; 32], &[0xff; 100_000]]).await;

    let here = TestReplica::joined(server.settings()).await;
    assert_eq!(here.store.metrics().rejected.get(), 4);
    assert!(ids.iter().all(|id| here.store.replica(*id).is_none()));
    for event in [b"garbage".as_slice(), b"[1", &[b'['; 200_000], b"[1,\"x\",1,1,\"left\"]"] {
        put(&server, "PUBLISH", "kas:events", &[event]).await;
    }
    here.announce(1, 1).await;
    let there = TestReplica::joined(server.settings()).await;
    there.wait_routes(1, &[here.route(1)]).await;
    here.wait_routes(1, &[here.route(1)]).await;
    assert_eq!(here.store.metrics().connections.get(), 1, "the first connection stays in use");
}

#[tokio::test]
async fn unusable_values_of_sessions_are_no_sessions() {
    let Some(server) = redis() else { return };
    let here = TestReplica::joined(server.settings()).await;
    let (id, holder, ttl) = (SessionId([1; 32]), SessionHolder([2; 16]), Duration::from_secs(60));
    let key = format!("{{kas}}:session:{id}");
    put(&server, "HSET", &key, &[b"a", b"b"]).await;
    assert_eq!(here.store.session(id).await.unwrap(), None);
    assert!(!here.store.replace_session(id, b"record".to_vec()).await.unwrap());
    here.store.end_sessions(EndedSessions::One(id)).await.unwrap();
    put(&server, "SET", &key, &[&[b'x'; 1 << 20]]).await;
    assert_eq!(here.store.session(id).await.unwrap().unwrap().len(), NewSession::MAX_RECORD);

    let (all, of_holder) = ("{kas}:sessions", format!("{{kas}}:sessions:{holder}"));
    put(&server, "SET", all, &[b"a"]).await;
    put(&server, "SET", &of_holder, &[b"a"]).await;
    here.store.end_sessions(EndedSessions::OfHolder(holder)).await.unwrap();
    put(&server, "SET", &of_holder, &[b"a"]).await;
    let begin = |id| {
        let limits = SessionLimits { sessions: 2, per_holder: 2 };
        here.store.begin_session(NewSession { id, holder, record: b"record".to_vec(), ttl }, limits)
    };
    begin(id).await.unwrap();
    assert_eq!(here.store.session(id).await.unwrap().unwrap(), b"record");
    let ttl: i64 = server.run(&format!("PTTL {key}")).await;
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    // The first of these sets has a member that is no session.
    put(&server, "ZADD", all, &[b"9999999999998", b"../\0"]).await;
    put(&server, "ZADD", &of_holder, &[b"9999999999998", b"../\0"]).await;
    begin(SessionId([3; 32])).await.unwrap();
    begin(SessionId([4; 32])).await.unwrap();
    assert!(here.store.session(SessionId([4; 32])).await.unwrap().is_some());
    // Redis has evicted the set, and the record is there.
    put(&server, "DEL", all, &[]).await;
    let remaining = here.store.session_ttl(SessionId([4; 32])).await.unwrap().unwrap();
    assert!(remaining > Duration::from_secs(30), "{remaining:?}");
}

/// MACs that everybody who knows the word can compute.
#[derive(Debug)]
struct Word(&'static str);

impl UrlAuthenticator for Word {
    fn sign(&self, replica: ReplicaId, fleet: &str, url: &str) -> String {
        format!("{} {replica} {fleet} {url}", self.0)
    }

    fn verify(&self, replica: ReplicaId, fleet: &str, url: &str, mac: &str) -> bool {
        self.sign(replica, fleet, url) == mac
    }
}

#[tokio::test]
async fn attack_85_heartbeat_without_the_mac_of_its_url_adds_no_replica() {
    let Some(server) = redis() else { return };
    let signed = || RedisSettings { urls: Some(Arc::new(Word("ours"))), ..server.settings() };
    let here = TestReplica::joined(signed()).await;
    here.announce(1, 1).await;
    let url = "http://127.0.0.1:8155";
    let heartbeat = |url: &str, mac: Option<String>| {
        let mut heartbeat = serde_json::json!({"url": url, "fleet": "blue", "kas": "1", "started": 0});
        if let Some(mac) = mac {
            heartbeat["mac"] = mac.into();
        }
        heartbeat
    };
    let forged = |id| {
        [
            heartbeat("http://evil:1", None),
            heartbeat("http://evil:1", Some(Word("theirs").sign(id, "blue", "http://evil:1"))),
            heartbeat("http://evil:1", Some(Word("ours").sign(id, "blue", url))),
            heartbeat(url, Some(Word("ours").sign(here.id, "blue", url))),
            heartbeat(url, Some(Word("ours").sign(id, "green", url))),
        ]
    };
    // In records, which a replica reads when it joins.
    let ids: Vec<ReplicaId> = (0..5).map(|_| ReplicaId::random()).collect();
    for (index, id) in ids.iter().enumerate() {
        let record = serde_json::json!([1, forged(*id)[index]]).to_string();
        put(&server, "SET", &format!("{{kas}}:replica:{id}"), &[record.as_bytes()]).await;
        put(&server, "SADD", "{kas}:replicas", &[id.to_string().as_bytes()]).await;
    }
    let there = TestReplica::joined(signed()).await;
    there.wait_routes(1, &[here.route(1)]).await;
    assert_eq!(there.store.metrics().rejected.get(), 5);
    assert!(ids.iter().all(|id| there.store.replica(*id).is_none()));

    // In events, also after a forged event has removed a replica.
    let rejected = || there.store.metrics().rejected.get();
    let other = here.id;
    put(&server, "PUBLISH", "kas:events", &[format!("[1,\"{other}\",1000,1,\"left\"]").as_bytes()]).await;
    for (id, beat) in ids.iter().copied().zip(0..5).map(|(id, index)| (id, forged(id)[index].clone())) {
        let before = rejected();
        let event = serde_json::json!([1, id, 1000, 2, {"beat": beat}]).to_string();
        put(&server, "PUBLISH", "kas:events", &[event.as_bytes()]).await;
        eventually(|| rejected() > before).await;
    }
    let evil = serde_json::json!([1, other, 1000, 2, {"beat": forged(other)[0]}]).to_string();
    put(&server, "PUBLISH", "kas:events", &[evil.as_bytes()]).await;
    // The next heartbeat of the replica adds it again, with its own URL.
    there.wait_routes(1, &[here.route(1)]).await;
    assert_eq!(there.store.replica(other).unwrap().url, url);
    assert!(ids.iter().all(|id| there.store.replica(*id).is_none()));
}

async fn eventually(condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(crate::TIMEOUT, reached).await.expect("the condition is never true");
}

#[tokio::test]
async fn deployments_are_shared_and_limited() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    put(&server, "SET", "{kas}:deployments", &[b"x"]).await;
    assert!(here.store.deployments().await.unwrap().is_empty(), "a key of a wrong type is replaced");
    for number in 0..MAX_DEPLOYMENTS + 10 {
        here.store.push_deployment(&number.to_string()).await.unwrap();
    }
    let records = there.store.deployments().await.unwrap();
    assert_eq!((records.len(), &*records[0]), (MAX_DEPLOYMENTS, &b"1009"[..]));
    let ttl: i64 = server.run("PTTL {kas}:deployments").await;
    assert!(ttl > 0, "{ttl}");
}

#[tokio::test]
async fn deployment_is_replaced_once() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    for record in ["{\"job\":1}", "{\"job\":2}"] {
        here.store.push_deployment(record).await.unwrap();
    }
    for replica in [&here, &there] {
        replica.store.replace_deployment("{\"job\":1}", "{\"job\":1,\"status\":\"success\"}").await.unwrap();
    }
    let records = there.store.deployments().await.unwrap();
    assert_eq!(records, [&b"{\"job\":1,\"status\":\"success\"}"[..], b"{\"job\":2}"]);
}

#[tokio::test]
async fn keys_of_a_wrong_type_are_replaced() {
    let Some(server) = redis() else { return };
    put(&server, "SET", "{kas}:replicas", &[b"x"]).await;
    put(&server, "RPUSH", "{kas}:gone", &[b"x"]).await;
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.wait_routes(1, &[here.route(1)]).await;
    put(&server, "SET", &format!("{{kas}}:routes:{}", here.id), &[b"x"]).await;
    there.store.lookup(AgentId(2)).await.unwrap();
    here.announce(3, 1).await;
    there.wait_routes(3, &[here.route(1)]).await;
    here.withdraw(3, 1).await;
    there.wait_routes(3, &[]).await;
}

#[tokio::test]
async fn unusable_values_of_events_are_no_events() {
    let Some(server) = redis() else { return };
    let here = TestReplica::joined(server.settings()).await;
    put(&server, "SET", "{kas}:projects", &[b"x"]).await;
    put(&server, "SET", "{kas}:project:a/b", &[b"x"]).await;
    assert!(here.store.latest_events("a/b").await.unwrap().is_empty());
    here.store.name_projects(&["a/b".to_owned(), "c/d".to_owned()]).await.unwrap();
    let event: ProjectEvent =
        serde_json::from_str(r#"{"id":"1","project":"a/b","time":"2026-11-24T10:00:00Z"}"#).unwrap();
    assert!(matches!(here.store.record_event(&event).await.unwrap(), RecordedEvent::New(_)));
    assert_eq!(here.store.latest_events("a/b").await.unwrap().len(), 1);
    // The event of one project in the place of another, garbage, and values of many megabytes.
    let stolen = b"0000001700000000001" as &[u8];
    let stolen = [stolen, br#"1{"id":"1","project":"a/b","time":"2026-11-24T10:00:00Z"}"#].concat();
    let long = vec![b'9'; 1 << 20];
    for (field, value) in
        [(b"rx" as &[u8], &stolen), (b"ry", &vec![0xff; 40]), (b"rz", &long), (b"last", &long)]
    {
        put(&server, "HSET", "{kas}:project:c/d", &[field, value]).await;
    }
    assert!(here.store.latest_events("c/d").await.unwrap().is_empty());
}
