//! Tests of requests that are sent a second time.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::{Method, Request};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex},
    time::{advance, pause, resume},
};
use tunnel::Body;

use super::{
    super::{Upstream, UpstreamConfig, UpstreamError},
    get, idle, pooled,
    server::{OK, Server, answer, head},
    soon, text, upstream,
};

const IDLE: Duration = Duration::from_secs(2);

fn request(method: Method, body: &'static str) -> Request<Body> {
    Request::builder().method(method).uri("/").body(Body::from(body)).unwrap()
}

/// Returns an upstream with pooled connections that have been unused for `idle`, and the server's ends of them. The last one
/// is used first.
async fn with_pooled_connections(
    server: &Server,
    count: usize,
    idle: Duration,
) -> (Upstream, Vec<DuplexStream>) {
    let upstream = upstream(&server.url, UpstreamConfig::default());
    let mut ends = Vec::new();
    for _ in 0..count {
        let (client, end) = duplex(1024);
        pooled(&upstream, client).await;
        ends.push(end);
    }
    pause();
    advance(idle).await;
    resume();
    (upstream, ends)
}

async fn with_pooled_connection(server: &Server, idle: Duration) -> (Upstream, DuplexStream) {
    let (upstream, mut ends) = with_pooled_connections(server, 1, idle).await;
    (upstream, ends.pop().unwrap())
}

/// Sends a request on a pooled connection; the server reads its head, writes `partial` and closes.
async fn send_and_close(
    (upstream, mut end): (Upstream, DuplexStream),
    request: Request<Body>,
    partial: &str,
) -> Result<String, UpstreamError> {
    let closing = async {
        let head = head(&mut end).await.unwrap();
        end.write_all(partial.as_bytes()).await.unwrap();
        drop(end);
        head
    };
    let (response, _) = soon(async { tokio::join!(upstream.send(request), closing) }).await;
    Ok(text(response?).await)
}

#[tokio::test]
async fn connection_that_was_closed_before_the_request_is_replaced() {
    let server = Server::answering(OK).await;
    let (upstream, end) = with_pooled_connection(&server, Duration::ZERO).await;
    drop(end);
    assert_eq!(text(soon(upstream.send(request(Method::POST, "body"))).await.unwrap()).await, "ok");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn open_pooled_connection_is_used_after_closed_ones() {
    let server = Server::answering(OK).await;
    let (upstream, mut ends) = with_pooled_connections(&server, 4, Duration::ZERO).await;
    ends.truncate(1);
    let mut open = ends.pop().unwrap();
    let sending = upstream.send(request(Method::POST, "body"));
    let (response, _) = soon(async { tokio::join!(sending, answer(&mut open, OK)) }).await;
    assert_eq!(text(response.unwrap()).await, "ok");
    assert_eq!(server.connections(), 0, "no connection is opened while one is open");
    idle(&upstream, 1).await;
}

/// More connections than tokio lets one task read without a pause.
#[tokio::test]
async fn request_reaches_a_server_that_has_closed_hundreds_of_connections() {
    let server = Server::answering(OK).await;
    let (upstream, ends) = with_pooled_connections(&server, 300, Duration::ZERO).await;
    drop(ends);
    let timeout = Some(Duration::from_secs(60));
    let response = soon(upstream.send_within(timeout, request(Method::POST, "body"))).await.unwrap();
    assert_eq!(text(response).await, "ok");
    assert_eq!(server.connections(), 1);
    idle(&upstream, 1).await;
}

/// The server closes the connection before hyper writes.
#[tokio::test]
async fn request_that_hyper_returns_unsent_is_sent_on_a_new_connection() {
    struct EndsAtRead;

    impl AsyncRead for EndsAtRead {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for EndsAtRead {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            panic!("nothing is written on a closed connection")
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    let server = Server::answering(OK).await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    pooled(&upstream, EndsAtRead).await;
    assert_eq!(text(soon(upstream.send(request(Method::POST, "body"))).await.unwrap()).await, "ok");
    assert_eq!(server.connections(), 1);
}

/// hyper finds the bytes before it takes the request, so that they are not the response to it.
#[tokio::test]
async fn response_that_was_sent_before_the_request_is_discarded() {
    let server = Server::answering(OK).await;
    let (upstream, mut end) = with_pooled_connection(&server, Duration::ZERO).await;
    end.write_all(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    assert_eq!(text(soon(upstream.send(request(Method::POST, "body"))).await.unwrap()).await, "ok");
    let mut received = Vec::new();
    end.read_to_end(&mut received).await.unwrap();
    assert_eq!((received.len(), server.connections()), (0, 1));
}

#[tokio::test]
async fn safe_request_on_a_stale_connection_is_sent_again() {
    for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
        let server = Server::answering("HTTP/1.1 204 No Content\r\n\r\n").await;
        let stale = with_pooled_connection(&server, IDLE).await;
        assert_eq!(send_and_close(stale, request(method, ""), "").await.unwrap(), "");
        assert_eq!(server.connections(), 1);
    }
}

/// The other pooled connection has been unused for longer, and there is no third attempt.
#[tokio::test]
async fn request_that_was_sent_is_sent_again_on_a_new_connection_only() {
    let server = Server::answering(OK).await;
    let (upstream, mut ends) = with_pooled_connections(&server, 2, IDLE).await;
    let stale = (upstream.clone(), ends.pop().unwrap());
    assert_eq!(send_and_close(stale, get("/"), "").await.unwrap(), "ok");
    assert_eq!(server.connections(), 1);
    drop(upstream);
    let mut received = Vec::new();
    soon(ends[0].read_to_end(&mut received)).await.unwrap();
    assert_eq!(received, b"");
}

#[tokio::test]
async fn request_that_may_have_had_an_effect_is_not_sent_again() {
    let upgrade = |protocol: &'static str| {
        let mut upgrade = get("/exec");
        upgrade.headers_mut().insert("upgrade", protocol.parse().unwrap());
        upgrade
    };
    for (request, idle, partial) in [
        (request(Method::POST, ""), IDLE, ""),
        (request(Method::DELETE, ""), IDLE, ""),
        (request(Method::GET, "body"), IDLE, ""),
        (upgrade("SPDY/3.1"), IDLE, ""),
        (upgrade("websocket"), IDLE, ""),
        (request(Method::GET, ""), Duration::ZERO, ""),
        (request(Method::GET, ""), IDLE, "HTTP/1.1 200"),
    ] {
        let server = Server::answering(OK).await;
        let what = format!("{request:?} after {idle:?}, {partial:?}");
        let stale = with_pooled_connection(&server, idle).await;
        let error = send_and_close(stale, request, partial).await.unwrap_err();
        assert!(matches!(error, UpstreamError::ClosedBeforeResponse { .. }), "{what}: {error}");
        assert_eq!(server.connections(), 0, "{what}");
    }
}

#[tokio::test]
async fn request_is_sent_twice_at_most() {
    let server = Server::start(|mut stream, _| async move {
        head(&mut stream).await.unwrap();
    })
    .await;
    let stale = with_pooled_connection(&server, IDLE).await;
    let error = send_and_close(stale, get("/"), "").await.unwrap_err();
    assert!(matches!(error, UpstreamError::ClosedBeforeResponse { .. }), "{error}");
    assert_eq!(server.connections(), 1);
}
