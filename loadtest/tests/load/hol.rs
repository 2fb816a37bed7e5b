//! `loadtest hol`: stalled readers beside other requests.

use serde_json::{Value, json};
use testing::process::{Signal, send_signal};
use tokio::{net::TcpListener, time::timeout};

use crate::{
    program::{TIMEOUT, command, run, texts},
    server::{BUSY, OK, Server, ServerAction},
    through::TunnelSetup,
};

/// A short run that does not fail because of latency or unsent requests.
const FLAGS: &str = "-c 2 --rate 50 --duration 300ms --warm-up 0s --allow-errors 50 --max-ratio 1000000000 --stalled 8 --rounds 2";

/// Sends an endless response to paths with `long`, and a short one to others.
fn answer(head: &str) -> ServerAction {
    if head.starts_with("GET /long ") { ServerAction::Endless } else { ServerAction::Respond(OK) }
}

#[tokio::test]
async fn requests_continue_beside_stalled_readers() {
    let server = Server::start(|_, head| answer(head)).await;
    let Some(through) = TunnelSetup::start(server.address, "/version").await else { return };
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let (long, token) = (through.url("/long"), through.token());
    let flags = format!("{FLAGS} --stalled-url {long} {token} --json {}", json.display());
    let (code, out, err) = run("hol", &through.url("/version"), &flags).await;
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("beside 8 stalled readers"), "{out}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["stalled"], 8);
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for half in rounds.iter().flat_map(|round| [&round["alone"], &round["beside"]]) {
        assert_eq!((&half["answers"], &half["failures"]), (&half["statuses"]["200"], &json!({})));
        assert!(half["answers"].as_u64().unwrap() > 0, "{half}");
    }
}

#[tokio::test]
async fn unreachable_target_error_is_one_line() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let url = format!("http://{address}/x");
    let (code, out, err) = run("hol", &url, &format!("--stalled-url {url}")).await;
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("1 of 1 requests to ") && err.contains("Connection refused"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[tokio::test]
async fn refused_long_response_is_requested_once() {
    let server = Server::start(|_, head| match answer(head) {
        ServerAction::Endless => ServerAction::Respond(BUSY),
        short => short,
    });
    let server = server.await;
    let long = format!("http://{}/long", server.address);
    let (code, _, err) = run("hol", &server.url, &format!("{FLAGS} --stalled-url {long}")).await;
    assert_eq!(code, Some(1));
    assert_eq!(err, "loadtest: --stalled-url: 1 of 1 requests failed: 1 × status 503\n");
}

#[tokio::test]
async fn failures_beside_stalled_readers_are_counted_by_error() {
    let server = Server::start(|nth, head| match answer(head) {
        ServerAction::Respond(_) if nth > 20 => ServerAction::Respond(BUSY),
        answer => answer,
    });
    let server = server.await;
    let long = format!("http://{}/long", server.address);
    let (code, out, err) = run("hol", &server.url, &format!("{FLAGS} --stalled-url {long}")).await;
    assert_eq!(code, Some(1));
    assert!(err.contains(" requests failed: ") && err.contains(" × status 503"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(out.contains("× 200"), "{out}");
}

#[tokio::test]
async fn ctrl_c_reports_measurements_so_far() {
    let mut server = Server::start(|_, head| answer(head)).await;
    let flags = format!("-c 2 -d 1h --warm-up 0s --stalled-url http://{}/long", server.address);
    let child = command("hol", &server.url, &flags).spawn().unwrap();
    server.requests.wait_for(|requests| *requests > 20).await.unwrap();
    send_signal(child.id().unwrap(), Signal::INT).unwrap();
    let output = timeout(TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
    let (code, out, err) = texts(&output);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("stopped early") && out.contains("× 200") && !out.contains("beside"), "{out}");
}
