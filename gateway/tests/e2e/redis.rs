//! kas with a Redis that becomes unavailable and recovers.

use std::path::Path;

use serde_json::json;

use crate::support::{AGENT, Installation, Kas, KasOptions, Redis, Tokens, eventually, run};

/// Returns the options of a replica that uses this Redis.
fn replica_options(redis: &Redis, directory: &Path, wait_at_start: bool) -> KasOptions {
    std::fs::write(directory.join("secret"), "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=").unwrap();
    let mut section = redis.section();
    section["wait_at_start"] = wait_at_start.into();
    let listen = json!({"address": "127.0.0.1:0", "authentication_secret_file": directory.join("secret")});
    let sections = vec![
        ("redis", section),
        ("private_api", json!({"listen": listen})),
        ("api", json!({"listen": listen})),
    ];
    KasOptions { sections, ..KasOptions::default() }
}

/// Returns the status and the body of `/readiness`.
fn readiness(kas: &Kas) -> (u16, String) {
    let response = kas.readiness();
    (response.status, response.text())
}

#[test]
fn kas_without_redis_is_ready_and_degraded() {
    let Some(mut redis) = Redis::or_skip() else { return };
    redis.server.kill();
    let secrets = tempfile::tempdir().unwrap();
    let world = Installation::without_cluster(|options, _| {
        options.sections = replica_options(&redis, secrets.path(), false).sections;
    });
    let served = || {
        // The agent sends this error, so the request has reached it.
        let response = world.curl(&format!("/agents/{AGENT}/kubernetes/version"), &[]);
        response.header("kas-error") == Some("cluster-unreachable")
    };
    let (status, body) = readiness(&world.kas);
    assert!(status == 200 && body.starts_with("ready, degraded\nredis since ") && served(), "{body}");
    assert!(body.contains("Redis refuses connections"), "{body}");

    redis.server.restart();
    eventually("kas is not degraded", || readiness(&world.kas) == (200, "ready\n".to_owned()));
    assert_eq!(world.kas.metric("kas_redis_degraded"), 0.0);
    eventually("kas has checked its own address", || world.kas.metric("kas_private_api_reachable") == 1.0);

    redis.server.kill();
    eventually("kas is degraded", || readiness(&world.kas).1.contains("redis since"));
    assert!(world.kas.is_ready() && served());
    redis.server.restart();
    eventually("kas is not degraded", || readiness(&world.kas) == (200, "ready\n".to_owned()));
}

#[test]
fn wait_at_start_without_redis_is_not_ready() {
    let Some(mut redis) = Redis::or_skip() else { return };
    redis.server.kill();
    let directory = tempfile::tempdir().unwrap();
    Tokens::generate().write_identity(directory.path(), false);
    let kas = Kas::spawn(directory.path(), &replica_options(&redis, directory.path(), true));
    eventually("kas reports that Redis is unreachable", || {
        readiness(&kas).1.contains("Redis refuses connections")
    });
    let (status, body) = readiness(&kas);
    assert!(status == 503 && body.starts_with("not ready: waiting for Redis"), "{body}");
    redis.server.restart();
    eventually("kas is ready", || kas.is_ready());
}

#[test]
fn live_config_check_runs_beside_replicas() {
    let Some(mut redis) = Redis::or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    Tokens::generate().write_identity(directory.path(), false);
    let kas = Kas::start(directory.path(), &replica_options(&redis, directory.path(), true));
    let check = || {
        let mut command = Kas::command();
        command.args(["check-config", "--live"]).arg(directory.path().join("kas.yaml"));
        let output = run(&mut command, b"");
        let stdout = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), stdout)
    };
    let (code, stdout) = check();
    assert_eq!(code, Some(0), "{stdout}");
    for expected in [
        "redis: good; Redis ",
        "redis commands: good",
        "redis events: good",
        "redis fleet: good; 1 live replicas",
        "own address http://127.0.0.1:",
        "reachable, and trusts this replica",
    ] {
        assert!(stdout.contains(expected), "{stdout}");
    }
    assert_eq!(kas.metric("kas_redis_rejected_total"), 0.0);

    // This secret differs from that of the running replica.
    std::fs::write(directory.path().join("secret"), "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=").unwrap();
    let (code, stdout) = check();
    assert!(
        code == Some(69) && stdout.contains("FAILED: it and this replica do not trust one another"),
        "{stdout}"
    );

    redis.server.kill();
    let (code, stdout) = check();
    assert!(code == Some(69) && stdout.contains("redis: FAILED: Redis refuses connections"), "{stdout}");
}

#[test]
fn api_lists_agents_of_all_live_replicas() {
    let Some(redis) = Redis::or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = replica_options(&redis, directory.path(), true);
    let mut world = Installation::without_cluster(|mine, _| mine.sections.clone_from(&options.sections));
    world.tokens.write_identity(directory.path(), false);
    let other = Kas::start(directory.path(), &options);

    let agents = |kas: &Kas| kas.get_api("/api/v1/agents")["agents"].clone();
    eventually("both list the agent", || {
        let (here, there) = (agents(&world.kas), agents(&other));
        here[0]["name"] == AGENT && here == there
    });
    let listed = agents(&other);
    assert_eq!(listed[0]["replicas"].as_array().unwrap().len(), 1, "only the owner is listed: {listed}");
    assert_eq!(listed[0]["replicas"][0]["instances"][0]["tunnels"], 2);
    assert_eq!(other.get_api("/api/v1/agents/absent")["agent"]["state"], "never");

    world.kas.process.kill();
    let absent = || other.get_api(&format!("/api/v1/agents/{AGENT}"))["agent"].clone();
    eventually("the agent of the killed replica is away", || {
        absent()["state"] == "away" && absent()["since"].is_string()
    });
    assert_eq!(agents(&other), json!([]));
}
