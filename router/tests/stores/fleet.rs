//! Two fleets, one Redis.

use router::RouteStore as _;

use crate::{Member, redis};

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
