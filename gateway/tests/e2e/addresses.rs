//! The addresses of callers and agents behind real proxies. Each machine is a network namespace with an address of its own.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
};

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use testing::process::run;

use crate::support::{
    AGENT, Agent, AgentOptions, Certificates, HttpResponse, Kas, KasOptions, NetworkNamespaces, Proxy,
    ProxyHost, RecordingServer, Tokens, command_in_network, curl_in, eventually, kubeconfig_of,
    namespace_address, run_in_network,
};

/// The network namespace of kas.
const KAS: usize = 0;
/// That of the proxy in front of kas.
const PROXY: usize = 1;
/// That of agentk, its cluster and a caller.
const CLIENT: usize = 2;
/// That of a machine that sends forged addresses.
const STRANGER: usize = 3;

/// A PROXY header of version 2 with the client 6.6.6.6.
const FORGED_HEADER: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x06\x06\x06\x06\x0a\0\0\x01\x12\x34\x01\xbb";

/// A kas behind proxies, without an agent.
struct Site {
    kas: Kas,
    tokens: Tokens,
    cluster: RecordingServer,
    directory: TempDir,
    networks: NetworkNamespaces<4>,
}

impl Site {
    /// Starts kas, whose listeners for agents and for callers have these additional keys, or skips the test without
    /// network namespaces.
    fn or_skip(keys: impl Fn(&Path) -> (Value, Value)) -> Option<Self> {
        let networks = NetworkNamespaces::or_skip()?;
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::generate();
        tokens.write_identity(directory.path(), false);
        let (agents, callers) = keys(directory.path());
        let listen = |keys: Value| {
            let mut listen = json!({"address": format!("{}:0", namespace_address(KAS))});
            listen.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            listen
        };
        let section = json!({"listen": listen(agents), "kubernetes_api": {"listen": listen(callers)}});
        let network = Some(networks.names[KAS].clone());
        let options = KasOptions { sections: vec![("agent", section)], network, ..KasOptions::default() };
        let kas = Kas::start(directory.path(), &options);
        let cluster = RecordingServer::start_in(Some(&networks.names[CLIENT]));
        Some(Self { kas, tokens, cluster, directory, networks })
    }

    fn proxy_host(&self) -> ProxyHost {
        ProxyHost { network: Some(self.networks.names[PROXY].clone()), address: namespace_address(PROXY) }
    }

    fn servers(&self) -> [SocketAddr; 2] {
        [self.kas.agents, self.kas.public]
    }

    /// Starts agentk, which connects to `address`.
    fn start_agent(&self, address: SocketAddr) -> Agent {
        let directory = self.directory.path();
        let agent = Agent::start(
            directory,
            &AgentOptions {
                kas: format!("ws://{address}"),
                kas_authority: None,
                token: self.tokens.agent.expose_secret().to_owned(),
                kubeconfig: kubeconfig_of(directory, &format!("http://{}", self.cluster.address)),
                prometheus: None,
                hubble: None,
                policy: None,
                namespaces: None,
                require_scope: false,
                pod_namespace: None,
                collector: None,
                tunnels: 2,
                grace: 25,
                network: Some(self.networks.names[CLIENT].clone()),
                gitlab_protocol: false,
                environment: Vec::new(),
            },
        );
        eventually("the tunnels are open", || self.kas.metric("kas_tunnels") == 2.0);
        agent
    }

    /// Sends a request with the token of the caller and a forged `X-Forwarded-For` from a namespace.
    fn call(&self, place: usize, url: &str, arguments: &[&str]) -> HttpResponse {
        let authorization = format!("Authorization: Bearer {}", self.tokens.ops.expose_secret());
        let forged = ["--insecure", "--header", "X-Forwarded-For: 6.6.6.6", "--header", &authorization, url];
        curl_in(Some(&self.networks.names[place]), &[&forged[..], arguments].concat())
    }

    /// Sends bytes from the stranger, and returns what arrives until the connection is closed.
    fn send_as_stranger(&self, server: SocketAddr, bytes: &[u8]) -> Vec<u8> {
        run_in_network(Some(&self.networks.names[STRANGER]), || {
            let (mut connection, mut answer) = (TcpStream::connect(server).unwrap(), Vec::new());
            // Either fails if kas has closed the connection with bytes that it did not read.
            let _ = connection.write_all(bytes);
            let _ = connection.read_to_end(&mut answer);
            answer
        })
    }

    /// Returns the `X-Forwarded-For` of a request that reached the cluster.
    fn forwarded_for(&self, path: &str) -> String {
        let requests = self.cluster.requests();
        let request =
            requests.iter().find(|request| request.head[0].starts_with(&format!("GET {path} "))).unwrap();
        request.header("x-forwarded-for").unwrap().to_owned()
    }

    /// Checks that all tunnels of the list of `kas agents` come from the namespace `place`.
    fn assert_listed_address(&self, place: usize) {
        let config = json!({
            "identity": {"file": "identity.yaml"},
            "observability": {"listen": {"address": self.kas.observability}},
        });
        let file = self.directory.path().join("agents.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut command = command_in_network(Some(&self.networks.names[KAS]), &Kas::program());
        let output = run(command.args(["agents", "--output", "wide", "--config"]).arg(file), b"");
        let list = String::from_utf8(output.stdout).unwrap();
        assert_eq!(list.matches("10.0.0.").count(), 2, "{list}");
        assert_eq!(list.matches(&namespace_address(place)).count(), 2, "{list}");
    }

    /// Checks that a request to the agent at a path came from the namespace `place`, according to the log of kas.
    fn assert_logged_address(&self, path: &str, place: usize) {
        let line =
            self.kas.process.line("the request", |line| line.contains(path) && line.contains("\"client\""));
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["client"].as_str(), Some(&*namespace_address(place)), "{path}");
    }

    /// Returns how many connections kas has refused for a reason.
    fn refused(&self, reason: &str) -> f64 {
        self.kas.metric_with("kas_connections_refused_total", reason)
    }
}

/// Returns the network with the address of the namespace `place` alone.
fn network(place: usize) -> String {
    format!("{}/32", namespace_address(place))
}

fn url(server: SocketAddr, path: &str) -> String {
    format!("http://{server}/agents/{AGENT}/kubernetes{path}")
}

#[test]
fn addresses_behind_haproxy_are_those_of_the_proxy_header() {
    let site = Site::or_skip(|directory| {
        let tls = Certificates::generate(directory);
        let proxies = json!({"trusted_proxies": [network(PROXY)], "proxy_protocol": "v2"});
        let mut callers = proxies.clone();
        callers["certificate_file"] = json!(tls.certificate);
        callers["key_file"] = json!(tls.key);
        (proxies, callers)
    });
    let Some(site) = site else { return };
    let proxy = Proxy::haproxy_or_skip(&site.proxy_host(), site.directory.path(), &site.servers());
    let Some(proxy) = proxy else { return };
    let _agent = site.start_agent(proxy.addresses[0]);
    site.assert_listed_address(CLIENT);

    let https = |server, path| url(server, path).replace("http:", "https:");
    for (place, path) in [(CLIENT, "/of-the-client"), (STRANGER, "/of-the-stranger")] {
        let response = site.call(place, &https(proxy.addresses[1], path), &[]);
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(site.forwarded_for(path), namespace_address(place));
        site.assert_logged_address(path, place);
    }

    // The health checks of HAProxy have a header, and clients without the proxy are strangers, whatever they send.
    assert_eq!(site.refused(""), 0.0);
    assert_eq!(site.call(STRANGER, &https(site.kas.public, "/direct"), &[]).status, 0);
    assert_eq!(site.call(STRANGER, &https(site.kas.public, "/direct"), &["--haproxy-protocol"]).status, 0);
    let answers =
        [site.kas.agents, site.kas.public].map(|server| site.send_as_stranger(server, FORGED_HEADER));
    assert_eq!(answers, [b"", b""]);
    assert_eq!(site.refused("untrusted-proxy"), 4.0);
    let refusals = site.kas.process.printed().matches("\"connection refused\"").count();
    assert_eq!(refusals, 2, "one line in 10 s for each listener");

    // A header behind that of the proxy is the beginning of the client's data.
    let answer = site.send_as_stranger(proxy.addresses[1], FORGED_HEADER);
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn addresses_behind_nginx_are_those_of_its_header() {
    let site = Site::or_skip(|_| {
        let proxies = json!({"trusted_proxies": [network(PROXY)]});
        (proxies.clone(), proxies)
    });
    let Some(site) = site else { return };
    let proxy = Proxy::nginx_or_skip(&site.proxy_host(), site.directory.path(), &site.servers());
    let Some(proxy) = proxy else { return };
    let _agent = site.start_agent(proxy.addresses[0]);
    site.assert_listed_address(CLIENT);

    for (place, path) in [(CLIENT, "/of-the-client"), (STRANGER, "/of-the-stranger")] {
        assert_eq!(site.call(place, &url(proxy.addresses[1], path), &[]).status, 200);
        let hops = format!("{}, {}", namespace_address(place), namespace_address(PROXY));
        assert_eq!(site.forwarded_for(path), hops);
        site.assert_logged_address(path, place);
    }

    // Without the proxy, the header of a stranger changes nothing.
    assert_eq!(site.call(STRANGER, &url(site.kas.public, "/direct"), &[]).status, 200);
    assert_eq!(site.forwarded_for("/direct"), namespace_address(STRANGER));
    site.assert_logged_address("/direct", STRANGER);
    site.call(STRANGER, &format!("http://{}/", site.kas.agents), &[]);
    let refused = site.kas.process.line("the handshake", |line| line.contains("\"tunnel refused\""));
    assert!(refused.contains(&format!("\"{}:", namespace_address(STRANGER))), "{refused}");
}

#[test]
fn proxy_header_of_version_1_is_refused_with_its_name() {
    let site = Site::or_skip(|_| {
        let proxies = json!({"trusted_proxies": [network(PROXY)], "proxy_protocol": "v2"});
        (proxies.clone(), proxies)
    });
    let Some(site) = site else { return };
    let proxy = Proxy::nginx_stream_or_skip(&site.proxy_host(), site.directory.path(), &site.servers(), true);
    let Some(proxy) = proxy else { return };
    let refused = || site.refused("listener=\"public\",reason=\"proxy-header\"");
    let before = refused();
    assert_eq!(site.call(CLIENT, &url(proxy.addresses[1], "/version"), &[]).status, 0);
    eventually("the connection is counted", || refused() > before);
    site.kas.process.line("the reason", |line| line.contains("configure version 2 in the load balancer"));
}

#[test]
fn addresses_behind_a_tcp_proxy_without_headers_are_those_of_the_proxy() {
    let Some(site) = Site::or_skip(|_| (json!({}), json!({}))) else { return };
    let proxy =
        Proxy::nginx_stream_or_skip(&site.proxy_host(), site.directory.path(), &site.servers(), false);
    let Some(proxy) = proxy else { return };
    let _agent = site.start_agent(proxy.addresses[0]);
    site.assert_listed_address(PROXY);
    assert_eq!(site.call(CLIENT, &url(proxy.addresses[1], "/of-the-client"), &[]).status, 200);
    assert_eq!(site.forwarded_for("/of-the-client"), namespace_address(PROXY));
    site.assert_logged_address("/of-the-client", PROXY);
}

#[test]
fn caller_outside_of_the_allowed_networks_gets_a_readable_error() {
    let site = Site::or_skip(|directory| {
        let tls = Certificates::generate(directory);
        let allowed = json!([network(CLIENT)]);
        let files =
            json!({"certificate_file": tls.certificate, "key_file": tls.key, "allowed_networks": allowed});
        (json!({}), files)
    });
    let Some(site) = site else { return };
    let plain = url(site.kas.public, "/version");
    let tls = plain.replace("http:", "https:");
    let refused = site.call(STRANGER, &tls, &[]);
    assert!(refused.status == 0 && refused.error.contains("access denied"), "{refused:?}");
    let refused = site.call(STRANGER, &plain, &[]);
    assert_eq!((refused.status, refused.header("kas-error")), (403, Some("address-not-allowed")));
    assert!(refused.text().contains(&namespace_address(STRANGER)), "{refused:?}");
    assert_eq!(site.call(CLIENT, &tls, &[]).status, 503, "no agent is connected");
}
