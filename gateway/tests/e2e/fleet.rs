//! Several replicas with a real Redis. Callers reach the agent through any of them.

use testing::process::Signal;

use crate::support::{AGENT, Fleet, Kas, Redis, Simulator, eventually, run_under_load};

/// Returns the fixtures, or skips the test if a program is missing.
fn fleet() -> Option<(Redis, Simulator, Fleet)> {
    let (redis, cluster) = (Redis::or_skip()?, Simulator::or_skip()?);
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    Some((redis, cluster, fleet))
}

/// Returns the Redis key of the routes of a replica.
fn routes(replica: &Kas) -> String {
    format!("{{kas}}:routes:{}", replica.replica)
}

#[test]
fn stale_route_costs_one_probe() {
    let Some((redis, _cluster, fleet)) = fleet() else { return };
    let [owner, stale, entry] = fleet.start_replicas();
    let mut agent = fleet.start_agent_at(&owner);
    redis.run(&["HSET", &routes(&stale), "7", "[1,1,[]]"]);
    eventually("the replica without the agent is probed", || {
        let response = fleet.get_version(&entry);
        assert_eq!(response.status, 200, "{}", response.text());
        entry.metric_with("kas_peer_probes_total", "not-connected") > 0.0
    });

    agent.process.terminate();
    agent.process.exit_code();
    let response = fleet.get_version(&entry);
    assert_eq!((response.status, response.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(response.text().contains("it does not hold the agent any more"), "{}", response.text());
    eventually("the replica removes its stale route", || {
        redis.run(&["HEXISTS", &routes(&stale), "7"]) == "0"
    });
}

#[test]
fn killed_owner_fails_no_request() {
    let Some((redis, _cluster, fleet)) = fleet() else { return };
    let [mut owner, other, entry] = fleet.start_replicas();
    let _agents = [&owner, &other].map(|replica| fleet.start_agent_at(replica));
    let responses = run_under_load(
        || fleet.get_version(&entry),
        |wait_for_more| {
            owner.process.kill();
            wait_for_more();
            eventually("the killed replica is removed from Redis", || {
                redis.run(&["SISMEMBER", "{kas}:replicas", &owner.replica]) == "0"
            });
            wait_for_more();
        },
    );
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert_eq!(redis.run(&["EXISTS", &routes(&owner)]), "0");
}

#[test]
fn frozen_owner_fails_no_request_and_rejoins() {
    let Some((redis, _cluster, fleet)) = fleet() else { return };
    let [owner, other, entry] = fleet.start_replicas();
    let _agents = [&owner, &other].map(|replica| fleet.start_agent_at(replica));
    let is_registered = |expected| redis.run(&["SISMEMBER", "{kas}:replicas", &owner.replica]) == expected;
    let responses = run_under_load(
        || fleet.get_version(&entry),
        |wait_for_more| {
            owner.process.signal(Signal::STOP);
            wait_for_more();
            eventually("the other replicas remove the frozen one", || is_registered("0"));
            wait_for_more();
            owner.process.signal(Signal::CONT);
            eventually("the thawed replica publishes its routes again", || {
                is_registered("1") && redis.run(&["HEXISTS", &routes(&owner), "7"]) == "1"
            });
            wait_for_more();
        },
    );
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert_eq!(fleet.get_version(&owner).status, 200);
    eventually("the thawed replica serves its peers again", || {
        fleet.get_version(&entry);
        owner.metric_with("kas_peer_served_total", "forwarded") > 0.0
    });
}

#[test]
fn agent_moves_between_replicas_without_failures() {
    let Some((redis, _cluster, fleet)) = fleet() else { return };
    let [first, second, third] = fleet.start_replicas();
    let all = [&first, &second, &third];
    let mut agent = fleet.start_agent_at(&first);
    let turn = std::sync::atomic::AtomicUsize::new(0);
    let request =
        || fleet.get_version(all[turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % all.len()]);
    let responses = run_under_load(request, |wait_for_more| {
        for replica in all.iter().cycle().skip(1).take(6) {
            let next = fleet.start_agent_at(replica);
            agent.process.terminate();
            assert_eq!(agent.process.exit_code(), 0);
            agent = next;
            wait_for_more();
        }
    });
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    eventually("only the last replica of the agent has a route", || {
        let held = |replica: &Kas| redis.run(&["HEXISTS", &routes(replica), "7"]);
        all.map(held) == ["1", "0", "0"]
    });
    let listing = first.curl(&[&format!("http://{}/agents", second.observability)]).json();
    let of_agent = listing["agents"].as_array().unwrap().iter().find(|agent| agent["name"] == AGENT).unwrap();
    assert_eq!(of_agent["state"], "elsewhere", "{listing}");
}
