//! Attacks of servers in the cluster on agentk.

use http::StatusCode;
use http_body::Frame;
use http_body_util::BodyExt as _;
use kas_testing::server::{PATH, SOON, channel_body, post, read_head, read_until, send_query, world};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::mpsc, time::timeout};

use crate::memory::Memory;

#[tokio::test]
async fn attack_22_expectation_is_not_forwarded() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        assert!(!read_head(&mut server).await.contains("expect"));
        server.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
        // And reads nothing of it.
        std::future::pending::<()>().await;
    })
    .await;
    for over_http2 in [false, true] {
        let (writing, body) = channel_body();
        writing.send(Frame::data("begun".into())).unwrap();
        let answer = send_query(&world, over_http2, |request| {
            post(request, body);
            request.headers_mut().insert("expect", "100-continue".parse().unwrap());
        })
        .await;
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "no");
    }
}

#[tokio::test]
async fn attack_22_unexpected_100_is_accepted() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        read_head(&mut server).await;
        server.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        read_until(&mut server, "body").await;
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    })
    .await;
    for over_http2 in [false, true] {
        let answer = send_query(&world, over_http2, |request| post(request, "body".into())).await;
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
}

#[tokio::test]
async fn attack_23_interim_response_flood_is_cheap() {
    let (world, _agent) = world(async |mut server: TcpStream| {
        read_head(&mut server).await;
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(1000);
        for _ in 0..20 {
            server.write_all(hints.as_bytes()).await.unwrap();
        }
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    })
    .await;
    let memory = Memory::now();
    for over_http2 in [false, true] {
        let answer = send_query(&world, over_http2, |_| {}).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(!answer.headers().contains_key("link"));
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
    memory.assert_bounded();
}

#[tokio::test]
async fn attack_23_endless_interim_responses_are_cut() {
    let (noticed, mut left) = mpsc::unbounded_channel();
    let (world, _agent) = world(move |mut server: TcpStream| {
        let noticed = noticed.clone();
        async move {
            if read_head(&mut server).await.contains("query?harmless") {
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
    timeout(SOON, left.recv()).await.expect("the flooded connection is closed");
    let answer = timeout(SOON, attacked).await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(answer.headers()["kas-error"], "cluster-misbehaved");
}
