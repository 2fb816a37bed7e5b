//! The webhook as the API server calls it, and as others do.

use std::{ops::ControlFlow, path::Path};

use bytes::Bytes;
use cluster_audit::{Cursor, EventFilter, Progress};
use futures_util::{StreamExt as _, stream};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::client::conn::http1 as client;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_rustls::TlsConnector;

use super::*;

const API_SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

/// An authority, and a certificate of it with its key.
struct Certificates {
    authority: String,
    certificate: String,
    key: String,
}

impl Certificates {
    fn new(usage: ExtendedKeyUsagePurpose) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &authority).unwrap();
        Self { authority: authority.pem(), certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

struct Fixture {
    _directory: TempDir,
    address: SocketAddr,
    server: Certificates,
    client: Certificates,
    view: RingView,
    receiver: Arc<Receiver>,
    shutdown: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

fn options(directory: &Path, server: &Certificates, client: &Certificates) -> AuditOptions {
    let file = |name: &str, text: &str| {
        std::fs::write(directory.join(name), text).unwrap();
        Some(directory.join(name))
    };
    AuditOptions {
        audit_listen: Some("127.0.0.1:0".parse().unwrap()),
        audit_certificate_file: file("tls.crt", &server.certificate),
        audit_certificate_key_file: file("tls.key", &server.key),
        audit_client_ca_file: file("ca.crt", &client.authority),
        audit_directory: Some(directory.join("ring")),
        audit_max_bytes: 1 << 20,
    }
}

fn build(options: AuditOptions) -> anyhow::Result<Option<AuditWebhook>> {
    let mut followers = FileFollowers::new(files::ReloadHealth::default(), watch::Sender::new(()));
    AuditWebhook::build(options, &Arc::default(), &mut Registry::default(), &mut followers)
}

/// Returns a TLS client with the certificate of this client, if there is one.
fn connector(
    server: &Certificates,
    client: Option<&Certificates>,
) -> Result<TlsConnector, Box<dyn std::error::Error>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server.authority.as_bytes())?)?;
    let config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match client {
        Some(client) => config.with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(client.certificate.as_bytes())?],
            PrivateKeyDer::from_pem_slice(client.key.as_bytes())?,
        )?,
        None => config.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Fixture {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Certificates::new(ExtendedKeyUsagePurpose::ServerAuth);
        let client = Certificates::new(ExtendedKeyUsagePurpose::ClientAuth);
        let webhook = build(options(directory.path(), &server, &client)).unwrap().unwrap();
        let (view, receiver) = (webhook.view(), Arc::clone(&webhook.receiver));
        let bound = webhook.bind().unwrap();
        let address = bound.socket.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(bound.run(shutdown.clone()));
        Self { _directory: directory, address, server, client, view, receiver, shutdown, running }
    }

    /// Sends a request with a certificate of this client, if there is one.
    async fn send(
        &self,
        client: Option<&Certificates>,
        (method, path): (Method, &str),
        body: Vec<Bytes>,
    ) -> Result<(StatusCode, String), Box<dyn std::error::Error>> {
        let connector = connector(&self.server, client)?;
        let tcp = TcpStream::connect(self.address).await?;
        let tls = connector.connect(ServerName::try_from("localhost")?, tcp).await?;
        let (mut sender, connection) = client::handshake(TokioIo::new(tls)).await?;
        tokio::spawn(connection);
        let frames = body.into_iter().map(|data| Ok::<_, Infallible>(Frame::data(data)));
        let body = StreamBody::new(stream::iter(frames));
        let request = Request::builder().method(method).uri(path).header("host", "localhost").body(body)?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8(body.to_vec())?))
    }

    async fn post(&self, body: String) -> (StatusCode, String) {
        let chunks = body.into_bytes().chunks(1000).map(Bytes::copy_from_slice).collect();
        self.send(Some(&self.client), (Method::POST, PATH), chunks).await.unwrap()
    }

    /// Stops the webhook, and returns the events that it has kept.
    async fn stop(self) -> Vec<Value> {
        let Self { _directory, view, receiver, shutdown, running, .. } = self;
        drop(receiver);
        shutdown.cancel();
        running.await.unwrap();
        let (mut cursor, mut events) = (Cursor::new(view.clone(), view.start()), Vec::new());
        let mut read = || {
            cursor.read(&EventFilter::default(), None, |_, _, line| {
                events.push(serde_json::from_slice(line).unwrap());
                ControlFlow::Continue(())
            })
        };
        while read().unwrap() != Progress::End {}
        events
    }
}

fn event(number: usize, stage: &str) -> Value {
    json!({
        "level": "RequestResponse", "auditID": number.to_string(), "stage": stage, "verb": "create",
        "requestURI": "/api/v1/namespaces/shop/secrets", "user": {"username": "jane"},
        "objectRef": {"resource": "secrets", "namespace": "shop", "name": "s"},
        "requestObject": {"data": {"password": "c2VjcmV0"}}, "responseObject": {"data": {"password": "c2VjcmV0"}},
        "responseStatus": {"code": 201}, "requestReceivedTimestamp": "2026-01-31T12:00:00.000000Z",
        "stageTimestamp": "2026-01-31T12:00:00.001000Z",
    })
}

fn list(events: &[Value]) -> String {
    let items: Vec<String> = events.iter().map(Value::to_string).collect();
    format!(
        r#"{{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{{}},"items":[{}]}}"#,
        items.join(",")
    )
}

#[tokio::test]
async fn events_of_the_api_server_are_kept_without_bodies() {
    let fixture = Fixture::start();
    let events: Vec<Value> = (0..400).map(|number| event(number, "ResponseComplete")).collect();
    assert_eq!(fixture.post(list(&events)).await, (StatusCode::OK, String::new()));
    let others = [event(0, "RequestReceived"), json!({"stage": "Panic"}), event(400, "ResponseStarted")];
    assert_eq!(fixture.post(list(&others)).await.0, StatusCode::OK);
    let metrics = fixture.receiver.metrics().clone();
    let kept = fixture.stop().await;
    let numbers: Vec<usize> =
        kept.iter().map(|event| event["audit_id"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(numbers, (0..=400).collect::<Vec<_>>());
    assert_eq!(kept[0]["object"], json!({"resource": "secrets", "namespace": "shop", "name": "s"}));
    assert!(!kept.iter().any(|event| event.to_string().contains("c2VjcmV0")));
    assert_eq!(["kept", "unanswered", "malformed"].map(|result| metrics.events(result)), [401, 1, 1]);
}

#[tokio::test]
async fn client_without_a_certificate_of_the_authority_sends_nothing() {
    let fixture = Fixture::start();
    let stranger = Certificates::new(ExtendedKeyUsagePurpose::ClientAuth);
    let body = || vec![Bytes::from(list(&[event(0, "ResponseComplete")]))];
    for client in [None, Some(&stranger)] {
        let sent = fixture.send(client, (Method::POST, PATH), body()).await;
        assert!(sent.is_err(), "{sent:?}");
    }
    assert_eq!(fixture.stop().await, [Value::Null; 0]);
}

#[tokio::test]
async fn refused_certificate_differs_from_a_port_scanner() {
    let directory = tempfile::tempdir().unwrap();
    let server = Certificates::new(ExtendedKeyUsagePurpose::ServerAuth);
    let client = Certificates::new(ExtendedKeyUsagePurpose::ClientAuth);
    let stranger = Certificates::new(ExtendedKeyUsagePurpose::ClientAuth);
    let webhook = build(options(directory.path(), &server, &client)).unwrap().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accept = async || {
        let (tcp, _) = listener.accept().await.unwrap();
        webhook.tls.accept(tcp).await
    };
    for (client, expected) in [
        (None, "peer sent no certificates"),
        (Some(&stranger), "invalid peer certificate"),
        (Some(&server), "invalid peer certificate"),
    ] {
        let connect = async {
            let tcp = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            // With TLS 1.3, it succeeds before the server has verified the certificate.
            connector(&server, client).unwrap().connect(name, tcp).await
        };
        let (_connected, accepted) = tokio::join!(connect, accept());
        let error = accepted.err().unwrap();
        assert!(is_refused_certificate(&error) && error.to_string().contains(expected), "{error}");
    }
    let mut scanner = TcpStream::connect(address).await.unwrap();
    scanner.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let error = accept().await.err().unwrap();
    assert!(!is_refused_certificate(&error), "{error}");
}

#[tokio::test]
async fn anything_but_a_list_of_events_is_refused_with_the_reason() {
    let fixture = Fixture::start();
    for (method, path, body, expected, message) in [
        (Method::GET, PATH, "", 404, "posts its audit events to /audit"),
        (Method::POST, "/", "", 404, "posts its audit events to /audit"),
        (Method::POST, PATH, "", 400, "the list ends too early"),
        (Method::POST, PATH, "not json", 400, "the list is no JSON"),
        (Method::POST, PATH, r#"{"kind":"PodList"}"#, 400, "no EventList of audit.k8s.io/v1"),
    ] {
        let body = vec![Bytes::from(body)];
        let (status, text) = fixture.send(Some(&fixture.client), (method, path), body).await.unwrap();
        assert_eq!(status.as_u16(), expected, "{text}");
        assert!(text.contains(message), "{text}");
    }
    // The events before the end are kept.
    let whole = list(&[event(7, "ResponseComplete"), event(8, "ResponseComplete")]);
    assert_eq!(fixture.post(whole[..whole.len() - 10].to_owned()).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(fixture.stop().await[0]["audit_id"], "7");
}

#[tokio::test]
async fn batch_that_the_api_server_repeats_is_kept_once() {
    let fixture = Fixture::start();
    let batch =
        list(&[event(0, "ResponseStarted"), event(0, "ResponseComplete"), event(1, "ResponseComplete")]);
    for _ in 0..2 {
        assert_eq!(fixture.post(batch.clone()).await.0, StatusCode::OK);
    }
    let metrics = fixture.receiver.metrics().clone();
    assert_eq!(fixture.stop().await.len(), 3);
    assert_eq!(["kept", "repeated"].map(|result| metrics.events(result)), [3, 3]);
}

#[tokio::test]
async fn events_of_a_request_that_is_cancelled_are_counted_and_kept_when_they_are_repeated() {
    let (queue, mut batches) = mpsc::channel(1);
    let receiver = Receiver::new(queue, AuditMetrics::register(&mut Registry::default()));
    let whole = list(&[event(0, "ResponseComplete")]);
    let beginning = Bytes::copy_from_slice(&whole.as_bytes()[..whole.len() - 1]);
    let frames = stream::iter([Ok::<_, Infallible>(Frame::data(beginning))]).chain(stream::pending());
    let mut receiving = Box::pin(receiver.receive(API_SERVER, StreamBody::new(frames)));
    assert!(futures_util::poll!(&mut receiving).is_pending());
    drop(receiving);
    assert_eq!(receiver.metrics().events("aborted"), 1);
    receiver.receive(API_SERVER, Full::new(Bytes::from(whole))).await.unwrap();
    assert_eq!(batches.recv().await.unwrap().events, 1);
    assert_eq!(receiver.metrics().events("repeated"), 0);
}

#[tokio::test(start_paused = true)]
async fn events_of_a_request_that_takes_too_long_are_kept() {
    let (queue, mut batches) = mpsc::channel(1);
    let receiver = Receiver::new(queue, AuditMetrics::register(&mut Registry::default()));
    let whole = list(&[event(0, "ResponseComplete")]);
    let beginning = Bytes::copy_from_slice(&whole.as_bytes()[..whole.len() - 1]);
    let frames = stream::iter([Ok::<_, Infallible>(Frame::data(beginning))]).chain(stream::pending());
    let error = receiver.receive(API_SERVER, StreamBody::new(frames)).await.unwrap_err();
    assert!(matches!(error, ReceiveError::Timeout), "{error}");
    assert_eq!(batches.recv().await.unwrap().events, 1);
}

#[tokio::test(start_paused = true)]
async fn slow_requests_of_one_api_server_do_not_delay_another() {
    let (queue, mut batches) = mpsc::channel(1);
    let receiver = Arc::new(Receiver::new(queue, AuditMetrics::register(&mut Registry::default())));
    for _ in 0..16 {
        let receiver = Arc::clone(&receiver);
        let pending = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        tokio::spawn(async move { receiver.receive(API_SERVER, pending).await });
    }
    tokio::task::yield_now().await;
    let other = IpAddr::from([10, 0, 0, 2]);
    let body = Full::new(Bytes::from(list(&[event(0, "ResponseComplete")])));
    timeout(Duration::from_secs(1), receiver.receive(other, body)).await.unwrap().unwrap();
    assert_eq!(batches.recv().await.unwrap().events, 1);
}

/// The source address of the strangers is one that only Linux has.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn silent_strangers_do_not_shut_the_api_server_out() {
    let fixture = Fixture::start();
    let mut strangers = Vec::new();
    for _ in 0..2 * MAX_CONNECTIONS {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        strangers.push(socket.connect(fixture.address).await.unwrap());
    }
    let posted = timeout(2 * HANDSHAKE_TIMEOUT, fixture.post(list(&[event(0, "ResponseComplete")]))).await;
    assert_eq!(posted.unwrap().0, StatusCode::OK);
    drop(strangers);
    assert_eq!(fixture.stop().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn connection_stays_open_between_requests_and_not_without_one() {
    let (queue, _batches) = mpsc::channel(4);
    let receiver = Arc::new(Receiver::new(queue, AuditMetrics::register(&mut Registry::default())));
    let connect = || {
        let (ours, theirs) = duplex(64 << 10);
        let receiver = Arc::clone(&receiver);
        tokio::spawn(async move { serve(theirs, API_SERVER, &receiver, &CancellationToken::new()).await });
        ours
    };
    let (mut sender, connection) = client::handshake(TokioIo::new(connect())).await.unwrap();
    tokio::spawn(connection);
    for number in 0..2 {
        let body = Full::new(Bytes::from(list(&[event(number, "ResponseComplete")])));
        let request = Request::post(PATH).header("host", "localhost").body(body).unwrap();
        sender.ready().await.unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), StatusCode::OK);
        // The time after which Go closes a connection.
        sleep(Duration::from_secs(90)).await;
    }
    let mut silent = connect();
    let read = timeout(2 * FIRST_REQUEST_TIMEOUT, silent.read(&mut [0])).await;
    assert_eq!(read.unwrap().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn events_are_dropped_and_counted_while_the_disk_is_too_slow() {
    let (queue, mut batches) = mpsc::channel(1);
    let receiver = Receiver::new(queue, AuditMetrics::register(&mut Registry::default()));
    let body = |number| Full::new(Bytes::from(list(&[event(number, "ResponseComplete")])));
    for number in 0..3 {
        receiver.receive(API_SERVER, body(number)).await.unwrap();
    }
    assert_eq!(receiver.metrics().events("queue-full"), 2);
    assert_eq!(batches.recv().await.unwrap().events, 1);
    receiver.receive(API_SERVER, body(3)).await.unwrap();
    assert_eq!(receiver.metrics().events("queue-full"), 2);
}

#[test]
fn mistake_in_the_flags_names_the_flag() {
    let directory = tempfile::tempdir().unwrap();
    let server = Certificates::new(ExtendedKeyUsagePurpose::ServerAuth);
    let complete = || options(directory.path(), &server, &server);
    assert!(build(AuditOptions { audit_listen: None, ..complete() }).unwrap().is_none());
    let missing = AuditOptions { audit_client_ca_file: None, ..complete() };
    let error = build(missing).unwrap_err().to_string();
    assert_eq!(error, "--audit-listen needs --audit-client-ca-file");
    let other = directory.path().join("other.key");
    std::fs::write(&other, Certificates::new(ExtendedKeyUsagePurpose::ServerAuth).key).unwrap();
    let (foreign, certificate) = (other.display(), directory.path().join("tls.crt"));
    for (options, expected) in [
        (
            AuditOptions { audit_certificate_key_file: Some(other.clone()), ..complete() },
            format!(
                "--audit-certificate-key-file: {foreign}: does not match the certificate {}: ",
                certificate.display()
            ),
        ),
        (
            AuditOptions { audit_client_ca_file: Some(other.clone()), ..complete() },
            format!("--audit-client-ca-file: {foreign}: holds no PEM certificate"),
        ),
        (
            AuditOptions { audit_certificate_file: Some(other.clone()), ..complete() },
            format!("--audit-certificate-file: {foreign}: holds no PEM certificate"),
        ),
    ] {
        let error = format!("{:#}", build(options).unwrap_err());
        assert!(error.starts_with(&expected), "{error}");
    }
    let file = complete().audit_client_ca_file;
    let not_a_directory = AuditOptions { audit_directory: file, ..complete() };
    let error = build(not_a_directory).unwrap_err().to_string();
    let end = format!("cannot be used by the user {}", rustix::process::geteuid().as_raw());
    assert!(error.starts_with("--audit-directory: ") && error.ends_with(&end), "{error}");
    let first = build(complete()).unwrap();
    let error = format!("{:#}", build(complete()).unwrap_err());
    assert!(error.contains("another process uses the directory"), "{error}");
    drop(first);
}
