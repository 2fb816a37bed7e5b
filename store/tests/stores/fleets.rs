//! Tests of fleets that share a Redis, and of the load that replicas publish.

use store::RouteStore as _;
use tokio::time::{Duration, sleep, timeout};

use crate::{TIMEOUT, TestReplica, redis};

#[tokio::test]
async fn fleet_with_a_used_prefix_is_refused() {
    let Some(server) = redis() else { return };
    let blue = TestReplica::joined(server.settings()).await;
    blue.announce(1, 1).await;
    let mut settings = server.settings();
    settings.fleet = "green".into();
    let green = TestReplica::start(settings);
    let mut changes = green.store.health_changes();
    changes.changed().await.unwrap();
    let reason = green.wait_degraded().await;
    assert!(reason.contains("another fleet, \"blue\"") && reason.contains("redis.key_prefix"), "{reason}");
    assert!(green.store.replica(blue.id).is_none());

    blue.stop().await;
    green.wait_healthy().await;
}

#[tokio::test]
async fn fleets_with_own_prefixes_are_separate() {
    let Some(server) = redis() else { return };
    let blue = TestReplica::joined(server.settings()).await;
    let mut settings = server.settings();
    (settings.fleet, settings.prefix) = ("green".into(), "green".into());
    let green = TestReplica::joined(settings).await;
    blue.announce(1, 1).await;
    green.announce(1, 2).await;
    blue.wait_routes(1, &[blue.route(1)]).await;
    green.wait_routes(1, &[green.route(2)]).await;
}

#[tokio::test]
async fn load_is_published_with_the_next_heartbeat() {
    let Some(mut server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    assert!(there.store.loads().is_empty(), "the initial load is None");
    here.store.set_load(here.id, Some(7));
    there.store.set_load(here.id, Some(99));
    let published = async {
        while there.store.loads() != [(here.id, 7)] {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, published).await.expect("the load arrives");
    assert_eq!(here.store.loads(), [(here.id, 7)]);
    here.stop().await;
    let forgotten = async {
        while !there.store.loads().is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, forgotten).await.expect("the load is removed");

    there.store.set_load(there.id, Some(3));
    assert_eq!(there.store.loads(), [(there.id, 3)]);
    server.kill();
    there.wait_degraded().await;
    assert!(there.store.loads().is_empty(), "it is unknown which replicas are alive");
}
