//! Tests of dials over real sockets, whose errors below HTTP are one line each.
//!
//! The clock is not paused, since real sockets do not use it.

use std::sync::Arc;

use crate::support::{echo, start, tls::certificates};
use agentk_core::{
    AgentToken, KasAddress, SessionConfig, TcpDialer,
    upstream::{ClientTlsConfig, Pem},
};
use rustls::{ServerConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Duration, timeout},
};
use tokio_rustls::TlsAcceptor;

/// Starts a server that calls `serve` with every connection, and returns its port.
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

/// Starts a server with TLS that refuses the token.
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
async fn dial_error(url: &str, tls: ClientTlsConfig) -> String {
    let kas: KasAddress = url.parse().unwrap();
    let dial = TcpDialer::new(kas.clone(), tls).unwrap();
    let agent = start(SessionConfig::new(kas, AgentToken::value("token")), dial, echo());
    timeout(Duration::from_secs(20), agent.dial_error()).await.unwrap()
}

fn trusting(authority: &str) -> ClientTlsConfig {
    let ca = Some(Pem::Inline(authority.as_bytes().to_vec().into()));
    ClientTlsConfig { ca, ..ClientTlsConfig::default() }
}

#[tokio::test]
async fn kas_is_dialled_over_tls() {
    let (authority, config) = certificates("127.0.0.1");
    let port = tls_server(config).await;
    let error = dial_error(&format!("wss://127.0.0.1:{port}"), trusting(&authority)).await;
    assert!(error.starts_with("kas refused the agent token"), "{error}");
}

#[tokio::test]
async fn certificate_may_have_the_configured_name() {
    let (authority, config) = certificates("kas.internal");
    let port = tls_server(config).await;
    let url = format!("wss://127.0.0.1:{port}");
    let wrong = dial_error(&url, trusting(&authority)).await;
    assert!(
        wrong.starts_with("TLS with 127.0.0.1 failed: the server's certificate is for another name"),
        "{wrong}"
    );
    let server_name = Some(ServerName::try_from("kas.internal").unwrap());
    let right = dial_error(&url, ClientTlsConfig { server_name, ..trusting(&authority) }).await;
    assert!(right.starts_with("kas refused the agent token"), "{right}");
}

#[tokio::test]
async fn unknown_authority_is_an_error() {
    let (other, _) = certificates("127.0.0.1");
    let (_, config) = certificates("127.0.0.1");
    let port = tls_server(config).await;
    let error = dial_error(&format!("wss://127.0.0.1:{port}"), trusting(&other)).await;
    assert!(error.contains("is not signed by a trusted certificate authority"), "{error}");
}

#[tokio::test]
async fn wss_to_a_server_without_tls_is_an_error() {
    let (authority, _) = certificates("127.0.0.1");
    let port = plain_server().await;
    let error = dial_error(&format!("wss://127.0.0.1:{port}"), trusting(&authority)).await;
    assert_eq!(
        error,
        format!(
            "wss://127.0.0.1:{port} does not speak TLS: use ws:// for a kas without TLS, or its port with TLS"
        )
    );
}

#[tokio::test]
async fn ws_to_a_server_with_tls_is_an_error() {
    let (_, config) = certificates("127.0.0.1");
    let port = tls_server(config).await;
    let error = dial_error(&format!("ws://127.0.0.1:{port}"), ClientTlsConfig::default()).await;
    assert!(error.ends_with("if that port speaks TLS, use wss://"), "{error}");
}

#[tokio::test]
async fn refused_connection_is_an_error() {
    // The port was free a moment ago, and no program listens on it.
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = dial_error(&format!("ws://127.0.0.1:{port}"), ClientTlsConfig::default()).await;
    assert!(error.starts_with(&format!("cannot connect to 127.0.0.1:{port}: Connection refused")), "{error}");
}

#[tokio::test]
async fn unknown_name_is_an_error() {
    let error = dial_error("ws://kas.invalid", ClientTlsConfig::default()).await;
    assert!(error.starts_with("cannot resolve kas.invalid: "), "{error}");
}
