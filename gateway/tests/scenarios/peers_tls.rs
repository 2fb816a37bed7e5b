//! Replicas that authenticate each other with certificates, over loopback.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{fs, path::Path, sync::Arc, time::SystemTime};

use access::token::{self, Holder};
use agentk_core::Services;
use http::{Response, StatusCode};
use kas_core::peers::{
    NetworkEnv, PeerConfig, ProbeSource, ReachabilityError, ReachabilityProbe, ReplicaContext,
};
use kas_testing::{
    fleet::AGENT,
    world::{RunningAgent, World, configuration, text},
};
use proto::ReplicaId;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use settings::ConfigError;
use store::{MemoryStore, Replica, RouteStore as _, Store};
use tempfile::TempDir;
use tunnel::Body;

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes the files of a replica that has this name and trusts `trusted`.
    fn files(&self, name: &str, trusted: &Self) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        fs::write(directory.path().join("tls.crt"), certificate.pem()).unwrap();
        fs::write(directory.path().join("tls.key"), key.serialize_pem()).unwrap();
        fs::write(directory.path().join("ca.crt"), trusted.0.pem()).unwrap();
        directory
    }
}

fn read(section: &str, host: Option<&str>, directory: &Path) -> Result<PeerConfig, ConfigError> {
    let text = format!("identity: {{file: i}}\nprivate_api: {{listen: {{{section}}}}}\n");
    read_text(&text, host, directory)
}

fn read_text(text: &str, host: Option<&str>, directory: &Path) -> Result<PeerConfig, ConfigError> {
    let file = directory.join("kas.yaml");
    fs::write(&file, text).unwrap();
    let config = gateway::config::Config::read(&file)?;
    let private = config.private_api.as_ref().unwrap();
    let env = NetworkEnv { host: host.map(str::to_owned), ..NetworkEnv::default() };
    PeerConfig::read(&file, private, config.keys(), env)
}

const TLS: &str =
    "address: '127.0.0.1:0', certificate_file: tls.crt, key_file: tls.key, ca_certificate_file: ca.crt";

/// Two replicas with certificates. The second one has an agent.
struct Pair {
    configs: Vec<PeerConfig>,
    worlds: Vec<World>,
    own: Vec<Replica>,
    store: Arc<MemoryStore>,
    _agent: RunningAgent,
}

impl Pair {
    async fn new(here: &TempDir, there: &TempDir, host: Option<&str>) -> Self {
        let store: Arc<MemoryStore> = Arc::default();
        let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
        let (mut configs, mut worlds, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for files in [here, there] {
            let peer_config = read(TLS, host, files.path()).unwrap();
            let listener = peer_config.bind(10).await.unwrap();
            let id = ReplicaId::random();
            let replica = Replica { id, url: peer_config.url(listener.address()).to_string() };
            store.join(replica.clone());
            let config = configuration();
            let alone =
                ReplicaContext::standalone(id, Arc::clone(&store) as Arc<dyn Store>, config.peer_settings());
            let context = peer_config.apply_to(alone, config.peer_settings());
            let world = World::replica(context, config, tokens.clone(), None, None);
            tokio::spawn(Arc::clone(&world.kas.peer_server).listen(listener, cores::Cores::default()));
            configs.push(peer_config);
            worlds.push(world);
            own.push(replica);
        }
        let services = Services::new().with_fn("kubernetes", async |_| Response::new(Body::from("here")));
        let agent = worlds[1].agent(services).await;
        while store.lookup(AGENT).await.unwrap().routes.is_empty() {
            tokio::task::yield_now().await;
        }
        Self { configs, worlds, own, store, _agent: agent }
    }

    /// Sends a request for the agent to the first replica.
    async fn get(&self) -> (StatusCode, String) {
        let response = self.worlds[0].get("/agents/prod/kubernetes/api").await;
        (response.status(), text(response).await)
    }

    fn probe(&self, index: usize) -> ReachabilityProbe {
        let client = self.worlds[index].kas.callers.forwarder.peers.clone();
        ReachabilityProbe { client, store: Arc::clone(&self.store) as _, own: self.own[index].clone() }
    }
}

/// Sends a request to a replica with the files `here` for an agent of a replica with the files `there`.
async fn get(here: &TempDir, there: &TempDir, host: Option<&str>) -> (StatusCode, String) {
    Pair::new(here, there, host).await.get().await
}

#[tokio::test]
async fn certificates_of_one_authority_are_trusted() {
    let ours = Authority::new();
    let (here, there) = (ours.files("127.0.0.1", &ours), ours.files("127.0.0.1", &ours));
    assert_eq!(get(&here, &there, None).await, (StatusCode::OK, "here".to_owned()));
    // Addresses of pods change, so all certificates may have one name.
    let (here, there) = (ours.files("kas.internal", &ours), ours.files("kas.internal", &ours));
    assert_eq!(get(&here, &there, Some("kas.internal")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn other_certificates_are_refused_in_both_directions() {
    let (ours, other) = (Authority::new(), Authority::new());
    let good = || ours.files("127.0.0.1", &ours);
    let cases = [
        ("a listener of another authority", good(), other.files("127.0.0.1", &ours)),
        ("a client of another authority", other.files("127.0.0.1", &ours), good()),
        ("a listener of another name", good(), ours.files("elsewhere", &ours)),
    ];
    for (what, here, there) in cases {
        let (status, text) = get(&here, &there, None).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{what}");
        assert!(
            text.contains("its certificate is refused") || text.contains("does not answer"),
            "{what}: {text}"
        );
    }
}

#[tokio::test]
async fn replicas_of_different_authorities_are_degraded() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (here, there) = (ours.files("127.0.0.1", &ours), other.files("127.0.0.1", &other));
    let pair = Pair::new(&here, &there, None).await;
    for index in [0, 1] {
        let error = pair.probe(index).check().await.unwrap_err();
        let issuer =
            |what: &str| what.contains("its certificate is refused (private_api.listen.ca_certificate_file)");
        assert!(matches!(&error, ReachabilityError::Refused(what) if issuer(what)), "{error}");
    }
}

/// The new replica trusts the others, so its own handshakes succeed.
#[tokio::test]
async fn replica_whose_certificate_the_others_refuse_is_degraded() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (new, old) = (other.files("127.0.0.1", &ours), ours.files("127.0.0.1", &ours));
    let pair = Pair::new(&new, &old, None).await;
    let error = pair.probe(0).check().await.unwrap_err();
    assert!(matches!(&error, ReachabilityError::Refused(what) if what.contains("fatal alert")), "{error}");
}

#[tokio::test]
async fn new_version_of_the_authority_is_used_by_new_connections() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (here, there) = (ours.files("127.0.0.1", &ours), other.files("127.0.0.1", &other));
    let pair = Pair::new(&here, &there, None).await;
    let reload = |directory: &TempDir, index: usize, pem: &str| {
        fs::write(directory.path().join("ca.crt"), pem).unwrap();
        pair.configs[index].tls().unwrap().reload_authority()
    };
    assert_eq!(pair.get().await.0, StatusCode::SERVICE_UNAVAILABLE);

    let both = ours.0.pem() + &other.0.pem();
    reload(&here, 0, &both).unwrap();
    assert_eq!(
        pair.get().await.0,
        StatusCode::SERVICE_UNAVAILABLE,
        "the other replica trusts its own authority only"
    );
    reload(&there, 1, &both).unwrap();
    assert_eq!(pair.get().await, (StatusCode::OK, "here".to_owned()));

    let error = reload(&here, 0, "half a fi").unwrap_err().to_string();
    assert!(error.contains("private_api.listen.ca_certificate_file: "), "{error}");
    assert_eq!(pair.get().await.0, StatusCode::OK);
}

/// A resumed session would verify neither certificate.
#[tokio::test]
async fn new_connection_verifies_a_new_certificate() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (here, there) = (ours.files("127.0.0.1", &ours), ours.files("127.0.0.1", &ours));
    let pair = Pair::new(&here, &there, None).await;
    assert_eq!(pair.get().await.0, StatusCode::OK);
    assert_eq!(pair.probe(0).check().await, Ok(ProbeSource::OtherReplica));

    let new = other.files("127.0.0.1", &ours);
    for file in ["tls.crt", "tls.key"] {
        fs::copy(new.path().join(file), there.path().join(file)).unwrap();
    }
    pair.configs[1].tls().unwrap().certificate().reload(SystemTime::now()).unwrap();
    let error = pair.probe(0).check().await.unwrap_err();
    assert!(matches!(&error, ReachabilityError::Refused(_)), "{error}");
}

#[test]
fn address_beyond_loopback_needs_certificates_or_a_trusted_network() {
    let ours = Authority::new();
    let files = ours.files("192.0.2.1", &ours);
    fs::write(files.path().join("good"), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n").unwrap();
    let read = |allowed: &str, listen: &str| {
        let text = format!("identity: {{file: i}}\nprivate_api:\n{allowed}  listen: {{{listen}}}\n");
        read_text(&text, None, files.path())
    };
    let secret = "address: '192.0.2.1:8155', authentication_secret_file: good";
    for allowed in ["", "  allow_plaintext: false\n"] {
        let error = read(allowed, secret).unwrap_err().to_string();
        assert!(error.contains("kas.yaml") && error.contains("private_api.allow_plaintext: "), "{error}");
        assert!(
            error.contains("http://192.0.2.1:8155") && error.contains("allow_plaintext: true"),
            "{error}"
        );
    }
    read("  allow_plaintext: true\n", secret).unwrap();
    read("", &TLS.replace("127.0.0.1:0", "192.0.2.1:8155")).unwrap();
    let error = read("  allow_plaintext: true\n", "address: '192.0.2.1:8155'").unwrap_err().to_string();
    assert!(error.contains("replicas cannot be told from strangers"), "{error}");
}

#[test]
fn invalid_section_is_refused_with_its_place() {
    let ours = Authority::new();
    let files = ours.files("127.0.0.1", &ours);
    fs::write(files.path().join("short"), "c2hvcnQ=").unwrap();
    fs::write(files.path().join("text"), "not base64").unwrap();
    fs::write(files.path().join("good"), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n").unwrap();
    for (section, expected) in [
        ("address: '10.0.0.1:8155'", "replicas cannot be told from strangers"),
        ("address: '[::1]:8155', network: tcp4", "is not an address of the network tcp4"),
        ("network: unix", "unix is not supported"),
        ("network: udp", "none of tcp, tcp4 and tcp6"),
        ("authentication_secret_file: nowhere", "authentication_secret_file: "),
        ("authentication_secret_file: short", "short: has 5 bytes, and must have 32 or more"),
        ("authentication_secret_file: text", "text: is not base64"),
        ("certificate_file: tls.crt, key_file: tls.key", "ca_certificate_file: it is missing"),
        ("ca_certificate_file: ca.crt", "it goes with certificate_file and key_file"),
        ("certificate_file: tls.crt", "certificate_file and key_file go together"),
        (
            "certificate_file: tls.crt, key_file: tls.key, ca_certificate_file: good",
            "good: holds no PEM certificate",
        ),
    ] {
        let error = read(section, None, files.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{section}: {error}");
        assert!(error.contains("kas.yaml") && error.contains("private_api.listen"), "{error}");
    }
    for good in ["", "address: '127.0.0.1:0'", "address: '[::1]:8155', authentication_secret_file: good", TLS]
    {
        read(good, None, files.path()).unwrap();
    }
    let error = read(TLS, Some("no name"), files.path()).unwrap_err().to_string();
    assert!(error.contains("OWN_PRIVATE_API_HOST: \"no name\""), "{error}");
}
