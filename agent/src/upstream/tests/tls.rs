//! Trust, in both directions.

use std::{path::Path, sync::Arc, time::Duration};

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
    super::{Pem, Settings, Tls, TlsError, TlsOptions, TlsSource as _, UpstreamError},
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

    /// Certificate and key.
    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn trusted(&self) -> TlsOptions {
        TlsOptions { ca: Some(inline(&self.pem())), ..TlsOptions::default() }
    }
}

fn inline(pem: &str) -> Pem {
    Pem::Inline(SecretSlice::from(pem.as_bytes().to_vec()))
}

fn settings(options: TlsOptions) -> Settings {
    Settings { tls: Arc::new(Tls::new(options).unwrap()), ..Settings::default() }
}

/// Answers over TLS; with `clients`, only who shows a certificate of that authority.
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

async fn reason(server: &Server, options: TlsOptions) -> String {
    let error = refused(&upstream(&server.url, settings(options))).await;
    assert!(matches!(error, UpstreamError::Tls { .. }), "{error}");
    error.to_string()
}

#[tokio::test]
async fn a_private_authority() {
    let authority = Authority::new();
    let server = server(authority.issue("127.0.0.1", |_| {}), None).await;
    let upstream = upstream(&server.url, settings(authority.trusted()));
    for _ in 0..2 {
        assert_eq!(text(soon(upstream.send(get("/"))).await.unwrap()).await, "ok");
    }
}

#[tokio::test]
async fn another_name() {
    let authority = Authority::new();
    let server = server(authority.issue("kubernetes", |_| {}), None).await;
    let error = reason(&server, authority.trusted()).await;
    let start = "TLS with 127.0.0.1 failed: the server's certificate is for another name (";
    assert!(error.starts_with(start) && error.contains("kubernetes"), "{error}");

    let named = TlsOptions { server_name: Some("kubernetes".try_into().unwrap()), ..authority.trusted() };
    assert!(soon(upstream(&server.url, settings(named)).send(get("/"))).await.is_ok());
}

#[tokio::test]
async fn an_unknown_authority() {
    let server = server(Authority::new().issue("127.0.0.1", |_| {}), None).await;
    let expected = "TLS with 127.0.0.1 failed: \
                    the server's certificate is not signed by a trusted certificate authority";
    assert_eq!(reason(&server, Authority::named("another").trusted()).await, expected);
    assert_eq!(
        reason(&server, Authority::new().trusted()).await,
        format!("{expected}, but by one of the same name with another key")
    );

    let insecure = TlsOptions { insecure: true, ..TlsOptions::default() };
    assert!(soon(upstream(&server.url, settings(insecure)).send(get("/"))).await.is_ok());
}

#[tokio::test]
async fn an_expired_certificate() {
    let authority = Authority::new();
    let expired = authority.issue("127.0.0.1", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let error = reason(&server(expired, None).await, authority.trusted()).await;
    assert!(error.contains("the server's certificate has expired ("), "{error}");
}

#[tokio::test]
async fn client_certificates() {
    let authority = Authority::new();
    let server = server(authority.issue("127.0.0.1", |_| {}), Some(&authority)).await;
    let (chain, key) = authority.issue("agent", |_| {});
    let shown = TlsOptions { identity: Some((inline(&chain), inline(&key))), ..authority.trusted() };
    assert!(soon(upstream(&server.url, settings(shown)).send(get("/"))).await.is_ok());

    assert_eq!(
        reason(&server, authority.trusted()).await,
        "TLS with 127.0.0.1 failed: the server refused our client certificate (CertificateRequired)"
    );

    let (_, other) = authority.issue("agent", |_| {});
    let mismatch = TlsOptions { identity: Some((inline(&chain), inline(&other))), ..TlsOptions::default() };
    assert!(matches!(Tls::new(mismatch), Err(TlsError::Identity(_))));
}

#[tokio::test]
async fn a_server_without_tls() {
    let server = Server::start(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        closed(&mut stream).await;
    })
    .await;
    let url = server.url.replace("http:", "https:");
    let error = refused(&upstream(&url, settings(Authority::new().trusted()))).await;
    assert!(error.to_string().contains("does not speak TLS; is this an http:// address?"), "{error}");
}

#[tokio::test]
async fn a_server_that_never_answers_the_handshake() {
    let server = Server::start(|mut stream, _| async move { closed(&mut stream).await }).await;
    let url = server.url.replace("http:", "https:");
    let patience = Duration::from_millis(50);
    let settings = Settings { connect_timeout: patience, ..settings(Authority::new().trusted()) };
    let error = refused(&upstream(&url, settings)).await;
    assert_eq!(error.to_string(), format!("no connection to {url} within 50ms"));
}

#[tokio::test]
async fn a_rotated_authority_is_read_again() {
    let (old, new) = (Authority::new(), Authority::new());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.crt");
    std::fs::write(&path, old.pem()).unwrap();
    let tls = Arc::new(
        Tls::new(TlsOptions { ca: Some(Pem::File(path.clone())), ..TlsOptions::default() }).unwrap(),
    );
    let upstream_of = |server: &Server| {
        upstream(&server.url, Settings { tls: Arc::clone(&tls) as _, ..Settings::default() })
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
    assert!(soon(upstream_of(&after).send(get("/"))).await.is_ok(), "the last good one stays in use");
}

#[test]
fn unusable_material() {
    let error = |options| Tls::new(options).unwrap_err().to_string();
    let ca = |ca| TlsOptions { ca: Some(ca), ..TlsOptions::default() };
    assert_eq!(
        error(ca(Pem::File("/nowhere/ca.crt".into()))),
        "cannot read /nowhere/ca.crt: No such file or directory (os error 2)"
    );
    assert_eq!(
        error(ca(inline("no PEM"))),
        "the inline certificate authority contains no certificate in PEM form"
    );
    let path = Path::new("/dev/null");
    assert_eq!(
        error(ca(Pem::File(path.into()))),
        "the certificate authority /dev/null contains no certificate in PEM form"
    );
}
