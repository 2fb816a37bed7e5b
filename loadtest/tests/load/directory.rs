//! `loadtest directory`: the load of idle agents on Redis.

use serde_json::Value;

use crate::program::{programs_and_redis, run};

#[tokio::test]
async fn idle_agents_stay_within_the_limits_of_redis() {
    let Some(_) = programs_and_redis() else { return };
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let flags = format!("--count 300 --replicas 2 --duration 6s --json {}", json.display());
    let (code, out, err) = run("directory", "", &flags).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert!((300..=600).contains(&report["pairs"].as_u64().unwrap()), "{report}");
    assert!(report["commands_per_second"].as_f64().unwrap() > 0.0, "{report}");
}
