//! Either end against the HTTP/2 of others: ends of another version must understand each other while they are upgraded.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use support::{chunks, get, text};
use tokio::io::duplex;
use tunnel::{Body, CallErrorKind, Delivery, Settings, Tunnel, direct};

/// kas's end, and a server of the h2 crate that answers each request by its path.
async fn asking_h2() -> Tunnel {
    let (near, far) = duplex(64 << 10);
    tokio::spawn(async move {
        let mut builder = h2::server::Builder::new();
        builder.enable_connect_protocol().max_header_list_size(1 << 20);
        let mut connection = builder.handshake::<_, Bytes>(far).await.unwrap();
        while let Some(accepted) = connection.accept().await {
            let Ok((request, respond)) = accepted else { return };
            tokio::spawn(answer(request, respond));
        }
    });
    let (tunnel, driver) = direct::open(near, &Settings::default());
    tokio::spawn(driver.run());
    tunnel.ready().await;
    tunnel
}

async fn answer(request: Request<h2::RecvStream>, mut respond: h2::server::SendResponse<Bytes>) {
    let (head, mut body) = request.into_parts();
    match head.uri.path() {
        "/refused" => return respond.send_reset(h2::Reason::REFUSED_STREAM),
        "/aborted" => return respond.send_reset(h2::Reason::INTERNAL_ERROR),
        _ => {}
    }
    let mut response = Response::builder().header("method", head.method.as_str());
    for (name, value) in &head.headers {
        response = response.header(name, value);
    }
    let mut stream = respond.send_response(response.body(()).unwrap(), false).unwrap();
    while let Some(data) = body.data().await {
        let mut data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            let room = poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
            stream.send_data(data.split_to(room.min(data.len())), false).unwrap();
        }
    }
    match body.trailers().await.unwrap() {
        Some(trailers) => stream.send_trailers(trailers).unwrap(),
        None => stream.send_data(Bytes::new(), true).unwrap(),
    }
}

#[tokio::test]
async fn a_server_of_others_gets_heads_bodies_and_trailers() {
    let tunnel = asking_h2().await;
    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", "42".parse().unwrap());
    for round in 0..200 {
        let large = "x".repeat(round * 300);
        let frames = [Frame::data(Bytes::from_static(b"body")), Frame::trailers(trailers.clone())];
        let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, std::io::Error>)));
        let request = Request::builder()
            .method([Method::PUT, Method::POST, Method::PATCH][round % 3].clone())
            .uri("/a?b")
            .header("same", "in each")
            .header("other", round.to_string())
            .header("large", &large)
            .body(Body::new(body))
            .unwrap();
        let method = request.method().to_string();
        let response = tunnel.call(request).await.unwrap();
        assert_eq!(response.headers()["method"], method);
        assert_eq!(response.headers()["same"], "in each");
        assert_eq!(response.headers()["other"], round.to_string());
        assert_eq!(response.headers()["large"], large);
        let whole = response.into_body().collect().await.unwrap();
        assert_eq!(whole.trailers().unwrap()["checksum"], "42");
        assert_eq!(whole.to_bytes(), "body");
    }
}

#[tokio::test]
async fn bulk_passes_a_server_of_others_at_its_own_pace() {
    let tunnel = asking_h2().await;
    let request = Request::post("/").body(chunks(&[7; 1 << 16], 256)).unwrap();
    let response = tunnel.call(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 16 << 20);
}

#[tokio::test]
async fn what_a_server_of_others_refuses_is_told_from_what_it_aborts() {
    let tunnel = asking_h2().await;
    let refused = tunnel.call(get("/refused")).await.unwrap_err();
    assert_eq!(refused.delivery, Delivery::NotProcessed);
    let aborted = tunnel.call(get("/aborted")).await.unwrap_err();
    assert!(matches!(aborted.kind, CallErrorKind::Reset(reason) if reason.to_string() == "INTERNAL_ERROR"));
    assert_eq!(tunnel.call(get("/")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_client_of_others_is_served() {
    let (near, far) = duplex(64 << 10);
    let (session, _leave) = direct::accept(far, &Settings::default());
    tokio::spawn(session.run(|exchange| {
        tokio::spawn(exchange.answer(|request: Request<Body>| async move {
            let (head, body) = request.into_parts();
            let mut response = Response::new(body);
            *response.headers_mut() = head.headers;
            response
        }));
    }));
    let (mut sender, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    for round in 0..200_usize {
        let body = Bytes::from(vec![7; round * 1000]);
        let request = Request::post("http://agent/a?b")
            .header("same", "in each")
            .header("other", round.to_string())
            .body(())
            .unwrap();
        poll_fn(|cx| sender.poll_ready(cx)).await.unwrap();
        let (response, mut stream) = sender.send_request(request, false).unwrap();
        stream.send_data(body.clone(), true).unwrap();
        let (head, mut received) = response.await.unwrap().into_parts();
        assert_eq!(head.headers["same"], "in each");
        assert_eq!(head.headers["other"], round.to_string());
        let mut back = BytesMut::new();
        while let Some(data) = received.data().await {
            let data = data.unwrap();
            received.flow_control().release_capacity(data.len()).unwrap();
            back.extend_from_slice(&data);
        }
        assert!(back == body, "round {round}");
    }
}

#[tokio::test]
async fn more_requests_than_the_other_end_takes_wait_for_their_turn() {
    let (near, far) = duplex(64 << 10);
    let settings = Settings { max_concurrent_streams: 3, ..Settings::default() };
    let (session, _leave) = direct::accept(far, &settings);
    tokio::spawn(session.run(|exchange| {
        tokio::spawn(exchange.answer(|_| async {
            tokio::task::yield_now().await;
            Response::new(Body::from("answered"))
        }));
    }));
    let (tunnel, driver) = direct::open(near, &Settings::default());
    tokio::spawn(driver.run());
    tunnel.ready().await;

    let all = (0..100).map(|_| async { text(tunnel.call(get("/")).await.unwrap()).await });
    assert!(futures_util::future::join_all(all).await.iter().all(|text| text == "answered"));
    // Those who wait and leave hold up nobody.
    for _ in 0..100 {
        let calls = futures_util::future::join_all((0..10).map(|_| tunnel.call(get("/"))));
        assert!(calls.now_or_never().is_none());
    }
    assert_eq!(text(tunnel.call(get("/")).await.unwrap()).await, "answered");
}
