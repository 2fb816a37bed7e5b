//! Redis dies, forgets, dawdles, refuses; replicas die. What is served meanwhile, and that everything heals by itself.

use std::time::Duration;

use proto::AgentId;
use router::{RouteStore as _, redis::Servers};
use tokio::time::{Instant, timeout};

use crate::{
    Member, PATIENCE,
    proxy::Proxy,
    redis,
    server::{self, words},
};

#[tokio::test]
async fn redis_that_comes_back_empty_is_told_everything_again() {
    let Some(mut server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    for agent in 0..1200 {
        here.announce(agent, 1).await;
    }
    there.sees(1199, &[here.route(1)]).await;

    server.kill();
    here.is_degraded().await;
    here.withdraw(7, 1).await;
    here.announce(5000, 2).await;
    server.restart().await;
    here.is_healthy().await;
    there.is_healthy().await;
    there.sees(7, &[]).await;
    there.sees(5000, &[here.route(2)]).await;
    there.sees(1199, &[here.route(1)]).await;
    let gone = there.store.lookup(AgentId(7)).await.unwrap().gone_since;
    assert!(gone.is_some(), "it left while nobody could be told");
    let held: usize = server.run(&format!("HLEN {{kas}}:routes:{}", here.id)).await;
    assert_eq!(held, 1200 + 1, "each agent, and the generation");
}

#[tokio::test]
async fn while_redis_is_down_memory_serves() {
    let Some(mut server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.announce(2, 1).await;
    there.sees(1, &[here.route(1)]).await;
    // As fresh as can be when Redis goes.
    there.store.lookup(AgentId(1)).await.unwrap();

    server.kill();
    let why = there.is_degraded().await;
    assert!(why.contains("closed the connection") || why.contains("onnect"), "{why}");
    let known = there.store.lookup(AgentId(1)).await.unwrap();
    assert_eq!(known.routes, [here.route(1)], "an old answer");
    assert_eq!(there.store.lookup(AgentId(2)).await.unwrap().routes, [there.route(1)], "its own");
    assert!(there.store.lookup(AgentId(3)).await.is_err(), "nobody knows");
    assert!(there.store.replica(here.id).is_some());
    assert!(there.store.counts().stale.get() >= 1 && there.store.counts().unavailable.get() >= 1);

    server.restart().await;
    there.sees(1, &[here.route(1)]).await;
}

#[tokio::test]
async fn between_an_empty_restart_and_the_return_of_a_replica_its_agents_stay_known() {
    let Some(mut server) = redis().await else { return };
    let proxy = Proxy::to(&server);
    let here = Member::joined(server::settings(Servers::One(proxy.address()))).await;
    let there = Member::joined(server.settings()).await;
    here.announce(1, 1).await;
    there.sees(1, &[here.route(1)]).await;

    proxy.cut();
    server.kill();
    there.is_degraded().await;
    server.restart().await;
    there.is_healthy().await;
    let held: usize = server.run(&format!("EXISTS {{kas}}:routes:{}", here.id)).await;
    assert_eq!(held, 0, "Redis knows nothing of it");
    let known = there.store.lookup(AgentId(1)).await.unwrap();
    assert_eq!(known.routes, [here.route(1)], "and it is not given up");
    proxy.mend();
    here.is_healthy().await;
    there.sees(1, &[here.route(1)]).await;
}

#[tokio::test]
async fn lost_records_are_noticed_by_their_number() {
    let Some(server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.sees(1, &[here.route(1)]).await;
    let connections = here.store.counts().connections.get();
    let _: () = server.run(&format!("HDEL {{kas}}:routes:{} 1", here.id)).await;

    let restored = async {
        while here.store.counts().connections.get() == connections {
            there.store.change(AgentId(1)).await;
        }
    };
    timeout(PATIENCE, restored).await.expect("noticed at the next audit");
    there.sees(1, &[here.route(1)]).await;
}

#[tokio::test]
async fn a_replica_that_dies_is_forgotten_and_its_agents_are_gone() {
    let Some(server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.sees(1, &[here.route(1)]).await;
    let (id, routes) = (here.id, format!("EXISTS {{kas}}:routes:{}", here.id));

    here.dies();
    there.sees(1, &[]).await;
    assert!(there.store.replica(id).is_none());
    let gone = async {
        while there.store.lookup(AgentId(1)).await.unwrap().gone_since.is_none() {
            there.store.change(AgentId(1)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("buried");
    assert_eq!(server.run::<usize>(&routes).await, 0);
    let members: Vec<String> = server.run("SMEMBERS {kas}:replicas").await;
    assert_eq!(members, [there.id.to_string()]);
}

#[tokio::test]
async fn a_replica_whose_heartbeat_outlives_it_is_buried_later() {
    let Some(server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.sees(1, &[here.route(1)]).await;
    // As that of one who dies right after a beat.
    let outlives = format!("PEXPIRE {{kas}}:replica:{} 14000", here.id);
    here.dies();
    let kept: usize = server.run(&outlives).await;
    assert_eq!(kept, 1);
    there.sees(1, &[]).await;
    let buried = async {
        while there.store.lookup(AgentId(1)).await.unwrap().gone_since.is_none() {
            there.store.change(AgentId(1)).await;
        }
    };
    timeout(PATIENCE, buried).await.expect("buried");
    let members: Vec<String> = server.run("SMEMBERS {kas}:replicas").await;
    assert_eq!(members, [there.id.to_string()]);
}

#[tokio::test]
async fn a_replica_that_leaves_is_gone_at_once_and_leaves_nothing() {
    let Some(server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    here.announce(1, 1).await;
    there.sees(1, &[here.route(1)]).await;
    let (id, left) = (here.id, Instant::now());
    here.leaves().await;
    there.sees(1, &[]).await;
    assert!(left.elapsed() < Duration::from_secs(9), "it was not waited for its heartbeat to end");
    assert!(there.store.replica(id).is_none());
    there.leaves().await;
    let mut keys: Vec<String> = server.run("KEYS *").await;
    keys.retain(|key| key != "{kas}:gone");
    assert_eq!(keys, Vec::<String>::new());
}

#[tokio::test]
async fn a_replica_that_was_cut_off_says_only_what_it_still_holds() {
    let Some(server) = redis().await else { return };
    let proxy = Proxy::to(&server);
    let here = Member::joined(server::settings(Servers::One(proxy.address()))).await;
    let there = Member::joined(server.settings()).await;
    here.announce(1, 1).await;
    here.announce(2, 2).await;
    there.sees(1, &[here.route(1)]).await;

    proxy.cut();
    here.is_degraded().await;
    here.withdraw(1, 1).await;
    there.announce(1, 1).await;
    proxy.mend();
    here.is_healthy().await;
    there.sees(1, &[there.route(1)]).await;
    there.sees(2, &[here.route(2)]).await;
    here.sees(1, &[there.route(1)]).await;
}

#[tokio::test]
async fn a_slow_redis_is_slow_and_nothing_worse() {
    let Some(server) = redis().await else { return };
    let proxy = Proxy::slow(&server, Duration::from_millis(200));
    let here = Member::joined(server::settings(Servers::One(proxy.address()))).await;
    let there = Member::joined(server.settings()).await;
    for agent in 0..100 {
        here.announce(agent, 1).await;
        there.announce(1000 + agent, 1).await;
    }
    here.sees(1099, &[there.route(1)]).await;
    there.sees(99, &[here.route(1)]).await;
    assert_eq!(here.store.counts().connections.get(), 1, "it was never given up");
}

#[tokio::test]
async fn a_wrong_password_is_said_and_a_new_one_needs_no_restart() {
    let Some(server) = server::start(&["--requirepass", "s3cret"]).await else { return };
    let file = server.directory().join("password");
    std::fs::write(&file, "guess\n").unwrap();
    let mut settings = server.settings();
    settings.password_file = Some(file.clone());
    let member = Member::start(settings);
    let mut changes = member.store.health_changes();
    timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    let why = member.is_degraded().await;
    assert!(why.contains("redis.password_file") && !why.contains("guess"), "{why}");
    std::fs::write(&file, "s3cret\n").unwrap();
    member.is_healthy().await;
}

#[tokio::test]
async fn two_connections_are_enough() {
    let Some(server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    for agent in 0..50 {
        here.announce(agent, 1).await;
    }
    let lookups = (0..50).map(|agent| there.store.lookup(AgentId(agent)));
    futures_util::future::join_all(lookups).await;
    let clients: String = server.run_cmd(words("CLIENT LIST")).await;
    assert_eq!(clients.lines().filter(|line| !line.contains("cmd=client")).count(), 4, "{clients}");
}
