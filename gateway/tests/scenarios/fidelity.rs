//! Transparency of kas and agentk: trailers, aborts and concurrent directions, over both versions of HTTP.

use http::{HeaderMap, Request, StatusCode, header::TRAILER};
use http_body::Frame;
use http_body_util::BodyExt as _;
use kas_testing::server::{PATH, SOON, channel_body, http2, post, read_head, read_until, send_query, world};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::mpsc, time::timeout};
use tunnel::Body;

#[tokio::test]
async fn trailers_of_a_caller_reach_a_server_if_they_were_announced() {
    let (heard, mut requests) = mpsc::unbounded_channel();
    let (world, _agent) = world(move |mut server: TcpStream| {
        let heard = heard.clone();
        async move {
            let head = read_head(&mut server).await;
            let body = read_until(&mut server, "\r\n\r\n").await;
            heard.send((head, body)).unwrap();
            server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    for (over_http2, announced) in [(false, true), (true, true), (true, false)] {
        let (writing, body) = channel_body();
        writing.send(Frame::data("body".into())).unwrap();
        let fields = [("digest", "1"), ("impersonate-user", "root")];
        let fields = fields.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        writing.send(Frame::trailers(HeaderMap::from_iter(fields))).unwrap();
        drop(writing);
        let answer = send_query(&world, over_http2, |request| {
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
        let wanted = read_head(&mut server).await.contains("te: trailers\r\n");
        let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Digest\r\n\r\n\
                      2\r\nok\r\n0\r\nDigest: 1\r\nSet-Cookie: a=b\r\nX-Wanted: ";
        server.write_all(format!("{answer}{wanted}\r\n\r\n").as_bytes()).await.unwrap();
    })
    .await;
    for over_http2 in [false, true] {
        let answer = send_query(&world, over_http2, |request| {
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
    let plain = send_query(&world, false, |_| {}).await;
    assert_eq!(plain.into_body().collect().await.unwrap().to_bytes(), "ok");
}

#[tokio::test]
async fn truncated_response_is_not_a_clean_end() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        let answer = if read_head(&mut server).await.contains("query?chunked") {
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n"
        } else {
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun"
        };
        server.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    for framing in ["chunked", "length"] {
        for over_http2 in [false, true] {
            let answer = send_query(&world, over_http2, |request| {
                let path = format!("{}?{framing}", request.uri());
                *request.uri_mut() = path.parse().unwrap();
            })
            .await;
            let body = timeout(SOON, answer.into_body().collect()).await.unwrap();
            assert!(body.is_err(), "{framing}, over HTTP/2: {over_http2}");
        }
    }
}

#[tokio::test]
async fn length_of_an_answer_without_content_is_dropped() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        read_head(&mut server).await;
        server.write_all(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n").await.unwrap();
    })
    .await;
    for over_http2 in [false, true] {
        let answer = send_query(&world, over_http2, |_| {}).await;
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert_eq!(answer.headers().get("content-length"), None);
        assert!(answer.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
}

#[tokio::test]
async fn both_directions_of_an_exchange_flow_at_the_same_time() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        read_head(&mut server).await;
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        server.write_all(answer).await.unwrap();
        // Chunks come back as they are, the last one included.
        let (mut reader, mut writer) = server.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    })
    .await;
    for over_http2 in [false, true] {
        let (writing, body) = channel_body();
        let answer = send_query(&world, over_http2, |request| post(request, body)).await;
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
async fn stream_reset_cancels_the_request() {
    let (noticed, mut left) = mpsc::unbounded_channel();
    let (world, _agent) = world(move |mut server: TcpStream| {
        let noticed = noticed.clone();
        async move {
            read_head(&mut server).await;
            server
                .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
                .await
                .unwrap();
            assert_eq!(read_until(&mut server, "never").await, "");
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
async fn upgrade_over_http2_is_refused() {
    let (world, _agent) = world(async |_| panic!("nothing is asked of the cluster")).await;
    let mut connection = http2(&world).await;
    let mut request = world.request(&format!("http://kas{PATH}"));
    request.headers_mut().remove("host");
    *request.method_mut() = http::Method::CONNECT;
    let answer = connection.send_request(request).await;
    assert!(answer.is_err() || answer.unwrap().status().is_client_error());
}
