//! `loadtest directory`: the load of idle agents on Redis.

use serde_json::Value;

use crate::program::{programs_and_redis, run};

#[tokio::test]
async fn idle_agents_stay_within_the_limits_of_redis() {
    let Some(_) = programs_and_redis() else { return };
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let flags = format!("--count 300 --replicas 2 --duration 10s --json {}", json.display());
    let (code, out, err) = run("directory", "", &flags).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["pairs"].as_u64(), Some(600), "{report}");
    assert!(report["commands_per_second"].as_f64().unwrap() > 0.0, "{report}");
}

/// The sizes and limits are those of docs/redis.md; the command fails above them. A replica sends a heartbeat every 5 s:
/// in 30 s, two replicas send 14 at most, which is 0.467 per second.
#[tokio::test]
async fn two_replicas_with_ten_agents_stay_within_their_limits() {
    check_size("--count 10 --replicas 2 --tunnels 2 --duration 30s", 20).await;
}

#[tokio::test]
async fn ten_replicas_with_a_hundred_agents_stay_within_their_limits() {
    check_size("--count 100 --replicas 10 --tunnels 2 --duration 20s", 200).await;
}

async fn check_size(flags: &str, pairs: u64) {
    let Some(_) = programs_and_redis() else { return };
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let (code, out, err) = run("directory", "", &format!("{flags} --json {}", json.display())).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["pairs"].as_u64(), Some(pairs), "{report}");
    assert!(report["requests_per_second"].as_f64().unwrap() > 0.0, "{report}");
}
