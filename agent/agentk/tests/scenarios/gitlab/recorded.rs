//! Tests with messages of GitLab's kas, as a recorder has stored them; see `tests/fixtures/gitlab`.

use std::time::Duration;

use agentk_core::Services;
use http::{Request, Response, StatusCode};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
    time::{sleep, timeout},
};
use tunnel::{Body, upgrade::UpgradedConnection};

use super::{config, configurable, connect, echo};
use crate::support::{
    gitlab_kas::{GitLabKas, Step},
    protobuf::Message,
    start,
};

macro_rules! recorded {
    ($name:literal) => {
        messages(include_bytes!(concat!("../../fixtures/gitlab/", $name, ".bin")))
    };
}

fn messages(mut bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (message, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        messages.push(Message::decode(message));
        bytes = rest;
    }
    messages
}

#[tokio::test(start_paused = true)]
async fn recorded_get_is_served() {
    let (_agent, _kas, mut connection) = connect(echo()).await;
    let mut stream = connection.stream().await;
    for message in recorded!("get-version") {
        stream.send(message);
    }
    assert_eq!(stream.response().await, (200, "GET /version none none ".into()));
    stream.end(0);
}

#[tokio::test(start_paused = true)]
async fn recorded_upload_in_pieces_is_served() {
    let (_agent, _kas, mut connection) = connect(echo()).await;
    let mut stream = connection.stream().await;
    for message in recorded!("post-chunked") {
        stream.send(message);
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(stream.response().await, (200, "POST /upload none none firstsecondthird".into()));
    stream.end(0);
}

#[tokio::test(start_paused = true)]
async fn recorded_identity_of_a_job_is_impersonated() {
    let services = Services::new().with_fn("kubernetes", |request: Request<Body>| async move {
        let fields = request.headers().iter().filter(|(name, _)| name.as_str().starts_with("impersonate-"));
        let mut lines: Vec<_> =
            fields.map(|(name, value)| format!("{name}: {}", value.to_str().expect("ASCII"))).collect();
        lines.sort();
        Response::new(Body::from(lines.join("\n")))
    });
    let (_agent, _kas, mut connection) = connect(services).await;
    let mut stream = connection.stream().await;
    for message in recorded!("impersonation") {
        stream.send(message);
    }
    let (status, body) = stream.response().await;
    assert_eq!(status, 200);
    for line in [
        "impersonate-user: gitlab:ci_job:3",
        "impersonate-group: gitlab:ci_job",
        "impersonate-group: gitlab:project_env:10:production",
        "impersonate-extra-agent.gitlab.com%2fid: 1",
    ] {
        assert!(body.lines().any(|actual| actual == line), "{line} in {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn recorded_upgrade_is_served_to_its_half_close() {
    let (sender, mut ends) = mpsc::unbounded_channel();
    let services = Services::new().with_fn("kubernetes", move |request: Request<Body>| {
        assert_eq!(request.uri().path(), "/ws");
        assert_eq!(request.headers()["sec-websocket-key"], "dGhlIHNhbXBsZSBub25jZQ==");
        let (near, far) = tokio::io::duplex(1024);
        sender.send(far).expect("the test runs");
        async move {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("upgrade", "websocket".parse().expect("a value"));
            response.extensions_mut().insert(UpgradedConnection::new(near));
            response
        }
    });
    let (_agent, _kas, mut connection) = connect(services).await;
    let mut stream = connection.stream().await;
    for message in recorded!("upgrade-websocket") {
        stream.send(message);
    }
    assert_eq!(stream.response_head().await.0, 101);
    assert_eq!(stream.response_part().await, (3, Message::new()));
    let mut cluster = ends.recv().await.unwrap();
    let mut frames = Vec::new();
    timeout(Duration::from_secs(1), cluster.read_to_end(&mut frames)).await.unwrap().unwrap();
    // Two masked text frames, of 5 and 6 letters.
    assert_eq!((frames.len(), frames[0], frames[11]), (11 + 12, 0x81, 0x81));
    cluster.write_all(b"answer").await.unwrap();
    drop(cluster);
    assert_eq!(stream.response_data(4).await, b"answer");
    assert_eq!(stream.step().await, Step::Trailer(Message::new()));
    assert_eq!(stream.step().await, Step::End);
}

#[tokio::test(start_paused = true)]
async fn recorded_configurations_are_applied() {
    let (services, mut updates) = configurable();
    let (mut kas, dial) = GitLabKas::grpc();
    let _agent = start(config(), dial, services);
    let mut connection = kas.connection().await;
    let mut stream = connection.configurations.recv().await.unwrap();
    for message in recorded!("configuration-change") {
        stream.send(message);
    }
    for (digit, level) in
        [("1", "debug".into()), ("2", serde_json::Value::Null), ("3", serde_json::Value::Null)]
    {
        let update = updates.recv().await.unwrap();
        assert_eq!(update["version"], digit.repeat(40));
        assert_eq!(update["configuration"]["observability"]["logging"]["level"], level);
    }
}
