//! Replicas whose Redis is lost, emptied, slow or failed over.

use std::time::Duration;

use testing::process::Signal;

use crate::support::{
    Fleet, Kas, Redis, Sentinel, Simulator, eventually, run_under_load, socket_section, start_delayed_socket,
};

fn routes(replica: &Kas) -> String {
    format!("{{kas}}:routes:{}", replica.replica)
}

fn is_degraded(replica: &Kas) -> bool {
    let readiness = replica.readiness();
    assert_eq!(readiness.status, 200, "a replica is ready without Redis");
    readiness.text().contains("\nredis since ")
}

/// Waits until each replica reports that Redis is unavailable.
fn wait_until_degraded(replicas: [&Kas; 3]) {
    for replica in replicas {
        eventually("the replica is degraded", || is_degraded(replica));
    }
}

/// Waits until each replica uses Redis again.
fn wait_until_recovered(replicas: [&Kas; 3]) {
    for replica in replicas {
        eventually("Redis is in use again", || !is_degraded(replica));
    }
}

#[test]
fn killed_and_emptied_redis_fails_no_request() {
    let (Some(mut redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [owner, newcomer, entry] = fleet.start_replicas();
    let _agent = fleet.start_agent_at(&owner);
    let responses = run_under_load(
        || fleet.get_version(&entry),
        |wait_for_more| {
            redis.server.kill();
            wait_until_degraded([&owner, &newcomer, &entry]);
            assert_eq!(fleet.get_version(&owner).status, 200);
            wait_for_more();

            let _agent = fleet.start_agent_at(&newcomer);
            assert_eq!(
                fleet.get_version(&newcomer).status,
                200,
                "a replica without Redis serves its own new agents"
            );
            redis.server.restart();
            wait_until_recovered([&owner, &newcomer, &entry]);
            for replica in [&owner, &newcomer] {
                assert_eq!(
                    redis.run(&["HEXISTS", &routes(replica), "7"]),
                    "1",
                    "the replica publishes all its routes"
                );
            }
            wait_for_more();
        },
    );
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
}

#[test]
fn frozen_redis_fails_no_request() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [owner, newcomer, entry] = fleet.start_replicas();
    let _agent = fleet.start_agent_at(&owner);
    let responses = run_under_load(
        || fleet.get_version(&entry),
        |wait_for_more| {
            redis.server.signal(Signal::STOP);
            wait_until_degraded([&owner, &newcomer, &entry]);
            let _agent = fleet.start_agent_at(&newcomer);
            assert_eq!(
                fleet.get_version(&newcomer).status,
                200,
                "a replica without Redis serves its own new agents"
            );
            wait_for_more();
            redis.server.signal(Signal::CONT);
            wait_until_recovered([&owner, &newcomer, &entry]);
            wait_for_more();
        },
    );
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
}

#[test]
fn replica_started_without_redis_joins_later() {
    let (Some(mut redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    redis.server.kill();
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [owner, entry] = [fleet.start_replica(), fleet.start_replica()];
    assert!(is_degraded(&owner) && is_degraded(&entry));
    let _agent = fleet.start_agent_at(&owner);
    assert_eq!(fleet.get_version(&owner).status, 200);
    let response = fleet.get_version(&entry);
    assert_eq!((response.status, response.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(response.text().contains("the route store is unavailable"), "{}", response.text());
    redis.server.restart();
    eventually("the other replica finds the agent", || fleet.get_version(&entry).status == 200);
}

#[test]
fn slow_redis_delays_only_the_first_request() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let delayed = start_delayed_socket(directory.path(), redis.server.socket(), Duration::from_millis(100));
    let fleet = Fleet::new(socket_section(&delayed), &cluster.kubeconfig);
    let [owner, entry] = fleet.start_replicas();
    let _agent = fleet.start_agent_at(&owner);
    let responses =
        run_under_load(|| fleet.get_version(&entry), |wait_for_more| (0..3).for_each(|_| wait_for_more()));
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert!(!is_degraded(&owner) && !is_degraded(&entry));
    assert!(entry.metric("kas_lookups_miss_total") < 10.0, "later lookups are answered from the cache");
}

#[test]
fn sentinel_failover_fails_no_request() {
    let (Some(mut redis), Some(cluster)) = (Sentinel::or_skip(), Simulator::or_skip()) else { return };
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [owner, entry] = fleet.start_replicas();
    let _agent = fleet.start_agent_at(&owner);
    let responses = run_under_load(
        || fleet.get_version(&entry),
        |wait_for_more| {
            redis.primary.server.kill();
            eventually("the standby takes over", || redis.has_failed_over());
            let held = || redis.standby.run(&["HEXISTS", &routes(&owner), "7"]) == "1";
            eventually("the standby is in use", || !is_degraded(&owner) && !is_degraded(&entry) && held());
            wait_for_more();
        },
    );
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    let [newcomer] = fleet.start_replicas();
    assert_eq!(fleet.get_version(&newcomer).status, 200, "a new replica reads the routes from the standby");
}
