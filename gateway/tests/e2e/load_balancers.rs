//! A real nginx that keeps idle connections to kas, and sends the requests of callers into them.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use serde_json::json;

use crate::support::{Kas, KasOptions, Proxy, Tokens};

/// `idle_timeout` of kas. kas compares connections six times in this time, and closes one at most two sixths later.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
const CALLERS: u32 = 10;
/// The requests that a caller sends without a pause.
const BURST: u32 = 35;

/// A time for which nginx keeps idle connections, and what follows.
struct Case {
    keepalive_timeout: Duration,
    /// The pauses of callers, as multiples of `idle_timeout`.
    pauses: [f64; 10],
    /// True if kas closes idle connections before nginx does. `None` if that depends on the load of the machine.
    kas_closes: Option<bool>,
}

const CASES: [Case; 3] = [
    Case {
        keepalive_timeout: Duration::from_millis(500),
        pauses: [0.2, 0.4, 0.5, 0.6, 0.8, 0.9, 1.0, 1.1, 1.4, 2.0],
        kas_closes: Some(false),
    },
    Case {
        keepalive_timeout: IDLE_TIMEOUT,
        pauses: [0.2, 0.5, 0.8, 0.9, 1.0, 1.0, 1.1, 1.2, 1.4, 2.0],
        kas_closes: None,
    },
    // nginx uses a connection at most 0.8 or at least 2.2 times the timeout after its last request. With a pause between them,
    // a request may meet the close of its connection, which no server can prevent: the default of kas is 70 minutes.
    Case {
        keepalive_timeout: Duration::from_secs(60),
        pauses: [0.2, 0.4, 0.6, 0.8, 2.2, 0.2, 0.5, 0.7, 0.8, 2.2],
        kas_closes: Some(true),
    },
];

/// Sends a POST, which nginx never repeats, and returns the status of the response.
fn post(connection: &mut TcpStream) -> u16 {
    connection
        .write_all(b"POST /agents/7/kubernetes/version HTTP/1.1\r\nHost: kas\r\nContent-Length: 2\r\n\r\n{}")
        .unwrap();
    let (mut response, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        let read = connection.read(&mut buffer).unwrap();
        assert_ne!(read, 0, "nginx closed: {}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&response);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return head.split(' ').nth(1).unwrap().parse().unwrap();
        }
    }
}

/// Sends bursts of requests with pauses between them, and returns the number of requests. `caller` shifts the pauses a little.
fn send_bursts(nginx: SocketAddr, case: &Case, caller: u32) -> u32 {
    let mut connection = TcpStream::connect(nginx).unwrap();
    let mut sent = 0;
    for pause in case.pauses {
        for _ in 0..BURST {
            // kas refuses it: there is no token. 502 is of nginx.
            assert_eq!(post(&mut connection), 401, "after {sent} requests of caller {caller}");
            sent += 1;
        }
        thread::sleep(IDLE_TIMEOUT.mul_f64(pause) + Duration::from_millis(3) * caller);
    }
    sent
}

/// Returns the number of requests, or `None` without nginx.
fn run_case(case: &Case) -> Option<u32> {
    let directory = tempfile::tempdir().unwrap();
    Tokens::generate().write_identity(directory.path(), false);
    let limits = json!({"idle_timeout": format!("{}s", IDLE_TIMEOUT.as_secs())});
    let agent = json!({
        "listen": {"address": "127.0.0.1:0"},
        "kubernetes_api": {"listen": {"address": "127.0.0.1:0"}, "limits": limits},
    });
    let options = KasOptions { sections: vec![("agent", agent)], ..KasOptions::default() };
    let kas = Kas::start(directory.path(), &options);
    let proxy = Proxy::nginx_keepalive_or_skip(directory.path(), kas.public, case.keepalive_timeout)?;
    let nginx = proxy.addresses[0];
    let sent = thread::scope(|scope| {
        let callers: Vec<_> =
            (0..CALLERS).map(|caller| scope.spawn(move || send_bursts(nginx, case, caller))).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    // A connection that is closed after its request is never idle.
    let closed = kas.metric_with("kas_limits_total", "\"idle-timeout\"");
    if let Some(expected) = case.kas_closes {
        assert_eq!(closed > 0.0, expected, "kas closed {closed} idle connections");
    }
    Some(sent)
}

#[test]
fn nginx_reuses_idle_connections_without_a_502() {
    let sent = thread::scope(|scope| {
        let cases = CASES.each_ref().map(|case| scope.spawn(move || run_case(case)));
        cases.map(|case| case.join().unwrap())
    });
    let Some(sent) = sent.into_iter().sum::<Option<u32>>() else { return };
    assert!(sent >= 10_000, "{sent} requests");
}
