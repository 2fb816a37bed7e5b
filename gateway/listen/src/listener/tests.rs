use std::{fmt, net::IpAddr};

use prometheus_client::{encoding::text::encode, registry::Registry};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    sync::mpsc,
};
use tokio_rustls::TlsConnector;

use super::*;
use crate::{addresses::ProxyProtocol, tls::Certificate};

/// A handshake timeout for tests in which it is not reached.
const LONG: Duration = Duration::from_secs(60);

const MAX_CONNECTIONS: usize = 10;

/// A PROXY header of a connection from 198.51.100.7:4660.
const HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc6\x33\x64\x07\x0a\x00\x00\x01\x12\x34\x01\xbb";

/// A listener on loopback, whose server responds with the address of the client and what the client has sent.
struct Fixture {
    address: SocketAddr,
    registry: Registry,
    clients: mpsc::UnboundedReceiver<SocketAddr>,
    group: TaskGroup,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.group.cut.cancel();
    }
}

impl Fixture {
    async fn new(rules: AddressRules, tls: Option<Acceptor>, handshake_timeout: Duration) -> Self {
        let local = "127.0.0.1:0".parse().unwrap();
        let listener =
            Listener::bind("test", local, rules, tls, MAX_CONNECTIONS, handshake_timeout).await.unwrap();
        let (address, mut registry, group) = (listener.address(), Registry::default(), TaskGroup::default());
        let metrics = ListenerMetrics::register(&mut registry);
        let (sender, clients) = mpsc::unbounded_channel();
        let serving = listener.serve(group.clone(), Cores::default(), metrics, move |mut io, client| {
            let sender = sender.clone();
            async move {
                sender.send(client).unwrap();
                let (mut reader, mut writer) = tokio::io::split(&mut io);
                _ = tokio::io::copy(&mut reader, &mut writer).await;
                _ = writer.shutdown().await;
            }
        });
        group.spawn(serving);
        Self { address, registry, clients, group }
    }

    /// Sends bytes from an address of this machine, and returns the bytes that come back until the end of the connection.
    async fn exchange(&self, from: [u8; 4], bytes: &[u8]) -> Vec<u8> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::from(from), 0)).unwrap();
        let mut connection = socket.connect(self.address).await.unwrap();
        // The listener may have closed the connection already.
        _ = connection.write_all(bytes).await;
        _ = connection.shutdown().await;
        let mut received = Vec::new();
        _ = connection.read_to_end(&mut received).await;
        received
    }

    /// Returns the metrics as text.
    fn metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }

    fn refused(&self, reason: impl fmt::Display) -> u64 {
        let text = self.metrics();
        let name = format!("kas_connections_refused_total{{listener=\"test\",reason=\"{reason}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&*name)).unwrap().parse().unwrap()
    }
}

fn networks(list: &[&str]) -> Vec<settings::Network> {
    list.iter().map(|network| network.parse().unwrap()).collect()
}

/// Rules of a listener that expects PROXY headers from 127.0.0.2 only.
fn behind_proxy(allowed: &[&str]) -> AddressRules {
    AddressRules::new(&networks(&["127.0.0.2/32"]), ProxyProtocol::V2, &networks(allowed))
}

#[tokio::test]
async fn client_of_a_trusted_proxy_has_the_address_of_the_header() {
    let mut fixture = Fixture::new(behind_proxy(&[]), None, LONG).await;
    let received = fixture.exchange([127, 0, 0, 2], &[HEADER, b"hello"].concat()).await;
    assert_eq!(received, b"hello");
    assert_eq!(fixture.clients.recv().await, Some("198.51.100.7:4660".parse().unwrap()));

    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00hello";
    assert_eq!(fixture.exchange([127, 0, 0, 2], local).await, b"hello");
    assert_eq!(fixture.clients.recv().await.unwrap().ip(), IpAddr::from([127, 0, 0, 2]));
}

#[tokio::test]
async fn header_of_a_stranger_is_not_read() {
    let mut fixture = Fixture::new(behind_proxy(&[]), None, LONG).await;
    assert_eq!(fixture.exchange([127, 0, 0, 1], &[HEADER, b"hello"].concat()).await, b"");
    assert_eq!((fixture.refused("untrusted-proxy"), fixture.refused("proxy-header")), (1, 0));
    assert!(fixture.clients.try_recv().is_err());
}

#[tokio::test]
async fn connection_without_a_valid_header_is_closed_and_counted() {
    let mut fixture = Fixture::new(behind_proxy(&[]), None, LONG).await;
    let mut long = HEADER.to_vec();
    long[14..16].copy_from_slice(&[0xff, 0xff]);
    long.resize(64 << 10, 0);
    let wrong_sum = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x13\xc6\x33\x64\x07\x0a\x00\x00\x01\x12\x34\x01\xbb\x03\x00\x04sums";
    let invalid = [
        &HEADER[..20],
        b"PROXY TCP4 198.51.100.7 10.0.0.1 4660 443\r\nhello",
        b"GET / HTTP/1.1\r\nHost: kas\r\n\r\n",
        &long,
        wrong_sum,
    ];
    for (index, bytes) in (1..).zip(invalid) {
        assert_eq!(fixture.exchange([127, 0, 0, 2], bytes).await, b"", "{index}");
        assert_eq!(fixture.refused("proxy-header"), index);
    }
    // As health checks without a header do.
    assert_eq!(fixture.exchange([127, 0, 0, 2], b"").await, b"");
    assert_eq!(fixture.refused("proxy-header"), 5);
    assert!(fixture.clients.try_recv().is_err());
}

#[tokio::test]
async fn slow_header_is_closed_after_the_handshake_timeout() {
    let fixture = Fixture::new(behind_proxy(&[]), None, Duration::from_millis(50)).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut connection = socket.connect(fixture.address).await.unwrap();
    connection.write_all(&HEADER[..20]).await.unwrap();
    assert_eq!(connection.read_to_end(&mut Vec::new()).await.unwrap_or_default(), 0);
    assert_eq!(fixture.refused("proxy-header-timeout"), 1);
}

#[tokio::test]
async fn client_outside_of_the_networks_gets_a_readable_error() {
    let rules = AddressRules::without_proxies(&networks(&["127.0.0.0/30"]));
    let mut fixture = Fixture::new(rules, None, LONG).await;
    assert_eq!(fixture.exchange([127, 0, 0, 3], b"hello").await, b"hello");
    assert_eq!(fixture.clients.recv().await.unwrap().ip(), IpAddr::from([127, 0, 0, 3]));

    let request = format!("POST / HTTP/1.1\r\nContent-Length: 9000\r\n\r\n{}", "x".repeat(9000));
    let response = String::from_utf8(fixture.exchange([127, 0, 0, 4], request.as_bytes()).await).unwrap();
    assert!(response.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{response}");
    assert!(response.contains("\r\nKas-Error: address-not-allowed\r\n"), "{response}");
    assert!(response.contains("127.0.0.4 are not allowed"), "{response}");
    assert_eq!(fixture.refused("address-not-allowed"), 1);
    assert!(fixture.clients.try_recv().is_err());
}

/// The alert is `access_denied`, which curl and Go show by name.
#[tokio::test]
async fn tls_client_outside_of_the_networks_gets_an_alert() {
    let rules = AddressRules::without_proxies(&networks(&["192.0.2.0/24"]));
    let fixture = Fixture::new(rules, None, LONG).await;
    let received = fixture.exchange([127, 0, 0, 1], b"\x16\x03\x01\x00\x05hello").await;
    assert_eq!(received, [21, 3, 3, 0, 2, 2, 49]);
}

#[tokio::test]
async fn networks_apply_to_the_client_of_the_header() {
    let fixture = Fixture::new(behind_proxy(&["198.51.100.0/24"]), None, LONG).await;
    assert_eq!(fixture.exchange([127, 0, 0, 2], &[HEADER, b"hello"].concat()).await, b"hello");
    let mut other = HEADER.to_vec();
    other[19] = 8;
    other[18] = 99;
    let response = fixture.exchange([127, 0, 0, 2], &[&other, &b"GET / HTTP/1.1\r\n\r\n"[..]].concat()).await;
    assert!(response.starts_with(b"HTTP/1.1 403 "), "{response:?}");
    assert_eq!(fixture.refused("address-not-allowed"), 1);
}

/// Returns a server with a new certificate, and a client that trusts it.
fn tls() -> (Acceptor, TlsConnector) {
    let directory = tempfile::tempdir().unwrap();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["kas".to_owned()]).unwrap();
    std::fs::write(directory.path().join("tls.crt"), cert.pem()).unwrap();
    std::fs::write(directory.path().join("tls.key"), signing_key.serialize_pem()).unwrap();
    let text = format!("- {0}/tls.crt\n- {0}/tls.key\n", directory.path().display());
    let paths: Vec<serde_saphyr::Spanned<std::path::PathBuf>> = serde_saphyr::from_str(&text).unwrap();
    let pair =
        Certificate::read("kas.yaml".as_ref(), "agent.listen", paths.first(), paths.get(1)).unwrap().unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (pair.acceptor(&[]), TlsConnector::from(Arc::new(client)))
}

#[tokio::test]
async fn header_comes_before_tls() {
    let (acceptor, connector) = tls();
    let mut fixture = Fixture::new(behind_proxy(&[]), Some(acceptor), LONG).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut connection = socket.connect(fixture.address).await.unwrap();
    connection.write_all(HEADER).await.unwrap();
    let mut tls = connector.connect("kas".try_into().unwrap(), connection).await.unwrap();
    tls.write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    tls.read_exact(&mut echoed).await.unwrap();
    assert_eq!(
        (&echoed, fixture.clients.recv().await),
        (b"hello", Some("198.51.100.7:4660".parse().unwrap()))
    );
}

/// Attack 87: the clients fill all places of the listener. Half of them stop in their ClientHello, and the others send it byte by
/// byte.
#[tokio::test]
async fn slow_tls_handshakes_give_their_places_to_the_next_client() {
    // The begin of a ClientHello of 508 bytes in a record.
    const HELLO: [u8; 9] = [22, 3, 1, 2, 0, 1, 0, 1, 252];
    let (acceptor, connector) = tls();
    let mut fixture = Fixture::new(AddressRules::default(), Some(acceptor), Duration::from_secs(3)).await;
    let mut attackers = tokio::task::JoinSet::new();
    for number in 0..MAX_CONNECTIONS {
        let mut attacker = TcpStream::connect(fixture.address).await.unwrap();
        attacker.write_all(&HELLO).await.unwrap();
        attackers.spawn(async move {
            let (mut reader, mut writer) = attacker.split();
            let trickle = async {
                while number % 2 == 0 && writer.write_all(&[0]).await.is_ok() {
                    sleep(Duration::from_millis(100)).await;
                }
                std::future::pending::<()>().await;
            };
            let mut received = Vec::new();
            tokio::select! {
                // An error is a reset, because the listener has not read all bytes.
                _ = reader.read_to_end(&mut received) => received,
                () = trickle => unreachable!(),
            }
        });
    }

    let connection = TcpStream::connect(fixture.address).await.unwrap();
    let mut tls = connector.connect("kas".try_into().unwrap(), connection).await.unwrap();
    tls.write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    tls.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"hello");
    let text = fixture.metrics();
    let replaced = "kas_limits_total{limit=\"unauthenticated-connections\"} ";
    assert!(
        text.contains(replaced) && !text.contains(&format!("{replaced}0\n")),
        "the places were never full"
    );
    for received in attackers.join_all().await {
        assert_eq!(received, b"", "the connection is closed");
    }
    assert!(fixture.clients.recv().await.is_some());
    assert!(fixture.clients.try_recv().is_err(), "no attacker reaches the server");
}

#[tokio::test]
async fn accepted_connections_have_keepalive() {
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind("test", any, AddressRules::default(), None, 1, LONG).await.unwrap();
    let _near = TcpStream::connect(listener.address()).await.unwrap();
    let socket = TcpListener::from_std(listener.socket).unwrap();
    let (accepted, _) = socket.accept().await.unwrap();
    let accepted = SockRef::from(&accepted);
    assert!(accepted.keepalive().unwrap());
    assert_eq!(accepted.tcp_keepalive_time().unwrap(), KEEPALIVE);
    assert_eq!(accepted.tcp_keepalive_interval().unwrap(), KEEPALIVE);
}
