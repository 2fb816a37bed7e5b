//! The streams of kas itself: each process of agentk has them in one of its tunnels, and another one takes over.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use agentk_core::EventLog;
use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper_util::rt::TokioIo;
use kas_testing::{
    handshake::{handshake, hello},
    world::{CALLER, World},
};
use proto::{Hello, InstanceId, ServiceName, header::HELLO};
use secrecy::ExposeSecret as _;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tunnel::{
    Body, CloseReason, DrainHandle, TunnelConfig,
    websocket::{Role, WebSocket},
};

use crate::{
    events::{agent_with_services, alert, list, messages},
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

/// A tunnel whose end at agentk is made by hand. Each stream of kas in it stays open until kas ends it.
struct ManualTunnel {
    drain: DrainHandle,
    streams: Arc<AtomicUsize>,
    running: AbortOnDropHandle<CloseReason>,
}

impl ManualTunnel {
    async fn open(world: &World, instance: InstanceId, tunnel_index: u16) -> Self {
        let services = vec![ServiceName::AGENT_EVENTS.parse().unwrap()];
        let hello = Hello { instance, services, tunnel_index, ..hello(env!("CARGO_PKG_VERSION")) };
        let token = format!("Bearer {}", world.agent_token.expose_secret());
        let (name, hello) = (HELLO, hello.encode().unwrap());
        let headers = [("authorization", &*token), (name.as_str(), hello.to_str().unwrap())];
        let response = handshake(world, CALLER, &headers).await;
        let io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        let socket = WebSocket::new(io, Bytes::new(), Role::Client);
        let (server, drain) = tunnel::accept(socket, &TunnelConfig::default());
        let streams = Arc::<AtomicUsize>::default();
        let open = Arc::clone(&streams);
        let running = tokio::spawn(server.run(move |request| {
            let open = Arc::clone(&open);
            tokio::spawn(async move {
                open.fetch_add(1, Relaxed);
                let endless = stream::pending::<Result<Frame<Bytes>, Infallible>>();
                request.respond(|_| ready(Response::new(Body::new(StreamBody::new(endless))))).await;
                open.fetch_sub(1, Relaxed);
            });
        }));
        let tunnel = Self { drain, streams, running: AbortOnDropHandle::new(running) };
        sleep(Duration::from_secs(2)).await;
        tunnel
    }

    fn streams(&self) -> usize {
        self.streams.load(Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn one_tunnel_of_a_process_serves_it() {
    let (world, instance) = (World::new(), InstanceId::random());
    let first = ManualTunnel::open(&world, instance, 0).await;
    let second = ManualTunnel::open(&world, instance, 1).await;
    let another_process = ManualTunnel::open(&world, InstanceId::random(), 0).await;
    assert_eq!([&first, &second, &another_process].map(ManualTunnel::streams), [1, 0, 1]);

    // agentk has lost the first tunnel, and kas does not know it yet.
    let third = ManualTunnel::open(&world, instance, 0).await;
    assert_eq!([&first, &second, &third].map(ManualTunnel::streams), [0, 1, 0]);

    // agentk leaves the second tunnel.
    second.drain.drain(Duration::from_secs(3600));
    sleep(Duration::from_secs(3)).await;
    assert_eq!([&first, &second, &third].map(ManualTunnel::streams), [0, 0, 1]);
}

/// agentk has left the only tunnel of its process to this replica for one to another replica, or it stops and still sends events.
#[tokio::test(start_paused = true)]
async fn only_tunnel_that_agentk_drains_serves_for_another_minute() {
    let world = World::new();
    let ManualTunnel { drain, streams, running } = ManualTunnel::open(&world, InstanceId::random(), 0).await;
    drain.drain(Duration::from_secs(3600));
    sleep(Duration::from_secs(50)).await;
    assert_eq!(streams.load(Relaxed), 1);
    timeout(Duration::from_secs(20), running).await.expect("the tunnel has no stream any more").unwrap();
}
