//! A tunnel to an HTTP/2 client: a handler carries the requests, as for GitLab's agentk.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{future::pending, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
    task::JoinHandle,
    time::sleep,
};
use tunnel::{
    Body, CallErrorKind, CloseReason, Delivery, DrainHandle, StreamMonitor, Tunnel, TunnelConfig, direct,
    upgrade::{self, UpgradedStream},
};

use crate::support::{endless, get, text};

/// A connection whose client is the other end.
struct Connection {
    tunnel: Tunnel,
    drain: DrainHandle,
    end: JoinHandle<CloseReason>,
    client: h2::client::SendRequest<Bytes>,
    /// The bodies of the client's calls. Their responses do not end.
    calls: mpsc::UnboundedReceiver<Body>,
}

/// Opens a connection whose tunnel responds with the path, a stream of a call, or not at all.
async fn connect() -> Connection {
    let config = TunnelConfig::default();
    let (near, far) = tokio::io::duplex(64 << 10);
    let (server, drain) = direct::accept_calls(near, &config);
    let tunnel = server.tunnel(|request| {
        Box::pin(async move {
            match request.uri().path() {
                "/pending" => pending().await,
                path => Ok(Response::new(Body::from(path.to_owned()))),
            }
        })
    });
    let (sender, calls) = mpsc::unbounded_channel();
    let end = tokio::spawn(server.run(move |call| {
        let sender = sender.clone();
        tokio::spawn(call.respond(async move |request: Request<Body>| {
            sender.send(request.into_body()).unwrap();
            Response::new(endless("a response that goes on"))
        }));
    }));
    let (client, connection) = h2::client::handshake(far).await.unwrap();
    tokio::spawn(connection);
    tunnel.ready().await;
    sleep(Duration::from_secs(1)).await;
    Connection { tunnel, drain, end, client, calls }
}

impl Connection {
    /// Begins a call of the client, and returns both ends of it.
    async fn call(&mut self) -> (h2::SendStream<Bytes>, h2::RecvStream, Body) {
        let request = Request::post("http://kas/call").body(()).unwrap();
        let (response, stream) = self.client.send_request(request, false).unwrap();
        let received = response.await.unwrap().into_body();
        (stream, received, self.calls.recv().await.unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn handler_gets_each_request_until_the_tunnel_is_closed() {
    let Connection { tunnel, end, client: _client, .. } = connect().await;
    assert!(tunnel.round_trip().is_some());
    assert_eq!(text(tunnel.call(get("/path")).await.unwrap()).await, "/path");
    assert!(!tunnel.is_closed());

    tunnel.close();
    assert!(matches!(end.await.unwrap(), CloseReason::LocallyClosed));
    let error = tunnel.call(get("/path")).await.unwrap_err();
    assert!(matches!((error.kind, error.delivery), (CallErrorKind::Closed, Delivery::NotProcessed)));
    assert_eq!(error.request.unwrap().uri(), "/path");
}

#[tokio::test(start_paused = true)]
async fn tunnel_ends_with_its_connection() {
    let mut connection = connect().await;
    let (_stream, mut received, _body) = connection.call().await;
    assert_eq!(received.data().await.unwrap().unwrap(), "a response that goes on");
    connection.drain.drain(Duration::from_secs(5));
    sleep(Duration::from_secs(4)).await;
    assert!(!connection.tunnel.is_closed());
    assert!(matches!(connection.end.await.unwrap(), CloseReason::LocallyClosed));
    assert!(connection.tunnel.is_closed());
}

#[tokio::test(start_paused = true)]
async fn tunnel_may_be_closed_before_the_preface() {
    let (near, _far) = tokio::io::duplex(1024);
    let (server, _drain) = direct::accept_calls(near, &TunnelConfig::default());
    let tunnel = server.tunnel(|_| Box::pin(pending()));
    let end = tokio::spawn(server.run(|_| {}));
    tunnel.close();
    assert!(matches!(end.await.unwrap(), CloseReason::LocallyClosed));
}

/// Sends a kibibyte to kas, and waits until it has arrived.
async fn send(stream: &mut h2::SendStream<Bytes>) {
    stream.send_data(Bytes::from_static(&[7; 1024]), false).unwrap();
    sleep(Duration::from_secs(1)).await;
}

fn observed(monitor: &StreamMonitor) -> (usize, bool) {
    (monitor.stats().unread, monitor.stats().reader_waiting)
}

#[tokio::test(start_paused = true)]
async fn monitor_of_a_call_resets_both_directions() {
    let mut connection = connect().await;
    let (mut stream, mut received, body) = connection.call().await;
    received.data().await.unwrap().unwrap();
    let monitor = body.monitor().unwrap();
    // A handler makes a response of the data of the call.
    let mut body = Body::with_monitor(body, monitor);
    let monitor = body.monitor().unwrap();
    send(&mut stream).await;
    assert_eq!(observed(&monitor), (1024, false));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1024);

    send(&mut stream).await;
    monitor.reset();
    assert!(body.frame().await.unwrap().is_err(), "an abort must not look like a clean end");
    let error = received.data().await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
}

/// Upgrades a call: the bytes of kas come back in capitals.
fn upgraded(monitor: StreamMonitor) -> Response<Body> {
    let (near, mut far) = tokio::io::duplex(1024);
    tokio::spawn(async move {
        let mut input = Vec::new();
        far.read_to_end(&mut input).await.unwrap();
        input.make_ascii_uppercase();
        far.write_all(&input).await.unwrap();
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
    UpgradedStream::from_io(near, monitor).put_into(&mut response);
    response
}

/// Sends bytes and their end into an upgraded stream, and returns the bytes that come back.
async fn exchange(upgraded: UpgradedStream) -> Vec<u8> {
    let (caller, outside) = tokio::io::duplex(1024);
    let splice = tokio::spawn(upgrade::splice(upgraded, outside));
    let (mut reader, mut writer) = tokio::io::split(caller);
    tokio::spawn(async move {
        writer.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    reader.read_to_end(&mut received).await.unwrap();
    splice.await.unwrap().unwrap();
    received
}

#[tokio::test(start_paused = true)]
async fn upgraded_connection_of_a_handler_ends_each_direction_on_its_own() {
    let mut connection = connect().await;
    let (mut stream, _received, body) = connection.call().await;
    let mut response = upgraded(body.monitor().unwrap());
    let upgraded = upgrade::take(&mut response).unwrap();
    assert!(upgrade::take(&mut response).is_none());
    send(&mut stream).await;
    assert_eq!(observed(&upgraded.monitor()).0, 1024);
    assert_eq!(exchange(upgraded).await, vec![b'X'; 1 << 20]);
}

#[tokio::test(start_paused = true)]
async fn upgraded_connection_of_a_handler_passes_another_replica() {
    let mut connection = connect().await;
    let (_stream, _received, body) = connection.call().await;
    let (agentk, _drain) = direct::accept_calls(tokio::io::empty(), &TunnelConfig::default());
    let into = agentk.tunnel({
        let monitor = body.monitor().unwrap();
        move |_| {
            let response = upgraded(monitor.clone());
            Box::pin(async { Ok(response) })
        }
    });

    let (near, far) = tokio::io::duplex(64 << 10);
    let config = TunnelConfig::default();
    let (server, _drain) = direct::accept(far, &config);
    tokio::spawn(server.run(move |request| {
        let into = into.clone();
        tokio::spawn(async move {
            if let Err(failed) = request.relay(&into, None).await {
                failed.reset();
            }
        });
    }));
    let (tunnel, driver) = direct::open(near, &config).await.unwrap();
    tokio::spawn(driver.run());
    tunnel.ready().await;
    let exec = Request::post("/exec").header("connection", "upgrade").header("upgrade", "SPDY/3.1");
    let mut response = tunnel.call(exec.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let upgraded = upgrade::take(&mut response).unwrap();
    assert_eq!(exchange(upgraded).await, vec![b'X'; 1 << 20]);
}
