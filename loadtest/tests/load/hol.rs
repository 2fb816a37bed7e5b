//! `loadtest hol`: readers who stopped reading, and the others.

use serde_json::{Value, json};
use tokio::{net::TcpListener, process::Command, time::timeout};

use crate::{
    program::{PATIENCE, command, run, texts},
    server::{Answer, BUSY, OK, Server},
    through::Through,
};

/// Few, short, and without an opinion on how slow is too slow: half of the requests may not even be sent.
const FLAGS: &str = "-c 2 --rate 50 --duration 300ms --warm-up 0s --allow-errors 50 --max-ratio 1000000000 --stalled 8 --rounds 2";

/// What is long never ends, and the rest is short.
fn answer(head: &str) -> Answer {
    if head.starts_with("GET /long ") { Answer::Endless } else { Answer::Say(OK) }
}

#[tokio::test]
async fn healthy_requests_go_on_through_kas_beside_readers_who_stopped() {
    let server = Server::start(|_, head| answer(head)).await;
    let Some(through) = Through::start(server.address, "/version").await else { return };
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
async fn a_dead_target_is_one_line() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let url = format!("http://{address}/x");
    let (code, out, err) = run("hol", &url, &format!("--stalled-url {url}")).await;
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("1 of 1 requests to ") && err.contains("Connection refused"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[tokio::test]
async fn a_long_answer_that_is_refused_is_asked_for_once() {
    let server = Server::start(|_, head| match answer(head) {
        Answer::Endless => Answer::Say(BUSY),
        short => short,
    });
    let server = server.await;
    let long = format!("http://{}/long", server.address);
    let (code, _, err) = run("hol", &server.url, &format!("{FLAGS} --stalled-url {long}")).await;
    assert_eq!(code, Some(1));
    assert_eq!(err, "loadtest: --stalled-url: 1 of 1 requests failed: 1 × status 503\n");
}

#[tokio::test]
async fn a_target_that_breaks_beside_stalled_readers_is_counted_by_error() {
    let server = Server::start(|nth, head| match answer(head) {
        Answer::Say(_) if nth > 20 => Answer::Say(BUSY),
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
async fn ctrl_c_ends_it_with_what_was_measured() {
    let mut server = Server::start(|_, head| answer(head)).await;
    let flags = format!("-c 2 -d 1h --warm-up 0s --stalled-url http://{}/long", server.address);
    let child = command("hol", &server.url, &flags).spawn().unwrap();
    server.requests.wait_for(|requests| *requests > 20).await.unwrap();
    let pid = child.id().unwrap().to_string();
    Command::new("kill").args(["-INT", &pid]).status().await.unwrap();
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    let (code, out, err) = texts(&output);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("stopped early") && out.contains("× 200") && !out.contains("beside"), "{out}");
}
