//! A rolling update of kas under load fails no request.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use secrecy::ExposeSecret as _;
use serde_json::Value;

use crate::support::{
    AGENT, AgentOptions, Certificates, Cluster, Fleet, Kas, Kubectl, LoadBalancer, Process, Redis, StopGuard,
    default_tunnels, eventually,
};

/// The number of callers. Ten callers at [`RATE`] send two hundred requests per second.
const CALLERS: usize = 10;
const RATE: &str = "20/s";
/// The shutdown grace period in seconds.
const GRACE: u32 = 20;
/// The duration of a watch in seconds, less than [`GRACE`].
const WATCH: u32 = 4;

/// The events that a caller with repeated watches received.
#[derive(Default)]
struct WatchEvents {
    /// The names of added objects, in order.
    added: Vec<String>,
    /// The number of watches that have ended.
    watches: usize,
}

#[test]
fn rolling_update_under_load_fails_no_request() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Cluster::or_skip()) else { return };
    let namespace = cluster.namespace("rollout");
    namespace.pod("ticker", "n=0; while true; do n=$((n + 1)); echo tick $n; sleep 0.2; done");
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    fleet.options.public_tls = Some(Certificates::generate(fleet.directory()));
    (fleet.options.listen_grace, fleet.options.shutdown_grace) = (2, GRACE);
    let mut old: [Kas; 3] = fleet.start_replicas();
    let (agent_balancer, caller_balancer) =
        (LoadBalancer::start(agents(&old.each_ref())), LoadBalancer::start(callers(&old.each_ref())));
    let options = AgentOptions {
        kas: format!("ws://{}", agent_balancer.address),
        tunnels: 2,
        ..fleet.agent_options.clone()
    };
    let _agent = fleet.start_agent(&options);
    let tunnels = |replicas: &[&Kas]| replicas.iter().map(|kas| kas.metric("kas_tunnels")).sum::<f64>();
    eventually("the tunnels are open", || tunnels(&old.each_ref()) == default_tunnels());

    let script = "n=0; while true; do n=$((n + 1)); echo exec $n; sleep 0.2; done";
    let at_first = fleet.kubectl(old[0].public).in_namespace(&namespace.name);
    let mut exec = at_first.start(&["exec", "ticker", "--", "sh", "-c", script]);
    let mut logs = at_first.start(&["logs", "--follow", "ticker"]);
    exec.line("exec prints its first line", |line| line == "exec 1");
    let mut load: Vec<_> = (0..CALLERS).map(|_| spawn_caller(&fleet, &caller_balancer)).collect();
    let kubectl = fleet.kubectl(caller_balancer.address).in_namespace(&namespace.name);
    let done = AtomicBool::new(false);
    let (events, created) = thread::scope(|scope| {
        let _end = StopGuard(&done);
        let version = list_version(&kubectl, &namespace.name);
        let watching = scope.spawn(|| watch_repeatedly(&kubectl, &namespace.name, version, &done));
        let mut created = Vec::new();
        let mut create = |kubectl: &Kubectl| {
            let name = format!("created-{}", created.len());
            kubectl.ok(&["create", "configmap", &name]);
            created.push(name);
        };
        let mut new = Vec::new();
        for index in 0..old.len() {
            create(&kubectl);
            wait_for_responses(&load, 200);
            // A Deployment starts the new replica first, too, and load balancers use it before the old one stops.
            new.push(fleet.start_replica());
            let all: Vec<_> = old[index..].iter().chain(&new).collect();
            agent_balancer.set_servers(agents(&all));
            caller_balancer.set_servers(callers(&all));
            old[index].process.terminate();
            eventually("the stopping replica is not ready", || !old[index].is_ready());
            let left: Vec<_> = old[index + 1..].iter().chain(&new).collect();
            agent_balancer.set_servers(agents(&left));
            caller_balancer.set_servers(callers(&left));
            create(&kubectl);
            old[index].process.line("the replica finishes requests", |line| {
                line.contains("stopping: finishing requests in flight")
            });
        }
        create(&kubectl);
        eventually("the tunnels have moved", || {
            tunnels(&new.iter().collect::<Vec<_>>()) == default_tunnels()
        });
        wait_for_responses(&load, 400);
        let ticks = count_lines(&exec, "exec ");
        eventually("exec continues on the stopping replica", || count_lines(&exec, "exec ") > ticks + 2);
        for replica in &mut old {
            assert_eq!(replica.process.exit_code(), 0);
        }
        create(&kubectl);
        wait_for_responses(&load, 200);
        load.iter_mut().for_each(Process::kill);
        // kubectl reports no error if the connection of an exec session is closed.
        exec.exit_code();
        assert_ne!(logs.exit_code(), 0, "an aborted log stream is an error");
        done.store(true, Relaxed);
        (watching.join().unwrap(), created)
    });
    for caller in load {
        let printed = caller.printed();
        // The signal can cut the last line short.
        let failed: Vec<_> = printed.lines().filter(|line| !"200".starts_with(line)).collect();
        assert!(failed.is_empty(), "{failed:?}");
    }
    assert_eq!(
        events.added, created,
        "each object is added once and in order, over {} watches",
        events.watches
    );
    assert!(events.watches >= 3, "{}", events.watches);
}

fn agents(replicas: &[&Kas]) -> Vec<std::net::SocketAddr> {
    replicas.iter().map(|kas| kas.agents).collect()
}

fn callers(replicas: &[&Kas]) -> Vec<std::net::SocketAddr> {
    replicas.iter().map(|kas| kas.public).collect()
}

/// Starts a curl that sends requests at [`RATE`] and prints each status. Like any HTTP client, curl retries on a new
/// connection if an idle one was closed.
fn spawn_caller(fleet: &Fleet, balancer: &LoadBalancer) -> Process {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--no-buffer", "--max-time", "30", "--rate", RATE, "--cacert"]);
    curl.arg(&fleet.options.public_tls.as_ref().unwrap().authority);
    curl.arg("--header").arg(format!("Authorization: Bearer {}", fleet.tokens.ops.expose_secret()));
    curl.args(["--output", "/dev/null", "--write-out", "%{stderr}%{http_code}%{errormsg}\n"]);
    // curl expands the range to more URLs than the test needs.
    curl.arg(format!("https://{}/agents/{AGENT}/kubernetes/version?n=[1-100000]", balancer.address));
    Process::start("a caller", &mut curl)
}

fn count_lines(process: &Process, beginning: &str) -> usize {
    process.printed().lines().filter(|line| line.starts_with(beginning)).count()
}

/// Waits until `more` further requests have been answered.
fn wait_for_responses(load: &[Process], more: usize) {
    let completed = || load.iter().map(|caller| count_lines(caller, "")).sum::<usize>();
    let before = completed();
    eventually("requests are answered", || completed() >= before + more);
}

/// Returns the resource version of the list of ConfigMaps.
fn list_version(kubectl: &Kubectl, namespace: &str) -> String {
    let list = kubectl.raw(&configmaps(namespace));
    version(&serde_json::from_slice(&list.stdout).unwrap())
}

/// Watches repeatedly, each time from the last resource version, as informers do. Each watch must end without an error.
fn watch_repeatedly(kubectl: &Kubectl, namespace: &str, mut last: String, done: &AtomicBool) -> WatchEvents {
    let (path, mut events) = (configmaps(namespace), WatchEvents::default());
    while !done.load(Relaxed) {
        let query = format!("{path}?watch=true&timeoutSeconds={WATCH}&resourceVersion={last}");
        let output = kubectl.raw(&query);
        assert_eq!((output.code, &*output.stderr), (0, ""), "a watch ended with an error");
        events.watches += 1;
        for event in output.text().lines() {
            let event: Value = serde_json::from_str(event).unwrap();
            last = version(&event["object"]);
            let name = event["object"]["metadata"]["name"].as_str().unwrap();
            if event["type"] == "ADDED" && name.starts_with("created-") {
                events.added.push(name.to_owned());
            }
        }
    }
    events
}

fn configmaps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}
