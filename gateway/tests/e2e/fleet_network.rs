//! Replicas in separate network namespaces, with packet loss between them.

use crate::support::{Fleet, NetworkNamespaces, Redis, eventually, namespace_address};

/// The response of the agent, whose cluster is unreachable: it proves that the request reached the agent.
const FROM_AGENT: (u16, Option<&str>) = (502, Some("cluster-unreachable"));

#[test]
fn one_way_packet_loss_between_replicas_is_isolated() {
    let (Some(redis), Some(networks)) = (Redis::or_skip(), NetworkNamespaces::<3>::or_skip()) else { return };
    let mut fleet = Fleet::without_cluster(redis.section());
    let replicas = [0, 1, 2].map(|place| {
        fleet.membership().private = namespace_address(place);
        fleet.options.network = Some(networks.names[place].clone());
        let replica = fleet.start_replica();
        eventually("Redis is in use", || replica.readiness().text() == "ready\n");
        replica
    });
    let _agent = fleet.start_agent_at(&replicas[1]);
    let request = |place: usize| {
        let response = fleet.get_version(&replicas[place]);
        ((response.status, response.header("kas-error").map(str::to_owned)), response.text())
    };
    let reaches_agent = |place| request(place).0 == (FROM_AGENT.0, FROM_AGENT.1.map(str::to_owned));
    assert!([0, 1, 2].into_iter().all(reaches_agent));

    networks.drop_packets(1, 0);
    eventually("the probe of the owner times out", || {
        let ((status, reason), text) = request(0);
        (status, reason.as_deref()) == (503, Some("agent-not-connected"))
            && text.contains(&replicas[1].replica)
    });
    assert!(reaches_agent(1) && reaches_agent(2), "other replicas are not affected");

    let _second = fleet.start_agent_at(&replicas[2]);
    for _ in 0..10 {
        let ((status, reason), text) = request(0);
        assert_eq!((status, reason.as_deref()), FROM_AGENT, "the other owner serves the request: {text}");
    }
    assert!(replicas[0].metric("kas_peer_outliers_total") > 0.0);

    networks.restore_packets(1, 0);
    let passed = || replicas[1].metric_with("kas_peer_served_total", "forwarded");
    let before = passed();
    eventually("the first owner is used again", || reaches_agent(0) && passed() > before);
    networks.drop_packets(0, 1);
    networks.drop_packets(0, 2);
    let ((status, _), text) = request(0);
    assert_eq!(status, 503, "a replica without reachable peers responds with 503: {text}");
    networks.restore_packets(0, 1);
    networks.restore_packets(0, 2);
    eventually("requests are served again", || reaches_agent(0));
}
