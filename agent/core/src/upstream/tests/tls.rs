//! Tests of certificates of servers and of clients.

use std::{sync::Arc, time::Duration};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use secrecy::SecretSlice;
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsAcceptor;

use super::{
    super::{ClientTls, ClientTlsConfig, Pem, TlsConfigSource as _, TlsError, UpstreamConfig, UpstreamError},
    get, refused,
    server::{OK, Server, closed, head},
    soon, text, upstream,
};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        Self::named("kubernetes")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns a certificate and its key.
    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn trusted(&self) -> ClientTlsConfig {
        ClientTlsConfig { ca: Some(inline(&self.pem())), ..ClientTlsConfig::default() }
    }
}

fn inline(pem: &str) -> Pem {
    Pem::Inline(SecretSlice::from(pem.as_bytes().to_vec()))
}

fn config(options: ClientTlsConfig) -> UpstreamConfig {
    UpstreamConfig { tls: Arc::new(ClientTls::new(options).unwrap()), ..UpstreamConfig::default() }
}

/// Starts a server with TLS. With `clients`, it requires a client certificate of that authority.
async fn server((certificate, key): (String, String), clients: Option<&Authority>) -> Server {
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
            let provider = Arc::new(aws_lc_rs::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let mut config = builder
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let mut server = Server::start(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
            while head(&mut stream).await.is_some() {
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    server.url = format!("https://127.0.0.1:{}", server.port);
    server
}

async fn reason(server: &Server, options: ClientTlsConfig) -> String {
    let error = refused(&upstream(&server.url, config(options))).await;
    assert!(matches!(error, UpstreamError::Tls { .. }), "{error}");
    error.to_string()
}

#[tokio::test]
async fn private_authority_is_trusted() {
    let authority = Authority::new();
    let server = server(authority.issue("127.0.0.1", |_| {}), None).await;
    let upstream = upstream(&server.url, config(authority.trusted()));
    for _ in 0..2 {
        assert_eq!(text(soon(upstream.send(get("/"))).await.unwrap()).await, "ok");
    }
}

#[tokio::test]
async fn certificate_with_another_name_is_refused() {
    let authority = Authority::new();
    let server = server(authority.issue("kubernetes", |_| {}), None).await;
    let error = reason(&server, authority.trusted()).await;
    let start = "TLS with 127.0.0.1 failed: the server's certificate is for another name (";
    assert!(error.starts_with(start) && error.contains("kubernetes"), "{error}");

    let named =
        ClientTlsConfig { server_name: Some("kubernetes".try_into().unwrap()), ..authority.trusted() };
    assert!(soon(upstream(&server.url, config(named)).send(get("/"))).await.is_ok());
}

#[tokio::test]
async fn unknown_authority_is_refused() {
    let server = server(Authority::new().issue("127.0.0.1", |_| {}), None).await;
    let expected = "TLS with 127.0.0.1 failed: \
                    the server's certificate is not signed by a trusted certificate authority";
    assert_eq!(reason(&server, Authority::named("another").trusted()).await, expected);
    assert_eq!(
        reason(&server, Authority::new().trusted()).await,
        format!("{expected}, but by one of the same name with another key")
    );

    let insecure = ClientTlsConfig { insecure: true, ..ClientTlsConfig::default() };
    assert!(soon(upstream(&server.url, config(insecure)).send(get("/"))).await.is_ok());
}

#[tokio::test]
async fn expired_certificate_is_refused() {
    let authority = Authority::new();
    let expired = authority.issue("127.0.0.1", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let error = reason(&server(expired, None).await, authority.trusted()).await;
    assert!(error.contains("the server's certificate has expired ("), "{error}");
}

#[tokio::test]
async fn client_certificate_is_sent() {
    let authority = Authority::new();
    let server = server(authority.issue("127.0.0.1", |_| {}), Some(&authority)).await;
    let (chain, key) = authority.issue("agent", |_| {});
    let shown = ClientTlsConfig { identity: Some((inline(&chain), inline(&key))), ..authority.trusted() };
    assert!(soon(upstream(&server.url, config(shown)).send(get("/"))).await.is_ok());

    assert_eq!(
        reason(&server, authority.trusted()).await,
        "TLS with 127.0.0.1 failed: the server refused agentk's client certificate (CertificateRequired)"
    );

    let (_, other) = authority.issue("agent", |_| {});
    let mismatch =
        ClientTlsConfig { identity: Some((inline(&chain), inline(&other))), ..ClientTlsConfig::default() };
    assert!(matches!(ClientTls::new(mismatch), Err(TlsError::Identity(_))));
}

#[tokio::test]
async fn server_without_tls_is_an_error() {
    let server = Server::start(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        closed(&mut stream).await;
    })
    .await;
    let url = server.url.replace("http:", "https:");
    let error = refused(&upstream(&url, config(Authority::new().trusted()))).await;
    assert!(error.to_string().contains("does not speak TLS; is this an http:// address?"), "{error}");
}

#[tokio::test]
async fn handshake_without_answer_times_out() {
    let server = Server::start(|mut stream, _| async move { closed(&mut stream).await }).await;
    let url = server.url.replace("http:", "https:");
    let connect_timeout = Duration::from_millis(50);
    let config = UpstreamConfig { connect_timeout, ..config(Authority::new().trusted()) };
    let error = refused(&upstream(&url, config)).await;
    assert_eq!(error.to_string(), format!("no connection to {url} within 50ms"));
}

#[tokio::test]
async fn rotated_authority_is_read_again() {
    let (old, new) = (Authority::new(), Authority::new());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.crt");
    std::fs::write(&path, old.pem()).unwrap();
    let tls = Arc::new(
        ClientTls::new(ClientTlsConfig { ca: Some(Pem::File(path.clone())), ..ClientTlsConfig::default() })
            .unwrap(),
    );
    let upstream_of = |server: &Server| {
        upstream(&server.url, UpstreamConfig { tls: Arc::clone(&tls) as _, ..UpstreamConfig::default() })
    };
    let before = server(old.issue("127.0.0.1", |_| {}), None).await;
    let after = server(new.issue("127.0.0.1", |_| {}), None).await;

    assert!(soon(upstream_of(&before).send(get("/"))).await.is_ok());
    assert!(soon(upstream_of(&after).send(get("/"))).await.is_err());
    let kept = tls.config().await.unwrap();
    assert!(Arc::ptr_eq(&kept, &tls.config().await.unwrap()), "sessions are kept while nothing changes");

    std::fs::write(&path, new.pem()).unwrap();
    assert!(soon(upstream_of(&after).send(get("/"))).await.is_ok());

    std::fs::write(&path, "half a fi").unwrap();
    assert!(soon(upstream_of(&after).send(get("/"))).await.is_ok(), "the last good authority is used");
}

#[test]
fn invalid_certificates_are_errors() {
    let error = |options| ClientTls::new(options).unwrap_err().to_string();
    let ca = |ca| ClientTlsConfig { ca: Some(ca), ..ClientTlsConfig::default() };
    assert_eq!(
        error(ca(Pem::File("/nowhere/ca.crt".into()))),
        "cannot read /nowhere/ca.crt: No such file or directory (os error 2)"
    );
    assert_eq!(
        error(ca(inline("no PEM"))),
        "the inline certificate authority contains no certificate in PEM form"
    );
    let empty = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(
        error(ca(Pem::File(empty.path().into()))),
        format!("the certificate authority {} contains no certificate in PEM form", empty.path().display())
    );
}
