//! Connections without a valid credential do not keep others out of any listener.

use secrecy::ExposeSecret as _;

use super::*;

const PRIVATE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const API: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
const WEB: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);

/// The preface of HTTP/2 and empty settings.
const HTTP2: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";

/// Sends a request of a caller, and returns the status and the reason of the response.
fn send(connection: &mut TcpStream, token: &str) -> (String, String) {
    connection.set_read_timeout(Some(SOON)).unwrap();
    write!(
        connection,
        "GET /agents/1/kubernetes/api HTTP/1.1\r\nHost: kas\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    let mut response = BufReader::new(connection);
    let mut lines = String::new();
    while !lines.ends_with("\r\n\r\n") {
        assert_ne!(response.read_line(&mut lines).unwrap(), 0, "{lines}");
    }
    let value =
        |name: &str| lines.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
    let length = value("content-length: ").parse().unwrap();
    response.read_exact(&mut vec![0; length]).unwrap();
    (value("HTTP/1.1 "), value("kas-error: "))
}

/// Opens a connection from another address of this machine.
fn connect_from(source: Ipv4Addr, address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}

#[test]
fn attack_90_silent_connections_do_not_keep_callers_out() {
    let token = access::token::new(access::token::Holder::Caller);
    let hash = access::token::TokenHash::of(&token);
    let identity = format!(
        "agents: [{{id: 1, name: prod, tokens: []}}]\n\
         callers: [{{name: me, tokens: [\"{hash}\"], agents: [prod], services: [kubernetes]}}]"
    );
    let token = token.expose_secret();
    let one = |_| Ipv4Addr::LOCALHOST;
    let many = |number: u8| Ipv4Addr::new(127, 0, 1, number);
    let sources: [&dyn Fn(u8) -> Ipv4Addr; 2] = [&one, &many];
    for source in sources {
        let kas =
            Kas::start(Stdio::null(), "0s", &format!("ulimit -n 256; echo '{identity}' > identity.yaml;"));
        let public = kas.address(PUBLIC);
        // The agent is not connected, but the credential is valid.
        let served = ("503 Service Unavailable".to_owned(), "agent-not-connected".to_owned());
        let mut known = connect_from(Ipv4Addr::new(127, 0, 0, 9), public);
        assert_eq!(send(&mut known, token), served);
        let mut silent = Vec::new();
        for number in 0..250 {
            let mut connection = connect_from(source(number), public);
            // With a byte of a head, the connection may stay for the head_timeout of one minute.
            let _ = connection.write_all(b"G");
            silent.push(connection);
        }
        let mut new = connect_from(Ipv4Addr::new(127, 0, 0, 10), public);
        assert_eq!(send(&mut new, token), served, "a new connection of a caller");
        assert_eq!(send(&mut known, token), served, "the connection of a caller stays");
        assert!(kas.get("/liveness").starts_with("HTTP/1.1 200"));
        assert!(kas.metric("kas_limits_total{limit=\"unauthenticated-connections\"}") >= 100);
        assert_eq!(kas.metric("kas_limits_total{limit=\"connections\"}"), 0);
        drop(silent);
    }
}

/// All listeners, what a client sends, and the beginning of the answer.
#[test]
fn attack_90_parts_of_heads_keep_no_client_out_of_any_listener() {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: kas\r\n\r\n");
    let listeners = [
        ("agent", AGENT, get("/"), "HTTP/1.1 4"),
        ("public", PUBLIC, get("/"), "HTTP/1.1 4"),
        // The settings of kas.
        ("private", PRIVATE, HTTP2.to_owned(), "\0"),
        ("api", API, get("/api/v1/agents"), "HTTP/1.1 401"),
        ("web", WEB, get("/"), "HTTP/1.1 200"),
        ("observability", OBSERVABILITY, get("/liveness"), "HTTP/1.1 200"),
    ];
    let secret = "authentication_secret_file: secret";
    let sections = format!(
        "private_api: {{listen: {{address: '{PRIVATE}:0', {secret}}}}}\n\
         api: {{listen: {{address: '{API}:0', {secret}}}}}\nweb: {{listen: {{address: '{WEB}:0'}}}}\n"
    );
    let kas = Kas::start_with(Stdio::null(), "0s", "ulimit -n 256;", &sections);
    for (name, ip, request, answer) in listeners {
        let address = kas.address(ip);
        // A peer that sends no request of HTTP/2 is a stranger, too.
        let part = if name == "private" { &*request } else { &request[..request.len() - 4] };
        let mut strangers = Vec::new();
        for number in 0..150_u8 {
            let mut stranger = connect_from(Ipv4Addr::new(127, 0, 1, number % 50), address);
            // Fails if it was replaced already.
            let _ = stranger.write_all(part.as_bytes());
            strangers.push(stranger);
        }
        let started = Instant::now();
        let mut client = connect_from(Ipv4Addr::new(127, 0, 0, 10), address);
        client.set_read_timeout(Some(SOON)).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut received = vec![0; answer.len()];
        client.read_exact(&mut received).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(String::from_utf8_lossy(&received), answer, "{name}");
        // All timeouts of strangers are longer.
        assert!(started.elapsed() < Duration::from_secs(5), "{name}: {:?}", started.elapsed());
        drop(strangers);
    }
    assert_eq!(kas.metric("kas_limits_total{limit=\"connections\"}"), 0, "no connection had to wait");
}
