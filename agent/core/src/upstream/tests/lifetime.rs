//! Tests of the lifetime of connections: when they are kept, reused and closed.

use std::{future::Future, time::Duration};

use http::Response;
use http_body_util::BodyExt as _;
use tokio::{io::AsyncWriteExt as _, sync::mpsc, time::Instant};
use tunnel::Body;

use super::{
    super::{ResponseBody, Upstream, UpstreamConfig},
    get, idle, pooled,
    server::{OK, Server, answer, closed, head},
    soon, text, upstream,
};

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
const ENDLESS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n";

/// Starts a server whose responses do not fit into the socket buffers, so that an exchange lasts until its body is read.
async fn large() -> Server {
    let body = "x".repeat(20_000_000);
    Server::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await
}

async fn send(upstream: &Upstream) -> Response<ResponseBody> {
    soon(upstream.send(get("/"))).await.unwrap()
}

#[tokio::test]
async fn connection_is_reused() {
    for answer in [OK, CHUNKED, "HTTP/1.1 204 No Content\r\n\r\n"] {
        let server = Server::answering(answer).await;
        let upstream = upstream(&server.url, UpstreamConfig::default());
        for _ in 0..5 {
            text(send(&upstream).await).await;
            idle(&upstream, 1).await;
        }
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn connection_in_use_is_not_shared() {
    let server = large().await;
    let upstream = upstream(&server.url, UpstreamConfig { max_idle: 2, ..UpstreamConfig::default() });
    let (first, second, third) = (send(&upstream).await, send(&upstream).await, send(&upstream).await);
    assert_eq!((server.connections(), upstream.0.pools.current().idle()), (3, 0));

    for response in [first, second, third] {
        text(response).await;
    }
    idle(&upstream, 3).await;
}

#[tokio::test]
async fn surplus_connections_expire_after_a_burst() {
    let server = large().await;
    let upstream = upstream(&server.url, UpstreamConfig { max_idle: 2, ..UpstreamConfig::default() });
    let burst = [send(&upstream).await, send(&upstream).await, send(&upstream).await, send(&upstream).await];
    for response in burst {
        text(response).await;
    }
    idle(&upstream, 4).await;

    let pool = upstream.0.pools.current();
    let pooled = pool.checkout(Instant::now() + Duration::from_secs(1)).unwrap();
    assert_eq!(pool.idle(), 3, "the surplus is kept during a burst");
    drop(pooled);
    let pooled = pool.checkout(Instant::now() + Duration::from_secs(10)).unwrap();
    assert_eq!(pool.idle(), 1, "only max_idle connections are kept after it");
    drop(pooled);
}

#[tokio::test]
async fn connection_close_is_obeyed() {
    let server =
        Server::answering("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok").await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    for _ in 0..2 {
        text(send(&upstream).await).await;
    }
    assert_eq!((server.connections(), upstream.0.pools.current().idle()), (2, 0));
}

#[tokio::test]
async fn idle_connections_expire() {
    let server = Server::answering(OK).await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    text(send(&upstream).await).await;
    idle(&upstream, 1).await;

    assert!(upstream.0.pools.current().checkout(Instant::now() + Duration::from_secs(60)).is_none());
    idle(&upstream, 0).await;
}

#[tokio::test]
async fn renewal_closes_open_connections() {
    let server = large().await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    let busy = send(&upstream).await;
    text(send(&upstream).await).await;
    idle(&upstream, 1).await;

    upstream.renew_connections();
    assert_eq!(upstream.0.pools.current().idle(), 0);
    text(busy).await;
    text(send(&upstream).await).await;
    idle(&upstream, 1).await;
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn connection_closed_by_the_server_is_replaced() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, OK).await;
    })
    .await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    for sent in 1..=3 {
        text(send(&upstream).await).await;
        // The client has received the end of the connection once it is not ready.
        soon(async {
            while let Some(mut pooled) = upstream.0.pools.current().checkout(Instant::now())
                && pooled.connection.is_ready()
            {
                pooled.release();
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(server.connections(), sent);
    }
}

#[tokio::test(start_paused = true)]
async fn unused_connections_are_closed_until_the_pool_is_empty() {
    let server = Server::answering(OK).await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    let (closed_client, mut closed_server) = tokio::io::duplex(1024);
    let (open_client, mut open_server) = tokio::io::duplex(1024);
    let pool = upstream.0.pools.current();
    let started = Instant::now();
    for client in [closed_client, open_client] {
        pooled(&upstream, client).await;
    }
    closed_server.shutdown().await.unwrap();
    closed(&mut closed_server).await;
    assert_eq!(pool.idle(), 1);
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "a connection that the server has closed is removed soon"
    );
    closed(&mut open_server).await;
    assert_eq!(pool.idle(), 0);
    let after = started.elapsed().as_secs();
    assert!((60..65).contains(&after), "the other waited {after} s for a request");
}

/// Starts a server that serves one connection with `serve`, and returns a receiver of its close by the client.
async fn closes<F>(
    serve: impl Fn(tokio::net::TcpStream) -> F + Send + Clone + 'static,
) -> (Upstream, mpsc::UnboundedReceiver<()>)
where
    F: Future<Output = tokio::net::TcpStream> + Send + 'static,
{
    let (closing, closes) = mpsc::unbounded_channel();
    let server = Server::start(move |stream, _| {
        let (closing, serving) = (closing.clone(), serve(stream));
        async move {
            closed(&mut serving.await).await;
            closing.send(()).unwrap();
        }
    })
    .await;

    (upstream(&server.url, UpstreamConfig::default()), closes)
}

#[tokio::test]
async fn dropped_body_closes_the_connection() {
    let (upstream, mut closes) = closes(|mut stream| async move {
        answer(&mut stream, ENDLESS).await;
        stream
    })
    .await;
    for read_first in [true, false] {
        let mut watch = send(&upstream).await;
        if read_first {
            let frame = soon(watch.body_mut().frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "ok");
        }
        drop(watch);
        soon(closes.recv()).await.unwrap();
        assert_eq!(upstream.0.pools.current().idle(), 0);
    }
}

#[tokio::test]
async fn dropped_large_body_closes_the_connection() {
    let (upstream, mut closes) = closes(|mut stream| async move {
        answer(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n").await;
        while stream.write_all(&[b'x'; 65536]).await.is_ok() {}
        stream
    })
    .await;
    let mut response = send(&upstream).await;
    soon(response.body_mut().frame()).await.unwrap().unwrap();
    drop(response);
    soon(closes.recv()).await.unwrap();
}

#[tokio::test]
async fn dropped_request_closes_the_connection() {
    let (upstream, mut closes) = closes(|mut stream| async move {
        head(&mut stream).await.unwrap();
        stream
    })
    .await;
    tokio::time::timeout(Duration::from_millis(50), upstream.send(get("/"))).await.unwrap_err();
    soon(closes.recv()).await.unwrap();
}

#[tokio::test]
async fn dropped_client_closes_idle_connections() {
    let (upstream, mut closes) = closes(|mut stream| async move {
        answer(&mut stream, OK).await;
        stream
    })
    .await;
    text(send(&upstream).await).await;
    idle(&upstream, 1).await;
    drop(upstream);
    soon(closes.recv()).await.unwrap();
}

/// A request body may end after its response; until then, the connection is in use.
#[tokio::test]
async fn early_response_does_not_release_the_connection() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, OK).await;
        closed(&mut stream).await;
    })
    .await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    let (frames, body) = mpsc::unbounded_channel::<bytes::Bytes>();
    let body = futures_util::stream::unfold(body, |mut body| async move {
        body.recv().await.map(|data| (Ok::<_, std::io::Error>(http_body::Frame::data(data)), body))
    });
    let request = http::Request::post("/").body(Body::new(http_body_util::StreamBody::new(body))).unwrap();

    text(soon(upstream.send(request)).await.unwrap()).await;
    assert_eq!(upstream.0.pools.current().idle(), 0);
    drop(frames);
    idle(&upstream, 1).await;
}

/// Concurrent requests do not share a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_receive_their_own_responses() {
    let server = Server::start(|mut stream, _| async move {
        while let Some(head) = head(&mut stream).await {
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let upstream = upstream(&server.url, UpstreamConfig::default());
    let callers = (0..8).map(|caller| {
        let upstream = upstream.clone();
        tokio::spawn(async move {
            for request in 0..200 {
                let path = format!("/{caller}/{request}");
                assert_eq!(text(upstream.send(get(&path)).await.unwrap()).await, path);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        soon(caller).await.unwrap();
    }
    assert!(server.connections() < 100, "{} connections for 1600 requests", server.connections());
}
