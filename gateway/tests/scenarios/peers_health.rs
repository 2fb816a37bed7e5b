//! A replica checks whether the other replicas reach it.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use kas_core::peers::{
    PEER_HEADER, PeerHeader, ProbeResponse, ProbeSource, ReachabilityError, ReachabilityProbe, ResponseKey,
};
use kas_testing::{
    fleet::{PeerBehaviour, TestFleet, secret},
    world::{CALLER, World, text},
};
use store::{MemoryStore, RouteStore as _};
use tokio::{io::DuplexStream, sync::watch, time::sleep};
use tokio_util::task::AbortOnDropHandle;
use tunnel::{Body, TunnelConfig};

fn probe(fleet: &TestFleet, index: usize) -> ReachabilityProbe {
    let own = fleet.store.replica(fleet.id(index)).unwrap();
    let client = fleet.replicas[index].kas.callers.forwarder.peers.clone();
    ReachabilityProbe { client, store: Arc::clone(&fleet.store) as _, own }
}

#[tokio::test(start_paused = true)]
async fn ping_backs_of_other_replicas_decide() {
    let fleet = TestFleet::new(3);
    assert_eq!(probe(&fleet, 0).check().await, Ok(ProbeSource::OtherReplica));
    // Nothing accepts connections at the published address, while open connections still work.
    fleet.pipes.put(0, PeerBehaviour::Refuse);
    let why = probe(&fleet, 0).check().await.unwrap_err().to_string();
    let others = [1, 2].map(|index| fleet.id(index).to_string());
    assert!(others.iter().any(|other| why.contains(other)) && why.contains("connection refused"), "{why}");
    assert_eq!(
        probe(&fleet, 1).check().await,
        Ok(ProbeSource::OtherReplica),
        "a replica that is down does not count"
    );
}

#[tokio::test(start_paused = true)]
async fn single_replica_pings_itself() {
    let fleet = TestFleet::new(2);
    let alone = MemoryStore::default();
    alone.join(probe(&fleet, 0).own);
    let alone = Arc::new(alone);
    let lone_probe = || ReachabilityProbe { store: Arc::clone(&alone) as _, ..probe(&fleet, 0) };
    assert_eq!(lone_probe().check().await, Ok(ProbeSource::ThisReplica));
    fleet.pipes.put(0, PeerBehaviour::Silent);
    assert!(lone_probe().check().await.unwrap_err().to_string().contains("did not answer in time"));
}

#[tokio::test(start_paused = true)]
async fn address_of_another_replica_is_unreachable() {
    let fleet = TestFleet::new(3);
    // The address of a Service or of a load balancer leads to any replica.
    let other = fleet.pipes.put(1, PeerBehaviour::Refuse).unwrap();
    fleet.pipes.put(0, other);
    let why = probe(&fleet, 0).check().await.unwrap_err().to_string();
    assert!(why.contains("do not trust one another"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn replica_with_another_secret_is_degraded_and_the_others_are_not() {
    let fleet = TestFleet::with_secrets(&[Some(secret(2)), Some(secret(1)), Some(secret(1))], |_| {});
    let error = probe(&fleet, 0).check().await.unwrap_err();
    assert!(
        matches!(&error, ReachabilityError::Refused(what) if what.contains("different secrets")),
        "{error}"
    );
    assert_eq!(fleet.replicas[1].metric("kas_peer_served_total{result=\"invalid-mac\"}"), 1.0);
    for index in [1, 2] {
        assert_eq!(probe(&fleet, index).check().await, Ok(ProbeSource::OtherReplica));
    }

    let readiness_of = fleet.replicas[0].kas.admin.readiness.clone();
    readiness_of.set_ready();
    let credentials = watch::Sender::new(());
    let running =
        AbortOnDropHandle::new(tokio::spawn(probe(&fleet, 0).run(readiness_of, credentials.subscribe())));
    sleep(Duration::from_secs(3)).await;
    let (status, body) = readiness(&fleet.replicas[0]).await;
    assert_eq!((status, fleet.replicas[0].kas.callers.observers.metrics.peers.reachable.get()), (200, 0));
    assert!(
        body.starts_with(
            "ready, degraded\nprivate_api: other replicas refuse requests of this one: replica "
        ),
        "{body}"
    );
    drop(running);
}

/// Responds like a replica with the same secret whose clock is a minute ahead.
fn minute_ahead(io: DuplexStream) {
    let (session, _leave) = tunnel::direct::accept(io, &TunnelConfig::default());
    tokio::spawn(session.run(|incoming| {
        tokio::spawn(async move {
            let header = PeerHeader::decode(&incoming.request().headers()[&PEER_HEADER]).unwrap();
            let (secret, mac) = (secret(1), header.mac.unwrap());
            let clock_skew = ProbeResponse::ClockSkew { now_ms: header.sent_ms + 60_000 };
            let mut response = Response::new(Body::empty());
            *response.headers_mut() = clock_skew.encode(ResponseKey::new(Some(&secret), Some(&mac)));
            incoming.respond(|_| std::future::ready(response)).await;
        });
    }));
}

#[tokio::test(start_paused = true)]
async fn clock_skew_is_refused() {
    let fleet = TestFleet::new(2);
    fleet.pipes.put(1, PeerBehaviour::Custom(minute_ahead));
    let error = probe(&fleet, 0).check().await.unwrap_err();
    let clock =
        |what: &str| what.contains("its clock is ") && what.contains(" ahead of the one of this replica");
    assert!(matches!(&error, ReachabilityError::Refused(what) if clock(what)), "{error}");
}

/// Returns the status and the body of `/readiness`.
async fn readiness(world: &World) -> (u16, String) {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(Arc::clone(&world.kas.admin).server().serve(far, CALLER, Arc::default()));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/readiness").body(Empty::<bytes::Bytes>::new().boxed()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    (answer.status().as_u16(), text(answer).await)
}

#[tokio::test(start_paused = true)]
async fn metric_and_readiness_follow_the_checks() {
    let fleet = TestFleet::new(2);
    let world = &fleet.replicas[0];
    let readiness_of = world.kas.admin.readiness.clone();
    readiness_of.set_ready();
    let wire = fleet.pipes.put(0, PeerBehaviour::Refuse).unwrap();
    let credentials = watch::Sender::new(());
    let running = tokio::spawn(probe(&fleet, 0).run(readiness_of, credentials.subscribe()));
    let reachable = || world.kas.callers.forwarder.metrics.peers.reachable.get();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(reachable(), 0);
    let (status, body) = readiness(world).await;
    assert!(status == 200 && body.contains("private_api: other replicas do not reach this one"), "{body}");

    fleet.pipes.put(0, wire);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(reachable(), 1);
    assert_eq!(readiness(world).await, (200, "ready\n".to_owned()));

    fleet.pipes.put(0, PeerBehaviour::Refuse);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(reachable(), 1, "the next check is due in a minute");
    credentials.send_replace(());
    sleep(Duration::from_secs(3)).await;
    assert_eq!(reachable(), 0, "new credentials are checked at once");
    assert!(!running.is_finished());
    running.abort();
}
