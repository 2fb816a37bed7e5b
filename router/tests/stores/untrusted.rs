//! Tests of unusable values in Redis.

use proto::{AgentId, ReplicaId};
use router::{RouteStore as _, redis::MAX_DEPLOYMENTS};

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
