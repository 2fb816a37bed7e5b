//! `loadtest soak` without a URL: kas, agentk and a failing cluster.

use serde_json::Value;

use crate::program::{programs, run};

#[tokio::test]
async fn soak_metrics_recover_after_faults() {
    let Some(_) = programs() else { return };
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    // Few connections: for those that agentk keeps idle, the run waits a minute until they are closed.
    let flags = format!(
        "--duration 3s --rate 50 --connections 3 --every 1s --max-growth 1000 --json {}",
        json.display()
    );
    let (code, out, err) = run("soak", "", &flags).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("| tunnels ") && out.contains("| requests in flight "), "{out}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert!(report["answered"].as_u64().unwrap() > 0 && report["failed"].as_u64().unwrap() > 0, "{report}");
    let figures = report["figures"].as_array().unwrap();
    let tunnels = figures.iter().find(|figure| figure["name"] == "tunnels").unwrap();
    assert_eq!((&tunnels["start"], &tunnels["end"]), (&2.into(), &2.into()));
}
