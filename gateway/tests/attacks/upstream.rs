//! Servers in the cluster that attack agentk, or only do what HTTP allows: on real sockets, since agentk dials them.

use std::{future::Future, time::Duration};

use agent::{Services, handlers::prometheus::Prometheus, upstream::Settings};
use http::{HeaderMap, Request, Response, StatusCode, header::TRAILER};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};
use tunnel::Body;

use crate::{http1, memory::Memory, world::World};

const PATH: &str = "/agents/prod/prometheus/api/v1/query";
/// Nothing here waits by intention.
const SOON: Duration = Duration::from_secs(20);

/// A kas whose agent has a server that does to each connection what `serve` says.
async fn world<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> (World, impl Sized)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    let world = World::new();
    let prometheus = Prometheus::new(endpoint, Settings::default());
    let agent = world.agent(Services::new().with("prometheus", prometheus)).await;
    (world, (agent, tokio_util::task::AbortOnDropHandle::new(serving)))
}

/// Reads up to these bytes, and returns all that came.
async fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        match stream.read_u8().await {
            Ok(byte) => read.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&read).to_lowercase()
}

async fn head(stream: &mut TcpStream) -> String {
    until(stream, "\r\n\r\n").await
}

/// A caller over HTTP/2.
async fn http2(world: &World) -> http2::SendRequest<Body> {
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(world.connect())).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// The same request over either version.
async fn ask(world: &World, over_http2: bool, edit: impl FnOnce(&mut Request<Body>)) -> Response<Incoming> {
    let path = if over_http2 { format!("http://kas{PATH}") } else { PATH.to_owned() };
    let mut request = world.request(&path);
    edit(&mut request);
    let asking = async {
        if over_http2 {
            request.headers_mut().remove("host");
            return http2(world).await.send_request(request).await.unwrap();
        }
        world.send(request).await
    };
    timeout(SOON, asking).await.unwrap()
}

fn post(request: &mut Request<Body>, body: Body) {
    *request.method_mut() = http::Method::POST;
    *request.body_mut() = body;
}

/// A body that a test writes as it goes.
fn written() -> (mpsc::UnboundedSender<Frame<bytes::Bytes>>, Body) {
    let (sender, frames) = mpsc::unbounded_channel();
    let frames = futures_util::stream::unfold(frames, async |mut frames| {
        let frame = mpsc::UnboundedReceiver::recv(&mut frames).await?;
        Some((Ok::<_, std::io::Error>(frame), frames))
    });
    (sender, Body::new(StreamBody::new(frames)))
}

#[tokio::test]
async fn attack_22_a_server_never_sees_an_expectation_and_may_refuse_before_the_body() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        assert!(!head(&mut server).await.contains("expect"));
        server.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
        // And reads nothing of it.
        std::future::pending::<()>().await;
    })
    .await;
    for over_http2 in [false, true] {
        let (writing, body) = written();
        writing.send(Frame::data("begun".into())).unwrap();
        let answer = ask(&world, over_http2, |request| {
            post(request, body);
            request.headers_mut().insert("expect", "100-continue".parse().unwrap());
        })
        .await;
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "no");
    }
}

#[tokio::test]
async fn attack_22_a_server_that_says_100_anyway_is_understood() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        head(&mut server).await;
        server.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        until(&mut server, "body").await;
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    })
    .await;
    for over_http2 in [false, true] {
        let answer = ask(&world, over_http2, |request| post(request, "body".into())).await;
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
}

#[tokio::test]
async fn attack_23_a_flood_of_interim_answers_costs_nothing() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        head(&mut server).await;
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(1000);
        for _ in 0..100 {
            server.write_all(hints.as_bytes()).await.unwrap();
        }
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    })
    .await;
    let memory = Memory::now();
    for over_http2 in [false, true] {
        let answer = ask(&world, over_http2, |_| {}).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(!answer.headers().contains_key("link"));
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
    memory.assert_bounded();
}

#[tokio::test]
async fn attack_23_interim_answers_without_end_hold_up_nobody_and_end_with_their_caller() {
    let (noticed, mut left) = mpsc::unbounded_channel();
    let (world, _agent) = world(move |mut server: TcpStream| {
        let noticed = noticed.clone();
        async move {
            if head(&mut server).await.contains("query?harmless") {
                server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
                return;
            }
            let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100);
            while server.write_all(hints.as_bytes()).await.is_ok() {}
            noticed.send(()).unwrap();
        }
    })
    .await;
    let caller = world.clone();
    let attacked = tokio::spawn(async move { caller.get(PATH).await });
    for _ in 0..10 {
        let answer = timeout(SOON, world.get(&format!("{PATH}?harmless"))).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    }
    attacked.abort();
    timeout(SOON, left.recv()).await.expect("the flooded connection is closed");
}

#[tokio::test]
async fn trailers_of_a_caller_reach_a_server_if_they_were_announced() {
    let (heard, mut requests) = mpsc::unbounded_channel();
    let (world, _agent) = world(move |mut server: TcpStream| {
        let heard = heard.clone();
        async move {
            let head = head(&mut server).await;
            let body = until(&mut server, "\r\n\r\n").await;
            heard.send((head, body)).unwrap();
            server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    for (over_http2, announced) in [(false, true), (true, true), (true, false)] {
        let (writing, body) = written();
        writing.send(Frame::data("body".into())).unwrap();
        let fields = [("digest", "1"), ("impersonate-user", "root")];
        let fields = fields.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        writing.send(Frame::trailers(HeaderMap::from_iter(fields))).unwrap();
        drop(writing);
        let answer = ask(&world, over_http2, |request| {
            post(request, body);
            if announced {
                let names = "digest, impersonate-user".parse().unwrap();
                request.headers_mut().insert(TRAILER, names);
            }
        })
        .await;
        assert_eq!(answer.status(), StatusCode::OK);
        let (head, body) = requests.recv().await.unwrap();
        let expected =
            if announced { "4\r\nbody\r\n0\r\ndigest: 1\r\n\r\n" } else { "4\r\nbody\r\n0\r\n\r\n" };
        assert_eq!(body, expected, "{head}");
    }
}

#[tokio::test]
async fn trailers_of_a_server_reach_who_takes_them() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        let wanted = head(&mut server).await.contains("te: trailers\r\n");
        let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Digest\r\n\r\n\
                      2\r\nok\r\n0\r\nDigest: 1\r\nSet-Cookie: a=b\r\nX-Wanted: ";
        server.write_all(format!("{answer}{wanted}\r\n\r\n").as_bytes()).await.unwrap();
    })
    .await;
    for over_http2 in [false, true] {
        let answer = ask(&world, over_http2, |request| {
            request.headers_mut().insert("te", "trailers".parse().unwrap());
            if !over_http2 {
                request.headers_mut().insert("connection", "te".parse().unwrap());
            }
        })
        .await;
        let body = timeout(SOON, answer.into_body().collect()).await.unwrap().unwrap();
        let trailers = body.trailers().unwrap();
        assert_eq!(trailers["digest"], "1");
        assert!(!trailers.contains_key("set-cookie"));
        // HTTP/1.1 sends only what `Trailer` announced.
        assert_eq!(trailers.get("x-wanted").map(|wanted| wanted == "true"), over_http2.then_some(true));
        assert_eq!(body.to_bytes(), "ok");
    }
    let plain = ask(&world, false, |_| {}).await;
    assert_eq!(plain.into_body().collect().await.unwrap().to_bytes(), "ok");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_never_a_clean_end() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        let answer = match head(&mut server).await.contains("query?chunked") {
            true => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n",
            false => "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun",
        };
        server.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    for framing in ["chunked", "length"] {
        for over_http2 in [false, true] {
            let answer = ask(&world, over_http2, |request| {
                let path = format!("{}?{framing}", request.uri());
                *request.uri_mut() = path.parse().unwrap();
            })
            .await;
            let body = timeout(SOON, answer.into_body().collect()).await.unwrap();
            assert!(body.is_err(), "{framing}, over HTTP/2: {over_http2}");
        }
        let request = http1::head(&world, "GET", &format!("/prometheus/api/v1/query?{framing}"));
        let raw = http1::exchange(&world, format!("{request}\r\n")).await;
        assert!(raw.contains("begun") && !raw.contains("\r\n0\r\n"), "{raw}");
    }
}

#[tokio::test]
async fn both_directions_of_an_exchange_flow_at_the_same_time() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        head(&mut server).await;
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        server.write_all(answer).await.unwrap();
        // Chunks come back as they are, the last one included.
        let (mut reader, mut writer) = server.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    })
    .await;
    for over_http2 in [false, true] {
        let (writing, body) = written();
        let answer = ask(&world, over_http2, |request| post(request, body)).await;
        let mut body = answer.into_body();
        for word in ["one", "two", "three"] {
            assert!(writing.send(Frame::data(word.into())).is_ok(), "{word}, over HTTP/2: {over_http2}");
            let echo = timeout(SOON, body.frame()).await.unwrap().unwrap().unwrap();
            assert_eq!(echo.into_data().unwrap(), word);
        }
        drop(writing);
        let rest = timeout(SOON, body.collect()).await.unwrap().unwrap();
        assert!(rest.to_bytes().is_empty(), "over HTTP/2: {over_http2}");
    }
}

#[tokio::test]
async fn a_caller_who_resets_its_stream_is_noticed_at_once() {
    let (noticed, mut left) = mpsc::unbounded_channel();
    let (world, _agent) = world(move |mut server: TcpStream| {
        let noticed = noticed.clone();
        async move {
            head(&mut server).await;
            server
                .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
                .await
                .unwrap();
            assert_eq!(until(&mut server, "never").await, "");
            noticed.send(()).unwrap();
        }
    })
    .await;
    let mut connection = http2(&world).await;
    let watch = |mut request: Request<Body>| {
        request.headers_mut().remove("host");
        request
    };
    let request = watch(world.request(&format!("http://kas{PATH}")));
    let mut body = connection.send_request(request).await.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ok");
    drop(body);
    timeout(SOON, left.recv()).await.expect("the cluster notices");

    // The connection is of further use.
    let request = watch(world.request(&format!("http://kas{PATH}")));
    assert_eq!(connection.send_request(request).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn an_upgrade_over_http2_is_refused() {
    let (world, _agent) = world(async |_| panic!("nothing is asked of the cluster")).await;
    let mut connection = http2(&world).await;
    let mut request = world.request(&format!("http://kas{PATH}"));
    request.headers_mut().remove("host");
    *request.method_mut() = http::Method::CONNECT;
    let answer = connection.send_request(request).await;
    assert!(answer.is_err() || answer.unwrap().status().is_client_error());
}
