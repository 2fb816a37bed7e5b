//! kas beside a Redis that comes and goes.

use std::path::Path;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::support::{AGENT, Kas, KasOptions, Redis, Tokens, World, curl, eventually, run};

/// What makes a kas one of several that use this Redis.
fn one_of_several(redis: &Redis, directory: &Path, wait_at_start: bool) -> KasOptions {
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

/// Its status and its words.
fn readiness(kas: &Kas) -> (u16, String) {
    let reply = kas.readiness();
    (reply.status, reply.text())
}

#[test]
fn a_kas_without_its_redis_is_ready_and_says_that_it_is_degraded() {
    let Some(mut redis) = Redis::or_skip() else { return };
    redis.process.kill();
    let secrets = tempfile::tempdir().unwrap();
    let world = World::without_cluster(|options, _| {
        options.sections = one_of_several(&redis, secrets.path(), false).sections;
    });
    let served = || {
        // Who says so is the agent: its cluster is not there.
        let reply = world.curl(&format!("/agents/{AGENT}/kubernetes/version"), &[]);
        reply.header("kas-error") == Some("cluster-unreachable")
    };
    let (status, body) = readiness(&world.kas);
    assert!(status == 200 && body.starts_with("ready, degraded\nredis since ") && served(), "{body}");
    assert!(body.contains("Redis refuses connections"), "{body}");

    redis.restart();
    eventually("kas is not degraded", || readiness(&world.kas) == (200, "ready\n".to_owned()));
    assert_eq!(world.kas.metric("kas_redis_degraded"), 0.0);
    eventually("kas has seen that it can be reached", || {
        world.kas.metric("kas_private_api_reachable") == 1.0
    });

    redis.process.kill();
    eventually("kas is degraded", || readiness(&world.kas).1.contains("redis since"));
    assert!(world.kas.is_ready() && served());
    redis.restart();
    eventually("kas is not degraded", || readiness(&world.kas) == (200, "ready\n".to_owned()));
}

#[test]
fn a_kas_that_shall_wait_for_its_redis_is_not_ready_and_says_for_what_it_waits() {
    let Some(mut redis) = Redis::or_skip() else { return };
    redis.process.kill();
    let directory = tempfile::tempdir().unwrap();
    Tokens::make().write_identity(directory.path(), false);
    let kas = Kas::begin(directory.path(), &one_of_several(&redis, directory.path(), true));
    eventually("kas says what it waits for", || readiness(&kas).1.contains("Redis refuses connections"));
    let (status, body) = readiness(&kas);
    assert!(status == 503 && body.starts_with("not ready: waiting for Redis"), "{body}");
    redis.restart();
    eventually("kas is ready", || kas.is_ready());
}

#[test]
fn a_configuration_is_tried_out_beside_replicas_that_run() {
    let Some(mut redis) = Redis::or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    Tokens::make().write_identity(directory.path(), false);
    let kas = Kas::start(directory.path(), &one_of_several(&redis, directory.path(), true));
    let check = || {
        let mut command = Kas::command();
        command.args(["check-config", "--live"]).arg(directory.path().join("kas.yaml"));
        let output = run(&mut command, b"");
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), said)
    };
    let (code, said) = check();
    assert_eq!(code, Some(0), "{said}");
    for expected in [
        "redis: good; Redis ",
        "redis commands: good",
        "redis events: good",
        "redis fleet: good; 1 live replicas",
        "own address http://127.0.0.1:",
        "it is reached from here, and trusts this replica",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(kas.metric("kas_redis_rejected_total"), 0.0);

    // Another secret than that of the replica that runs.
    std::fs::write(directory.path().join("secret"), "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=").unwrap();
    let (code, said) = check();
    assert!(
        code == Some(69) && said.contains("FAILED: it and this replica do not trust one another"),
        "{said}"
    );

    redis.process.kill();
    let (code, said) = check();
    assert!(code == Some(69) && said.contains("redis: FAILED: Redis refuses connections"), "{said}");
}

/// What a replica tells a program that has the secret.
fn asked(kas: &Kas, path: &str) -> Value {
    let parts =
        [r#"{"alg":"HS256"}"#, r#"{"aud":"gitlab-kas"}"#].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
    let message = parts.join(".");
    let seal =
        Hmac::<Sha256>::new_from_slice(&[1; 32]).unwrap().chain_update(&message).finalize().into_bytes();
    let token = format!("Authorization: Bearer {message}.{}", BASE64_URL_SAFE_NO_PAD.encode(seal));
    let reply = curl(&["--header", &token, &format!("http://{}{path}", kas.api())]);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

#[test]
fn any_replica_tells_programs_who_is_connected_and_what_a_dead_one_held_is_gone() {
    let Some(redis) = Redis::or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = one_of_several(&redis, directory.path(), true);
    let mut world = World::without_cluster(|mine, _| mine.sections.clone_from(&options.sections));
    world.tokens.write_identity(directory.path(), false);
    let other = Kas::start(directory.path(), &options);

    let agents = |kas: &Kas| asked(kas, "/api/v1/agents")["agents"].clone();
    eventually("both list the agent", || {
        let (here, there) = (agents(&world.kas), agents(&other));
        here[0]["name"] == AGENT && here == there
    });
    let listed = agents(&other);
    assert_eq!(listed[0]["replicas"].as_array().unwrap().len(), 1, "who has it, not who was asked: {listed}");
    assert_eq!(listed[0]["replicas"][0]["instances"][0]["tunnels"], 2);
    assert_eq!(asked(&other, "/api/v1/agents/absent")["agent"]["state"], "never");

    world.kas.process.kill();
    let gone = || asked(&other, &format!("/api/v1/agents/{AGENT}"))["agent"].clone();
    eventually("the dead replica's agent is gone", || {
        gone()["state"] == "away" && gone()["since"].is_string()
    });
    assert_eq!(agents(&other), json!([]));
}
