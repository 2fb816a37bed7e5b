//! Several replicas with a real Redis: agents at some of them, callers at any.

use crate::support::{AGENT, Fleet, Kas, Redis, Simulator, eventually, flow};

/// What is needed, or a word about the test that is left out.
fn fleet() -> Option<(Redis, Simulator, Fleet)> {
    let (redis, cluster) = (Redis::or_skip()?, Simulator::or_skip()?);
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    Some((redis, cluster, fleet))
}

/// Where a replica says what it holds.
fn routes(replica: &Kas) -> String {
    format!("{{kas}}:routes:{}", replica.replica)
}

#[test]
fn a_stale_route_costs_a_question_and_nothing_else() {
    let Some((redis, _cluster, fleet)) = fleet() else { return };
    let [holder, stale, asked] = fleet.replicas();
    let mut agent = fleet.agent_at(&holder);
    redis.says(&["HSET", &routes(&stale), "7", "[1,1,[]]"]);
    eventually("the replica that does not hold the agent is asked", || {
        let reply = fleet.ask(&asked);
        assert_eq!(reply.status, 200, "{}", reply.text());
        asked.metric_with("kas_peer_questions_total", "absent") > 0.0
    });

    agent.process.terminate();
    agent.process.exit_code();
    let reply = fleet.ask(&asked);
    assert_eq!((reply.status, reply.header("kas-error")), (503, Some("agent-not-connected")));
    assert!(reply.text().contains("it does not hold the agent any more"), "{}", reply.text());
    eventually("the replica notices what was said in its name", || {
        redis.says(&["HEXISTS", &routes(&stale), "7"]) == "0"
    });
}

#[test]
fn an_owner_is_killed_while_requests_flow() {
    let Some((redis, _cluster, fleet)) = fleet() else { return };
    let [mut owner, other, asked] = fleet.replicas();
    let _agents = [&owner, &other].map(|replica| fleet.agent_at(replica));
    let replies = flow(
        || fleet.ask(&asked),
        |more| {
            owner.process.kill();
            more();
            eventually("what it left is removed", || {
                redis.says(&["SISMEMBER", "{kas}:replicas", &owner.replica]) == "0"
            });
            more();
        },
    );
    for reply in replies {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!(redis.says(&["EXISTS", &routes(&owner)]), "0");
}

#[test]
fn an_owner_is_frozen_and_thaws_when_the_others_have_given_it_up() {
    let Some((redis, _cluster, fleet)) = fleet() else { return };
    let [owner, other, asked] = fleet.replicas();
    let _agents = [&owner, &other].map(|replica| fleet.agent_at(replica));
    let lives = |expected| redis.says(&["SISMEMBER", "{kas}:replicas", &owner.replica]) == expected;
    let replies = flow(
        || fleet.ask(&asked),
        |more| {
            owner.process.signal("STOP");
            more();
            eventually("the others give it up", || lives("0"));
            more();
            owner.process.signal("CONT");
            eventually("it says again what it holds", || {
                lives("1") && redis.says(&["HEXISTS", &routes(&owner), "7"]) == "1"
            });
            more();
        },
    );
    for reply in replies {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!(fleet.ask(&owner).status, 200);
    eventually("it serves the others again", || {
        fleet.ask(&asked);
        owner.metric_with("kas_peer_served_total", "passed") > 0.0
    });
}

#[test]
fn an_agent_moves_from_replica_to_replica_under_load() {
    let Some((redis, _cluster, fleet)) = fleet() else { return };
    let [first, second, third] = fleet.replicas();
    let all = [&first, &second, &third];
    let mut agent = fleet.agent_at(&first);
    let turn = std::sync::atomic::AtomicUsize::new(0);
    let ask = || fleet.ask(all[turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % all.len()]);
    let replies = flow(ask, |more| {
        for replica in all.iter().cycle().skip(1).take(6) {
            let next = fleet.agent_at(replica);
            agent.process.terminate();
            assert_eq!(agent.process.exit_code(), 0);
            agent = next;
            more();
        }
    });
    for reply in replies {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    eventually("only its last replica is said to hold it", || {
        let held = |replica: &Kas| redis.says(&["HEXISTS", &routes(replica), "7"]);
        all.map(held) == ["1", "0", "0"]
    });
    let listing = first.curl(&[&format!("http://{}/agents", second.observability)]).json();
    let of_agent = listing["agents"].as_array().unwrap().iter().find(|agent| agent["name"] == AGENT).unwrap();
    assert_eq!(of_agent["state"], "elsewhere", "{listing}");
}
