//! Tests of responses that hyper refuses, and of ambiguous ones.

use super::{
    super::{UpstreamConfig, UpstreamError},
    get, refused,
    server::{Server, answer, closed},
    soon, text, upstream,
};

/// Starts a server that sends one response and keeps the connection open.
async fn responding(response: String) -> Server {
    Server::start(move |mut stream, _| {
        let response = response.clone();
        async move {
            answer(&mut stream, &response).await;
            closed(&mut stream).await;
        }
    })
    .await
}

#[tokio::test]
async fn malformed_response_is_refused() {
    for (response, expected) in [
        ("SSH-2.0-OpenSSH_9.6\r\n", "invalid HTTP version parsed"),
        ("\u{15}\u{3}\r\n\r\n", "invalid HTTP version parsed"),
        ("HTTP/1.7 200 OK\r\n\r\n", "invalid HTTP version parsed"),
        ("HTTP/1.1 two hundred\r\n\r\n", "invalid HTTP status-code parsed"),
        ("HTTP/1.1 099 x\r\n\r\n", "invalid HTTP status-code parsed"),
        ("HTTP/1.1 200 OK\r\nA B: c\r\n\r\n", "invalid HTTP header parsed"),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "invalid HTTP header parsed"),
        ("HTTP/1.1 200 OK\r\nA: b\u{0}\r\n\r\n", "invalid HTTP header parsed"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "invalid content-length parsed",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n", "invalid content-length parsed"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", "invalid content-length parsed"),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "unexpected transfer-encoding parsed"),
    ] {
        let server = responding(response.to_owned()).await;
        let error = refused(&upstream(&server.url, UpstreamConfig::default())).await;
        assert!(matches!(error, UpstreamError::InvalidResponse { .. }), "{response:?}: {error}");
        assert!(error.to_string().ends_with(expected), "{response:?}: {error}");
    }
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(101));
    let large = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(300 << 10));
    for response in [many, large] {
        let error = refused(&upstream(&responding(response).await.url, UpstreamConfig::default())).await;
        assert!(error.to_string().contains("message head is too large"), "{error}");
    }
}

#[tokio::test]
async fn other_transfer_coding_than_chunked_is_refused() {
    for codings in [
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
    ] {
        let server = responding(format!("HTTP/1.1 200 OK\r\n{codings}\r\n\r\n0\r\n\r\n")).await;
        let error = refused(&upstream(&server.url, UpstreamConfig::default())).await;
        assert!(matches!(error, UpstreamError::InvalidResponse { .. }), "{codings}: {error}");
        assert!(error.to_string().ends_with("its Transfer-Encoding is not `chunked` alone"), "{error}");
    }
}

#[tokio::test]
async fn connection_is_reused_only_with_an_unambiguous_length() {
    const CHUNKS: &str = "2\r\nok\r\n0\r\n\r\n";
    for (head, body, used_again) in [
        ("1.1 200 OK\r\nContent-Length: 2\r\ncontent-length: 2", "ok", true),
        ("1.1 200 OK\r\nContent-Length: 2, 2", "ok", true),
        ("1.1 200 OK\r\nTransfer-Encoding: Chunked", CHUNKS, true),
        ("1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2", CHUNKS, false),
        ("1.1 200 OK\r\nConnection: x, CLOSE\r\nContent-Length: 2", "ok", false),
        ("1.0 200 OK\r\nContent-Length: 2", "ok", false),
        ("1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2", "ok", true),
    ] {
        let server = responding(format!("HTTP/{head}\r\n\r\n{body}")).await;
        let upstream = upstream(&server.url, UpstreamConfig::default());
        let response = soon(upstream.send(get("/"))).await.unwrap();
        let lengths = response.headers().get_all("content-length").iter().count();
        assert!(lengths == 0 || !response.headers().contains_key("transfer-encoding"), "{head}");
        assert_eq!(text(response).await, "ok", "{head}");
        assert_eq!(upstream.0.pools.current().idle(), usize::from(used_again), "{head}");
    }
}

#[tokio::test]
async fn bytes_after_a_response_close_the_connection() {
    let server = responding("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more".to_owned()).await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    let response = soon(upstream.send(get("/"))).await.unwrap();
    assert_eq!(text(response).await, "ok");
    assert_eq!(upstream.0.pools.current().idle(), 0);
}
