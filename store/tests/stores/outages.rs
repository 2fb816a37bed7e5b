//! Tests of outages: Redis stops, loses data, is slow or refuses kas, and replicas die. Routes are served meanwhile,
//! and all stores recover without a restart.

use std::time::Duration;

use proto::AgentId;
use store::{RouteStore as _, redis::RedisServers};
use tokio::time::{Instant, timeout};

use crate::{
    TIMEOUT, TestReplica,
    proxy::Proxy,
    redis,
    server::{self, command},
};

#[tokio::test]
async fn empty_redis_receives_all_routes_again() {
    let Some(mut server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    for agent in 0..1200 {
        here.announce(agent, 1).await;
    }
    there.wait_routes(1199, &[here.route(1)]).await;

    server.kill();
    here.wait_degraded().await;
    here.withdraw(7, 1).await;
    here.announce(5000, 2).await;
    server.restart();
    here.wait_healthy().await;
    there.wait_healthy().await;
    there.wait_routes(7, &[]).await;
    there.wait_routes(5000, &[here.route(2)]).await;
    there.wait_routes(1199, &[here.route(1)]).await;
    let gone = there.store.lookup(AgentId(7)).await.unwrap().disconnected_since;
    assert!(gone.is_some(), "the agent disconnected while Redis was down");
    let held: usize = server.run(&format!("HLEN {{kas}}:routes:{}", here.id)).await;
    assert_eq!(held, 1200 + 1, "one field for each agent, and the generation");
}

#[tokio::test]
async fn memory_serves_while_redis_is_down() {
    let Some(mut server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.announce(2, 1).await;
    there.wait_routes(1, &[here.route(1)]).await;
    there.store.lookup(AgentId(1)).await.unwrap();

    server.kill();
    let reason = there.wait_degraded().await;
    assert!(reason.contains("closed the connection") || reason.contains("onnect"), "{reason}");
    let known = there.store.lookup(AgentId(1)).await.unwrap();
    assert_eq!(known.routes, [here.route(1)], "the cached route");
    assert_eq!(there.store.lookup(AgentId(2)).await.unwrap().routes, [there.route(1)], "the local route");
    assert!(there.store.lookup(AgentId(3)).await.is_err(), "no route is cached");
    assert!(there.store.replica(here.id).is_some());
    assert!(there.store.metrics().stale.get() >= 1 && there.store.metrics().unavailable.get() >= 1);

    server.restart();
    there.wait_routes(1, &[here.route(1)]).await;
}

#[tokio::test]
async fn routes_of_an_unconfirmed_replica_are_kept() {
    let Some(mut server) = redis() else { return };
    let proxy = Proxy::to(&server);
    let here = TestReplica::joined(server::settings(RedisServers::Single(proxy.address()))).await;
    let there = TestReplica::joined(server.settings()).await;
    here.announce(1, 1).await;
    there.wait_routes(1, &[here.route(1)]).await;

    proxy.cut();
    server.kill();
    there.wait_degraded().await;
    server.restart();
    there.wait_healthy().await;
    let held: usize = server.run(&format!("EXISTS {{kas}}:routes:{}", here.id)).await;
    assert_eq!(held, 0, "Redis has no records of the replica");
    let known = there.store.lookup(AgentId(1)).await.unwrap();
    assert_eq!(known.routes, [here.route(1)], "the earlier route stays valid");
    proxy.restore();
    here.wait_healthy().await;
    there.wait_routes(1, &[here.route(1)]).await;
}

#[tokio::test]
async fn lost_record_is_restored() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.wait_routes(1, &[here.route(1)]).await;
    let connections = here.store.metrics().connections.get();
    let _: () = server.run(&format!("HDEL {{kas}}:routes:{} 1", here.id)).await;

    let restored = async {
        while here.store.metrics().connections.get() == connections {
            there.store.changed(AgentId(1)).await;
        }
    };
    timeout(TIMEOUT, restored).await.expect("the next audit notices it");
    there.wait_routes(1, &[here.route(1)]).await;
}

#[tokio::test]
async fn dead_replica_is_cleaned_up() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.wait_routes(1, &[here.route(1)]).await;
    let (id, routes) = (here.id, format!("EXISTS {{kas}}:routes:{}", here.id));

    here.kill();
    there.wait_routes(1, &[]).await;
    assert!(there.store.replica(id).is_none());
    let gone = async {
        while there.store.lookup(AgentId(1)).await.unwrap().disconnected_since.is_none() {
            there.store.changed(AgentId(1)).await;
        }
    };
    timeout(TIMEOUT, gone).await.expect("the records are removed");
    assert_eq!(server.run::<usize>(&routes).await, 0);
    let ids: Vec<String> = server.run("SMEMBERS {kas}:replicas").await;
    assert_eq!(ids, [there.id.to_string()]);
}

#[tokio::test]
async fn replica_with_unexpired_heartbeat_is_cleaned_up_later() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.wait_routes(1, &[here.route(1)]).await;
    // As if the replica had died right after a heartbeat.
    let extend = format!("PEXPIRE {{kas}}:replica:{} 24000", here.id);
    here.kill();
    let kept: usize = server.run(&extend).await;
    assert_eq!(kept, 1);
    there.wait_routes(1, &[]).await;
    let removed = async {
        while there.store.lookup(AgentId(1)).await.unwrap().disconnected_since.is_none() {
            there.store.changed(AgentId(1)).await;
        }
    };
    timeout(TIMEOUT, removed).await.expect("the records are removed");
    let ids: Vec<String> = server.run("SMEMBERS {kas}:replicas").await;
    assert_eq!(ids, [there.id.to_string()]);
}

#[tokio::test]
async fn stopped_replica_is_removed_at_once() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.wait_routes(1, &[here.route(1)]).await;
    let (id, left) = (here.id, Instant::now());
    here.stop().await;
    there.wait_routes(1, &[]).await;
    assert!(left.elapsed() < Duration::from_secs(9), "the others do not wait until its heartbeat expires");
    assert!(there.store.replica(id).is_none());
    there.stop().await;
    let mut keys: Vec<String> = server.run("KEYS *").await;
    keys.retain(|key| key != "{kas}:gone");
    assert_eq!(keys, Vec::<String>::new());
}

#[tokio::test]
async fn reconnected_replica_publishes_only_present_routes() {
    let Some(server) = redis() else { return };
    let proxy = Proxy::to(&server);
    let here = TestReplica::joined(server::settings(RedisServers::Single(proxy.address()))).await;
    let there = TestReplica::joined(server.settings()).await;
    here.announce(1, 1).await;
    here.announce(2, 2).await;
    there.wait_routes(1, &[here.route(1)]).await;

    proxy.cut();
    here.wait_degraded().await;
    here.withdraw(1, 1).await;
    there.announce(1, 1).await;
    proxy.restore();
    here.wait_healthy().await;
    there.wait_routes(1, &[there.route(1)]).await;
    there.wait_routes(2, &[here.route(2)]).await;
    here.wait_routes(1, &[there.route(1)]).await;
}

#[tokio::test]
async fn slow_redis_causes_no_reconnect() {
    let Some(server) = redis() else { return };
    let proxy = Proxy::slow(&server, Duration::from_millis(200));
    let here = TestReplica::joined(server::settings(RedisServers::Single(proxy.address()))).await;
    let there = TestReplica::joined(server.settings()).await;
    for agent in 0..100 {
        here.announce(agent, 1).await;
        there.announce(1000 + agent, 1).await;
    }
    here.wait_routes(1099, &[there.route(1)]).await;
    there.wait_routes(99, &[here.route(1)]).await;
    assert_eq!(here.store.metrics().connections.get(), 1, "the first connection stays in use");
}

#[tokio::test]
async fn password_is_read_again_at_each_connection() {
    let Some(server) = server::start(&["--requirepass", "s3cret"]) else { return };
    let file = server.directory().join("password");
    std::fs::write(&file, "guess\n").unwrap();
    let mut settings = server.settings();
    settings.password_file = Some(file.clone());
    let replica = TestReplica::start(settings);
    let mut changes = replica.store.health_changes();
    timeout(TIMEOUT, changes.changed()).await.unwrap().unwrap();
    let reason = replica.wait_degraded().await;
    assert!(reason.contains("redis.password_file") && !reason.contains("guess"), "{reason}");
    std::fs::write(&file, "s3cret\n").unwrap();
    replica.wait_healthy().await;
}

#[tokio::test]
async fn replica_uses_two_connections() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    for agent in 0..50 {
        here.announce(agent, 1).await;
    }
    let lookups = (0..50).map(|agent| there.store.lookup(AgentId(agent)));
    futures_util::future::join_all(lookups).await;
    let clients: String = server.run_cmd(command("CLIENT LIST")).await;
    assert_eq!(clients.lines().filter(|line| !line.contains("cmd=client")).count(), 4, "{clients}");
}
