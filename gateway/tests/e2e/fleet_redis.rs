//! What replicas do without Redis, with one that knows nothing, with a slow one and with another one.

use std::time::Duration;

use crate::support::{Fleet, Kas, Redis, Sentinel, Simulator, eventually, flow, section, slow};

fn routes(replica: &Kas) -> String {
    format!("{{kas}}:routes:{}", replica.replica)
}

fn is_degraded(replica: &Kas) -> bool {
    let readiness = replica.readiness();
    assert_eq!(readiness.status, 200, "a replica is ready without Redis");
    readiness.text().contains("\nredis since ")
}

/// Waits until each of them says so.
fn without_redis(replicas: [&Kas; 3]) {
    for replica in replicas {
        eventually("it says that Redis is gone", || is_degraded(replica));
    }
}

/// The same, the other way round.
fn with_redis(replicas: [&Kas; 3]) {
    for replica in replicas {
        eventually("Redis is in use again", || !is_degraded(replica));
    }
}

#[test]
fn redis_is_killed_and_comes_back_empty() {
    let (Some(mut redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [holder, newcomer, asked] = fleet.replicas();
    let _agent = fleet.agent_at(&holder);
    let replies = flow(
        || fleet.ask(&asked),
        |more| {
            redis.process.kill();
            without_redis([&holder, &newcomer, &asked]);
            assert_eq!(fleet.ask(&holder).status, 200);
            more();

            let _agent = fleet.agent_at(&newcomer);
            assert_eq!(fleet.ask(&newcomer).status, 200, "an agent that comes meanwhile is served here");
            redis.restart();
            with_redis([&holder, &newcomer, &asked]);
            for replica in [&holder, &newcomer] {
                assert_eq!(redis.says(&["HEXISTS", &routes(replica), "7"]), "1", "it says all that it holds");
            }
            more();
        },
    );
    for reply in replies {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

#[test]
fn a_redis_that_freezes_is_one_that_is_lost() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [holder, newcomer, asked] = fleet.replicas();
    let _agent = fleet.agent_at(&holder);
    let replies = flow(
        || fleet.ask(&asked),
        |more| {
            redis.process.signal("STOP");
            without_redis([&holder, &newcomer, &asked]);
            let _agent = fleet.agent_at(&newcomer);
            assert_eq!(
                fleet.ask(&newcomer).status,
                200,
                "an agent that comes meanwhile is let in and served"
            );
            more();
            redis.process.signal("CONT");
            with_redis([&holder, &newcomer, &asked]);
            more();
        },
    );
    for reply in replies {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

#[test]
fn a_replica_that_starts_without_redis_runs_alone_until_it_comes() {
    let (Some(mut redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    redis.process.kill();
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [holder, asked] = [fleet.replica(), fleet.replica()];
    assert!(is_degraded(&holder) && is_degraded(&asked));
    let _agent = fleet.agent_at(&holder);
    assert_eq!(fleet.ask(&holder).status, 200);
    let reply = fleet.ask(&asked);
    assert_eq!((reply.status, reply.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(reply.text().contains("the route store is unavailable"), "{}", reply.text());
    redis.restart();
    eventually("the other replica finds it", || fleet.ask(&asked).status == 200);
}

#[test]
fn a_slow_redis_slows_down_nothing_but_the_first_request() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let far = slow(directory.path(), redis.socket(), Duration::from_millis(100));
    let fleet = Fleet::new(section(&far), &cluster.kubeconfig);
    let [holder, asked] = fleet.replicas();
    let _agent = fleet.agent_at(&holder);
    let replies = flow(|| fleet.ask(&asked), |more| (0..3).for_each(|_| more()));
    for reply in replies {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert!(!is_degraded(&holder) && !is_degraded(&asked));
    assert!(asked.metric("kas_lookups_miss_total") < 10.0, "others are answered from memory");
}

#[test]
fn sentinels_choose_another_redis_under_load() {
    let (Some(mut redis), Some(cluster)) = (Sentinel::or_skip(), Simulator::or_skip()) else { return };
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let [holder, asked] = fleet.replicas();
    let _agent = fleet.agent_at(&holder);
    let replies = flow(
        || fleet.ask(&asked),
        |more| {
            redis.first.process.kill();
            eventually("the second takes over", || redis.has_failed_over());
            let held = || redis.second.says(&["HEXISTS", &routes(&holder), "7"]) == "1";
            eventually("it is in use", || !is_degraded(&holder) && !is_degraded(&asked) && held());
            more();
        },
    );
    for reply in replies {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let [newcomer] = fleet.replicas();
    assert_eq!(fleet.ask(&newcomer).status, 200, "what it knows, it has from the second");
}
