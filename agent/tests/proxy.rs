//! The way to kas through a proxy that takes CONNECT.

mod support;

use std::ffi::OsString;

use agent::{Address, Options, TcpDial, Token, connect::Proxy, upstream::TlsOptions};
use proto::ReplicaId;
use support::{Answer, echo, serve, start, text};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};

type Opened = mpsc::UnboundedReceiver<support::Opened>;
type Heads = mpsc::UnboundedReceiver<String>;

/// Answers CONNECT as told, and is kas itself behind it.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn proxy(answer: &'static str) -> (u16, Heads, Opened) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heads, asked) = mpsc::unbounded_channel();
    let (sender, opened) = mpsc::unbounded_channel();
    let replica = ReplicaId::random();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            // The test may be over.
            let _ = heads.send(String::from_utf8(head).unwrap());
            stream.write_all(answer.as_bytes()).await.unwrap();
            if answer.contains(" 200 ") {
                tokio::spawn(serve(stream, Answer::Accept(replica), 1, sender.clone()));
            }
        }
    });
    (port, asked, opened)
}

const OK: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

#[allow(clippy::unwrap_used, reason = "test support")]
fn agent(proxy: String) -> support::Running {
    let kas: Address = "ws://kas.invalid:8150".parse().unwrap();
    let variable = |name: &str| (name == "HTTP_PROXY").then(|| OsString::from(&proxy));
    let proxy = Proxy::of(&kas, &variable).unwrap();
    let dial = TcpDial::new(kas.clone(), TlsOptions::default()).unwrap().through(proxy);
    let headers = vec!["X-Gate: open".parse().unwrap(), "X-Gate: wide".parse().unwrap()];
    let options = Options { headers, tunnels: 1, ..Options::new(kas, Token::Value("agent-token".into())) };
    start(options, dial, echo())
}

#[tokio::test]
async fn a_tunnel_goes_through_the_proxy() {
    let (port, mut asked, mut opened) = proxy(OK).await;
    let _agent = agent(format!("http://ada:hunter2@127.0.0.1:{port}"));

    let tunnel = opened.recv().await.unwrap();
    assert_eq!(text(tunnel.get("echo", "/hello").await).await, "/hello");
    let gates: Vec<_> = tunnel.headers.get_all("x-gate").iter().collect();
    assert_eq!(gates, ["open", "wide"]);
    assert!(!tunnel.headers.contains_key("proxy-authorization"), "that is the proxy's");
    let head = asked.recv().await.unwrap().to_lowercase();
    assert!(head.starts_with("connect kas.invalid:8150 http/1.1\r\nhost: kas.invalid:8150\r\n"), "{head}");
    assert!(head.contains("\r\nproxy-authorization: basic ywrhomh1bnrlcji=\r\n"), "{head}");
    assert!(!head.contains("agent-token") && !head.contains("x-gate"), "that is kas's: {head}");
}

#[tokio::test]
async fn what_a_proxy_refuses_is_told() {
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
        let failure = agent(format!("http://ada:hunter2@127.0.0.1:{port}")).dial_failure().await;
        let named = format!("the proxy http://127.0.0.1:{port} (HTTP_PROXY): ");
        assert!(failure.starts_with(&named) && failure.contains(expected), "{failure}");
        assert!(!failure.contains("hunter2"), "{failure}");
    }

    let (port, _asked, _opened) = proxy("HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n").await;
    let failure = agent(format!("127.0.0.1:{port}")).dial_failure().await;
    assert!(
        failure.contains("it wants a user name and password (407): write them into the URL"),
        "{failure}"
    );

    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let failure = agent(nobody.to_string()).dial_failure().await;
    assert!(
        failure.contains(&format!("(HTTP_PROXY): cannot connect to {nobody}: Connection refused")),
        "{failure}"
    );
}
