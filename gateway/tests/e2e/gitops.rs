//! GitOps: commits of a real repository become objects of a real cluster.

mod diff;
mod gitlab;
mod render;

use std::{process::Output, time::SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{AGENT, Agent, Cluster, GitRepository, Installation, Namespace, eventually};

/// The file of the agent's configuration.
const CONFIGURATION: &str = ".gitlab/agents/prod/config.yaml";
/// The id of the project with the configuration, which is a path of this machine.
const PROJECT: &str = "configuration";

struct World {
    cluster: Cluster,
    /// The namespace of agentk and of the manifests.
    namespace: Namespace,
    repository: GitRepository,
    installation: Installation,
    _directory: TempDir,
}

impl World {
    fn or_skip(topic: &str) -> Option<Self> {
        let cluster = Cluster::or_skip()?;
        let directory = TempDir::new().unwrap();
        let repository = GitRepository::or_skip(directory.path())?;
        let namespace = cluster.namespace(topic);
        let configuration = json!({"poll_period": "1s", "repository": {"url": repository.path}});
        let mut installation = Installation::start(&cluster.kubeconfig, |options, _| {
            options.configuration = Some(configuration);
        });
        installation.agent_options.pod_namespace = Some(namespace.name.clone());
        installation.agent.process.terminate();
        installation.agent.process.exit_code();
        installation.restart_agent();
        Some(Self { cluster, namespace, repository, installation, _directory: directory })
    }

    /// Commits the configuration with settings of the project, and files.
    fn configure(&self, settings: &str, files: &[(&str, Option<&str>)]) {
        let text = format!(
            "gitops:\n  manifest_projects:\n  - {{paths: [{{glob: '/manifests/**/*.yaml'}}], default_namespace: {}, interval: 200ms, {settings}}}\n",
            self.namespace.name
        );
        self.repository.commit_files(&[&[(CONFIGURATION, Some(&*text))], files].concat());
    }

    /// Returns the names of the ConfigMaps of the test.
    fn config_maps(&self) -> String {
        let names = self.namespace.kubectl.ok(&[
            "get",
            "configmap",
            "-l",
            "e2e=gitops",
            "-o",
            "jsonpath={.items[*].metadata.name}",
        ]);
        names.trim().to_owned()
    }

    fn data(&self, name: &str) -> String {
        let path = ["get", "configmap", name, "-o", "jsonpath={.data.key}"];
        String::from_utf8(self.namespace.kubectl.run(&path).stdout).unwrap()
    }

    fn gitops(&self, arguments: &[&str]) -> Output {
        let token = self.installation.directory().join("ops-token");
        std::fs::write(&token, secrecy::ExposeSecret::expose_secret(&self.installation.tokens.ops)).unwrap();
        let mut command = crate::support::Kas::command();
        command.arg("gitops").args(arguments).args(["--agent", AGENT]);
        command.args(["--server", &self.installation.kas.url("")]).arg("--token-file").arg(token);
        command.output().unwrap()
    }

    fn status(&self) -> Value {
        let output = self.gitops(&["show", PROJECT, "--output", "json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn wait_for_state(&self, state: &str) -> Value {
        eventually(&format!("the project is {state}"), || self.status()["state"] == state);
        self.status()
    }
}

fn config_map(name: &str, value: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{e2e: gitops}}}}\ndata: {{key: {value}}}\n"
    )
}

fn config_maps(names: &[&str]) -> String {
    names.iter().map(|name| config_map(name, "one")).collect()
}

#[test]
fn commits_become_objects_and_drift_is_healed() {
    let Some(world) = World::or_skip("gitops") else { return };
    world.configure("", &[("manifests/app.yaml", Some(&config_maps(&["a", "b", "c", "d"])))]);
    eventually("the objects are created", || world.config_maps() == "a b c d");
    let status = world.wait_for_state("synced");
    assert_eq!(status["synced"]["author"], "e2e", "{status}");

    // One is changed, one moves to another file, one is new, and one leaves.
    let changed = config_map("a", "two") + &config_maps(&["b", "e"]);
    world.configure(
        "",
        &[("manifests/app.yaml", Some(&changed)), ("manifests/deep/c.yaml", Some(&config_maps(&["c"])))],
    );
    eventually("the cluster is as in Git", || world.config_maps() == "a b c e" && world.data("a") == "two");

    world.namespace.kubectl.ok(&[
        "patch",
        "configmap",
        "a",
        "--type=merge",
        "--patch",
        r#"{"data":{"key":"drift"}}"#,
    ]);
    eventually("the change is healed", || world.data("a") == "two");
    let described = || world.namespace.kubectl.ok(&["describe", "configmap", "a"]);
    eventually("kubectl says who it was", || {
        let text = described();
        text.contains("Drifted") && text.contains("changed by kubectl-patch") && text.contains("agentk")
    });
    let events = ["get", "events", "--field-selector", "reason=Synced", "-o", "jsonpath={.items[*].message}"];
    let synced = world.namespace.kubectl.ok(&events);
    assert!(synced.contains("configuration: 4 objects: 4 applied"), "{synced}");
    world.namespace.kubectl.ok(&["delete", "configmap", "b"]);
    eventually("the object is back", || world.config_maps() == "a b c e");

    // kubectl reads the inventory as an ApplySet.
    let set = [
        "get",
        "configmap",
        "-l",
        "applyset.kubernetes.io/id",
        "-o",
        "jsonpath={.items[0].metadata.annotations}",
    ];
    let annotations = world.namespace.kubectl.ok(&set);
    assert!(
        annotations.contains(r#""applyset.kubernetes.io/contains-group-kinds":"ConfigMap""#),
        "{annotations}"
    );
}

#[test]
fn broken_commit_changes_nothing_and_mass_deletion_waits() {
    let Some(world) = World::or_skip("gitops-guards") else { return };
    let ten: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    let ten: Vec<&str> = ten.iter().map(String::as_str).collect();
    world.configure("", &[("manifests/app.yaml", Some(&config_maps(&ten)))]);
    eventually("the objects are created", || world.config_maps() == ten.join(" "));

    world.repository.commit_files(&[("manifests/broken.yaml", Some("kind: [\n"))]);
    let status = world.wait_for_state("failed");
    assert_eq!(status["errors"][0]["file"], "manifests/broken.yaml:1", "{status}");
    assert_eq!(world.config_maps(), ten.join(" "));
    let shown = String::from_utf8(world.gitops(&["show", PROJECT]).stdout).unwrap();
    assert!(shown.contains("manifests/broken.yaml:1: the file is not valid YAML"), "{shown}");

    world.repository.commit_files(&[
        ("manifests/broken.yaml", None),
        ("manifests/app.yaml", Some(&config_maps(&ten[..2]))),
    ]);
    let status = world.wait_for_state("held");
    assert_eq!((&status["objects"]["kept"], &*world.config_maps()), (&json!(8), &*ten.join(" ")));
    let seen = status["held"]["code"].as_str().unwrap().to_owned();
    world.repository.commit_files(&[("manifests/app.yaml", Some(&config_maps(&ten[..3])))]);
    eventually("other deletions wait", || world.status()["held"]["count"] == 7);
    let refused = world.gitops(&["approve", PROJECT, "--code", &seen]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && message.contains("other objects"), "{message}");
    world.repository.commit_files(&[("manifests/app.yaml", Some(&config_maps(&ten[..2])))]);
    eventually("the first deletions wait again", || world.status()["held"]["code"] == *seen);
    assert!(world.gitops(&["approve", PROJECT, "--code", &seen]).status.success());
    eventually("the objects are deleted", || world.config_maps() == "c0 c1");

    assert!(world.gitops(&["suspend", PROJECT]).status.success());
    world.wait_for_state("suspended");
    world.repository.commit_files(&[("manifests/app.yaml", Some(&config_map("c0", "later")))]);
    assert!(world.gitops(&["resume", PROJECT]).status.success());
    eventually("the suspended commit is applied", || {
        world.data("c0") == "later" && world.config_maps() == "c0"
    });

    // The project leaves the configuration. Its objects stay.
    world.repository.commit("observability: {}\n");
    world.wait_for_state("orphaned");
    assert_eq!(world.config_maps(), "c0");

    // It is pruned. It is back in the configuration before that is approved, and nothing is deleted.
    let asked = String::from_utf8(world.gitops(&["prune", PROJECT]).stdout).unwrap();
    assert!(asked.contains("Deletes:    ConfigMap ") && asked.contains("/c0\n"), "{asked}");
    let code = world.status()["held"]["code"].as_str().unwrap().to_owned();
    world.configure("", &[]);
    world.wait_for_state("synced");
    let refused = world.gitops(&["prune", PROJECT]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("only a project that left the configuration"), "{message}");
    assert!(!world.gitops(&["approve", PROJECT, "--code", &code]).status.success());

    // An object that must stay keeps the project; without it, the project is gone.
    let annotate = |value: &str| {
        let keep = format!("config.kubernetes.io/lifecycle{value}");
        world.namespace.kubectl.ok(&["annotate", "configmap", "c0", &keep]);
    };
    world.configure("", &[("manifests/app.yaml", Some(&config_maps(&["c0", "c1"])))]);
    eventually("both are there", || world.config_maps() == "c0 c1");
    world.repository.commit("observability: {}\n");
    world.wait_for_state("orphaned");
    annotate("=detach");
    assert!(world.gitops(&["prune", PROJECT]).status.success());
    assert!(world.gitops(&["approve", PROJECT]).status.success());
    let status = world.wait_for_state("orphaned");
    assert_eq!(
        (&*world.config_maps(), &status["kept"][0]["object"]["name"]),
        ("c0", &json!("c0")),
        "{status}"
    );
    annotate("-");
    assert!(world.gitops(&["prune", PROJECT]).status.success());
    assert!(world.gitops(&["approve", PROJECT]).status.success());
    eventually("the project is gone", || world.config_maps().is_empty() && world.status() == Value::Null);
    let inventories = ["get", "configmap", "-l", "applyset.kubernetes.io/id", "-o", "name"];
    assert_eq!(world.namespace.kubectl.ok(&inventories).trim(), "");
}

#[test]
fn drift_that_is_only_reported_survives_a_restart() {
    let Some(mut world) = World::or_skip("gitops-report") else { return };
    world.configure("self_heal: report", &[("manifests/app.yaml", Some(&config_maps(&["a"])))]);
    world.wait_for_state("synced");
    world.namespace.kubectl.ok(&["patch", "configmap", "a", "--patch", r#"{"data": {"key": "by hand"}}"#]);
    world.wait_for_state("out-of-sync");

    world.installation.agent.process.terminate();
    world.installation.agent.process.exit_code();
    world.installation.restart_agent();
    let holder =
        || world.namespace.kubectl.ok(&["get", "lease", "-o", "jsonpath={.items[0].spec.holderIdentity}"]);
    eventually("the new process leads", || !holder().is_empty());
    eventually("it has looked", || world.status()["state"] == "out-of-sync" && world.data("a") == "by hand");

    let asked = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    assert!(world.gitops(&["sync", PROJECT]).status.success());
    let status = world.wait_for_state("synced");
    assert!(
        status["history"][0]["ended"].as_u64().unwrap() as u128 >= asked,
        "nobody has asked before: {status}"
    );
    assert_eq!(world.data("a"), "one");
}

#[test]
fn policy_of_the_cluster_limits_manifests() {
    let Some(mut world) = World::or_skip("gitops-policy") else { return };
    world.installation.put_policy(
        "rules:\n- {name: no-secrets, action: deny, services: [gitops], resources: [secrets]}\n- {name: rest, \
         action: allow, services: ['*']}\n",
    );
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {key: hunter2}\n";
    world.configure("", &[("manifests/app.yaml", Some(&(config_maps(&["a"]) + secret)))]);
    let status = world.wait_for_state("failed");
    assert!(!status.to_string().contains("hunter2"), "{status}");
    assert_eq!(world.config_maps(), "", "the stage has written nothing: {status}");
    world.configure("", &[("manifests/app.yaml", Some(&config_maps(&["a"])))]);
    eventually("what the policy allows is applied", || world.config_maps() == "a");
}

/// Test 55 of the attack list: two pods of agentk, one of which leads. Commands reach it through either, and the other one goes on
/// after a crash.
#[test]
fn one_of_two_pods_leads_and_the_other_takes_over() {
    let Some(mut world) = World::or_skip("gitops-pods") else { return };
    let leads = "this pod leads GitOps";
    world.configure("", &[("manifests/app.yaml", Some(&config_maps(&["a"])))]);
    eventually("the object is created", || world.config_maps() == "a");
    let directory = TempDir::new().unwrap();
    let second = Agent::start(directory.path(), &world.installation.agent_options);
    eventually("both pods have tunnels", || world.installation.kas.metric("kas_tunnels") == 4.0);
    assert!(world.installation.agent.process.printed().contains(leads));
    for _ in 0..4 {
        // Requests of callers go to the least loaded tunnels, and so to both pods.
        assert!(world.gitops(&["suspend", PROJECT]).status.success());
        world.wait_for_state("suspended");
        assert!(world.gitops(&["resume", PROJECT]).status.success());
        world.wait_for_state("synced");
    }
    assert!(!second.process.printed().contains(leads), "one pod leads");

    world.installation.agent.process.kill();
    world.configure("", &[("manifests/app.yaml", Some(&config_maps(&["a", "b"])))]);
    eventually("the other pod has taken over", || second.process.printed().contains(leads));
    eventually("it applies the next commit", || world.config_maps() == "a b");
}

/// Test 54 of the attack list: after kill -9 at any point, the next process converges.
#[test]
fn killed_agent_converges() {
    let Some(mut world) = World::or_skip("gitops-kill") else { return };
    let names: Vec<String> = (0..30).map(|n| format!("c{n:02}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    world.configure("max_prune_percent: 100", &[("manifests/app.yaml", Some(&config_maps(&all)))]);
    eventually("the objects are created", || world.config_maps() == all.join(" "));
    for round in 0..4 {
        let kept = if round % 2 == 0 { &all[..10] } else { &all[..] };
        world.configure("max_prune_percent: 100", &[("manifests/app.yaml", Some(&config_maps(kept)))]);
        // The commit arrives after about 0.2 s, and takes about as long.
        std::thread::sleep(std::time::Duration::from_millis(200 + rand::random::<u64>() % 250));
        world.installation.agent.process.kill();
        world.namespace.kubectl.run(&["delete", "lease", "--all"]);
        world.installation.restart_agent();
        eventually("the cluster is as in Git", || world.config_maps() == kept.join(" "));
    }
    drop(world.cluster);
}
