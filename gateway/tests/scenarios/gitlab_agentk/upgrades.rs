//! Upgraded connections, such as `kubectl exec`.

use std::time::Duration;

use h2::Reason;
use kas_testing::{server, world::World};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::{Instant, sleep, timeout},
};

use super::{
    client::{Agentk, Call, End, ok},
    get,
    messages::{KasStep, RequestPart, data, grpc_header, grpc_trailer, head, http_trailer, upgrade_data},
};

/// Returns a caller that has sent the head of its upgrade, and bytes behind it.
async fn upgrading(world: &World, protocol: &str, early: &[u8]) -> DuplexStream {
    let mut caller = world.connect();
    let line = "POST /agents/prod/kubernetes/exec HTTP/1.1\r\nHost: kas";
    let head =
        format!("{line}\r\n{}\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n", world.authorization());
    caller.write_all(&[head.as_bytes(), early].concat()).await.unwrap();
    caller
}

/// Accepts an upgrade.
fn accept(stream: &mut Call, protocol: &str) {
    let headers = [("Connection", "Upgrade"), ("Upgrade", protocol), ("X-Stream-Protocol-Version", "v4")];
    for step in [grpc_header(), head(101, &headers), http_trailer()] {
        stream.step(step);
    }
}

async fn upgraded(world: &World, protocol: &str) -> (Agentk, Call, DuplexStream) {
    let (agentk, [mut first, second]) = Agentk::start(world).await;
    // The other stream stays open.
    std::mem::forget(second);
    let mut caller = upgrading(world, protocol, b"").await;
    first.request_body().await;
    accept(&mut first, protocol);
    let head = server::read_head(&mut caller).await;
    assert!(head.starts_with("http/1.1 101"), "{head}");
    (agentk, first, caller)
}

async fn read(caller: &mut DuplexStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    timeout(Duration::from_secs(5), caller.read_exact(&mut bytes)).await.expect("bytes arrive").unwrap();
    bytes
}

async fn next_bytes(stream: &mut Call, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        match stream.next_part().await {
            RequestPart::UpgradeData(piece) => {
                assert!(piece.data.len() <= 32 << 10);
                bytes.extend_from_slice(&piece.data);
            }
            other => panic!("{other:?}"),
        }
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn request_with_a_body_is_no_upgrade() {
    let world = World::new();
    let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
    let mut caller = world.connect();
    let head = format!(
        "DELETE /agents/prod/kubernetes/pods HTTP/1.1\r\nHost: kas\r\n{}\r\nConnection: Upgrade\r\nUpgrade: foo/1\r\n\
         Content-Length: 4\r\n\r\nbody",
        world.authorization()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    let request = first.request_body().await;
    assert_eq!(request.values("Upgrade"), [""; 0]);
    assert_eq!((request.header.content_length, request.data.concat()), (Some(4), b"body".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn bytes_pass_in_both_directions() {
    for protocol in ["SPDY/3.1", "websocket"] {
        let world = World::new();
        let (_agentk, [mut first, _second]) = Agentk::start(&world).await;
        let mut caller = upgrading(&world, protocol, b"early").await;
        let request = first.request_body().await;
        assert_eq!(request.values("Upgrade"), [protocol]);
        assert_eq!(
            request.values("Connection").iter().map(|value| value.to_lowercase()).collect::<Vec<_>>(),
            ["upgrade"]
        );
        assert_eq!(request.header.content_length, Some(0));
        assert_eq!(request.data, [b""; 0], "bytes behind the head are no body");
        accept(&mut first, protocol);
        let head = server::read_head(&mut caller).await;
        assert!(head.starts_with("http/1.1 101"), "{head}");
        assert!(head.contains(&format!("upgrade: {}\r\n", protocol.to_lowercase())), "{head}");
        assert!(head.contains("x-stream-protocol-version: v4\r\n"), "{head}");
        assert_eq!(next_bytes(&mut first, 5).await, b"early");
        first.step(upgrade_data(b"down"));
        assert_eq!(read(&mut caller, 4).await, b"down");
        let large: Vec<u8> = (0..200_000u32).map(|number| number.to_le_bytes()[0]).collect();
        let (mut reading, mut writing) = tokio::io::split(caller);
        let sent = large.clone();
        tokio::spawn(async move {
            writing.write_all(&sent).await.unwrap();
            std::future::pending::<()>().await;
        });
        assert!(next_bytes(&mut first, large.len()).await == large);
        for piece in large.chunks(30_000) {
            first.step(upgrade_data(piece));
        }
        let mut received = vec![0; large.len()];
        reading.read_exact(&mut received).await.unwrap();
        assert!(received == large);
    }
}

#[tokio::test(start_paused = true)]
async fn half_close_of_the_caller_reaches_agentk_and_silence_ends_the_connection() {
    let world = World::new();
    let (_agentk, mut stream, mut caller) = upgraded(&world, "SPDY/3.1").await;
    let started = Instant::now();
    caller.shutdown().await.unwrap();
    assert!(matches!(stream.next_step().await, KasStep::CloseSend(_)));
    // agentk goes on: the connection stays open as long as bytes arrive.
    for _ in 0..3 {
        sleep(Duration::from_secs(8)).await;
        stream.step(upgrade_data(b"x"));
        assert_eq!(read(&mut caller, 1).await, b"x");
    }
    assert!(matches!(stream.end().await, End::Status(1, _)));
    let silent = started.elapsed() - Duration::from_secs(24);
    assert!(silent <= Duration::from_secs(20), "{silent:?}");
    assert_eq!(timeout(Duration::from_secs(1), caller.read(&mut [0; 9])).await.unwrap().unwrap_or(0), 0);
}

#[tokio::test(start_paused = true)]
async fn caller_that_is_gone_ends_the_stream() {
    let world = World::new();
    let (_agentk, mut stream, caller) = upgraded(&world, "SPDY/3.1").await;
    drop(caller);
    let started = Instant::now();
    assert!(matches!(stream.any_end().await, End::Status(1, _)));
    assert!(started.elapsed() <= Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn end_of_agentk_ends_the_connection_of_the_caller() {
    for end in ["a trailer", "a reset", "a lost connection"] {
        let world = World::new();
        let (agentk, mut stream, mut caller) = upgraded(&world, "SPDY/3.1").await;
        stream.step(upgrade_data(b"last"));
        match end {
            "a trailer" => stream.finish(vec![grpc_trailer()]),
            "a reset" => {
                assert_eq!(read(&mut caller, 4).await, b"last");
                stream.reset(Reason::CANCEL);
            }
            _ => {
                assert_eq!(read(&mut caller, 4).await, b"last");
                agentk.cut();
            }
        }
        let mut rest = Vec::new();
        let closed = timeout(Duration::from_secs(5), caller.read_to_end(&mut rest)).await;
        closed.unwrap_or_else(|_| panic!("{end}: the connection stays open")).ok();
        assert_eq!(rest, if end == "a trailer" { &b"last"[..] } else { b"" }, "{end}");
        if end == "a trailer" {
            assert_eq!(stream.any_end().await, ok());
        }
    }
}

/// GitLab's agentk waits for the end of the request, and GitLab's kas for the caller: neither ends.
#[tokio::test(start_paused = true)]
async fn refused_upgrade_is_a_response_and_ends_the_stream() {
    for ends in [true, false] {
        let world = World::new();
        let (_agentk, [mut first, second]) = Agentk::start(&world).await;
        let mut caller = upgrading(&world, "websocket", b"").await;
        first.request_body().await;
        for step in [grpc_header(), head(403, &[("Content-Length", "2")]), data(b"no"), http_trailer()] {
            first.step(step);
        }
        let head = server::read_head(&mut caller).await;
        assert!(head.starts_with("http/1.1 403"), "{head}");
        assert_eq!(read(&mut caller, 2).await, b"no");
        assert!(matches!(first.next_step().await, KasStep::CloseSend(_)));
        if ends {
            first.finish(vec![grpc_trailer()]);
        }
        assert_eq!(first.end().await, ok());
        let calling = get(&world, "/next");
        second.serve().await;
        assert_eq!(calling.await.unwrap().0, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn upgrade_whose_stream_is_lost_is_not_repeated() {
    let world = World::new();
    let (_agentk, [mut first, mut second]) = Agentk::start(&world).await;
    let mut caller = upgrading(&world, "SPDY/3.1", b"").await;
    first.request_body().await;
    first.step(grpc_header());
    first.reset(Reason::INTERNAL_ERROR);
    let head = server::read_head(&mut caller).await;
    assert!(head.starts_with("http/1.1 502"), "{head}");
    assert!(
        timeout(Duration::from_secs(5), second.next_step()).await.is_err(),
        "the command is not executed twice"
    );
}
