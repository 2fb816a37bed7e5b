//! Two fleets, one Redis.

use router::RouteStore as _;
use tokio::time::{Duration, sleep, timeout};

use crate::{Member, PATIENCE, redis};

#[tokio::test]
async fn another_fleet_with_the_same_prefix_is_refused_with_its_name() {
    let Some(server) = redis().await else { return };
    let blue = Member::joined(server.settings()).await;
    blue.announce(1, 1).await;
    let mut settings = server.settings();
    settings.fleet = "green".into();
    let green = Member::start(settings);
    let mut changes = green.store.health_changes();
    changes.changed().await.unwrap();
    let why = green.is_degraded().await;
    assert!(why.contains("another fleet, \"blue\"") && why.contains("redis.key_prefix"), "{why}");
    assert!(green.store.replica(blue.id).is_none());

    blue.leaves().await;
    green.is_healthy().await;
}

#[tokio::test]
async fn fleets_with_prefixes_of_their_own_do_not_meet() {
    let Some(server) = redis().await else { return };
    let blue = Member::joined(server.settings()).await;
    let mut settings = server.settings();
    (settings.fleet, settings.prefix) = ("green".into(), "green".into());
    let green = Member::joined(settings).await;
    blue.announce(1, 1).await;
    green.announce(1, 2).await;
    blue.sees(1, &[blue.route(1)]).await;
    green.sees(1, &[green.route(2)]).await;
}

#[tokio::test]
async fn how_many_tunnels_each_has_is_told_with_the_next_beat() {
    let Some(mut server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    assert!(there.store.loads().is_empty(), "who has not said that it takes any, takes none");
    here.store.tell_load(here.id, Some(7));
    there.store.tell_load(here.id, Some(99));
    let told = async {
        while there.store.loads() != [(here.id, 7)] {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, told).await.expect("within a beat");
    assert_eq!(here.store.loads(), [(here.id, 7)]);
    here.leaves().await;
    let forgotten = async {
        while !there.store.loads().is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, forgotten).await.expect("at once");

    there.store.tell_load(there.id, Some(3));
    assert_eq!(there.store.loads(), [(there.id, 3)]);
    server.kill();
    there.is_degraded().await;
    assert!(there.store.loads().is_empty(), "nobody knows who lives");
}
