//! Requests over two connections: from a replica without a tunnel of the agent to one with a tunnel, and to the agent.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use crate::support::{Pair, chunks, endless, get, pair, text};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
    task::JoinHandle,
    time::timeout,
};
use tunnel::{Body, CallErrorKind, Delivery, Tunnel, TunnelConfig, direct, upgrade};

/// The first connection, and the agent behind the second.
struct Relayed {
    tunnel: Tunnel,
    agent: Pair,
    _ends: [JoinHandle<()>; 2],
}

async fn relayed<H, F>(handler: H) -> Relayed
where
    H: Fn(Request<Body>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let agent = pair(handler).await;
    let (near, far) = tokio::io::duplex(64 << 10);
    let config = TunnelConfig::default();
    let (tunnel, driver) = direct::open(near, &config).await.unwrap();
    let driving = tokio::spawn(async move { drop(driver.run().await) });
    let (server, _drain) = direct::accept(far, &config);
    let into = agent.tunnel.clone();
    let serving = tokio::spawn(async move {
        let served = server.run(|request| {
            let into = into.clone();
            tokio::spawn(async move {
                if request.request().uri().path() == "/refuse" {
                    return request.refuse();
                }
                let _ = request.relay(&into).await;
            });
        });
        drop(served.await);
    });
    tunnel.ready().await;
    Relayed { tunnel, agent, _ends: [driving, serving] }
}

#[tokio::test(start_paused = true)]
async fn request_response_and_trailers_pass_both_connections() {
    let relayed = relayed(async |request: Request<Body>| {
        let whole = request.into_body().collect().await.unwrap();
        let sum = whole.trailers().unwrap()["sum"].clone();
        let mut trailers = HeaderMap::new();
        trailers.insert("sum", sum);
        let frames = [Frame::data(whole.to_bytes()), Frame::trailers(trailers)];
        let body = StreamBody::new(stream::iter(frames.map(Ok::<_, std::io::Error>)));
        Response::builder().header("some", "header").body(Body::new(body)).unwrap()
    })
    .await;

    let mut trailers = HeaderMap::new();
    trailers.insert("sum", "42".parse().unwrap());
    let frames = [Frame::data(Bytes::from_static(b"words")), Frame::trailers(trailers)];
    let body = Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, std::io::Error>))));
    let response = relayed.tunnel.call(Request::post("/").body(body).unwrap()).await.unwrap();
    assert_eq!(response.headers()["some"], "header");
    let whole = response.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["sum"], "42");
    assert_eq!(whole.to_bytes(), "words");
}

#[tokio::test(start_paused = true)]
async fn unread_upload_stops_at_its_source() {
    let relayed = relayed(async |request: Request<Body>| {
        let mut body = request.into_body();
        body.frame().await.unwrap().unwrap();
        // The body is held, unread, as long as the response.
        Response::new(Body::new(StreamBody::new(stream::unfold(body, async |body| {
            std::future::pending::<()>().await;
            Some((Ok::<_, std::io::Error>(Frame::data(Bytes::new())), body))
        }))))
    })
    .await;

    let made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counting = Arc::clone(&made);
    let frames = stream::repeat_with(move || {
        counting.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[0; 64 << 10])))
    });
    let body = Body::new(StreamBody::new(frames));
    let mut response = relayed.tunnel.call(Request::post("/").body(body).unwrap()).await.unwrap();
    let waited = timeout(Duration::from_secs(5), response.body_mut().frame()).await;
    assert!(waited.is_err(), "{waited:?}");
    let made = made.load(std::sync::atomic::Ordering::Relaxed) * (64 << 10);
    // This is a window in each connection, and the bytes that wait to be written.
    assert!(made < 12 << 20, "{made}");
}

#[tokio::test(start_paused = true)]
async fn aborted_response_has_no_clean_end() {
    let relayed = relayed(async |_| {
        let frames = stream::unfold(0, async |sent| {
            if sent == 0 {
                return Some((Ok(Frame::data(Bytes::from_static(b"half"))), 1));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Err(std::io::Error::other("broken")), sent))
        });
        Response::new(Body::new(StreamBody::new(Box::pin(frames))))
    })
    .await;
    let response = relayed.tunnel.call(get("/")).await.unwrap();
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn cancellation_crosses_both_connections() {
    let dropped = Arc::new(Notify::new());
    struct NotifyOnDrop(Arc<Notify>);
    impl Drop for NotifyOnDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let notified = Arc::clone(&dropped);
    let relayed = relayed(move |_: Request<Body>| {
        let guard = NotifyOnDrop(Arc::clone(&dropped));
        async move {
            std::future::pending::<()>().await;
            drop(guard);
            Response::new(Body::empty())
        }
    })
    .await;
    assert!(timeout(Duration::from_secs(1), relayed.tunnel.call(get("/"))).await.is_err());
    timeout(Duration::from_secs(1), notified.notified()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refused_request_is_returned_whole() {
    let relayed = relayed(async |_| Response::new(Body::from("answered"))).await;
    let request = Request::post("/refuse").body(Body::from("body")).unwrap();
    let error = relayed.tunnel.call(request).await.unwrap_err();
    assert!(matches!(error.kind, CallErrorKind::Refused), "{error}");
    assert_eq!(error.delivery, Delivery::NotProcessed);
    let mut again = *error.request.unwrap();
    *again.uri_mut() = "/".parse().unwrap();
    assert_eq!(text(relayed.tunnel.call(again).await.unwrap()).await, "answered");
}

#[tokio::test(start_paused = true)]
async fn request_unsent_by_second_connection_is_not_processed() {
    let relayed = relayed(async |_| Response::new(endless("never"))).await;
    relayed.agent.tunnel.close();
    relayed.agent.kas.await.unwrap();
    let error = relayed.tunnel.call(get("/")).await.unwrap_err();
    assert_eq!(error.delivery, Delivery::NotProcessed);
}

#[tokio::test(start_paused = true)]
async fn request_lost_in_flight_has_unknown_delivery() {
    let relayed = relayed(async |_| std::future::pending().await).await;
    let tunnel = relayed.tunnel.clone();
    let call = tokio::spawn(async move { tunnel.call(get("/")).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    relayed.agent.tunnel.close();
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error.kind, CallErrorKind::Reset(_)), "{error}");
    assert_eq!(error.delivery, Delivery::Unknown);
}

#[tokio::test(start_paused = true)]
async fn upgrade_directions_end_independently() {
    let relayed = relayed(async |_| {
        let (near, mut far) = tokio::io::duplex(1024);
        tokio::spawn(async move {
            far.write_all(b"early ").await.unwrap();
            let mut input = Vec::new();
            far.read_to_end(&mut input).await.unwrap();
            input.make_ascii_uppercase();
            far.write_all(&input).await.unwrap();
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
        response.extensions_mut().insert(upgrade::UpgradedConnection::new(near));
        response
    })
    .await;

    let exec = Request::post("/exec").header("connection", "upgrade").header("upgrade", "SPDY/3.1");
    let mut response = relayed.tunnel.call(exec.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let upgraded = upgrade::take(&mut response).unwrap();
    let (mut caller, far) = tokio::io::duplex(1024);
    let splice = tokio::spawn(upgrade::splice(upgraded, far));
    let mut early = [0; 6];
    caller.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early ");
    let input = vec![b'x'; 1 << 20];
    let (mut reader, mut writer) = tokio::io::split(caller);
    let writing = tokio::spawn(async move {
        writer.write_all(&input).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut answer = Vec::new();
    reader.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, vec![b'X'; 1 << 20]);
    writing.await.unwrap();
    splice.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn bulk_response_passes_both_connections() {
    let relayed = relayed(async |_| Response::new(chunks(&[7; 32 << 10], 1024))).await;
    let whole = relayed.tunnel.call(get("/")).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(whole.to_bytes().len(), 32 << 20);
}
