//! A new version of kas is rolled out under load: nobody notices.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use secrecy::ExposeSecret as _;
use serde_json::Value;

use crate::support::{
    AGENT, AgentOptions, Certificates, Cluster, Fleet, Kas, Kubectl, Process, Redis, Relay, eventually,
};

/// Ten of these make two hundred requests a second.
const CALLERS: usize = 10;
const RATE: &str = "20/s";
/// How long streams may go on at a replica that stops, in seconds.
const GRACE: u32 = 20;
/// How long a watch lasts, in seconds; less than [`GRACE`].
const WATCH: u32 = 4;

/// What somebody who watches has seen.
#[derive(Default)]
struct Informed {
    /// Names of what was added, in order.
    added: Vec<String>,
    /// Watches that have ended.
    watches: usize,
}

#[test]
fn three_replicas_are_restarted_under_two_hundred_requests_a_second() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Cluster::or_skip()) else { return };
    let namespace = cluster.namespace("rollout");
    namespace.pod("ticker", "n=0; while true; do n=$((n + 1)); echo tick $n; sleep 0.2; done");
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    fleet.options.public_tls = Some(Certificates::make(fleet.directory()));
    (fleet.options.listen_grace, fleet.options.shutdown_grace) = (2, GRACE);
    let mut old: [Kas; 3] = fleet.replicas();
    let (for_agents, for_callers) =
        (Relay::start(agents(&old.each_ref())), Relay::start(callers(&old.each_ref())));
    let options = AgentOptions {
        kas: format!("ws://{}", for_agents.address),
        tunnels: 2,
        ..fleet.agent_options.clone()
    };
    let _agent = fleet.agent(&options);
    let tunnels = |replicas: &[&Kas]| replicas.iter().map(|kas| kas.metric("kas_tunnels")).sum::<f64>();
    eventually("the tunnels are open", || tunnels(&old.each_ref()) == 2.0);

    let script = "n=0; while true; do n=$((n + 1)); echo exec $n; sleep 0.2; done";
    let at_first = fleet.kubectl(old[0].public).within(&namespace.name);
    let mut exec = at_first.start(&["exec", "ticker", "--", "sh", "-c", script]);
    let mut logs = at_first.start(&["logs", "--follow", "ticker"]);
    exec.line("it runs", |line| line == "exec 1");
    let mut load: Vec<_> = (0..CALLERS).map(|_| caller(&fleet, &for_callers)).collect();
    let kubectl = fleet.kubectl(for_callers.address).within(&namespace.name);
    let done = AtomicBool::new(false);
    let (informed, made) = thread::scope(|scope| {
        let _end = End(&done);
        let version = version_of(&kubectl, &namespace.name);
        let watching = scope.spawn(|| watch(&kubectl, &namespace.name, version, &done));
        let mut made = Vec::new();
        let mut make = |kubectl: &Kubectl| {
            let name = format!("made-{}", made.len());
            kubectl.ok(&["create", "configmap", &name]);
            made.push(name);
        };
        let mut new = Vec::new();
        for retired in 0..old.len() {
            make(&kubectl);
            answered(&load, 200);
            // As a Deployment does it: first the new one, which load balancers then know.
            new.push(fleet.replica());
            let all: Vec<_> = old[retired..].iter().chain(&new).collect();
            for_agents.lead(agents(&all));
            for_callers.lead(callers(&all));
            old[retired].process.terminate();
            eventually("it is not ready", || !old[retired].is_ready());
            let left: Vec<_> = old[retired + 1..].iter().chain(&new).collect();
            for_agents.lead(agents(&left));
            for_callers.lead(callers(&left));
            make(&kubectl);
            old[retired]
                .process
                .line("it stops", |line| line.contains("stopping: finishing requests in flight"));
        }
        make(&kubectl);
        eventually("the tunnels have moved", || tunnels(&new.iter().collect::<Vec<_>>()) == 2.0);
        answered(&load, 400);
        let ticks = count(&exec, "exec ");
        eventually("exec goes on at a replica that stops", || count(&exec, "exec ") > ticks + 2);
        for replica in &mut old {
            assert_eq!(replica.process.exit_code(), 0);
        }
        make(&kubectl);
        answered(&load, 200);
        load.iter_mut().for_each(Process::kill);
        // kubectl says nothing of an exec session whose connection is gone.
        exec.exit_code();
        assert_ne!(logs.exit_code(), 0, "a log that was cut does not look like a whole one");
        done.store(true, Relaxed);
        (watching.join().unwrap(), made)
    });
    for caller in load {
        let printed = caller.printed();
        let failed: Vec<_> = printed.lines().filter(|line| *line != "200").collect();
        assert!(failed.is_empty(), "{failed:?}");
    }
    assert_eq!(informed.added, made, "each once, in order, over {} watches", informed.watches);
    assert!(informed.watches >= 3, "{}", informed.watches);
}

/// Set at the end, whatever it is.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn agents(replicas: &[&Kas]) -> Vec<std::net::SocketAddr> {
    replicas.iter().map(|kas| kas.agents).collect()
}

fn callers(replicas: &[&Kas]) -> Vec<std::net::SocketAddr> {
    replicas.iter().map(|kas| kas.public).collect()
}

/// Asks at a steady pace, and prints each status. Like any HTTP client, curl tries another connection where one that it
/// kept was closed.
fn caller(fleet: &Fleet, relay: &Relay) -> Process {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--no-buffer", "--max-time", "30", "--rate", RATE, "--cacert"]);
    curl.arg(&fleet.options.public_tls.as_ref().unwrap().authority);
    curl.arg("--header").arg(format!("Authorization: Bearer {}", fleet.tokens.ops.expose_secret()));
    curl.args(["--output", "/dev/null", "--write-out", "%{stderr}%{http_code}%{errormsg}\n"]);
    // A range of URLs, of which this run sees only the first.
    curl.arg(format!("https://{}/agents/{AGENT}/kubernetes/version?n=[1-100000]", relay.address));
    Process::start("a caller", &mut curl)
}

fn count(process: &Process, beginning: &str) -> usize {
    process.printed().lines().filter(|line| line.starts_with(beginning)).count()
}

/// Waits until so many more requests have been answered.
fn answered(load: &[Process], more: usize) {
    let answers = || load.iter().map(|caller| count(caller, "")).sum::<usize>();
    let before = answers();
    eventually("requests are answered", || answers() >= before + more);
}

/// Of the list that watches go on from.
fn version_of(kubectl: &Kubectl, namespace: &str) -> String {
    let list = kubectl.raw(&configmaps(namespace));
    version(&serde_json::from_slice(&list.stdout).unwrap())
}

/// Watches what comes after a version, again and again, as informers do. Each watch must end as one does without kas.
fn watch(kubectl: &Kubectl, namespace: &str, mut last: String, done: &AtomicBool) -> Informed {
    let (path, mut informed) = (configmaps(namespace), Informed::default());
    while !done.load(Relaxed) {
        let query = format!("{path}?watch=true&timeoutSeconds={WATCH}&resourceVersion={last}");
        let answer = kubectl.raw(&query);
        assert_eq!((answer.code, &*answer.stderr), (0, ""), "a watch ended badly");
        informed.watches += 1;
        for event in answer.text().lines() {
            let event: Value = serde_json::from_str(event).unwrap();
            last = version(&event["object"]);
            let name = event["object"]["metadata"]["name"].as_str().unwrap();
            if event["type"] == "ADDED" && name.starts_with("made-") {
                informed.added.push(name.to_owned());
            }
        }
    }
    informed
}

fn configmaps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}
