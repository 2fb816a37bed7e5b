//! kas beside a Redis that comes and goes.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;
use tempfile::TempDir;

use crate::support::{AGENT, Kas, KasOptions, Process, Tokens, World, eventually, installed, run, skipped};

/// A place for a redis-server.
struct Redis {
    directory: TempDir,
}

impl Redis {
    fn or_skip() -> Option<Self> {
        if !installed("redis-server") {
            skipped("redis-server is missing: .ci/install-tools installs it");
            return None;
        }
        Some(Self { directory: tempfile::tempdir().unwrap() })
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    fn start(&self) -> Process {
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", ""]);
        let process = Process::start("redis-server", command.current_dir(&self.directory));
        process.line("it is ready", |line| line.contains("ready to accept connections"));
        process
    }

    /// What makes a kas one of several that use it.
    fn sections(&self, directory: &Path, wait_at_start: bool) -> KasOptions {
        std::fs::write(directory.join("secret"), "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=").unwrap();
        let server = json!({"address": format!("unix:{}", self.socket().display())});
        let listen =
            json!({"address": "127.0.0.1:0", "authentication_secret_file": directory.join("secret")});
        let sections = vec![
            ("redis", json!({"server": server, "wait_at_start": wait_at_start})),
            ("private_api", json!({"listen": listen})),
        ];
        KasOptions { sections, ..KasOptions::default() }
    }
}

/// Its status and its words.
fn readiness(kas: &Kas) -> (u16, String) {
    let reply = kas.readiness();
    (reply.status, reply.text())
}

#[test]
fn a_kas_without_its_redis_is_ready_and_says_that_it_is_degraded() {
    let Some(redis) = Redis::or_skip() else { return };
    let secrets = tempfile::tempdir().unwrap();
    let world = World::without_cluster(|options, _| {
        options.sections = redis.sections(secrets.path(), false).sections;
    });
    let served = || {
        // Who says so is the agent: its cluster is not there.
        let reply = world.curl(&format!("/agents/{AGENT}/kubernetes/version"), &[]);
        reply.header("kas-error") == Some("cluster-unreachable")
    };
    let (status, body) = readiness(&world.kas);
    assert!(status == 200 && body.starts_with("ready, degraded\nredis since ") && served(), "{body}");
    assert!(body.contains("Redis refuses connections"), "{body}");

    let mut server = redis.start();
    eventually("kas is not degraded", || readiness(&world.kas) == (200, "ready\n".to_owned()));
    assert_eq!(world.kas.metric("kas_redis_degraded"), 0.0);
    eventually("kas has seen that it can be reached", || {
        world.kas.metric("kas_private_api_reachable") == 1.0
    });

    server.kill();
    eventually("kas is degraded", || readiness(&world.kas).1.contains("redis since"));
    assert!(world.kas.is_ready() && served());
    let _server = redis.start();
    eventually("kas is not degraded", || readiness(&world.kas) == (200, "ready\n".to_owned()));
}

#[test]
fn a_kas_that_shall_wait_for_its_redis_is_not_ready_and_says_for_what_it_waits() {
    let Some(redis) = Redis::or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    Tokens::make().write_identity(directory.path(), false);
    let kas = Kas::begin(directory.path(), &redis.sections(directory.path(), true));
    eventually("kas says what it waits for", || readiness(&kas).1.contains("Redis refuses connections"));
    let (status, body) = readiness(&kas);
    assert!(status == 503 && body.starts_with("not ready: waiting for Redis"), "{body}");
    let _server = redis.start();
    eventually("kas is ready", || kas.is_ready());
}

#[test]
fn a_configuration_is_tried_out_beside_replicas_that_run() {
    let Some(redis) = Redis::or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    Tokens::make().write_identity(directory.path(), false);
    let server = redis.start();
    let kas = Kas::start(directory.path(), &redis.sections(directory.path(), true));
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

    drop(server);
    let (code, said) = check();
    assert!(code == Some(69) && said.contains("redis: FAILED: Redis refuses connections"), "{said}");
}
