//! The reason with which each end of a tunnel closes.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use crate::support::{endless, get, pair};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::Response;
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{CloseFrame, Role as TheirRole, frame::coding::CloseCode},
    },
};
use tunnel::{
    Body, CloseReason, TunnelConfig, forward_write,
    websocket::{Role, WebSocket},
};

/// The first bytes of an HTTP/2 client: its preface and empty SETTINGS (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// kas's end of a tunnel, and the WebSocket of the other end.
async fn kas() -> (JoinHandle<CloseReason>, WebSocketStream<DuplexStream>) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let socket = WebSocket::new(ours, Bytes::new(), Role::Server);
    let (tunnel, driver) = tunnel::open(socket, &TunnelConfig::default()).await.unwrap();
    let running = tokio::spawn(async move {
        let _tunnel = tunnel;
        driver.run().await
    });
    (running, WebSocketStream::from_raw_socket(theirs, TheirRole::Client, None).await)
}

/// agentk's end of a tunnel, and the WebSocket of the other end.
async fn agentk() -> (JoinHandle<CloseReason>, WebSocketStream<DuplexStream>) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    agentk_on(ours, theirs).await
}

/// The same on a byte stream of the caller.
async fn agentk_on(
    ours: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    theirs: DuplexStream,
) -> (JoinHandle<CloseReason>, WebSocketStream<DuplexStream>) {
    let socket = WebSocket::new(ours, Bytes::new(), Role::Client);
    let (server, drain) = tunnel::accept(socket, &TunnelConfig::default());
    let running = tokio::spawn(async move {
        let _drain = drain;
        server.run(drop).await
    });
    let mut theirs = WebSocketStream::from_raw_socket(theirs, TheirRole::Server, None).await;
    theirs.send(Message::binary(PREFACE)).await.unwrap();
    // The SETTINGS and the first PING of agentk are sent while the clock is paused.
    sleep(Duration::from_secs(1)).await;
    (running, theirs)
}

/// A stream whose end is an error, as that of TLS without `close_notify`.
struct Truncated {
    inner: DuplexStream,
}

impl AsyncRead for Truncated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let ended = buffer.filled().len() == before;
        Poll::Ready(if ended { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) })
    }
}

impl AsyncWrite for Truncated {
    forward_write!(inner);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

fn close(code: CloseCode) -> Option<CloseFrame> {
    Some(CloseFrame { code, reason: "".into() })
}

#[tokio::test(start_paused = true)]
async fn killed_agent_is_lost_with_idle_time() {
    let pair = pair(|_| async { Response::new(Body::empty()) }).await;
    sleep(Duration::from_secs(10)).await;
    pair.agent.abort();
    let ended = pair.kas.await.unwrap();
    assert!(matches!(ended, CloseReason::Lost { silence, .. } if silence.as_secs() == 10), "{ended:?}");
    assert!(ended.to_string().starts_with("connection lost after 10.0s without a byte: "), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn killed_kas_is_lost() {
    let pair = pair(|_| async { Response::new(Body::empty()) }).await;
    pair.kas.abort();
    let ended = pair.agent.await.unwrap();
    assert!(matches!(ended, CloseReason::Lost { .. }), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn killed_kas_behind_tls_is_lost() {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (running, kas) = agentk_on(Truncated { inner: ours }, theirs).await;
    drop(kas);
    let ended = running.await.unwrap();
    assert!(matches!(ended, CloseReason::Lost { .. }), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn agent_killed_after_goaway_is_graceful() {
    let pair = pair(|_| async { Response::new(endless("watching")) }).await;
    let mut body = pair.tunnel.call(get("/")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    pair.drain.drain(Duration::from_secs(60));
    sleep(Duration::from_secs(1)).await;
    pair.agent.abort();
    let ended = pair.kas.await.unwrap();
    assert!(matches!(ended, CloseReason::Graceful), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn kas_with_close_frame_and_no_goaway_is_lost() {
    for code in [CloseCode::Normal, CloseCode::Away] {
        let (running, mut proxy) = kas().await;
        proxy.close(close(code)).await.unwrap();
        let ended = running.await.unwrap();
        assert!(matches!(ended, CloseReason::Lost { .. }), "{code}: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn agent_with_close_frame_is_graceful_only_after_normal_closure() {
    for (code, graceful) in [(CloseCode::Normal, true), (CloseCode::Away, false)] {
        let (running, mut proxy) = agentk().await;
        proxy.close(close(code)).await.unwrap();
        let ended = running.await.unwrap();
        assert_eq!(matches!(ended, CloseReason::Graceful), graceful, "{code}: {ended:?}");
        assert_eq!(matches!(ended, CloseReason::Lost { .. }), !graceful, "{code}: {ended:?}");
    }
}

/// A proxy may answer WebSocket pings itself, long after the end behind it is gone.
#[tokio::test(start_paused = true)]
async fn pongs_without_http2_do_not_prevent_timeout() {
    let (running, mut proxy) = kas().await;
    let answering = tokio::spawn(async move {
        let mut pings = 0;
        while let Some(Ok(message)) = proxy.next().await {
            pings += usize::from(message.is_ping());
        }
        pings
    });
    let ended = timeout(Duration::from_secs(51), running).await.unwrap().unwrap();
    assert!(matches!(ended, CloseReason::TimedOut), "{ended:?}");
    assert!(answering.await.unwrap() > 0, "pings were sent, and tungstenite answers them");
}

#[tokio::test(start_paused = true)]
async fn close_frame_without_answer_is_awaited_for_half_a_minute() {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    let mut socket = WebSocket::new(ours, Bytes::new(), Role::Server);
    let closing = tokio::spawn(async move { socket.shutdown().await });
    let received = theirs.read_u8().await.unwrap();
    assert_eq!(received, 0x88, "a close frame");
    sleep(Duration::from_secs(29)).await;
    assert!(!closing.is_finished());
    timeout(Duration::from_secs(2), closing).await.unwrap().unwrap().unwrap();
}

/// The freeze follows a byte, at any moment between two pings.
#[tokio::test(start_paused = true)]
async fn frozen_end_is_detected_within_thirty_seconds() {
    /// A WINDOW_UPDATE of the connection.
    const ALIVE: &[u8] = &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    for end in ["kas", "agentk"] {
        for seconds in 1..22 {
            let (running, mut frozen) = if end == "kas" { kas().await } else { agentk().await };
            // The first ping is sent before the first byte.
            sleep(Duration::from_secs(1)).await;
            for _ in 0..2 {
                frozen.send(Message::binary(ALIVE)).await.unwrap();
                sleep(Duration::from_secs(seconds)).await;
            }
            frozen.send(Message::binary(ALIVE)).await.unwrap();
            let froze = Instant::now();
            let ended = running.await.unwrap();
            assert!(matches!(ended, CloseReason::TimedOut), "{end}: {ended:?}");
            let after = froze.elapsed();
            let expected = Duration::from_secs(29)..Duration::from_millis(30_100);
            assert!(expected.contains(&after), "{end}, {seconds} s after a byte: {after:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn closed_end_reads_one_mebibyte_at_most() {
    let (ours, mut theirs) = tokio::io::duplex(64 << 10);
    let mut socket = WebSocket::new(ours, Bytes::new(), Role::Server);
    let closing = tokio::spawn(async move { socket.shutdown().await });
    // Messages of one kibibyte, with a mask of zeros.
    let message = [&[0x82, 0xfe, 4, 0, 0, 0, 0, 0][..], &[7; 1024]].concat();
    let started = Instant::now();
    let mut sent = 0;
    while theirs.write_all(&message).await.is_ok() {
        sent += message.len();
        assert!(sent < 2 << 20, "the other end still reads");
    }
    assert!(sent >= 1 << 20, "{sent} bytes: the rest of what was on the way is read");
    closing.await.unwrap().unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
}
