//! Replicas that prove themselves with certificates, over loopback.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{fs, path::Path, sync::Arc};

use agent::Services;
use gateway::{
    config::{ConfigError, PrivateApi},
    peers::{Fleet, address::Surroundings, setup::Setup},
    token::{self, Holder},
};
use http::{Response, StatusCode};
use proto::ReplicaId;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use router::{MemoryStore, Replica, RouteStore};
use tempfile::TempDir;
use tunnel::Body;

use crate::{
    fleet::AGENT,
    world::{World, configuration, text},
};

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Files of a replica that has this name and trusts `trusted`.
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

fn setup(section: &str, host: Option<&str>, directory: &Path) -> Result<Setup, ConfigError> {
    let text = format!("identity: {{file: i}}\nprivate_api: {{listen: {{{section}}}}}\n");
    let file = directory.join("kas.yaml");
    fs::write(&file, text).unwrap();
    let private: PrivateApi = gateway::config::Config::read(&file)?.private_api.unwrap();
    let surroundings = Surroundings { host: host.map(str::to_owned), ..Surroundings::default() };
    Setup::read(&file, &private, surroundings)
}

const TLS: &str =
    "address: '127.0.0.1:0', certificate_file: tls.crt, key_file: tls.key, ca_certificate_file: ca.crt";

/// What a caller at a replica with one set of files is told of an agent at one with another.
async fn asked(here: &TempDir, there: &TempDir, host: Option<&str>) -> (StatusCode, String) {
    let store: Arc<MemoryStore> = Arc::default();
    let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
    let mut worlds = Vec::new();
    for files in [here, there] {
        let setup = setup(TLS, host, files.path()).unwrap();
        let listener = setup.bind().await.unwrap();
        let id = ReplicaId::random();
        store.join(Replica { id, url: setup.url(listener.address()).to_string() });
        let config = configuration();
        let alone = Fleet::alone(id, Arc::clone(&store) as Arc<dyn RouteStore>, &config);
        let fleet = setup.fleet(alone, &config);
        let world = World::replica(fleet, config, tokens.clone(), None, None);
        tokio::spawn(Arc::clone(&world.kas.host).listen(listener, cores::Cores::default()));
        worlds.push(world);
    }
    let services = Services::new().with_fn("kubernetes", async |_| Response::new(Body::from("here")));
    let _agent = worlds[1].agent(services).await;
    while store.lookup(AGENT).await.unwrap().routes.is_empty() {
        tokio::task::yield_now().await;
    }
    let answer = worlds[0].get("/agents/prod/kubernetes/api").await;
    (answer.status(), text(answer).await)
}

#[tokio::test]
async fn certificates_of_one_authority_are_trusted() {
    let ours = Authority::new();
    let (here, there) = (ours.files("127.0.0.1", &ours), ours.files("127.0.0.1", &ours));
    assert_eq!(asked(&here, &there, None).await, (StatusCode::OK, "here".to_owned()));
    // Where addresses come and go, all certificates have one name.
    let (here, there) = (ours.files("kas.internal", &ours), ours.files("kas.internal", &ours));
    assert_eq!(asked(&here, &there, Some("kas.internal")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn nobody_elses_certificate_is_trusted_in_either_direction() {
    let (ours, other) = (Authority::new(), Authority::new());
    let good = || ours.files("127.0.0.1", &ours);
    let cases = [
        ("a listener of another authority", good(), other.files("127.0.0.1", &ours)),
        ("a client of another authority", other.files("127.0.0.1", &ours), good()),
        ("a listener of another name", good(), ours.files("elsewhere", &ours)),
    ];
    for (what, here, there) in cases {
        let (status, text) = asked(&here, &there, None).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{what}");
        assert!(text.contains("no connection to it") || text.contains("does not answer"), "{what}: {text}");
    }
}

#[test]
fn what_is_wrong_with_the_section_is_said_with_its_place() {
    let ours = Authority::new();
    let files = ours.files("127.0.0.1", &ours);
    fs::write(files.path().join("short"), "c2hvcnQ=").unwrap();
    fs::write(files.path().join("text"), "not base64").unwrap();
    fs::write(files.path().join("good"), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n").unwrap();
    for (section, expected) in [
        ("address: '10.0.0.1:8155'", "nothing tells replicas from strangers"),
        ("address: '[::1]:8155', network: tcp4", "not of the kind that private_api.listen.network says"),
        ("network: unix", "unix is not served"),
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
        let error = setup(section, None, files.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{section}: {error}");
        assert!(error.contains("kas.yaml") && error.contains("private_api.listen"), "{error}");
    }
    for good in
        ["", "address: '127.0.0.1:0'", "address: '192.0.2.1:8155', authentication_secret_file: good", TLS]
    {
        setup(good, None, files.path()).unwrap();
    }
    let error = setup(TLS, Some("no name"), files.path()).unwrap_err().to_string();
    assert!(error.contains("OWN_PRIVATE_API_HOST: \"no name\""), "{error}");
}
