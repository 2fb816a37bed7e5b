//! Tunnels to version 0.1.0, which had its own implementation of HTTP/2 and WebSocket. Its bytes are recorded here.
//!
//! The files in `recorded/` hold the bytes that each end sent in five steps: the settings, a GET, a POST, an upgrade to
//! SPDY/3.1 whose bytes are echoed, and the drain of agentk.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{fs, path::Path, time::Duration};

use crate::support::{chunks, get, text};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
    time::sleep,
};
use tunnel::{
    Body, CloseReason, TunnelConfig,
    upgrade::{self, UpgradedConnection},
    websocket::{Role, WebSocket},
};

const STEPS: [&str; 5] = ["1-settings", "2-get", "3-post", "4-exec", "5-drain"];

fn recorded(end: &str, step: &str) -> Vec<u8> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/recorded");
    fs::read(directory.join(format!("{end}-{step}.bin"))).unwrap()
}

/// Waits until all tasks are idle, because the paused clock advances only then.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn kas_sends_requests_to_recorded_agentk() {
    let (kas, mut agentk) = tokio::io::duplex(1 << 20);
    let socket = WebSocket::new(kas, Bytes::new(), Role::Server);
    let (tunnel, driver) = tunnel::open(socket, &TunnelConfig::default()).await.unwrap();
    let driver = tokio::spawn(driver.run());
    settle().await;
    agentk.write_all(&recorded("agentk", STEPS[0])).await.unwrap();

    let get = tunnel.call(get("/short?x=1"));
    let (response, ()) = tokio::join!(get, async {
        settle().await;
        agentk.write_all(&recorded("agentk", STEPS[1])).await.unwrap();
    });
    let response = response.unwrap();
    assert_eq!(response.headers()["x-agent"], "recorded");
    assert_eq!(text(response).await, "short");

    let post = tunnel.call(Request::post("/echo").body(chunks(b"hello", 2)).unwrap());
    let (response, ()) = tokio::join!(post, async {
        settle().await;
        agentk.write_all(&recorded("agentk", STEPS[2])).await.unwrap();
    });
    assert_eq!(text(response.unwrap()).await, "hellohello");

    let exec = Request::post("/exec").header("connection", "upgrade").header("upgrade", "SPDY/3.1");
    let exec = tunnel.call(exec.body(Body::empty()).unwrap());
    let (response, ()) = tokio::join!(exec, async {
        settle().await;
        agentk.write_all(&recorded("agentk", STEPS[3])).await.unwrap();
    });
    let mut response = response.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let (near, mut caller) = tokio::io::duplex(64);
    let splice = tokio::spawn(upgrade::splice(upgrade::take(&mut response).unwrap(), near));
    caller.write_all(b"raw").await.unwrap();
    caller.shutdown().await.unwrap();
    let mut echoed = String::new();
    caller.read_to_string(&mut echoed).await.unwrap();
    assert_eq!(echoed, "raw");
    splice.await.unwrap().unwrap();

    // GOAWAY and PING, and, after the acknowledgement of the PING, the close frame of the WebSocket.
    let drain = recorded("agentk", STEPS[4]);
    let (goaway, close) = drain.split_at(40);
    agentk.write_all(goaway).await.unwrap();
    settle().await;
    agentk.write_all(close).await.unwrap();
    agentk.read_to_end(&mut Vec::new()).await.unwrap();
    drop(agentk);
    let ended = driver.await.unwrap();
    assert!(matches!(ended, CloseReason::Graceful), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn agentk_serves_requests_of_recorded_kas() {
    let (mut kas, agentk) = tokio::io::duplex(1 << 20);
    let socket = WebSocket::new(agentk, Bytes::new(), Role::Client);
    let (server, drain) = tunnel::accept(socket, &TunnelConfig::default());
    let (requests, mut received) = mpsc::unbounded_channel();
    let handler = move |request: Request<Body>| {
        let requests = requests.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
            let upgrade = head.headers.get("upgrade").cloned();
            requests.send((format!("{} {} {body}", head.method, head.uri), head.headers)).unwrap();
            let Some(upgrade) = upgrade else { return Response::new(Body::from(body)) };
            let (near, cluster) = tokio::io::duplex(64);
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(cluster);
                tokio::io::copy(&mut reader, &mut writer).await
            });
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("upgrade", upgrade);
            response.extensions_mut().insert(UpgradedConnection::new(near));
            response
        }
    };
    let server = tokio::spawn(server.run(move |request| {
        tokio::spawn(request.respond(handler.clone()));
    }));

    for step in &STEPS[..4] {
        kas.write_all(&recorded("kas", step)).await.unwrap();
    }
    let (get, headers) = received.recv().await.unwrap();
    assert_eq!(get, "GET /short?x=1 ");
    assert_eq!(headers["x-caller"], "recorded");
    assert_eq!(received.recv().await.unwrap().0, "POST /echo hellohello");
    let (exec, headers) = received.recv().await.unwrap();
    assert_eq!(exec, "POST /exec ");
    assert_eq!(headers["upgrade"], "SPDY/3.1");

    drain.drain(Duration::from_secs(5));
    kas.write_all(&recorded("kas", STEPS[4])).await.unwrap();
    settle().await;
    drop(kas);
    assert!(matches!(server.await.unwrap(), CloseReason::Graceful));
}
