//! Requests over two connections: from a replica without a tunnel of the agent to one with a tunnel, and to the agent.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use crate::support::{
    Pair, SINGLE_BYTES, chunks, endless, get, pair, send_bytes, send_single_bytes, send_unread_input, text,
    unread_exec,
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    sync::Notify,
    task::JoinHandle,
    time::timeout,
};
use tunnel::{
    Body, CallErrorKind, Delivery, Tunnel, TunnelConfig, direct, upgrade,
    websocket::{Role, WebSocket},
};

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
    let serving = serve(far, agent.tunnel.clone());
    tunnel.ready().await;
    Relayed { tunnel, agent, _ends: [driving, serving] }
}

/// Serves the first connection at the replica with the tunnel.
fn serve(far: DuplexStream, into: Tunnel) -> JoinHandle<()> {
    let (server, drain) = direct::accept(far, &TunnelConfig::default());
    tokio::spawn(async move {
        let _drain = drain;
        let served = server.run(|request| {
            let into = into.clone();
            tokio::spawn(async move {
                if request.request().uri().path() == "/refuse" {
                    return request.refuse();
                }
                if let Err(failed) = request.relay(&into, None).await {
                    failed.reset();
                }
            });
        });
        drop(served.await);
    })
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

/// Attack 88, through another replica.
#[tokio::test(start_paused = true)]
async fn response_of_single_bytes_that_is_not_read_does_not_end_the_tunnel() {
    let (kas, agent) = tokio::io::duplex(64 << 10);
    let agent = WebSocket::new(agent, Bytes::new(), Role::Client);
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(agent).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            tokio::spawn(async move {
                let is_log = request.uri().path() == "/log";
                let mut stream = respond.send_response(Response::new(()), !is_log).unwrap();
                if is_log {
                    // More than the window of the first connection.
                    send_bytes(&mut stream, 5 << 20).await;
                    send_single_bytes(&mut stream).await;
                    stream.send_data(Bytes::new(), true).unwrap();
                }
            });
        }
    });
    let config = TunnelConfig::default();
    let (into, driver) =
        tunnel::open(WebSocket::new(kas, Bytes::new(), Role::Server), &config).await.unwrap();
    tokio::spawn(driver.run());
    into.ready().await;
    let (near, far) = tokio::io::duplex(64 << 10);
    let _serving = serve(far, into);
    let (tunnel, driver) = direct::open(near, &config).await.unwrap();
    tokio::spawn(driver.run());
    tunnel.ready().await;

    let unread = tunnel.call(get("/log")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(tunnel.call(get("/")).await.unwrap().status(), StatusCode::OK);

    // The reader reads at last, and no byte is lost.
    let read = unread.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(read.len(), (5 << 20) + SINGLE_BYTES);
}

/// Attack 88, through another replica: the requests of all agents share the connection of the replicas.
#[tokio::test(start_paused = true)]
async fn upgrade_with_single_bytes_that_are_not_read_does_not_end_the_connection_of_replicas() {
    let agent = pair(unread_exec).await;
    let (near, far) = tokio::io::duplex(64 << 10);
    let _serving = serve(far, agent.tunnel.clone());
    // More than the window of the tunnel.
    send_unread_input(near, 5 << 20).await;
}
