//! `loadtest http`: reports and failures.

use testing::process::{Signal, send_signal};
use tokio::{net::TcpListener, time::timeout};

use crate::{
    program::{TIMEOUT, command, run, texts},
    server::{BUSY, OK, Server, ServerAction},
};

#[tokio::test]
async fn healthy_target_gives_table_json_and_plot() {
    let server = Server::start(|_, _| ServerAction::Respond(OK)).await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let flags = format!(
        "-c 4 --duration 300ms --warm-up 0s --json {} --svg {}",
        path("report.json"),
        path("plot.svg")
    );
    let (code, out, err) = run("http", &server.url, &flags).await;
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("4 connections for 0.300 s") && out.contains("× 200"), "{out}");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path("report.json")).unwrap()).unwrap();
    assert_eq!(json["statuses"]["200"], json["answers"]);
    assert!(json["answers"].as_u64().unwrap() > 0 && json["latency_ms"]["p99"].is_f64());
    // The first request is a check and is not counted.
    assert_eq!(*server.requests.borrow() as u64, json["answers"].as_u64().unwrap() + 1);
    assert!(std::fs::read_to_string(path("plot.svg")).unwrap().starts_with("<svg"));
}

#[tokio::test]
async fn unreachable_target_error_is_one_line() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (code, out, err) = run("http", &format!("http://{address}/x"), "").await;
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.starts_with("loadtest: 1 of 1 requests to ") && err.contains("Connection refused"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[tokio::test]
async fn refusing_target_receives_one_request() {
    let server = Server::start(|_, _| ServerAction::Respond(BUSY)).await;
    let (code, _, err) = run("http", &server.url, "").await;
    assert_eq!(code, Some(1));
    assert!(err.contains("status 503; nothing else was sent"), "{err}");
    assert_eq!(*server.requests.borrow(), 1);
}

#[tokio::test]
async fn silent_target_times_out() {
    let server = Server::start(|_, _| ServerAction::Ignore).await;
    let (code, _, err) = run("http", &server.url, "--timeout 100ms").await;
    assert_eq!(code, Some(1));
    assert!(err.contains("no response in time"), "{err}");
}

#[tokio::test]
async fn later_failures_are_counted_by_error() {
    let server = Server::start(|nth, _| match nth {
        0..=50 => ServerAction::Respond(OK),
        51..=53 => ServerAction::Respond(BUSY),
        54..=55 => ServerAction::Close,
        _ => ServerAction::Respond("nonsense\r\n\r\n"),
    });
    let server = server.await;
    let (code, out, err) = run("http", &server.url, "-c 1 --duration 300ms --warm-up 0s").await;
    assert_eq!(code, Some(1));
    assert!(err.contains("requests failed") && err.contains("3 × status 503"), "{err}");
    assert!(err.contains("2 × connection closed before the end of the response"), "{err}");
    assert!(err.contains("× not HTTP/1.1") && err.lines().count() == 1, "{err}");
    assert!(out.contains("50 × 200"), "{out}");
}

#[tokio::test]
async fn open_loop_shows_a_stall() {
    let server =
        Server::start(|nth, _| if nth < 5 { ServerAction::Respond(OK) } else { ServerAction::Ignore }).await;
    let flags = "-c 1 --rate 100 --duration 1s --warm-up 0s --timeout 2s";
    let (code, out, err) = run("http", &server.url, flags).await;
    assert_eq!(code, Some(1));
    assert!(err.contains("× due but never sent") && err.contains("1 × no response in time"), "{err}");
    // Four requests succeeded at once; most others were never sent, and determine the median.
    let row = out.lines().find(|line| line.starts_with("| 4 ")).unwrap();
    let median: f64 = row.split('|').nth(5).unwrap().trim().parse().unwrap();
    assert!(median > 100.0, "{out}");
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let elsewhere = Server::start(|_, _| ServerAction::Respond(OK)).await;
    let location = format!("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", elsewhere.url);
    let location: &'static str = location.leak();
    let server = Server::start(move |_, _| ServerAction::Respond(location)).await;
    let (code, out, _) = run("http", &server.url, "-c 1 --duration 100ms --warm-up 0s").await;
    assert!(code == Some(0) && out.contains("× 302"), "{out}");
    assert_eq!(*elsewhere.requests.borrow(), 0);
}

#[tokio::test]
async fn ctrl_c_reports_measurements_so_far() {
    let mut server = Server::start(|_, _| ServerAction::Respond(OK)).await;
    let child = command("http", &server.url, "-c 2 --duration 1h --warm-up 0s").spawn().unwrap();
    server.requests.wait_for(|requests| *requests > 100).await.unwrap();
    send_signal(child.id().unwrap(), Signal::INT).unwrap();
    let output = timeout(TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
    let (code, out, err) = texts(&output);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("stopped early") && out.contains("× 200"), "{out}");
}
