//! Heads of HTTP/1.1 that kas or its parser refuses.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use kas_testing::world::World;
use tokio::{io::AsyncWriteExt as _, time::sleep};

use super::http1::{SILENCE, exchange, head, read_to_end, services};

/// hyper responds to these requests itself, without a body.
#[tokio::test(start_paused = true)]
async fn malformed_head_is_refused_by_the_parser() {
    let world = World::new();
    let large = format!("GET / HTTP/1.1\r\nHost: kas\r\nA: {}\r\nB: {0}\r\n\r\n", "b".repeat(40_000));
    let many = format!("GET / HTTP/1.1\r\nHost: kas\r\n{}\r\n", "A: b\r\n".repeat(101));
    for (request, status) in [
        ("GET / HTTP/2.0\r\nHost: kas\r\n\r\n", 400),
        ("\u{16}\u{3}\u{1}", 400),
        ("GET / HTTP/1.1\r\nHost : kas\r\n\r\n", 400),
        (&*large, 431),
        (&*many, 431),
    ] {
        let mut connection = world.connect();
        connection.write_all(request.as_bytes()).await.unwrap();
        let answer = read_to_end(&mut connection).await.expect("closed");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n") && !answer.contains("kas-error"), "{answer}");
    }
    // Counted once kas has waited for the last caller to close.
    sleep(SILENCE).await;
    assert_eq!(world.limit_count("head"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn ambiguous_host_is_refused() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let good = head(&world, "GET /x");
    for (host, expected) in [
        ("", "the request has no Host"),
        ("Host: a b\r\n", "Host is not a host and a port"),
        ("Host: a/b\r\n", "Host is not a host and a port"),
        ("Host: a@b\r\n", "Host is not a host and a port"),
        ("Host: kas\r\nHost: kas\r\n", "the request has more than one Host"),
    ] {
        let answer = exchange(&world, &format!("{}\r\n", good.replace("Host: kas\r\n", host))).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains(expected), "{host}: {answer}");
        assert!(answer.contains("\r\nkas-error: bad-request\r\n"), "{answer}");
    }
    for host in ["Host: \r\n", "Host: [::1]:8154\r\n", "Host: k_a-s.example.com:80\r\n"] {
        let answer = exchange(&world, &format!("{}\r\n", good.replace("Host: kas\r\n", host))).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
}
