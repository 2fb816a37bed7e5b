//! Alerts that an agentk has left open when it was killed.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::{Duration, SystemTime};

use agentk_core::{EventLog, Services};
use http::{Request, Response};
use kas_testing::fleet::TestFleet;
use proto::{
    InstanceId,
    events::{AgentEventLine, OpenAlerts},
};
use tokio::time::sleep;
use tunnel::Body;

use crate::events::{agent_with, alert, list, messages};

/// An agentk whose list of open alerts is this one. A kas that does not ask for it would not understand it.
fn listing(open: &OpenAlerts) -> Services {
    let line = serde_json::to_string(&AgentEventLine::OpenAlerts(open.clone())).unwrap() + "\n";
    Services::new().with_fn("agent-events", move |request: Request<Body>| {
        let asked = request.headers().get("kas-event-lines").is_some_and(|lines| lines == "open-alerts");
        let body = if asked { Body::from(line.clone()) } else { Body::empty() };
        std::future::ready(Response::new(body))
    })
}

#[tokio::test(start_paused = true)]
async fn alert_that_a_killed_agentk_has_left_open_ends_once() {
    let fleet = TestFleet::new(2);
    let log = EventLog::new(InstanceId::random());
    let killed = agent_with(&[&fleet.replicas[0]], &log).await;
    let opened = |source: &str| alert(source).with_detail("state", "opened").with_detail("source", source);
    log.emit(opened("lost"));
    log.emit(opened("goes on"));
    sleep(Duration::from_secs(1)).await;
    drop(killed);
    fleet.replicas[0].cut_tunnels();

    let open = OpenAlerts {
        since: SystemTime::now() + Duration::from_secs(1),
        fingerprints: opened("goes on").alert_fingerprint().into_iter().collect(),
    };
    // Both replicas get the list, and again after each interruption.
    let _here = fleet.agent(0, listing(&open)).await;
    let _there = fleet.agent(1, listing(&open)).await;
    sleep(Duration::from_secs(60)).await;
    for world in &fleet.replicas {
        let events = list(world, "?kind=alert").await;
        let over = "lost: over, because agentk no longer lists it";
        assert_eq!(messages(&events), ["lost", "goes on", over]);
        assert_eq!(
            (&events[2]["details"]["state"], &events[2]["severity"]),
            (&"closed".into(), &"info".into())
        );
    }
}
