//! kas dials the agents whose URLs people have registered in GitLab. The connections are TCP on this machine, in real time.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{fs, path::Path, time::Duration};

use agentk_core::{ListenConfig, ListenPublicKey, ListenTls};
use cores::Cores;
use http::{Request, StatusCode};
use kas_gitlab::ReceptiveAgentsPoller;
use kas_testing::{
    fleet::TestFleet,
    world::{World, text},
};
use proto::AgentId;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use secrecy::SecretString;
use serde_json::{Value, json};
use testing::gitlab::{Endpoint, Fault, Job, StandIn};
use tokio_util::task::AbortOnDropHandle;
use tunnel::Body;

use crate::{
    gitlab_client::{TOKEN, client, standin},
    receptive::{Agentk, allow_loopback, cluster, dials, tunnels, until},
};

/// The keys of the first test of RFC 8032, section 7.1.
const PRIVATE_KEY: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
const PUBLIC_KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
const ANOTHER_KEY: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
/// The time between two lists.
const INTERVAL: Duration = Duration::from_millis(20);

/// The tasks of a kas that dials the agents of GitLab.
struct Dialling {
    _tasks: [AbortOnDropHandle<()>; 2],
}

/// An authority with a certificate of agentk and one of kas.
struct Authority {
    directory: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Dialling {
    fn start(world: &World, gitlab: &StandIn) -> Self {
        let (poller, others) = ReceptiveAgentsPoller::new(client(gitlab), INTERVAL);
        let dialling = world.kas.receptive_agents(Cores::default(), Some(others));
        let tasks = [tokio::spawn(dialling.run()), tokio::spawn(poller.run())];
        Self { _tasks: tasks.map(AbortOnDropHandle::new) }
    }
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { directory: tempfile::tempdir().unwrap(), issuer }
    }

    /// Returns a certificate and its key.
    fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Returns the TLS of an agentk that requires a certificate of this authority.
    fn of_agentk(&self, name: &str) -> ListenTls {
        let put = |file: &str, text: &str| {
            let path = self.directory.path().join(file);
            fs::write(&path, text).unwrap();
            path
        };
        let (chain, key) = self.issue(name, ExtendedKeyUsagePurpose::ServerAuth);
        let files = (put("agentk.crt", &chain), put("agentk.key", &key), put("ca.crt", &self.issuer.pem()));
        ListenTls::read(files.0, files.1, Some(files.2)).unwrap()
    }
}

fn token() -> SecretString {
    SecretString::from(TOKEN)
}

fn public_key(directory: &Path) -> ListenPublicKey {
    let path = directory.join("public-key");
    fs::write(&path, PUBLIC_KEY).unwrap();
    ListenPublicKey::read(path).unwrap()
}

/// Starts an agentk to which kas has to send a token of the private key.
fn agentk(directory: &Path, name: &'static str) -> Agentk {
    let public_key = Some(public_key(directory));
    let config = ListenConfig { address: "127.0.0.1:0".parse().unwrap(), tls: None, key: None, public_key };
    Agentk::start_with(config, &token(), cluster(name))
}

/// Returns the entry of the agent of the stand-in.
fn entry(agentk: &Agentk, key: &str) -> Value {
    let url = format!("grpc://{}", agentk.address);
    json!({"id": 42, "url": url, "ca_cert": null, "tls_host": null, "jwt": {"private_key": key}, "mtls": null})
}

fn set_agents(gitlab: &StandIn, agents: impl Into<Option<Vec<Value>>>) {
    gitlab.state().receptive_agents = agents.into();
}

/// Returns the answer of the cluster to a job.
async fn answer(world: &World) -> String {
    let request =
        Request::get("/k8s-proxy/api").header("host", "kas").header("authorization", "Bearer ci:42:job");
    text(world.send(request.body(Body::empty()).unwrap()).await).await
}

/// Starts a stand-in with an agent, which a job may use.
async fn gitlab() -> StandIn {
    let gitlab = standin().await;
    let job = Job::new(3, 30).with_agent(42, json!({"access_as": {"agent": {}}}));
    gitlab.state().add_job("job", job);
    gitlab
}

#[tokio::test]
async fn agent_of_gitlab_is_dialled_with_a_token_and_moves_and_ends_with_its_url() {
    let (directory, gitlab) = (tempfile::tempdir().unwrap(), gitlab().await);
    let world = World::with_gitlab(client(&gitlab), TOKEN, allow_loopback);
    let (old, new) = (agentk(directory.path(), "old"), agentk(directory.path(), "new"));
    set_agents(&gitlab, vec![json!({"id": "broken"}), entry(&old, PRIVATE_KEY)]);
    let _dialling = Dialling::start(&world, &gitlab);
    world.tunnels(2).await;
    assert_eq!(answer(&world).await, "old");

    set_agents(&gitlab, vec![entry(&new, PRIVATE_KEY)]);
    until("the tunnels moved", || dials(&world, "connected") >= 4.0 && tunnels(&world) == 2).await;
    assert_eq!(answer(&world).await, "new");

    set_agents(&gitlab, vec![]);
    until("the tunnels ended", || tunnels(&world) == 0).await;
    gitlab.assert_no_violations();
}

#[tokio::test]
async fn wrong_key_is_refused_and_the_key_is_in_no_error() {
    let (directory, gitlab) = (tempfile::tempdir().unwrap(), gitlab().await);
    let world = World::with_gitlab(client(&gitlab), TOKEN, allow_loopback);
    let agentk = agentk(directory.path(), "here");
    set_agents(&gitlab, vec![entry(&agentk, ANOTHER_KEY)]);
    let _dialling = Dialling::start(&world, &gitlab);
    until("the key is refused", || dials(&world, "key-refused") > 0.0).await;
    assert_eq!(world.kas.agents.dial_errors.kind(AgentId(42)), Some("key-refused"));
    set_agents(&gitlab, vec![entry(&agentk, PRIVATE_KEY)]);
    world.tunnels(2).await;
    assert!(world.kas.agents.dial_errors.kind(AgentId(42)).is_none());
}

#[tokio::test]
async fn certificates_of_gitlab_authenticate_both_ends() {
    let (authority, gitlab) = (Authority::new(), gitlab().await);
    let world = World::with_gitlab(client(&gitlab), TOKEN, allow_loopback);
    let tls = Some(authority.of_agentk("agentk.example.com"));
    let config = ListenConfig { address: "127.0.0.1:0".parse().unwrap(), tls, key: None, public_key: None };
    let agentk = Agentk::start_with(config, &token(), cluster("here"));
    let (chain, key) = authority.issue("kas", ExtendedKeyUsagePurpose::ClientAuth);
    let entry = |chain: &str, key: &str| {
        json!({
            "id": 42, "url": format!("grpcs://{}", agentk.address), "tls_host": "agentk.example.com",
            "ca_cert": authority.issuer.pem(), "jwt": null, "mtls": {"client_cert": chain, "client_key": key},
        })
    };
    let (strange_chain, strange_key) = Authority::new().issue("kas", ExtendedKeyUsagePurpose::ClientAuth);
    set_agents(&gitlab, vec![entry(&strange_chain, &strange_key)]);
    let _dialling = Dialling::start(&world, &gitlab);
    until("a strange certificate is refused", || dials(&world, "lost") + dials(&world, "tls") > 0.0).await;
    set_agents(&gitlab, vec![entry(&chain, &key)]);
    world.tunnels(2).await;
    assert_eq!(answer(&world).await, "here");
}

#[tokio::test]
async fn one_replica_of_several_dials_each_tunnel() {
    let (directory, gitlab) = (tempfile::tempdir().unwrap(), gitlab().await);
    let fleet = TestFleet::with_gitlab_and(2, || client(&gitlab), TOKEN, allow_loopback);
    let agentk = agentk(directory.path(), "here");
    set_agents(&gitlab, vec![entry(&agentk, PRIVATE_KEY)]);
    let [one, two] = &fleet.replicas[..] else { unreachable!() };
    let _dialling = [one, two].map(|world| Dialling::start(world, &gitlab));
    until("one tunnel to each", || tunnels(one) == 1 && tunnels(two) == 1).await;
}

#[tokio::test]
async fn outage_of_gitlab_ends_no_tunnel_and_neither_do_some_answers_404() {
    let (directory, gitlab) = (tempfile::tempdir().unwrap(), gitlab().await);
    let world = World::with_gitlab(client(&gitlab), TOKEN, allow_loopback);
    let agentk = agentk(directory.path(), "here");
    set_agents(&gitlab, vec![entry(&agentk, PRIVATE_KEY)]);
    let _dialling = Dialling::start(&world, &gitlab);
    world.tunnels(2).await;
    for fault in [Fault::Garbage, Fault::Huge(5 << 20), Fault::Status(StatusCode::FORBIDDEN)] {
        gitlab.set_fault(fault.clone());
        let before = gitlab.requests(Endpoint::ReceptiveAgents);
        until("several lists", || gitlab.requests(Endpoint::ReceptiveAgents) > before + 3).await;
        assert_eq!(tunnels(&world), 2, "{fault:?}");
    }
    gitlab.set_fault(None);
    set_agents(&gitlab, None);
    let before = gitlab.requests(Endpoint::ReceptiveAgents);
    until("several answers 404", || gitlab.requests(Endpoint::ReceptiveAgents) > before + 3).await;
    assert_eq!(tunnels(&world), 2, "only answers 404 of some minutes end the tunnels");
    set_agents(&gitlab, vec![]);
    until("the tunnels ended", || tunnels(&world) == 0).await;
}

#[tokio::test]
async fn address_of_this_machine_is_dialled_only_if_it_is_named() {
    let (directory, gitlab) = (tempfile::tempdir().unwrap(), gitlab().await);
    let world = World::with_gitlab(client(&gitlab), TOKEN, |_| {});
    let agentk = agentk(directory.path(), "here");
    set_agents(&gitlab, vec![entry(&agentk, PRIVATE_KEY)]);
    let _dialling = Dialling::start(&world, &gitlab);
    until("the address is refused", || dials(&world, "address-not-allowed") > 0.0).await;
    assert_eq!(tunnels(&world), 0);
}
