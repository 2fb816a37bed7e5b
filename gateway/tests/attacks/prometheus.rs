//! The memory part of item 67. The rest is in the scenarios and in the tests with a real Prometheus.

use http_body_util::BodyExt as _;
use kas_testing::server::{self, PATH, SOON, post, send_query};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};

use crate::memory::Memory;

/// In Snappy's block format (<https://github.com/google/snappy/blob/main/format_description.txt>): it says to be of 4 GiB,
/// and each three bytes of it copy 64.
fn bomb() -> Vec<u8> {
    let mut bomb = b"\xff\xff\xff\xff\x0f\x00x".to_vec();
    bomb.extend(b"\xfe\x01\x00".repeat(4 << 20));
    bomb
}

/// CVE-2026-42154: remote read unpacks before it checks the size. kas and agentk do not unpack.
#[tokio::test]
async fn attack_67_compressed_bomb_is_not_unpacked() {
    let (heard, mut bodies) = mpsc::unbounded_channel();
    let (world, _running) = server::world(move |mut server: TcpStream| {
        let heard = heard.clone();
        async move {
            let head = server::read_head(&mut server).await;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            server.read_exact(&mut body).await.unwrap();
            heard.send((head, body)).unwrap();
            let bomb = bomb();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Encoding: snappy\r\nContent-Type: application/x-protobuf\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n",
                bomb.len()
            );
            server.write_all(head.as_bytes()).await.unwrap();
            server.write_all(&bomb).await.unwrap();
        }
    })
    .await;
    let memory = Memory::now();
    for over_http2 in [false, true] {
        let answer = send_query(&world, over_http2, |request| {
            post(request, bytes::Bytes::from(bomb()).into());
            let path = request.uri().to_string().replace(PATH, &PATH.replace("query", "read"));
            *request.uri_mut() = path.parse().unwrap();
            request.headers_mut().insert("content-encoding", "snappy".parse().unwrap());
            request.headers_mut().insert("accept-encoding", "snappy".parse().unwrap());
        })
        .await;
        assert_eq!(answer.headers()["content-encoding"], "snappy");
        assert_eq!(answer.headers()["content-length"], bomb().len().to_string());
        let arrived = timeout(SOON, answer.into_body().collect()).await.unwrap().unwrap().to_bytes();
        assert!(arrived == bomb());
        let (head, body) = bodies.recv().await.unwrap();
        assert!(head.contains("content-encoding: snappy") && body == bomb());
    }
    // One copy of the test has 12 MiB; unpacked, it has 256 MiB.
    memory.assert_below(192 << 20);
}
