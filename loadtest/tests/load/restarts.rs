//! `loadtest restarts`: a single kas that restarts under load.

use serde_json::Value;

use crate::program::{programs, run};

#[tokio::test]
async fn restarts_are_counted_and_agent_reconnects() {
    let Some(_) = programs() else { return };
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let (code, out, err) =
        run("restarts", "", &format!("--count 2 --every 1s --clients 2 --json {}", json.display())).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("| 2        |") && out.contains("refused: no process listened"), "{out}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((&report["restarts"], &report["interrupted"]), (&2.into(), &false.into()));
    assert!(report["answered"].as_u64().unwrap() > 0, "{report}");
    assert!(report["back_seconds"].as_f64().unwrap() > 0.0, "{report}");
}
