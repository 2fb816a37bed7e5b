//! Redis holds what it should not.

use proto::{AgentId, ReplicaId};
use router::RouteStore as _;

use crate::{Member, redis, server::Server};

async fn put(server: &Server, command: &str, key: &str, words: &[&[u8]]) {
    let mut cmd = redis::cmd(command);
    cmd.arg(key).arg(words);
    let _: redis::Value = server.run_cmd(cmd).await;
}

#[tokio::test]
async fn garbage_is_ignored_and_counted() {
    let Some(server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.sees(1, &[here.route(1)]).await;

    let routes = format!("{{kas}}:routes:{}", here.id);
    let long = vec![b'9'; 1 << 20];
    let bad: [&[u8]; 5] = [b"\0\xff\x00garbage", b"[2,1,[]]", b"{}", b"", &long];
    for (agent, record) in (100..).zip(bad) {
        put(&server, "HSET", &routes, &[agent.to_string().as_bytes(), record]).await;
        let rejected = there.store.counts().rejected.get();
        assert!(there.store.lookup(AgentId(agent)).await.unwrap().routes.is_empty());
        assert!(record.is_empty() || there.store.counts().rejected.get() > rejected, "{agent}");
    }
    put(&server, "HSET", &routes, &[b"not a number", b"[1,1,[]]"]).await;
    put(&server, "HSET", "{kas}:gone", &[b"200", b"yesterday"]).await;
    assert_eq!(there.store.lookup(AgentId(200)).await.unwrap().gone_since, None);
    let agents: Vec<AgentId> = [1].into_iter().chain(100..300).map(AgentId).collect();
    let holdings = there.store.holdings(&agents).await;
    assert_eq!(holdings.held.iter().map(|holding| holding.agent).collect::<Vec<_>>(), [AgentId(1)]);
    assert!(holdings.gone.is_empty() && holdings.missing.is_none(), "{holdings:?}");
}

#[tokio::test]
async fn poisoned_heartbeats_and_events_make_no_replica() {
    let Some(server) = redis().await else { return };
    let beats: [&[u8]; 4] = [
        b"garbage",
        br#"[2,{"url":"http://a:1","fleet":"blue","kas":"9","started":0}]"#,
        br#"[1,{"url":"file:///etc/passwd","fleet":"blue","kas":"1","started":0}]"#,
        br#"[1,{"url":"http://a:1/x","fleet":"blue","kas":"1","started":0}]"#,
    ];
    let ids: Vec<ReplicaId> = beats.iter().map(|_| ReplicaId::random()).collect();
    for (id, beat) in ids.iter().zip(beats) {
        put(&server, "SET", &format!("{{kas}}:replica:{id}"), &[beat]).await;
        put(&server, "SADD", "{kas}:replicas", &[id.to_string().as_bytes()]).await;
    }
    put(&server, "SADD", "{kas}:replicas", &[b"short", &[b'x'; 32], &[0xff; 100_000]]).await;

    let here = Member::joined(server.settings()).await;
    assert_eq!(here.store.counts().rejected.get(), 4);
    assert!(ids.iter().all(|id| here.store.replica(*id).is_none()));
    for event in [b"garbage".as_slice(), b"[1", &[b'['; 200_000], b"[1,\"x\",1,1,\"left\"]"] {
        put(&server, "PUBLISH", "kas:events", &[event]).await;
    }
    here.announce(1, 1).await;
    let there = Member::joined(server.settings()).await;
    there.sees(1, &[here.route(1)]).await;
    here.sees(1, &[here.route(1)]).await;
    assert_eq!(here.store.counts().connections.get(), 1, "it was not shaken");
}

#[tokio::test]
async fn keys_of_a_wrong_type_are_replaced() {
    let Some(server) = redis().await else { return };
    put(&server, "SET", "{kas}:replicas", &[b"x"]).await;
    put(&server, "RPUSH", "{kas}:gone", &[b"x"]).await;
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.sees(1, &[here.route(1)]).await;
    put(&server, "SET", &format!("{{kas}}:routes:{}", here.id), &[b"x"]).await;
    there.store.lookup(AgentId(2)).await.unwrap();
    here.announce(3, 1).await;
    there.sees(3, &[here.route(1)]).await;
    here.withdraw(3, 1).await;
    there.sees(3, &[]).await;
}
