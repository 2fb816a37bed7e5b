//! The addresses of callers and agents behind real proxies. The proxies connect from 127.0.0.9, agentk from 127.0.0.1, and
//! callers from 127.0.0.5.

use std::{net::SocketAddr, path::Path};

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::process::run;

use crate::support::{
    AGENT, Agent, AgentOptions, Certificates, CurlResponse, Kas, KasOptions, Proxy, RecordingServer, Tokens,
    curl, eventually, kubeconfig_of,
};

const CALLER: &str = "127.0.0.5";

/// A kas behind proxies, without an agent.
struct Site {
    directory: TempDir,
    kas: Kas,
    tokens: Tokens,
    cluster: RecordingServer,
}

impl Site {
    /// Starts kas, whose listeners for agents and for callers have these additional keys.
    fn new(keys: impl Fn(&Path) -> (Value, Value)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::generate();
        tokens.write_identity(directory.path(), false);
        let (agents, callers) = keys(directory.path());
        let listen = |keys: Value| {
            let mut listen = json!({"address": "127.0.0.1:0"});
            listen.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            listen
        };
        let section = json!({"listen": listen(agents), "kubernetes_api": {"listen": listen(callers)}});
        let options = KasOptions { sections: vec![("agent", section)], ..KasOptions::default() };
        let kas = Kas::start(directory.path(), &options);
        Self { directory, kas, tokens, cluster: RecordingServer::start() }
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
                policy: None,
                namespaces: None,
                collector: None,
                tunnels: 2,
                grace: 25,
                network: None,
            },
        );
        eventually("the tunnels are open", || self.kas.metric("kas_tunnels") == 2.0);
        agent
    }

    /// Sends a request of the caller with a forged `X-Forwarded-For`.
    fn call(&self, url: &str, arguments: &[&str]) -> CurlResponse {
        let authorization = format!("Authorization: Bearer {}", self.tokens.ops.expose_secret());
        let forged =
            ["--interface", CALLER, "--header", "X-Forwarded-For: 6.6.6.6", "--header", &authorization, url];
        curl(&[&forged[..], arguments].concat())
    }

    /// Returns the `X-Forwarded-For` of a request that reached the cluster.
    fn forwarded_for(&self, path: &str) -> String {
        let requests = self.cluster.requests();
        let request =
            requests.iter().find(|request| request.head[0].starts_with(&format!("GET {path} "))).unwrap();
        request.header("x-forwarded-for").unwrap().to_owned()
    }

    /// Returns the tunnels with their addresses, as `kas agents` prints them.
    fn listed_addresses(&self) -> String {
        let config = json!({
            "identity": {"file": "identity.yaml"},
            "observability": {"listen": {"address": self.kas.observability}},
        });
        let file = self.directory.path().join("agents.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let output = run(Kas::command().args(["agents", "--output", "wide", "--config"]).arg(file), b"");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the address of the caller in the log line of its request.
    fn logged_client(&self, path: &str) -> String {
        let line =
            self.kas.process.line("the request", |line| line.contains(path) && line.contains("\"client\""));
        serde_json::from_str::<Value>(&line).unwrap()["client"].as_str().unwrap().to_owned()
    }
}

#[test]
fn addresses_behind_haproxy_are_those_of_the_proxy_header() {
    let site = Site::new(|directory| {
        let tls = Certificates::generate(directory);
        let proxies = json!({"trusted_proxies": ["127.0.0.9/32"], "proxy_protocol": "v2"});
        let mut callers = proxies.clone();
        callers["certificate_file"] = json!(tls.certificate);
        callers["key_file"] = json!(tls.key);
        (proxies, callers)
    });
    let Some(proxy) = Proxy::haproxy_or_skip(site.directory.path(), &site.servers()) else { return };
    let _agent = site.start_agent(proxy.addresses[0]);
    let listed = site.listed_addresses();
    assert!(listed.contains("127.0.0.1:") && !listed.contains(Proxy::ADDRESS), "{listed}");

    let authority = site.directory.path().join("ca.crt");
    let url = |address: SocketAddr, path: &str| format!("https://{address}/agents/{AGENT}/kubernetes{path}");
    let trust = ["--cacert", authority.to_str().unwrap()];
    let response = site.call(&url(proxy.addresses[1], "/behind-haproxy"), &trust);
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(site.forwarded_for("/behind-haproxy"), CALLER);
    assert_eq!(site.logged_client("/behind-haproxy"), CALLER);

    // The health checks of HAProxy have a header, and clients without the proxy are strangers, whatever they send.
    assert_eq!(site.kas.metric("kas_connections_refused_total"), 0.0);
    let response = site.call(&url(site.kas.public, "/direct"), &trust);
    assert_eq!(response.status, 0, "{response:?}");
    let forged = [&trust[..], &["--haproxy-protocol"]].concat();
    assert_eq!(site.call(&url(site.kas.public, "/direct"), &forged).status, 0);
    assert_eq!(site.kas.metric_with("kas_connections_refused_total", "untrusted-proxy"), 2.0);
    let refusals = site.kas.process.printed().matches("\"connection refused\"").count();
    assert_eq!(refusals, 1, "one line in 10 s");
}

#[test]
fn addresses_behind_nginx_are_those_of_its_header() {
    let site = Site::new(|_| {
        let proxies = json!({"trusted_proxies": ["127.0.0.9/32"]});
        (proxies.clone(), proxies)
    });
    let Some(proxy) = Proxy::nginx_or_skip(site.directory.path(), &site.servers()) else { return };
    let _agent = site.start_agent(proxy.addresses[0]);
    let listed = site.listed_addresses();
    assert!(listed.contains("127.0.0.1") && !listed.contains(Proxy::ADDRESS), "{listed}");

    let url = |address: SocketAddr, path: &str| format!("http://{address}/agents/{AGENT}/kubernetes{path}");
    assert_eq!(site.call(&url(proxy.addresses[1], "/behind-nginx"), &[]).status, 200);
    assert_eq!(site.forwarded_for("/behind-nginx"), format!("{CALLER}, {}", Proxy::ADDRESS));
    assert_eq!(site.logged_client("/behind-nginx"), CALLER);

    assert_eq!(site.call(&url(site.kas.public, "/direct"), &[]).status, 200);
    assert_eq!(site.forwarded_for("/direct"), CALLER, "the header of a stranger changes nothing");
}

#[test]
fn proxy_header_of_version_1_is_refused_with_its_name() {
    let site = Site::new(|_| {
        let proxies = json!({"trusted_proxies": ["127.0.0.9/32"], "proxy_protocol": "v2"});
        (proxies.clone(), proxies)
    });
    let Some(proxy) = Proxy::nginx_stream_or_skip(site.directory.path(), &site.servers()) else { return };
    let before =
        site.kas.metric_with("kas_connections_refused_total", "listener=\"public\",reason=\"proxy-header\"");
    let url = format!("http://{}/agents/{AGENT}/kubernetes/version", proxy.addresses[1]);
    assert_eq!(site.call(&url, &[]).status, 0);
    eventually("the connection is counted", || {
        site.kas.metric_with("kas_connections_refused_total", "listener=\"public\",reason=\"proxy-header\"")
            > before
    });
    site.kas.process.line("the reason", |line| line.contains("configure version 2 in the load balancer"));
}

#[test]
fn caller_outside_of_the_allowed_networks_gets_a_readable_error() {
    let site = Site::new(|directory| {
        let tls = Certificates::generate(directory);
        (
            json!({}),
            json!({"allowed_networks": ["127.0.0.1/32"], "certificate_file": tls.certificate, "key_file": tls.key}),
        )
    });
    let url = format!("https://{}/agents/{AGENT}/kubernetes/version", site.kas.public);
    let authority = site.directory.path().join("ca.crt");
    let trust = ["--cacert", authority.to_str().unwrap()];
    let refused = site.call(&url, &trust);
    assert!(refused.status == 0 && refused.error.contains("access denied"), "{refused:?}");
    let plain = site.call(&url.replace("https:", "http:"), &[]);
    assert_eq!((plain.status, plain.header("kas-error")), (403, Some("address-not-allowed")));
    assert!(plain.text().contains(CALLER), "{plain:?}");
    let own = site.call(&url, &[&trust[..], &["--interface", "127.0.0.1"]].concat());
    assert_eq!(own.status, 503, "no agent is connected: {own:?}");
}
