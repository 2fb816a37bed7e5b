//! Tests of one request and its response, and of its errors.

use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    net::TcpListener,
    sync::mpsc,
};
use tower::ServiceExt as _;
use tunnel::Body;

use super::{
    super::{UpstreamConfig, UpstreamError},
    get, pooled, refused,
    server::{OK, Server, answer, closed, head},
    soon, text, upstream,
};

#[tokio::test]
async fn path_and_query_are_sent_unchanged() {
    let (heads, mut seen) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let heads = heads.clone();
        async move {
            while let Some(head) = head(&mut stream).await {
                heads.send(head).unwrap();
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let host = format!("host: 127.0.0.1:{}\r\n", server.port);

    for (base, path, line) in [
        ("", "/a%2fb//c?x=%20&y", "GET /a%2fb//c?x=%20&y HTTP/1.1\r\n"),
        ("", "//a/./../b?", "GET //a/./../b? HTTP/1.1\r\n"),
        ("", "http://other.example/x", "GET /x HTTP/1.1\r\n"),
        ("/k8s/clusters/c-1/", "/a%2fb//c?x=%20&y", "GET /k8s/clusters/c-1/a%2fb//c?x=%20&y HTTP/1.1\r\n"),
    ] {
        let upstream = upstream(&format!("{}{base}", server.url), UpstreamConfig::default());
        let mut request = get(path);
        *request.version_mut() = http::Version::HTTP_2;
        request.headers_mut().insert("host", "kas.example".parse().unwrap());
        assert_eq!(text(soon(upstream.send(request)).await.unwrap()).await, "ok");

        let head = seen.recv().await.unwrap();
        assert!(head.starts_with(line), "{head}");
        assert!(head.contains(&host) && !head.contains("kas.example"), "{head}");
    }
}

#[tokio::test]
async fn path_that_is_too_long_with_its_base_is_refused() {
    let upstream = upstream("http://127.0.0.1:1/base", UpstreamConfig::default());
    let error = upstream.send(get(&format!("/{}", "a".repeat(65_530)))).await.unwrap_err();
    assert!(matches!(error, UpstreamError::InvalidTarget { .. }), "{error}");
}

#[tokio::test]
async fn redirect_is_returned() {
    let server =
        Server::answering("HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
    let server = server.await;
    let response = soon(upstream(&server.url, UpstreamConfig::default()).send(get("/"))).await.unwrap();
    assert_eq!(response.status(), 307);
}

/// A caller that is told of the base path would ask for it twice.
#[tokio::test]
async fn base_path_is_removed_from_redirects() {
    for (base, location, expected) in [
        ("/k8s/clusters/c-1", "/k8s/clusters/c-1/api/v1/x/proxy/?a", "/api/v1/x/proxy/?a"),
        ("/k8s/clusters/c-1", "/k8s/clusters/c-1", "/"),
        ("/k8s/clusters/c-1", "/k8s/clusters/c-10/api", "/k8s/clusters/c-10/api"),
        ("/k8s/clusters/c-1", "logs/", "logs/"),
        ("", "/api", "/api"),
    ] {
        let server = Server::answering(format!(
            "HTTP/1.1 301 Moved\r\nLocation: {location}\r\nContent-Location: {location}\r\nContent-Length: 0\r\n\r\n"
        ));
        let server = server.await;
        let upstream = upstream(&format!("{}{base}", server.url), UpstreamConfig::default());
        let response = soon(upstream.send(get("/"))).await.unwrap();
        for name in ["location", "content-location"] {
            assert_eq!(response.headers()[name], expected, "{base} {location}");
        }
    }
}

#[tokio::test]
async fn refused_connection_is_an_error() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = refused(&upstream(&format!("http://127.0.0.1:{port}"), UpstreamConfig::default())).await;
    assert!(matches!(error, UpstreamError::Connect { .. }));
    assert_eq!(
        error.to_string(),
        format!("cannot connect to 127.0.0.1:{port}: Connection refused (os error 111)")
    );

    let error = refused(&upstream(&format!("http://localhost:{port}"), UpstreamConfig::default())).await;
    assert!(error.to_string().starts_with("cannot connect to localhost ("), "{error}");
}

#[tokio::test]
async fn unknown_host_is_an_error() {
    let error = refused(&upstream("http://no..such.host", UpstreamConfig::default())).await;
    assert!(matches!(error, UpstreamError::Resolve { .. }), "{error}");
    assert!(error.to_string().starts_with("cannot resolve no..such.host: "), "{error}");
}

/// A name may resolve to another address after a check (CVE-2020-8562), so that the filter applies to the connection itself.
#[tokio::test]
async fn filtered_address_is_not_connected_to() {
    let server = Server::answering(OK).await;
    let url = server.url.replace("127.0.0.1", "localhost");
    let settings =
        UpstreamConfig { address_filter: |address| !address.is_loopback(), ..UpstreamConfig::default() };
    let error = refused(&upstream(&url, settings)).await;
    assert!(matches!(error, UpstreamError::Resolve { .. }), "{error}");
    assert!(error.to_string().contains("may belong to a Service"), "{error}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn response_of_another_protocol_is_an_error() {
    for garbage in ["SSH-2.0-OpenSSH_9.6\r\n\r\n", "HTTP/1.1 two hundred\r\n\r\n"] {
        let server = Server::answering(garbage).await;
        let error = refused(&upstream(&server.url, UpstreamConfig::default())).await;
        assert!(matches!(error, UpstreamError::InvalidResponse { .. }), "{error}");
        let start = format!("{} sent something that is not a valid HTTP/1.1 response: ", server.url);
        assert!(error.to_string().starts_with(&start), "{error}");
    }
}

#[tokio::test]
async fn closed_connection_is_an_error() {
    let server = Server::start(|mut stream, _| async move {
        head(&mut stream).await;
    })
    .await;
    let error = refused(&upstream(&server.url, UpstreamConfig::default())).await;
    assert!(matches!(error, UpstreamError::ClosedBeforeResponse { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        format!(
            "{} closed the connection before its response: connection closed before message completed",
            server.url
        )
    );
}

#[tokio::test]
async fn failed_request_body_is_an_error() {
    let server = Server::start(|mut stream, _| async move { closed(&mut stream).await }).await;
    let frames = futures_util::stream::iter([
        Ok(Frame::data("half".into())),
        Err(std::io::Error::other("the caller left")),
    ]);
    let request = http::Request::post("/").body(Body::new(StreamBody::new(frames))).unwrap();

    let error = soon(upstream(&server.url, UpstreamConfig::default()).send(request)).await.unwrap_err();
    assert!(matches!(error, UpstreamError::RequestBody { .. }), "{error}");
    assert!(error.to_string().ends_with("the caller left"), "{error}");
}

#[tokio::test]
async fn informational_responses_are_skipped() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n").await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        closed(&mut stream).await;
    })
    .await;
    let response = soon(upstream(&server.url, UpstreamConfig::default()).send(get("/"))).await.unwrap();
    assert_eq!((response.status().as_u16(), text(response).await.as_str()), (200, "ok"));
}

#[tokio::test]
async fn end_of_a_response_is_detected_for_every_framing() {
    for (answer, expected) in [
        ("Content-Length: 5\r\n\r\nhello", "hello"),
        ("Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", "hello"),
        ("\r\nuntil it closes", "until it closes"),
        ("Content-Length: 0\r\n\r\n", ""),
        ("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ""),
    ] {
        // In pieces, so that head and body do not arrive together.
        for piece in [1, 20, 1000] {
            let server = Server::start(move |mut stream, _| async move {
                head(&mut stream).await.unwrap();
                for part in format!("HTTP/1.1 200 OK\r\n{answer}").as_bytes().chunks(piece) {
                    stream.write_all(part).await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
            .await;
            let upstream = upstream(&server.url, UpstreamConfig::default());
            let response = soon(upstream.send(get("/"))).await.unwrap();
            assert_eq!(soon(text(response)).await, expected, "{answer:?} in pieces of {piece}");
        }
    }
}

#[tokio::test]
async fn incomplete_body_is_an_error() {
    for (answer, expected) in [
        ("Content-Length: 6\r\n\r\nhello", "end of file before message length reached"),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "unexpected EOF during chunk size line"),
        ("Transfer-Encoding: chunked\r\n\r\n6\r\nhello", "end of file before message length reached"),
    ] {
        let server = Server::start(move |mut stream, _| async move {
            self::answer(&mut stream, &format!("HTTP/1.1 200 OK\r\n{answer}")).await;
        })
        .await;
        let response = soon(upstream(&server.url, UpstreamConfig::default()).send(get("/"))).await.unwrap();
        let error = soon(response.into_body().collect()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("error reading a body from connection: {expected}"));
    }
}

#[tokio::test]
async fn trailers_come_last() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nChecksum: 1\r\n\r\n";
    let upstream = upstream(&Server::answering(answer).await.url, UpstreamConfig::default());
    let body = soon(upstream.send(get("/"))).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["checksum"], "1");
    assert_eq!(body.to_bytes(), "ok");
}

/// Returns the bytes that a server receives for a body of three frames, and perhaps trailers, with these header fields.
async fn written_by(
    request: http::request::Builder,
    fields: &[(&'static str, &'static str)],
    trailers: bool,
) -> String {
    let (bodies, mut seen) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let bodies = bodies.clone();
        async move {
            let chunked = head(&mut stream).await.unwrap().contains("transfer-encoding: chunked\r\n");
            let mut body = String::new();
            while if chunked { !body.ends_with("\r\n\r\n") } else { body.len() < 13 } {
                body.push(char::from(stream.read_u8().await.unwrap()));
            }
            bodies.send(body).unwrap();
            stream.write_all(OK.as_bytes()).await.unwrap();
        }
    })
    .await;
    let frames = ["hello ", "", "the end"].map(|data| Frame::data(data.into()));
    let trailers = trailers.then(|| {
        let checksum = (http::HeaderName::from_static("checksum"), http::HeaderValue::from_static("1"));
        Frame::trailers(http::HeaderMap::from_iter([checksum]))
    });
    let frames = frames.into_iter().chain(trailers).map(Ok::<_, std::io::Error>);
    let frames = futures_util::stream::iter(frames.collect::<Vec<_>>());
    let mut request = request.body(Body::new(StreamBody::new(frames))).unwrap();
    for (name, value) in fields {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    soon(upstream(&server.url, UpstreamConfig::default()).send(request)).await.unwrap();
    seen.recv().await.unwrap()
}

async fn written(fields: &[(&'static str, &'static str)], trailers: bool) -> String {
    written_by(http::Request::post("/"), fields, trailers).await
}

#[tokio::test]
async fn request_body_has_the_framing_of_its_head() {
    let sized = [("content-length", "13")];
    for trailers in [false, true] {
        assert_eq!(written(&sized, trailers).await, "hello the end", "there are no trailers without chunks");
    }
    let chunks = "6\r\nhello \r\n7\r\nthe end\r\n0\r\n";
    assert_eq!(written(&[], false).await, format!("{chunks}\r\n"));
    assert_eq!(written(&[], true).await, format!("{chunks}\r\n"), "the trailers were not announced");
    let announced = [("trailer", "x, Checksum")];
    assert_eq!(written(&announced, true).await, format!("{chunks}checksum: 1\r\n\r\n"));
    // The transfer coding of the caller ends at kas.
    assert_eq!(written(&[("transfer-encoding", "gzip")], false).await, format!("{chunks}\r\n"));
}

fn post(length: &str, body: &'static str) -> http::Request<Body> {
    let frames = futures_util::stream::iter([Ok::<_, std::io::Error>(Frame::data(body.into()))]);
    let request = http::Request::post("/").header("content-length", length);
    request.body(Body::new(StreamBody::new(frames))).unwrap()
}

#[tokio::test]
async fn request_body_shorter_than_its_content_length_is_an_error() {
    let server = Server::start(|mut stream, _| async move { closed(&mut stream).await }).await;
    let mut empty = post("1", "");
    *empty.body_mut() = Body::empty();
    for (request, expected) in [
        (post("14", "hello the end"), "user body write aborted: early end, expected 1 more bytes"),
        (empty, "fewer bytes"),
        (post("x", "hello the end"), "Content-Length"),
        (post("+13", "hello the end"), "Content-Length"),
    ] {
        let error = soon(upstream(&server.url, UpstreamConfig::default()).send(request)).await.unwrap_err();
        assert!(matches!(error, UpstreamError::RequestBody { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// HTTP/2 in the tunnel refuses such a body first.
#[tokio::test]
async fn request_body_longer_than_its_content_length_is_cut() {
    let (received, mut sent) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let received = received.clone();
        async move {
            answer(&mut stream, OK).await;
            let mut body = String::new();
            stream.read_to_string(&mut body).await.unwrap();
            received.send(body).unwrap();
        }
    })
    .await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    soon(upstream.send(post("12", "hello the end"))).await.unwrap();
    drop(upstream);
    assert_eq!(soon(sent.recv()).await.unwrap(), "hello the en");
}

#[tokio::test]
async fn small_body_is_one_frame_with_known_end() {
    for answer in ["Content-Length: 2\r\n\r\nok", "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"] {
        let server = Server::answering(format!("HTTP/1.1 200 OK\r\n{answer}")).await;
        let upstream = upstream(&server.url, UpstreamConfig::default());
        let mut body = soon(upstream.send(get("/"))).await.unwrap().into_body();
        assert_eq!(upstream.0.pools.current().idle(), 1, "the connection is free before the body is read");
        assert_eq!(body.size_hint().exact(), Some(2), "{answer}");
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ok");
        assert!(body.is_end_stream(), "{answer}");
    }
}

#[tokio::test]
async fn end_of_a_streamed_body_is_known_with_its_last_frame() {
    for (begin, end) in [
        ("Content-Length: 10\r\n\r\nhello", " body"),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "5\r\n body\r\n0\r\n\r\n"),
    ] {
        let upstream = upstream("http://127.0.0.1:1", UpstreamConfig::default());
        let (client, mut server) = duplex(1024);
        pooled(&upstream, client).await;
        let begin = format!("HTTP/1.1 200 OK\r\n{begin}");
        let (response, _) = tokio::join!(upstream.send(get("/")), answer(&mut server, &begin));
        let mut body = response.unwrap().into_body();
        assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "hello");
        assert!(!body.is_end_stream());

        server.write_all(end.as_bytes()).await.unwrap();
        assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), " body");
        assert!(body.is_end_stream(), "{begin:?}");
        assert_eq!(upstream.0.pools.current().idle(), 1);
    }
}

#[tokio::test]
async fn get_with_a_body_of_unknown_length_is_sent_with_its_body() {
    assert_eq!(
        written_by(http::Request::get("/"), &[], false).await,
        "6\r\nhello \r\n7\r\nthe end\r\n0\r\n\r\n"
    );
}

#[tokio::test]
async fn upstream_is_a_tower_service() {
    let server = Server::answering(OK).await;
    let service = upstream(&server.url, UpstreamConfig::default());
    assert_eq!(text(soon(service.oneshot(get("/"))).await.unwrap()).await, "ok");
}

#[tokio::test]
async fn connect_method_is_refused() {
    let request = http::Request::connect("example.com:443").body(Body::empty()).unwrap();
    let error = upstream("http://127.0.0.1:1", UpstreamConfig::default()).send(request).await.unwrap_err();
    assert!(matches!(error, UpstreamError::InvalidTarget { .. }), "{error}");
}
