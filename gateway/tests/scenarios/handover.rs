//! The streams of kas itself: each process of agentk has them in one of its tunnels, and another one takes over.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use agentk_core::{Agent, AgentToken, EventLog, Observability, SessionConfig};
use agentk_gitlab::gitlab_protocol;
use kas_testing::{fleet::TestFleet, world::World};
use proto::InstanceId;
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    events::{InTurn, agent_with_services, alert, list, messages},
    manifests, project_events,
    set_configuration::Configuration,
};

const CONFIGURATION: &str = "notify: {projects: [{id: group/shop}]}
gitops: {manifest_projects: [{id: group/shop, suspend: true}]}";

/// One process of agentk with two tunnels, which serves events, project events and manifests.
struct Fixture {
    world: World,
    log: EventLog,
    manifests: manifests::Pod,
    project_events: project_events::Pod,
    _configuration: Configuration,
    _agent: AbortOnDropHandle<()>,
}

impl Fixture {
    async fn new(world: World) -> Self {
        let log = EventLog::new(InstanceId::random());
        let (manifests, project_events) =
            (manifests::Pod::new(200), project_events::Pod::new(&["group/shop"]));
        let configuration = project_events::configure(&world, CONFIGURATION);
        let services = project_events.add_to(manifests.services());
        let agent = agent_with_services(&[&world], &log, services).await;
        sleep(Duration::from_secs(20)).await;
        Self { world, log, manifests, project_events, _configuration: configuration, _agent: agent }
    }

    /// Emits ten events, one each millisecond, and another one of a project.
    async fn emit(&self, name: &str) {
        for number in 0..10 {
            self.log.emit(alert(&format!("{name} {number}")));
            sleep(Duration::from_millis(1)).await;
        }
        let (status, body) = project_events::report(&self.world, &project_events::event(name)).await;
        assert_eq!(status, 201, "{body}");
    }

    /// Checks that the events have arrived, each once, and that one stream for manifests is open.
    async fn check_arrived(&self, names: &[&str]) {
        sleep(Duration::from_millis(100)).await;
        let expected = names.iter().flat_map(|name| (0..10).map(move |number| format!("{name} {number}")));
        let events = list(&self.world, "?kind=alert").await;
        assert_eq!(messages(&events), expected.collect::<Vec<_>>());
        assert_eq!(self.manifests.streams.load(Relaxed), 1);
        let mut ids = self.project_events.ids().await;
        // agentk compares the ids: the next tunnel sends the last event again.
        ids.dedup();
        assert_eq!(ids, names);
    }
}

#[tokio::test(start_paused = true)]
async fn next_tunnel_takes_over_at_once_when_one_is_cut() {
    // One of the two has the streams.
    for cut in [0, 1] {
        let fixture = Fixture::new(World::new()).await;
        fixture.emit("before").await;
        fixture.check_arrived(&["before"]).await;
        fixture.world.cut_tunnel(cut);
        fixture.emit("after").await;
        fixture.check_arrived(&["before", "after"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn tunnels_at_their_maximum_age_lose_no_event() {
    let world = World::with(|config| config.agent.listen.max_connection_age = Duration::from_secs(60).into());
    let fixture = Fixture::new(world).await;
    let names = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    for (number, name) in names.iter().enumerate() {
        fixture.emit(name).await;
        sleep(Duration::from_secs(17)).await;
        fixture.check_arrived(&names[..=number]).await;
    }
    // A tunnel with a stream of kas would live on.
    fixture.world.tunnels(2).await;
}

/// Both tunnels of an agent end at the first replica. It then finds the second one, and leaves one of the tunnels.
#[tokio::test(start_paused = true)]
async fn tunnel_that_agentk_leaves_ends() {
    for _ in 0..8 {
        let fleet = TestFleet::new(2);
        let (here, there) = (&fleet.replicas[0], &fleet.replicas[1]);
        let pod = manifests::Pod::new(200);
        let _configuration = project_events::configure(here, CONFIGURATION);
        let worlds = [here, here, there].map(World::clone).to_vec();
        let config =
            SessionConfig::new("ws://kas".parse().unwrap(), AgentToken::value(here.agent_token.clone()));
        let dial = InTurn { worlds, next: Arc::default() };
        let agent = Agent::new(config, dial, pod.services(), Observability::default(), gitlab_protocol);
        let _agent = AbortOnDropHandle::new(tokio::spawn(agent.run(CancellationToken::new())));
        let found = async {
            while there.kas.agents.metrics.tunnels.get() == 0 {
                sleep(Duration::from_secs(1)).await;
            }
        };
        timeout(Duration::from_secs(3600), found).await.unwrap();
        sleep(Duration::from_secs(5)).await;
        here.tunnels(1).await;
        assert_eq!(pod.streams.load(Relaxed), 2, "one for each replica");
    }
}
