//! The list of agents for operators.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{path::Path, sync::Arc};

use access::{Identity, token::TokenHash};
use agentk_core::Services;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use kas_testing::world::{CALLER, World, endless, text};
use serde_json::{Value, json};
use tunnel::Body;

/// Requests `GET /agents` of the observability listener.
pub(crate) async fn agents(world: &World) -> Value {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(Arc::clone(&world.kas.admin).server().serve(far, CALLER, Arc::default()));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let answer = sender.send_request(Request::get("/agents").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/json");
    let listing: Value = serde_json::from_str(&text(answer).await).unwrap();
    assert_eq!(listing["replica"], world.kas.agents.replica.to_string());
    listing["agents"].clone()
}

#[tokio::test(start_paused = true)]
async fn connected_agent_is_listed_with_its_tunnels() {
    let world = World::new();
    let services = Services::new()
        .with_fn("kubernetes", async |_: Request<Body>| Response::new(endless("watching")))
        .with_fn("prometheus", async |_: Request<Body>| Response::new(Body::empty()));
    let _agent = world.agent(services).await;
    let mut watch = world.get("/agents/prod/kubernetes/api/v1/pods?watch=true").await.into_body();
    watch.frame().await.unwrap().unwrap();

    let listed = agents(&world).await;
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let agent = &listed[0];
    assert_eq!(
        (&agent["id"], &agent["name"], &agent["state"]),
        (&json!(1), &json!("prod"), &json!("connected"))
    );
    let tunnels = agent["tunnels"].as_array().unwrap();
    assert_eq!(tunnels.len(), 2);
    assert_eq!(tunnels[0]["instance"], tunnels[1]["instance"]);
    assert_eq!((&tunnels[0]["index"], &tunnels[1]["index"]), (&json!(0), &json!(1)));
    for tunnel in tunnels {
        assert_eq!(tunnel["peer"], "192.0.2.2:40000");
        assert_eq!(tunnel["draining"], false);
        assert_eq!(tunnel["version"], env!("CARGO_PKG_VERSION"));
        assert!(tunnel["since"].as_str().unwrap().ends_with('Z'), "{tunnel}");
        assert!(tunnel["round_trip_ms"].is_number(), "{tunnel}");
        assert_eq!(tunnel["token"], TokenHash::of(&world.agent_token).to_string()[7..15], "after sha256:");
    }
    let long = |service: usize| -> u64 {
        tunnels.iter().map(|tunnel| tunnel["services"][service]["long"].as_u64().unwrap()).sum()
    };
    assert_eq!(tunnels[0]["services"][0]["name"], "kubernetes");
    assert_eq!((long(0), long(1)), (1, 0), "one watch, in one of the tunnels");
}

#[tokio::test(start_paused = true)]
async fn absent_agent_is_listed_with_the_time_of_its_disconnect() {
    let world = World::new();
    let text = format!(
        "agents: [{{id: 1, name: prod, tokens: ['{}']}}, {{id: 2, name: new, tokens: []}}]",
        TokenHash::of(&world.agent_token)
    );
    world.kas.identities.replace(Identity::parse(Path::new("identity.yaml"), &text).unwrap());
    let never = json!({
        "id": 2, "name": "new", "state": "never", "disabled": null, "clusters": [], "refused": null, "tunnels": [],
        "elsewhere": [], "configuration": null
    });
    assert_eq!(agents(&world).await[0], never, "in order of their names");
    assert_eq!(agents(&world).await[1]["state"], "never");

    world.agent(Services::new()).await.stop().await;
    world.tunnels(0).await;
    let listed = agents(&world).await;
    assert_eq!(listed[0], never);
    let gone = &listed[1];
    assert_eq!(
        (&gone["name"], &gone["state"], &gone["tunnels"]),
        (&json!("prod"), &json!("away"), &json!([]))
    );
    assert!(gone["since"].is_string(), "{gone}");
}
