//! A server that stops reading.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::{
    io::{AsyncReadExt as _, DuplexStream, duplex},
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

use super::{
    super::{Settings, Upstream, UpstreamError},
    idle, pooled,
    server::{OK, answer, head},
    text, upstream,
};

const UPLOAD: usize = 3_500_000;
/// Fits between the two ends.
const PIPE: usize = 1024;

/// A body of many frames, as the tunnel delivers it.
fn upload() -> Request<Body> {
    let frames =
        (0..UPLOAD / 1000).map(|_| Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![b'x'; 1000]))));
    let body = StreamBody::new(futures_util::stream::iter(frames));
    Request::post("/").header("content-length", UPLOAD).body(Body::new(body)).unwrap()
}

/// An upstream, and the server's end of its only connection.
async fn connected() -> (Upstream, DuplexStream) {
    let upstream = upstream("http://127.0.0.1:1", Settings::default());
    let (client, server) = duplex(PIPE);
    pooled(&upstream, client).await;
    (upstream, server)
}

/// Reads what was on its way. A client that is still connected would send the whole upload.
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
    assert_eq!(upstream.0.pools.here().idle(), 0);
}

#[tokio::test(start_paused = true)]
async fn caller_who_leaves_an_early_response_closes_a_stalled_connection_at_once() {
    let (upstream, mut server) = connected().await;
    let early = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok";
    let (response, _) = tokio::join!(upstream.send(upload()), answer(&mut server, early));
    let mut response = response.unwrap();
    response.body_mut().frame().await.unwrap().unwrap();

    drop(response);
    assert_closed(server).await;
}

#[tokio::test(start_paused = true)]
async fn caller_who_leaves_without_a_response_closes_a_stalled_connection_at_once() {
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
async fn upstream_that_stops_reading_in_the_middle_of_its_answer_is_disconnected() {
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
