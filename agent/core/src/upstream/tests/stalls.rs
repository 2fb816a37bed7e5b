//! Tests of servers that stop reading, or never answer.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

use super::{
    super::{Upstream, UpstreamConfig, UpstreamError},
    get, idle, pooled,
    server::{OK, answer, head},
    text, upstream,
};

const UPLOAD: usize = 3_500_000;
/// The capacity of the pipe between client and server, in bytes.
const PIPE: usize = 1024;

/// Returns a request whose body has many frames, like one from the tunnel.
fn upload() -> Request<Body> {
    let frames =
        (0..UPLOAD / 1000).map(|_| Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![b'x'; 1000]))));
    let body = StreamBody::new(futures_util::stream::iter(frames));
    Request::post("/").header("content-length", UPLOAD).body(Body::new(body)).unwrap()
}

/// Returns an upstream, and the server's end of its only connection.
async fn connected() -> (Upstream, DuplexStream) {
    let upstream = upstream("http://127.0.0.1:1", UpstreamConfig::default());
    let (client, server) = duplex(PIPE);
    pooled(&upstream, client).await;
    (upstream, server)
}

/// Asserts that the client has closed the connection. Otherwise it would send the whole upload.
async fn assert_closed(mut server: DuplexStream) {
    let mut received = Vec::new();
    // Less than the timeouts of the client.
    let reading = timeout(Duration::from_secs(1), server.read_to_end(&mut received));
    reading.await.expect("the client has closed").unwrap();
    assert!(received.len() <= 2 * PIPE, "the client was still writing: {} bytes", received.len());
}

#[tokio::test(start_paused = true)]
async fn upstream_that_answers_early_and_stops_reading_is_disconnected() {
    let (upstream, mut server) = connected().await;
    let (response, _) = tokio::join!(upstream.send(upload()), answer(&mut server, OK));
    assert_eq!(text(response.unwrap()).await, "ok");

    sleep(Duration::from_secs(5)).await;
    assert_closed(server).await;
    assert_eq!(upstream.0.pools.current().idle(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_early_response_closes_a_stalled_connection_at_once() {
    let (upstream, mut server) = connected().await;
    let early = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok";
    let (response, _) = tokio::join!(upstream.send(upload()), answer(&mut server, early));
    let mut response = response.unwrap();
    response.body_mut().frame().await.unwrap().unwrap();

    drop(response);
    assert_closed(server).await;
}

#[tokio::test(start_paused = true)]
async fn dropped_request_closes_a_stalled_connection_at_once() {
    let (upstream, mut server) = connected().await;
    let request = Box::pin(upstream.send(upload()));
    tokio::select! {
        response = request => panic!("{response:?}"),
        _ = head(&mut server) => {}
    }
    assert_closed(server).await;
}

#[tokio::test(start_paused = true)]
async fn upstream_that_stops_reading_and_never_answers_is_a_timeout() {
    let (upstream, server) = connected().await;
    let started = Instant::now();
    let error = upstream.send(upload()).await.unwrap_err();
    assert!(matches!(error, UpstreamError::WriteTimeout { .. }), "{error}");
    assert_eq!(error.to_string(), "http://127.0.0.1:1 took no bytes of the request for 60s");
    assert_eq!(started.elapsed().as_secs(), 60);
    assert_closed(server).await;
}

#[tokio::test(start_paused = true)]
async fn upstream_that_stops_reading_during_its_response_is_disconnected() {
    let (upstream, mut server) = connected().await;
    let early = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n";
    let (response, _) = tokio::join!(upstream.send(upload()), answer(&mut server, early));
    let error = response.unwrap().into_body().collect().await.unwrap_err();
    assert_eq!(error.to_string(), "error reading a body from connection: connection error");
    assert_closed(server).await;
}

#[tokio::test(start_paused = true)]
async fn request_that_ends_soon_after_its_response_keeps_the_connection() {
    let (upstream, mut server) = connected().await;
    let (response, _) = tokio::join!(upstream.send(upload()), answer(&mut server, OK));
    assert_eq!(text(response.unwrap()).await, "ok");

    sleep(Duration::from_secs(1)).await;
    let mut body = vec![0; UPLOAD];
    server.read_exact(&mut body).await.unwrap();
    idle(&upstream, 1).await;
}

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn server_that_never_answers_times_out() {
    let (upstream, server) = connected().await;
    let started = Instant::now();
    let error = upstream.send_within(Some(RESPONSE_TIMEOUT), get("/")).await.unwrap_err();
    assert_eq!(error.to_string(), "no response from http://127.0.0.1:1 within 60s");
    assert_eq!(started.elapsed(), RESPONSE_TIMEOUT);
    assert_closed(server).await;
}

#[tokio::test(start_paused = true)]
async fn response_time_starts_at_the_end_of_the_upload() {
    let (upstream, mut server) = connected().await;
    let started = Instant::now();
    let (body, frames) = channel();
    let request = Request::post("/").body(body).unwrap();
    let slow_caller = tokio::spawn(async move {
        for _ in 0..3 {
            sleep(RESPONSE_TIMEOUT * 2).await;
            frames.send(Ok(Frame::data("part".into()))).unwrap();
        }
    });
    let slow_server = tokio::spawn(async move {
        head(&mut server).await.unwrap();
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        received
    });
    let error = upstream.send_within(Some(RESPONSE_TIMEOUT), request).await.unwrap_err();
    assert!(matches!(error, UpstreamError::ResponseTimeout { .. }), "{error}");
    assert_eq!(started.elapsed(), RESPONSE_TIMEOUT * 7, "three parts, and then the timeout");
    slow_caller.await.unwrap();
    assert_eq!(slow_server.await.unwrap(), b"4\r\npart\r\n4\r\npart\r\n4\r\npart\r\n0\r\n\r\n");
}

/// hyper may have buffered bytes of the request that the server has not read.
#[tokio::test(start_paused = true)]
async fn response_time_restarts_with_every_written_byte() {
    let (upstream, mut server) = connected().await;
    let request = Request::post("/").body(Body::from(Bytes::from(vec![b'x'; 3 * PIPE]))).unwrap();
    let slow_reader = tokio::spawn(async move {
        head(&mut server).await.unwrap();
        let mut rest = vec![0; 3 * PIPE];
        for part in rest.chunks_mut(PIPE / 2) {
            sleep(RESPONSE_TIMEOUT / 4).await;
            server.read_exact(part).await.unwrap();
        }
        sleep(RESPONSE_TIMEOUT / 4).await;
        server.write_all(OK.as_bytes()).await.unwrap();
        server
    });
    let response = upstream.send_within(Some(RESPONSE_TIMEOUT), request).await.unwrap();
    assert_eq!(text(response).await, "ok");
    slow_reader.await.unwrap();
}

fn channel() -> (Body, mpsc::UnboundedSender<std::io::Result<Frame<Bytes>>>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let frames = futures_util::stream::unfold(receiver, async |mut frames: mpsc::UnboundedReceiver<_>| {
        frames.recv().await.map(|frame| (frame, frames))
    });
    (Body::new(StreamBody::new(Box::pin(frames))), sender)
}
