//! Tests of tunnels through an HTTP proxy.

use std::ffi::OsString;

use crate::support::{DialResponse, echo, serve, start, text};
use agentk_core::{
    AgentToken, KasAddress, SessionConfig, TcpDialer, connect::HttpProxy, upstream::ClientTlsConfig,
};
use proto::ReplicaId;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};

type Tunnels = mpsc::UnboundedReceiver<crate::support::OpenedTunnel>;
type Heads = mpsc::UnboundedReceiver<String>;

/// Starts a proxy that sends `answer` to CONNECT, and a kas on the same connection if that is 200.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn proxy(answer: &'static str) -> (u16, Heads, Tunnels) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heads, received) = mpsc::unbounded_channel();
    let (sender, opened) = mpsc::unbounded_channel();
    let replica = ReplicaId::random();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            // Fails if the test has ended.
            let _ = heads.send(String::from_utf8(head).unwrap());
            stream.write_all(answer.as_bytes()).await.unwrap();
            if answer.contains(" 200 ") {
                tokio::spawn(serve(stream, DialResponse::Accept(replica), 1, sender.clone()));
            }
        }
    });
    (port, received, opened)
}

const OK: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

#[allow(clippy::unwrap_used, reason = "test support")]
fn agent(proxy: String) -> crate::support::RunningAgent {
    let kas: KasAddress = "ws://kas.invalid:8150".parse().unwrap();
    let variable = |name: &str| (name == "HTTP_PROXY").then(|| OsString::from(&proxy));
    let proxy = HttpProxy::from_env(&kas, &variable).unwrap();
    let dial = TcpDialer::new(kas.clone(), ClientTlsConfig::default()).unwrap().through(proxy);
    let headers = vec!["X-Gate: open".parse().unwrap(), "X-Gate: wide".parse().unwrap()];
    let options =
        SessionConfig { headers, tunnels: 1, ..SessionConfig::new(kas, AgentToken::value("agent-token")) };
    start(options, dial, echo())
}

#[tokio::test]
async fn tunnel_is_opened_through_the_proxy() {
    let (port, mut received, mut opened) = proxy(OK).await;
    let _agent = agent(format!("http://ada:hunter2@127.0.0.1:{port}"));

    let tunnel = opened.recv().await.unwrap();
    assert_eq!(text(tunnel.get("echo", "/hello").await).await, "/hello");
    let gates: Vec<_> = tunnel.headers.get_all("x-gate").iter().collect();
    assert_eq!(gates, ["open", "wide"]);
    assert!(!tunnel.headers.contains_key("proxy-authorization"), "the header is for the proxy");
    let head = received.recv().await.unwrap().to_lowercase();
    assert!(head.starts_with("connect kas.invalid:8150 http/1.1\r\nhost: kas.invalid:8150\r\n"), "{head}");
    assert!(head.contains("\r\nproxy-authorization: basic ywrhomh1bnrlcji=\r\n"), "{head}");
    assert!(!head.contains("agent-token") && !head.contains("x-gate"), "these headers are for kas: {head}");
}

#[tokio::test]
async fn error_names_the_proxy_and_its_answer() {
    for (answer, expected) in [
        (
            "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            "it refused the user name and password",
        ),
        (
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
            "it does not allow connections to kas.invalid:8150 (403)",
        ),
        (
            "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
            "it did not connect to kas.invalid:8150: 502",
        ),
        ("SSH-2.0-OpenSSH_9.9\r\n", "it did not answer in HTTP"),
    ] {
        let (port, _asked, _opened) = proxy(answer).await;
        let error = agent(format!("http://ada:hunter2@127.0.0.1:{port}")).dial_error().await;
        let named = format!("the proxy http://127.0.0.1:{port} (HTTP_PROXY): ");
        assert!(error.starts_with(&named) && error.contains(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    let (port, _asked, _opened) = proxy("HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n").await;
    let error = agent(format!("127.0.0.1:{port}")).dial_error().await;
    assert!(error.contains("it requires a user name and password (407): write them into the URL"), "{error}");

    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = agent(unused.to_string()).dial_error().await;
    assert!(
        error.contains(&format!("(HTTP_PROXY): cannot connect to {unused}: Connection refused")),
        "{error}"
    );
}
