//! The real network: what goes wrong below HTTP is told in one line, too. The clock runs, since sockets do not wait for
//! a paused one; nothing here waits for time to pass.

mod support;

use std::sync::Arc;

use agent::{
    Address, Options, TcpDial, Token,
    upstream::{Pem, TlsOptions},
};
use rustls::{ServerConfig, pki_types::ServerName};
use support::{echo, start, tls::certificates};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Duration, timeout},
};
use tokio_rustls::TlsAcceptor;

/// Serves everybody who connects; the port.
#[allow(clippy::unwrap_used, reason = "test support")]
async fn server<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    port
}

const UNAUTHORIZED: &[u8] = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";

/// A server that speaks TLS, and then refuses the token.
async fn tls_server(config: ServerConfig) -> u16 {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    server(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(UNAUTHORIZED).await;
            let _ = stream.read(&mut [0; 4096]).await;
        }
    })
    .await
}

async fn plain_server() -> u16 {
    server(|mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(UNAUTHORIZED).await;
        let _ = stream.read(&mut [0; 4096]).await;
    })
    .await
}

#[allow(clippy::unwrap_used, reason = "test support")]
async fn failure(url: &str, tls: TlsOptions) -> String {
    let kas: Address = url.parse().unwrap();
    let dial = TcpDial::new(kas.clone(), tls).unwrap();
    let agent = start(Options::new(kas, Token::Value("token".into())), dial, echo());
    timeout(Duration::from_secs(20), agent.dial_failure()).await.unwrap()
}

fn trusting(authority: &str) -> TlsOptions {
    let ca = Some(Pem::Inline(authority.as_bytes().to_vec().into()));
    TlsOptions { ca, ..TlsOptions::default() }
}

#[tokio::test]
async fn kas_over_tls_is_reached() {
    let (authority, config) = certificates("127.0.0.1");
    let port = tls_server(config).await;
    let failure = failure(&format!("wss://127.0.0.1:{port}"), trusting(&authority)).await;
    assert!(failure.starts_with("kas refused the agent token"), "{failure}");
}

#[tokio::test]
async fn the_certificate_may_have_another_name_if_it_is_told() {
    let (authority, config) = certificates("kas.internal");
    let port = tls_server(config).await;
    let url = format!("wss://127.0.0.1:{port}");
    let wrong = failure(&url, trusting(&authority)).await;
    assert!(
        wrong.starts_with("TLS with 127.0.0.1 failed: the server's certificate is for another name"),
        "{wrong}"
    );
    let server_name = Some(ServerName::try_from("kas.internal").unwrap());
    let right = failure(&url, TlsOptions { server_name, ..trusting(&authority) }).await;
    assert!(right.starts_with("kas refused the agent token"), "{right}");
}

#[tokio::test]
async fn an_unknown_authority_is_named_as_such() {
    let (other, _) = certificates("127.0.0.1");
    let (_, config) = certificates("127.0.0.1");
    let port = tls_server(config).await;
    let failure = failure(&format!("wss://127.0.0.1:{port}"), trusting(&other)).await;
    assert!(failure.contains("is not signed by a trusted certificate authority"), "{failure}");
}

#[tokio::test]
async fn wss_to_a_server_without_tls() {
    let (authority, _) = certificates("127.0.0.1");
    let port = plain_server().await;
    let failure = failure(&format!("wss://127.0.0.1:{port}"), trusting(&authority)).await;
    assert_eq!(
        failure,
        format!(
            "wss://127.0.0.1:{port} does not speak TLS: use ws:// for a kas without TLS, or its port with TLS"
        )
    );
}

#[tokio::test]
async fn ws_to_a_server_with_tls() {
    let (_, config) = certificates("127.0.0.1");
    let port = tls_server(config).await;
    let failure = failure(&format!("ws://127.0.0.1:{port}"), TlsOptions::default()).await;
    assert!(failure.ends_with("if that port speaks TLS, use wss://"), "{failure}");
}

#[tokio::test]
async fn nothing_listens() {
    // Bound, and closed again: free, but nobody's.
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let failure = failure(&format!("ws://127.0.0.1:{port}"), TlsOptions::default()).await;
    assert!(
        failure.starts_with(&format!("cannot connect to 127.0.0.1:{port}: Connection refused")),
        "{failure}"
    );
}

#[tokio::test]
async fn no_such_name() {
    let failure = failure("ws://kas.invalid", TlsOptions::default()).await;
    assert!(failure.starts_with("cannot resolve kas.invalid: "), "{failure}");
}
