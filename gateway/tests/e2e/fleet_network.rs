//! Replicas on machines of their own, as far as the network goes.

use crate::support::{Fleet, Networks, Redis, address, eventually};

/// The agent's cluster is out of reach, which only the agent knows: who is told so was connected to it.
const REACHED: (u16, Option<&str>) = (502, Some("cluster-unreachable"));

#[test]
fn what_one_replica_says_to_another_is_lost_and_only_that() {
    let (Some(redis), Some(networks)) = (Redis::or_skip(), Networks::or_skip()) else { return };
    let mut fleet = Fleet::without_cluster(redis.section());
    let replicas = [0, 1, 2].map(|place| {
        let membership = fleet.membership();
        membership.private = address(place + 1);
        membership.network = Some(networks.names[place].clone());
        let replica = fleet.replica();
        eventually("Redis is in use", || replica.readiness().text() == "ready\n");
        replica
    });
    let _agent = fleet.agent_at(&replicas[1]);
    let ask = |place: usize| {
        let reply = fleet.ask(&replicas[place]);
        ((reply.status, reply.header("kas-error").map(str::to_owned)), reply.text())
    };
    let reached = |place| ask(place).0 == (REACHED.0, REACHED.1.map(str::to_owned));
    assert!([0, 1, 2].into_iter().all(reached));

    networks.lose(1, 0);
    eventually("the holder's answers are missed, within what a question may take", || {
        let ((status, reason), text) = ask(0);
        (status, reason.as_deref()) == (503, Some("agent-not-connected"))
            && text.contains(&replicas[1].replica)
    });
    assert!(reached(1) && reached(2), "nobody else notices");

    let _second = fleet.agent_at(&replicas[2]);
    for _ in 0..10 {
        let ((status, reason), text) = ask(0);
        assert_eq!((status, reason.as_deref()), REACHED, "the other holder has it: {text}");
    }
    assert!(replicas[0].metric("kas_peer_outliers_total") > 0.0);

    networks.mend(1, 0);
    let passed = || replicas[1].metric_with("kas_peer_served_total", "passed");
    let before = passed();
    eventually("the first holder is used again", || reached(0) && passed() > before);
    networks.lose(0, 1);
    networks.lose(0, 2);
    let ((status, _), text) = ask(0);
    assert_eq!(status, 503, "who reaches nobody says so: {text}");
    networks.mend(0, 1);
    networks.mend(0, 2);
    eventually("and is well again", || reached(0));
}
