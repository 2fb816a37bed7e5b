//! `loadtest upgrade`: sessions of exec and port-forward.

use serde_json::Value;
use testing::{
    process::{Signal, send_signal},
    simulator::Simulator,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{
    program::{TIMEOUT, command, run, texts},
    server::{BUSY, OK, Server, ServerAction},
    through::TunnelSetup,
};

const SHORT: &str = "-c 2 --duration 300ms --warm-up 0s";
/// A response with status 101. `Sec-WebSocket-Accept` is not checked.
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Returns the path of a pod of the simulated cluster.
async fn pod(simulator: &Simulator) -> String {
    let mut stream = TcpStream::connect(simulator.address()).await.unwrap();
    let path = "/api/v1/namespaces/demo/pods";
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let list: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    format!("{path}/{}", list["items"][0]["metadata"]["name"].as_str().unwrap())
}

#[tokio::test]
async fn sessions_echo_through_kas() {
    let simulator = Simulator::start("127.0.0.1:0".parse().unwrap()).unwrap();
    let Some(through) = TunnelSetup::start(simulator.address(), "/version").await else { return };
    let pod = pod(&simulator).await;
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let cat = "exec?command=cat&stdin=true&stdout=true";
    for (what, echo) in [
        ("exec?command=true&stdout=true", None),
        (cat, Some(1)),
        (cat, Some(100_000)),
        ("portforward?ports=7", Some(1)),
        ("portforward?ports=7", Some(100_000)),
    ] {
        let flags = echo.map_or_else(String::new, |bytes| format!("--echo {bytes}"));
        let flags = format!("{SHORT} {flags} {} --json {}", through.token(), json.display());
        let (code, _, err) = run("upgrade", &through.url(&format!("{pod}/{what}")), &flags).await;
        assert_eq!((code, err.as_str()), (Some(0), ""), "{what}");
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        assert!(report["answers"].as_u64().unwrap() > 0, "{what}: {report}");
        assert_eq!(report["answers"], report["statuses"]["101"], "{what}");
        let bytes = report["megabytes_per_second"].as_f64().unwrap();
        assert_eq!(bytes > 0.0, echo.is_some(), "{what}: {report}");
    }
    simulator.shutdown().await;
}

#[tokio::test]
async fn command_without_echo_error_is_one_line() {
    let simulator = Simulator::start("127.0.0.1:0".parse().unwrap()).unwrap();
    let pod = format!("http://{}{}", simulator.address(), pod(&simulator).await);
    for (what, why) in [
        ("exec?command=true&stdin=true&stdout=true", "the session ended: "),
        ("exec?command=none&stdin=true&stdout=true", "executable file not found"),
        ("exec?stdin=true&stdout=true", "status 400 instead of 101"),
        ("exec?command=echo&command=hi&stdin=true&stdout=true", "this is no echo"),
        ("portforward", "status 400 instead of 101"),
    ] {
        let (code, out, err) = run("upgrade", &format!("{pod}/{what}"), "--echo 1").await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "{what}");
        assert!(err.starts_with("loadtest: 1 of 1 requests to ") && err.contains(why), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    simulator.shutdown().await;
}

#[tokio::test]
async fn target_without_upgrade_receives_one_request() {
    for (answer, status) in [(OK, 200), (BUSY, 503)] {
        for flags in ["", "--echo 1"] {
            let server = Server::start(move |_, _| ServerAction::Respond(answer)).await;
            let (code, _, err) = run("upgrade", &server.url, flags).await;
            assert_eq!(code, Some(1));
            assert!(err.contains(&format!("status {status}")) && err.lines().count() == 1, "{err}");
            assert_eq!(*server.requests.borrow(), 1);
        }
    }
}

#[tokio::test]
async fn unreachable_or_silent_target_is_an_error() {
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = Server::start(|_, _| ServerAction::Ignore).await;
    for flags in ["--timeout 100ms", "--timeout 100ms --echo 1"] {
        let (code, _, err) = run("upgrade", &format!("http://{dead}/x"), flags).await;
        assert!(code == Some(1) && err.contains("Connection refused"), "{err}");
        let (code, _, err) = run("upgrade", &silent.url, flags).await;
        assert!(code == Some(1) && err.contains("no response in time"), "{err}");
    }
}

#[tokio::test]
async fn later_refusals_are_counted_by_error() {
    let server = Server::start(|nth, _| ServerAction::Respond(if nth < 10 { SWITCHED } else { BUSY })).await;
    let (code, out, err) = run("upgrade", &server.url, &SHORT.replace("-c 2", "-c 1")).await;
    assert_eq!(code, Some(1));
    assert!(err.contains(" requests failed: ") && err.contains(" × status 503"), "{err}");
    assert!(err.lines().count() == 1 && out.contains("9 × 101"), "{err}{out}");
}

#[tokio::test]
async fn ctrl_c_reports_measurements_so_far() {
    let mut server = Server::start(|_, _| ServerAction::Respond(SWITCHED)).await;
    let child = command("upgrade", &server.url, "-c 2 -d 1h --warm-up 0s").spawn().unwrap();
    server.requests.wait_for(|requests| *requests > 20).await.unwrap();
    send_signal(child.id().unwrap(), Signal::INT).unwrap();
    let output = timeout(TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
    let (code, out, err) = texts(&output);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("stopped early") && out.contains("× 101"), "{out}");
}
