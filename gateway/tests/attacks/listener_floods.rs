//! Frames of HTTP/2 without effect on each listener of kas, without a credential.

use std::sync::Arc;

use kas_testing::{
    fleet::TestFleet,
    internal_api,
    world::{CALLER, World},
};
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

use crate::http2::{
    DATA, END_HEADERS, HEADERS, PING, PREFACE, PRIORITY, block, frame, settings_frame, window_update,
};

/// More than the limit of a connection, and less than a tenth of a second of work.
const BEFORE_THE_CUT: usize = 2 << 20;

/// The same for data of a request that was refused, of which much may be on its way.
const DATA_BEFORE_THE_CUT: usize = 72 << 20;

/// Connects to each listener of a replica that serves HTTP/2.
fn connect(listener: &str, world: &World, fleet: &TestFleet) -> DuplexStream {
    let (near, far) = duplex(64 << 10);
    match listener {
        "agents" => {
            let agents = Arc::clone(&world.kas.agents);
            tokio::spawn(async move { agents.serve(far, CALLER, Arc::default()).await });
        }
        "observability" => {
            tokio::spawn(Arc::clone(&world.kas.admin).server().serve(far, CALLER, Arc::default()));
        }
        "page" => {
            let web = world.kas.web.clone().unwrap();
            tokio::spawn(async move { web.serve(far, CALLER, Arc::default()).await });
        }
        "internal API" => return internal_api::connect(world),
        "callers" => return world.connect(),
        "private" => return fleet.pipes.connect(0),
        other => panic!("{other}"),
    }
    near
}

/// Sends the preface, `first`, and `one` until the listener has ended the connection. Returns the bytes of the flood.
async fn flood(io: DuplexStream, first: &[u8], one: &[u8], most: usize) -> usize {
    let (mut reading, mut attacker) = tokio::io::split(io);
    tokio::spawn(async move { tokio::io::copy(&mut reading, &mut tokio::io::sink()).await });
    attacker.write_all(&[PREFACE, &settings_frame(&[]), first].concat()).await.unwrap();
    let (part, mut sent) = (one.repeat((32 << 10) / one.len() + 1), 0);
    while sent < most && attacker.write_all(&part).await.is_ok() {
        sent += part.len();
    }
    sent
}

#[tokio::test(start_paused = true)]
async fn attack_82_flood_without_a_credential_ends_its_connection_at_each_listener() {
    let world = World::with(|config| {
        config.web = Some(serde_json::from_value(serde_json::json!({"listen": {}})).unwrap());
    });
    let fleet = TestFleet::new(1);
    for listener in ["agents", "observability", "internal API", "callers", "private", "page"] {
        for (name, one) in [
            ("PING", frame(PING, 0, 0, b"12345678")),
            ("SETTINGS", settings_frame(&[])),
            ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
            ("WINDOW_UPDATE", window_update(0, 1)),
            ("frames of an unknown type", frame(0x50, 0, 0, &[0; 400])),
        ] {
            let sent = flood(connect(listener, &world, &fleet), b"", &one, BEFORE_THE_CUT).await;
            assert!(sent < BEFORE_THE_CUT, "{listener}: {name}");
            assert!(sent > 0, "{listener}: {name}");
        }
    }
    assert_eq!(world.limit_count("overhead"), 10.0, "of callers and the page");
}

#[tokio::test(start_paused = true)]
async fn attack_82_endless_body_of_a_refused_request_ends_its_connection_at_each_listener() {
    let world = World::with(|config| {
        config.web = Some(serde_json::from_value(serde_json::json!({"listen": {}})).unwrap());
    });
    let fleet = TestFleet::new(1);
    let path = "/agents/prod/kubernetes/api";
    let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "kas"), (":path", path)];
    let request = frame(HEADERS, END_HEADERS, 1, &block(&fields));
    let body = frame(DATA, 0, 1, &[0; 16 << 10]);
    for listener in ["agents", "observability", "internal API", "callers", "private", "page"] {
        let sent = flood(connect(listener, &world, &fleet), &request, &body, DATA_BEFORE_THE_CUT).await;
        assert!(sent < DATA_BEFORE_THE_CUT, "{listener}");
    }
}
