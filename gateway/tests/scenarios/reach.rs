//! A replica finds out whether the others reach it.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use gateway::peers::reach::{Reach, Witness};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use router::{MemoryStore, RouteStore as _};
use tokio::time::sleep;

use crate::{
    fleet::{End, Several, secret},
    world::{CALLER, World, text},
};

fn reach(fleet: &Several, index: usize) -> Reach {
    let own = fleet.store.replica(fleet.id(index)).unwrap();
    let peers = fleet.replicas[index].kas.callers.forwarder.peers.clone();
    Reach { peers, store: Arc::clone(&fleet.store) as _, own }
}

#[tokio::test(start_paused = true)]
async fn the_others_are_asked_and_not_oneself() {
    let fleet = Several::new(3);
    assert_eq!(reach(&fleet, 0).look().await, Ok(Witness::Others));
    // Nobody is seen at the address that is published, whatever is open besides.
    fleet.pipes.put(0, End::Nobody);
    let why = reach(&fleet, 0).look().await.unwrap_err();
    let others = [1, 2].map(|index| fleet.id(index).to_string());
    assert!(others.iter().any(|other| why.contains(other)) && why.contains("connection refused"), "{why}");
    assert_eq!(reach(&fleet, 1).look().await, Ok(Witness::Others), "who cannot be asked says nothing");
}

#[tokio::test(start_paused = true)]
async fn whoever_is_alone_tries_itself() {
    let fleet = Several::new(2);
    let alone = MemoryStore::default();
    alone.join(reach(&fleet, 0).own);
    let alone = Arc::new(alone);
    let reach = || Reach { store: Arc::clone(&alone) as _, ..reach(&fleet, 0) };
    assert_eq!(reach().look().await, Ok(Witness::Own));
    fleet.pipes.put(0, End::Silence);
    assert!(reach().look().await.unwrap_err().contains("did not answer in time"));
}

#[tokio::test(start_paused = true)]
async fn an_address_that_leads_to_another_replica_is_noticed() {
    let fleet = Several::new(3);
    // As that of a Service, or of a load balancer.
    let other = fleet.pipes.put(1, End::Nobody).unwrap();
    fleet.pipes.put(0, other);
    let why = reach(&fleet, 0).look().await.unwrap_err();
    assert!(why.contains("do not trust one another"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn whoever_has_another_secret_reaches_nobody_and_says_nothing_of_reach() {
    let fleet = Several::knowing(&[Some(secret(1)), Some(secret(2))], |_| {});
    assert_eq!(reach(&fleet, 0).look().await, Ok(Witness::Own));
    assert_eq!(fleet.replicas[1].metric("kas_peer_served_total{result=\"forged\"}"), 1.0);
}

/// What `/readiness` says.
async fn readiness(world: &World) -> (u16, String) {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(Arc::clone(&world.kas.admin).server().serve(far, CALLER));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/readiness").body(Empty::<bytes::Bytes>::new().boxed()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    (answer.status().as_u16(), text(answer).await)
}

#[tokio::test(start_paused = true)]
async fn the_metric_and_the_readiness_tell_and_follow() {
    let fleet = Several::new(2);
    let world = &fleet.replicas[0];
    let readiness_of = world.kas.admin.readiness.clone();
    readiness_of.ready();
    let wire = fleet.pipes.put(0, End::Nobody).unwrap();
    let keeping = tokio::spawn(reach(&fleet, 0).keep(readiness_of));
    let reachable = || world.kas.callers.forwarder.metrics.peers.reachable.get();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(reachable(), 0);
    let (status, body) = readiness(world).await;
    assert!(status == 200 && body.contains("private_api: other replicas do not reach this one"), "{body}");

    fleet.pipes.put(0, wire);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(reachable(), 1);
    assert_eq!(readiness(world).await, (200, "ready\n".to_owned()));
    assert!(!keeping.is_finished());
    keeping.abort();
}
