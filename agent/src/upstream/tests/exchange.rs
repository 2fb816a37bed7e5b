//! One request, one response, and the ways in which it fails.

use std::time::Duration;

use http_body_util::{BodyExt as _, StreamBody};
use tokio::{io::AsyncWriteExt as _, net::TcpListener, sync::mpsc};

use super::{
    super::{Settings, UpstreamError},
    get, refused,
    server::{OK, Server, answer, closed, head},
    soon, text, upstream,
};

#[tokio::test]
async fn path_and_query_arrive_as_they_are() {
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
        let upstream = upstream(&format!("{}{base}", server.url), Settings::default());
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
async fn a_path_too_long_for_its_base_is_refused() {
    let upstream = upstream("http://127.0.0.1:1/base", Settings::default());
    let error = upstream.send(get(&format!("/{}", "a".repeat(65_530)))).await.unwrap_err();
    assert!(matches!(error, UpstreamError::InvalidTarget { .. }), "{error}");
}

#[tokio::test]
async fn redirects_are_answers() {
    let server =
        Server::answering("HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
    let server = server.await;
    let response = soon(upstream(&server.url, Settings::default()).send(get("/"))).await.unwrap();
    assert_eq!(response.status(), 307);
}

#[tokio::test]
async fn nothing_listens() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = refused(&upstream(&format!("http://127.0.0.1:{port}"), Settings::default())).await;
    assert!(matches!(error, UpstreamError::Connect { .. }));
    assert_eq!(
        error.to_string(),
        format!("cannot connect to 127.0.0.1:{port}: Connection refused (os error 111)")
    );

    let error = refused(&upstream(&format!("http://localhost:{port}"), Settings::default())).await;
    assert!(error.to_string().starts_with("cannot connect to localhost ("), "{error}");
}

#[tokio::test]
async fn no_such_host() {
    let error = refused(&upstream("http://no..such.host", Settings::default())).await;
    assert!(matches!(error, UpstreamError::Resolve { .. }), "{error}");
    assert!(error.to_string().starts_with("cannot resolve no..such.host: "), "{error}");
}

/// A name may come to mean another address after it was looked at (CVE-2020-8562).
#[tokio::test]
async fn an_address_that_may_not_be_is_not_connected_to() {
    let server = Server::answering(OK).await;
    let url = server.url.replace("127.0.0.1", "localhost");
    let settings = Settings { may_be_at: |address| !address.is_loopback(), ..Settings::default() };
    let error = refused(&upstream(&url, settings)).await;
    assert!(matches!(error, UpstreamError::Resolve { .. }), "{error}");
    assert!(error.to_string().contains("is one that a Service has"), "{error}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn garbage_is_not_http() {
    for garbage in ["SSH-2.0-OpenSSH_9.6\r\n\r\n", "HTTP/1.1 two hundred\r\n\r\n"] {
        let server = Server::answering(garbage).await;
        let error = refused(&upstream(&server.url, Settings::default())).await;
        assert!(matches!(error, UpstreamError::InvalidResponse { .. }), "{error}");
        let start = format!("{} sent something that is not a valid HTTP/1.1 response: ", server.url);
        assert!(error.to_string().starts_with(&start), "{error}");
    }
}

#[tokio::test]
async fn the_server_hangs_up() {
    let server = Server::start(|mut stream, _| async move {
        head(&mut stream).await;
    })
    .await;
    let error = refused(&upstream(&server.url, Settings::default())).await;
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
async fn the_request_body_fails() {
    let server = Server::start(|mut stream, _| async move { closed(&mut stream).await }).await;
    let frames = futures_util::stream::iter([
        Ok(http_body::Frame::data("half".into())),
        Err(std::io::Error::other("the caller left")),
    ]);
    let request = http::Request::post("/").body(StreamBody::new(frames).boxed_unsync()).unwrap();

    let error = soon(upstream(&server.url, Settings::default()).send(request)).await.unwrap_err();
    assert!(matches!(error, UpstreamError::RequestBody { .. }), "{error}");
    assert!(error.to_string().ends_with("the caller left"), "{error}");
}

#[tokio::test]
async fn response_timeout_is_optional() {
    let server = Server::start(|mut stream, _| async move {
        head(&mut stream).await;
        closed(&mut stream).await;
    })
    .await;
    let settings = Settings { response_timeout: Some(Duration::from_millis(20)), ..Settings::default() };
    let error = refused(&upstream(&server.url, settings)).await;
    assert_eq!(error.to_string(), format!("no response from {} within 20ms", server.url));
}

#[tokio::test]
async fn informational_responses_are_skipped() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n").await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        closed(&mut stream).await;
    })
    .await;
    let response = soon(upstream(&server.url, Settings::default()).send(get("/"))).await.unwrap();
    assert_eq!((response.status().as_u16(), text(response).await.as_str()), (200, "ok"));
}
