//! When connections are kept, used again, given up and closed.

use std::{future::Future, time::Duration};

use http::Response;
use http_body_util::BodyExt as _;
use tokio::{io::AsyncWriteExt as _, sync::mpsc, time::Instant};
use tunnel::Body;

use super::{
    super::{ResponseBody, Settings, Upstream},
    get, idle, pooled,
    server::{OK, Server, answer, closed, head},
    soon, text, upstream,
};

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
const ENDLESS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n";

/// Answers with more than fits between the two sides, so that an exchange lasts until its body is read.
async fn large() -> Server {
    let body = "x".repeat(20_000_000);
    Server::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await
}

async fn send(upstream: &Upstream) -> Response<ResponseBody> {
    soon(upstream.send(get("/"))).await.unwrap()
}

#[tokio::test]
async fn one_connection_serves_one_request_after_the_other() {
    for answer in [OK, CHUNKED, "HTTP/1.1 204 No Content\r\n\r\n"] {
        let server = Server::answering(answer).await;
        let upstream = upstream(&server.url, Settings::default());
        for _ in 0..5 {
            text(send(&upstream).await).await;
            idle(&upstream, 1).await;
        }
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn a_connection_in_use_is_not_shared() {
    let server = large().await;
    let upstream = upstream(&server.url, Settings { max_idle: 2, ..Settings::default() });
    let (first, second, third) = (send(&upstream).await, send(&upstream).await, send(&upstream).await);
    assert_eq!((server.connections(), upstream.0.pools.here().idle()), (3, 0));

    for response in [first, second, third] {
        text(response).await;
    }
    idle(&upstream, 3).await;
}

#[tokio::test]
async fn after_a_burst_the_surplus_expires_first() {
    let server = large().await;
    let upstream = upstream(&server.url, Settings { max_idle: 2, ..Settings::default() });
    let burst = [send(&upstream).await, send(&upstream).await, send(&upstream).await, send(&upstream).await];
    for response in burst {
        text(response).await;
    }
    idle(&upstream, 4).await;

    let pool = upstream.0.pools.here();
    let lease = pool.take(Instant::now() + Duration::from_secs(1)).unwrap();
    assert_eq!(pool.idle(), 3, "in a burst every connection is used again at once");
    drop(lease);
    let lease = pool.take(Instant::now() + Duration::from_secs(10)).unwrap();
    assert_eq!(pool.idle(), 1, "and afterwards only so many are kept");
    drop(lease);
}

#[tokio::test]
async fn connection_close_is_obeyed() {
    let server =
        Server::answering("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok").await;
    let upstream = upstream(&server.url, Settings::default());
    for _ in 0..2 {
        text(send(&upstream).await).await;
    }
    assert_eq!((server.connections(), upstream.0.pools.here().idle()), (2, 0));
}

#[tokio::test]
async fn idle_connections_expire() {
    let server = Server::answering(OK).await;
    let upstream = upstream(&server.url, Settings::default());
    text(send(&upstream).await).await;
    idle(&upstream, 1).await;

    assert!(upstream.0.pools.here().take(Instant::now() + Duration::from_secs(60)).is_none());
    idle(&upstream, 0).await;
}

#[tokio::test]
async fn renewal_closes_what_was_open() {
    let server = large().await;
    let upstream = upstream(&server.url, Settings::default());
    let busy = send(&upstream).await;
    text(send(&upstream).await).await;
    idle(&upstream, 1).await;

    upstream.renew_connections();
    assert_eq!(upstream.0.pools.here().idle(), 0);
    text(busy).await;
    text(send(&upstream).await).await;
    idle(&upstream, 1).await;
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_connection_closed_by_the_server_is_replaced() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, OK).await;
    })
    .await;
    let upstream = upstream(&server.url, Settings::default());
    for sent in 1..=3 {
        text(send(&upstream).await).await;
        // The client has seen the end of the connection once nothing is ready any more.
        soon(async {
            while let Some(lease) = upstream.0.pools.here().take(Instant::now()) {
                lease.give_back();
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(server.connections(), sent);
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_looked_after_until_nothing_waits() {
    let server = Server::answering(OK).await;
    let upstream = upstream(&server.url, Settings::default());
    let (left, mut gone) = tokio::io::duplex(1024);
    let (kept, mut there) = tokio::io::duplex(1024);
    let pool = upstream.0.pools.here();
    let started = Instant::now();
    for client in [left, kept] {
        pooled(&upstream, client).await;
    }
    gone.shutdown().await.unwrap();
    closed(&mut gone).await;
    assert_eq!(pool.idle(), 1);
    assert!(started.elapsed() < Duration::from_secs(5), "one that the server has closed goes soon");
    closed(&mut there).await;
    assert_eq!(pool.idle(), 0);
    let after = started.elapsed().as_secs();
    assert!((60..65).contains(&after), "the other waited {after} s for a request");
}

/// What `serve` waits for is that the client closes.
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

    (upstream(&server.url, Settings::default()), closes)
}

#[tokio::test]
async fn dropping_a_body_half_way_closes_the_connection() {
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
        assert_eq!(upstream.0.pools.here().idle(), 0);
    }
}

#[tokio::test]
async fn dropping_a_large_body_half_way_closes_the_connection() {
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
async fn dropping_a_request_closes_the_connection() {
    let (upstream, mut closes) = closes(|mut stream| async move {
        head(&mut stream).await.unwrap();
        stream
    })
    .await;
    tokio::time::timeout(Duration::from_millis(50), upstream.send(get("/"))).await.unwrap_err();
    soon(closes.recv()).await.unwrap();
}

#[tokio::test]
async fn dropping_the_client_closes_idle_connections() {
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

/// A request body may outlive its response; until it has ended, the connection is not free.
#[tokio::test]
async fn an_early_response_does_not_free_the_connection() {
    let server = Server::start(|mut stream, _| async move {
        answer(&mut stream, OK).await;
        closed(&mut stream).await;
    })
    .await;
    let upstream = upstream(&server.url, Settings::default());
    let (frames, body) = mpsc::unbounded_channel::<bytes::Bytes>();
    let body = futures_util::stream::unfold(body, |mut body| async move {
        body.recv().await.map(|data| (Ok::<_, std::io::Error>(http_body::Frame::data(data)), body))
    });
    let request = http::Request::post("/").body(Body::new(http_body_util::StreamBody::new(body))).unwrap();

    text(soon(upstream.send(request)).await.unwrap()).await;
    assert_eq!(upstream.0.pools.here().idle(), 0);
    drop(frames);
    idle(&upstream, 1).await;
}

/// Reuse under contention: no two requests ever meet on one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once() {
    let server = Server::start(|mut stream, _| async move {
        while let Some(head) = head(&mut stream).await {
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let upstream = upstream(&server.url, Settings::default());
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
