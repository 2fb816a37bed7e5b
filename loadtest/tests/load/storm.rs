//! `loadtest storm`: agents reconnect after kas was killed.

use serde_json::Value;
use testing::process::{Signal, send_signal};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    time::timeout,
};

use crate::program::{TIMEOUT, command, programs, programs_and_redis, run};

#[tokio::test]
async fn agents_reconnect_after_kas_was_killed() {
    let Some(_) = programs() else { return };
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let flags = format!("--count 20 --outage 100ms --tls --json {}", json.display());
    let (code, out, err) = run("storm", "", &flags).await;
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("20 tunnels are up; kas is killed now"), "{out}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((&report["back"]["lost"], &report["back"]["missing"]), (&20.into(), &0.into()), "{report}");
    assert!(report["back"]["all"].is_f64(), "{report}");
}

#[tokio::test]
async fn agents_of_a_killed_replica_reconnect_within_the_rate_limit() {
    let Some(_) = programs_and_redis() else { return };
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let flags = format!("--count 40 --replicas 2 --rate 20 --notice 100ms --json {}", json.display());
    let (code, out, err) = run("storm", "", &flags).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let back = &report["back"];
    assert!(back["lost"].as_u64().unwrap() >= 20 && back["missing"] == 0, "{report}");
    assert!(
        back["busiest_second"].as_u64().unwrap() <= 40,
        "as many at once as in a second, and those: {report}"
    );
    assert!(report["redis_commands"].as_u64().unwrap() > 0, "{report}");
}

#[tokio::test]
async fn late_agents_error_is_one_line() {
    let Some(_) = programs() else { return };
    let (code, _, err) = run("storm", "", "--count 5 --timeout 0s").await;
    assert_eq!(code, Some(1));
    assert!(err.starts_with("loadtest: ") && err.contains(" of 5 tunnels came up"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[tokio::test]
async fn ctrl_c_during_the_outage_reports_so_far() {
    let Some(_) = programs() else { return };
    let mut child = command("storm", "", "--count 5 --outage 1h").spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    timeout(TIMEOUT, out.read_line(&mut line)).await.unwrap().unwrap();
    assert!(line.starts_with("5 tunnels are up"), "{line}");
    send_signal(child.id().unwrap(), Signal::INT).unwrap();
    let mut rest = String::new();
    timeout(TIMEOUT, out.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
    assert!(rest.contains("| never") && rest.contains("stopped early"), "{rest}");
}
