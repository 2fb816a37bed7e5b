//! The list of open alerts, with which kas ends those of a process that was killed.

use super::*;

#[tokio::test]
async fn pod_that_has_observed_a_quiet_period_lists_what_is_open() {
    let server = ApiServer::start(Contents::default()).await;
    let relay = endless_relay().await;
    let section = |quiet_period| AlertsSection { quiet_period, ..all() };
    let observing = World::start(Some(&relay), &server, section(Duration::from_secs(600)));
    let world = World::start(Some(&relay), &server, section(Duration::from_secs(2)));
    let standby = World::start_with(
        Some(&relay),
        &server,
        section(Duration::from_secs(2)),
        Restrictions::default(),
        false,
    );
    eventually("the list", || world.events.open_alerts().is_some()).await;
    let open = world.events.open_alerts().unwrap();
    let opened = world.wait_for_events(1).await[0].event.content.alert_fingerprint();
    assert_eq!(open.fingerprints.iter().cloned().collect::<Vec<_>>(), opened.into_iter().collect::<Vec<_>>());
    assert!(open.since < SystemTime::now());
    observing.wait_for_events(1).await;
    assert_eq!(observing.events.open_alerts(), None, "it cannot know of others yet");
    assert_eq!(standby.events.open_alerts(), None);
}

#[tokio::test]
async fn pod_that_has_lost_the_relay_lists_nothing() {
    let server = ApiServer::start(Contents::default()).await;
    let relay =
        Relay::start(|_| failing(vec![flow(egress_drop("web", 443))], Status::unavailable("x"))).await;
    let section = AlertsSection { quiet_period: Duration::from_secs(2), ..all() };
    let world = World::start(Some(&relay), &server, section);
    // The second failure comes after a wait, in which a look would list.
    eventually("interruptions", || world.metrics.failures() >= 4).await;
    assert_eq!(world.events.open_alerts(), None, "what it does not see may go on");
}
