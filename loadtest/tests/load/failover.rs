//! `loadtest failover`: faults, reports and Ctrl-C.

use serde_json::Value;
use testing::process::{Signal, send_signal};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    time::timeout,
};

use crate::program::{TIMEOUT, command, programs_and_redis, run};

#[tokio::test]
async fn failed_requests_are_reported_by_fault() {
    let Some(_) = programs_and_redis() else { return };
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let flags = format!(
        "--fault sigkill --fault redis-kill --replicas 2 --agents 1 --rate 20 --lasting 1s --redis-down 1s --after 1s --seed 7 --json {}",
        json.display()
    );
    let (code, out, err) = run("failover", "", &flags).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("| SIGKILL ") && out.contains("| Redis kill "), "{out}");
    assert!(
        out.contains("failed: no complete response in time"),
        "the report defines a failed request: {out}"
    );
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((&report["seed"], &report["replicas"]), (&7.into(), &2.into()));
    for fault in report["faults"].as_array().unwrap() {
        assert_eq!(fault["tunnels_at_stake"], 1, "an agent has a tunnel to each replica: {report}");
        assert!(fault["sent"].as_u64().unwrap() >= 80, "{report}");
        assert_eq!(fault["within_target"], true, "{report}");
    }
}

#[tokio::test]
async fn ctrl_c_stops_all_processes() {
    let Some(_) = programs_and_redis() else { return };
    let flags = "--fault sigstop --replicas 2 --agents 1 --rate 20 --lasting 1h --seed 7";
    let mut child = command("failover", "", flags).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    timeout(TIMEOUT, out.read_line(&mut line)).await.unwrap().unwrap();
    assert!(line.starts_with("SIGSTOP: 2 replicas; "), "{line}");
    send_signal(child.id().unwrap(), Signal::INT).unwrap();
    let mut rest = String::new();
    timeout(TIMEOUT, out.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
    assert_eq!(rest, "stopped early\n");
}
