//! The kill switch of all replicas: `kas disable --fleet` and `kas enable --fleet`.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{
    AGENT, Agent, Fleet, HttpResponse, Kas, Process, Redis, Simulator, eventually, run_under_load,
};

/// A rule has effect within 1 s. Busy machines need longer, and without its event a replica would notice it after 15 s.
const BOUND: Duration = Duration::from_secs(5);

const RULE: [&str; 2] = ["--agent", AGENT];
const REASON: [&str; 2] = ["--reason", "incident 4711"];
const MESSAGE: &str = "the operator of kas has disabled agent prod: incident 4711";

/// Starts a watch, and waits for its first event.
fn watch(fleet: &Fleet, replica: &Kas) -> Process {
    let url = replica.url(&format!("/agents/{AGENT}/kubernetes/api/v1/pods?watch=true"));
    let arguments = ["--silent", "--no-buffer", "--header", &fleet.authorization(), &url];
    let watch = Process::start("curl", Command::new("curl").args(arguments));
    watch.line("the first event", |line| line.contains("ADDED"));
    watch
}

/// Waits until all replicas respond with this status, within [`BOUND`].
fn wait_for_status(fleet: &Fleet, replicas: &[Kas], status: u16) -> Vec<HttpResponse> {
    let begin = Instant::now();
    let mut responses = Vec::new();
    eventually("all replicas have the rules", || {
        responses = replicas.iter().map(|replica| fleet.get_version(replica)).collect();
        responses.iter().all(|response| response.status == status)
    });
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    responses
}

/// Returns the number of tunnels that the replicas have accepted, and of those that are open.
fn tunnels(replicas: &[Kas]) -> (f64, f64) {
    let sum = |name, label| replicas.iter().map(|replica| replica.metric_with(name, label)).sum();
    (sum("kas_handshakes_total", "\"accepted\""), sum("kas_tunnels", ""))
}

fn readiness(agent: &Agent) -> (u16, String) {
    let response = agent.readiness();
    (response.status, response.text())
}

fn is_disabled_metric(agent: &Agent) -> bool {
    agent.get("/metrics").text().lines().any(|line| line == "agentk_disabled 1")
}

#[test]
fn rule_of_the_fleet_stops_each_replica_until_it_is_lifted() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let replicas: [Kas; 3] = fleet.start_replicas();
    let agent = fleet.start_agent_at(&replicas[0]);
    wait_for_status(&fleet, &replicas, 200);
    let (watches, before) = (replicas.each_ref().map(|replica| watch(&fleet, replica)), tunnels(&replicas));
    assert_eq!(before, (1.0, 1.0));

    let printed = fleet.run_kas("disable", &[&["--fleet"][..], &RULE, &REASON].concat());
    assert_eq!(printed, "disabled agent prod: incident 4711\n3 live replicas use this Redis\n");
    for response in wait_for_status(&fleet, &replicas, 503) {
        assert_eq!(response.header("kas-error"), Some("disabled"));
        assert_eq!(response.header("retry-after"), Some("60"));
        assert_eq!(response.json()["message"], format!("kas: {MESSAGE}"));
    }
    for mut watch in watches {
        assert_ne!(watch.exit_code(), 0, "curl must not take a part for the whole");
    }
    for replica in &replicas {
        assert_eq!(replica.metric_with("kas_disabled", "\"agent\""), 1.0);
        assert_eq!(replica.metric("kas_requests_in_flight"), 0.0);
    }
    let line = "disabled by the operator of kas: all services: incident 4711";
    agent.process.line("the rule in the log of agentk", |printed| printed.contains("incident 4711"));
    assert_eq!(readiness(&agent), (200, format!("ready, disabled\n{line}\n")));
    assert!(is_disabled_metric(&agent));

    let late = [fleet.start_replica()];
    wait_for_status(&fleet, &late, 503);

    fleet.run_kas("enable", &[&["--fleet"][..], &RULE].concat());
    wait_for_status(&fleet, &replicas, 200);
    wait_for_status(&fleet, &late, 200);
    eventually("agentk knows that the rule is lifted", || readiness(&agent) == (200, "ready\n".to_owned()));
    assert!(!is_disabled_metric(&agent));
    assert_eq!(tunnels(&replicas), before, "no tunnel was closed or opened");
}

#[test]
fn rule_of_the_fleet_lasts_while_redis_is_away() {
    let (Some(mut redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let replicas: [Kas; 2] = fleet.start_replicas();
    let _agent = fleet.start_agent_at(&replicas[0]);
    wait_for_status(&fleet, &replicas, 200);
    fleet.run_kas("disable", &[&["--fleet"][..], &RULE, &REASON].concat());
    wait_for_status(&fleet, &replicas, 503);

    let degraded = |expected: bool| {
        eventually("the replicas notice the state of Redis", || {
            replicas.iter().all(|replica| replica.readiness().text().contains("\nredis since ") == expected)
        });
    };
    // The restarted server is empty.
    let responses = run_under_load(
        || fleet.get_version(&replicas[1]),
        |wait_for_more| {
            redis.server.kill();
            degraded(true);
            wait_for_more();
            redis.server.restart();
            degraded(false);
            eventually("a replica writes the record back", || {
                redis.run(&["GET", "{kas}:disabled"]).contains("incident 4711")
            });
            wait_for_more();
        },
    );
    for response in responses {
        assert_eq!((response.status, response.header("kas-error")), (503, Some("disabled")));
    }
    fleet.run_kas("enable", &["--fleet", "--every-rule"]);
    wait_for_status(&fleet, &replicas, 200);
}

#[test]
fn rule_of_the_fleet_survives_a_restart_of_all_replicas_with_an_empty_redis() {
    let (Some(mut redis), Some(cluster)) = (Redis::or_skip(), Simulator::or_skip()) else { return };
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    let copy = fleet.directory().join("disabled-fleet.json");
    fleet.options.sections.push(("disabled", json!({"fleet_file": copy})));
    let [mut before] = fleet.start_replicas();
    fleet.run_kas("disable", &[&["--fleet"][..], &RULE, &REASON].concat());
    let has_rule = |text: &str| text.contains("incident 4711");
    eventually("the replica has a copy", || fs::read_to_string(&copy).is_ok_and(|text| has_rule(&text)));

    before.process.kill();
    redis.server.kill();
    redis.server.restart();
    let after = [fleet.start_replica()];
    // The state is `degraded` until the replica reaches Redis.
    let readiness = after[0].readiness().text();
    assert!(readiness.contains("\ndisabled: agent prod: incident 4711"), "from its start: {readiness}");
    let _agent = fleet.start_agent_at(&after[0]);
    assert_eq!(fleet.get_version(&after[0]).header("kas-error"), Some("disabled"));
    eventually("the replica writes the record back", || has_rule(&redis.run(&["GET", "{kas}:disabled"])));
    fleet.run_kas("enable", &["--fleet", "--every-rule"]);
    wait_for_status(&fleet, &after, 200);
}
