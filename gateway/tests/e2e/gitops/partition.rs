//! agentk loses kas, the API server or both in the middle of a sync, for longer than the Lease lasts.

use std::{
    fs,
    time::{Duration, Instant},
};

use super::*;
use crate::support::Link;

/// The time after which another pod may take the Lease over.
const LEASE: Duration = Duration::from_secs(15);
/// The objects of a commit: enough to lose a connection while they are written.
const OBJECTS: usize = 120;
/// The delay of each write while a connection is lost, so that a sync takes seconds.
const DELAY: Duration = Duration::from_millis(50);

/// An agentk whose connections can be cut.
struct Partition {
    world: World,
    kas: Link,
    api: Link,
    /// An object of somebody else, with the version that it must keep.
    foreign: String,
}

impl Partition {
    fn or_skip(topic: &str) -> Option<Self> {
        let mut world = World::or_skip(topic)?;
        let kas = Link::start(world.installation.kas.agents);
        let text = fs::read_to_string(&world.cluster.kubeconfig).unwrap();
        let (_, rest) = text.split_once("https://").expect("the URL of the API server");
        let server = &rest[..rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').unwrap()];
        let api = Link::start(server.parse().expect("an address and a port"));
        let kubeconfig = world.installation.directory().join("kubeconfig-of-the-link");
        fs::write(&kubeconfig, text.replace(server, &api.address.to_string())).unwrap();

        let installation = &mut world.installation;
        installation.agent_options.kas = format!("ws://{}", kas.address);
        installation.agent_options.kubeconfig = kubeconfig;
        installation.agent.process.terminate();
        installation.agent.process.exit_code();
        installation.restart_agent();
        world.namespace.kubectl.ok(&["create", "configmap", "foreign", "--from-literal=key=theirs"]);
        let foreign = version_of_foreign(&world);
        Some(Self { world, kas, api, foreign })
    }

    /// Commits objects with a value.
    fn commit(&self, value: &str, count: usize) {
        let text: String = (0..count).map(|n| config_map(&format!("c{n:03}"), value)).collect();
        self.world.configure("max_prune_percent: 100", &[("manifests/app.yaml", Some(&text))]);
    }

    /// Returns the values of all objects of the project.
    fn values(&self) -> Vec<String> {
        let path = "jsonpath={.items[*].data.key}";
        let text = self.world.namespace.kubectl.ok(&["get", "configmap", "-l", "e2e=gitops", "-o", path]);
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn is_applied(&self, value: &str, count: usize) -> bool {
        let values = self.values();
        values.len() == count && values.iter().all(|found| found == value)
    }

    /// Commits, and cuts links while the commit is written.
    fn cut_while_written(&self, value: &str, links: &[&Link]) {
        self.api.set_delay(DELAY);
        self.commit(value, OBJECTS);
        eventually("the sync has begun", || self.values().iter().any(|found| found == value));
        links.iter().for_each(|link| link.set_cut(true));
        self.api.set_delay(Duration::ZERO);
    }

    fn restore(&self) {
        self.kas.set_cut(false);
        self.api.set_cut(false);
    }

    fn leads(agent: &Agent) -> usize {
        agent.process.printed().matches("this pod leads GitOps").count()
    }

    /// Checks that objects of nobody are as they were, and that only members have the label.
    fn check_others(&self, count: usize) {
        assert_eq!(version_of_foreign(&self.world), self.foreign);
        let path = ["get", "configmap", "-l", "applyset.kubernetes.io/part-of", "-o", "name"];
        assert_eq!(self.world.namespace.kubectl.ok(&path).lines().count(), count);
    }
}

fn version_of_foreign(world: &World) -> String {
    let path = ["get", "configmap", "foreign", "-o", "jsonpath={.metadata.uid} {.metadata.resourceVersion}"];
    world.namespace.kubectl.ok(&path)
}

#[test]
fn agent_that_loses_kas_keeps_the_last_commit_and_follows_git_again() {
    let Some(partition) = Partition::or_skip("gitops-no-kas") else { return };
    partition.commit("first", OBJECTS);
    eventually("the objects are created", || partition.is_applied("first", OBJECTS));
    partition.cut_while_written("second", &[&partition.kas]);
    let cut = Instant::now();
    partition.commit("third", OBJECTS / 2);
    eventually("the sync is completed without kas", || partition.is_applied("second", OBJECTS));
    // The Lease is renewed for longer than it lasts, and the pod that leads works.
    eventually("time passes", || cut.elapsed() > LEASE + Duration::from_secs(5));
    let patch = ["patch", "configmap", "c000", "--patch", r#"{"data": {"key": "drift"}}"#];
    partition.world.namespace.kubectl.ok(&patch);
    eventually("the change is healed", || partition.is_applied("second", OBJECTS));
    assert_eq!(Partition::leads(&partition.world.installation.agent), 1);

    partition.restore();
    eventually("the commit of the meantime is applied", || partition.is_applied("third", OBJECTS / 2));
    partition.check_others(OBJECTS / 2);
}

#[test]
fn leader_that_loses_the_api_server_is_replaced_and_writes_nothing_old() {
    let Some(partition) = Partition::or_skip("gitops-no-api") else { return };
    partition.commit("first", OBJECTS);
    eventually("the objects are created", || partition.is_applied("first", OBJECTS));
    // A pod on another node, whose network is in order.
    let installation = &partition.world.installation;
    let mut options = installation.agent_options.clone();
    options.kubeconfig.clone_from(&partition.world.cluster.kubeconfig);
    options.kas = installation.kas.agent_url(&installation.options);
    let directory = TempDir::new().unwrap();
    let second = Agent::start(directory.path(), &options);
    eventually("both pods have tunnels", || installation.kas.metric("kas_tunnels") == 4.0);

    partition.cut_while_written("second", &[&partition.api]);
    eventually("the other pod has taken over", || Partition::leads(&second) == 1);
    partition.commit("third", OBJECTS / 2);
    eventually("it applies the newer commit", || partition.is_applied("third", OBJECTS / 2));

    // The requests that the first pod had begun to send arrive only now.
    partition.restore();
    let lost = "this pod does not lead GitOps any more";
    eventually("the first pod knows that its time is over", || {
        installation.agent.process.printed().contains(lost)
    });
    assert!(partition.is_applied("third", OBJECTS / 2), "{:?}", partition.values());
    partition.commit("fourth", OBJECTS);
    eventually("the second pod goes on", || partition.is_applied("fourth", OBJECTS));
    assert_eq!((Partition::leads(&installation.agent), Partition::leads(&second)), (1, 1));
    partition.check_others(OBJECTS);
}

#[test]
fn agent_that_loses_kas_and_the_api_server_converges_alone() {
    let Some(partition) = Partition::or_skip("gitops-no-net") else { return };
    partition.commit("first", OBJECTS);
    eventually("the objects are created", || partition.is_applied("first", OBJECTS));
    partition.cut_while_written("second", &[&partition.kas, &partition.api]);
    let before = partition.values();
    let lost = "this pod does not lead GitOps any more";
    eventually("the Lease has ended", || partition.world.installation.agent.process.printed().contains(lost));
    partition.commit("third", OBJECTS / 2);
    assert_eq!(partition.values(), before, "nothing was written without a network");

    partition.restore();
    eventually("the commit of the meantime is applied", || partition.is_applied("third", OBJECTS / 2));
    assert_eq!(Partition::leads(&partition.world.installation.agent), 2);
    partition.check_others(OBJECTS / 2);
}
