//! GitOps: commits of a real repository become objects of a real cluster.

mod comment;
mod deletions;
mod diff;
mod fleet;
mod gitlab;
mod partition;
mod render;
mod servers;
mod tasks;

use std::{process::Output, time::SystemTime};

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use testing::process::Signal;

use crate::support::{AGENT, Agent, Cluster, GitRepository, Installation, KasOptions, Namespace, eventually};

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
    /// The id of the project with the configuration.
    project: String,
    _directory: TempDir,
}

impl World {
    fn or_skip(topic: &str) -> Option<Self> {
        Self::start_or_skip(topic, |_, _| {})
    }

    /// Starts kas with options that may use the repository.
    fn start_or_skip(topic: &str, configure: impl FnOnce(&mut KasOptions, &GitRepository)) -> Option<Self> {
        let cluster = Cluster::or_skip()?;
        let directory = TempDir::new().unwrap();
        let repository = GitRepository::or_skip(directory.path())?;
        let namespace = cluster.namespace(topic);
        let configuration = json!({"poll_period": "1s", "repository": {"url": repository.path}});
        let mut installation = Installation::start(&cluster.kubeconfig, |options, _| {
            options.configuration = Some(configuration);
            configure(options, &repository);
        });
        installation.agent_options.pod_namespace = Some(namespace.name.clone());
        installation.agent.process.terminate();
        installation.agent.process.exit_code();
        installation.restart_agent();
        // Once: commands that run at the same time read it.
        let token = installation.tokens.ops.expose_secret();
        std::fs::write(installation.directory().join("ops-token"), token).unwrap();
        let project = PROJECT.to_owned();
        Some(Self { cluster, namespace, repository, installation, project, _directory: directory })
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
        let mut command = crate::support::Kas::command();
        command.arg("gitops").args(arguments).args(["--agent", AGENT]);
        command.args(["--server", &self.installation.kas.url("")]);
        command.arg("--token-file").arg(self.installation.directory().join("ops-token"));
        command.output().unwrap()
    }

    fn status(&self) -> Value {
        self.status_of(&self.project)
    }

    fn status_of(&self, project: &str) -> Value {
        let output = self.gitops(&["show", project, "--output", "json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn restart_agentk(&mut self) {
        self.installation.agent.process.terminate();
        self.installation.agent.process.exit_code();
        self.installation.restart_agent();
    }

    /// Approves the deletions that `show` shows.
    fn approve(&self) {
        let code = self.status()["held"]["code"].as_str().unwrap().to_owned();
        assert!(self.gitops(&["approve", PROJECT, "--code", &code]).status.success());
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
    let Some(mut world) = World::or_skip("gitops-guards") else { return };
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
    assert!(!refused.status.success() && message.contains("other objects: look at them"), "{message}");
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
    assert!(!world.gitops(&["approve", PROJECT]).status.success(), "nobody approves what he has not seen");
    world.approve();
    let status = world.wait_for_state("orphaned");
    assert_eq!(
        (&*world.config_maps(), &status["kept"][0]["object"]["name"]),
        ("c0", &json!("c0")),
        "{status}"
    );
    annotate("-");

    // The next process has no project in its configuration, and finds this one in the cluster.
    world.restart_agentk();
    let mut listed = None;
    eventually("agentk is connected", || {
        let output = world.gitops(&["list"]);
        listed = output.status.success().then(|| String::from_utf8(output.stdout).unwrap());
        listed.is_some()
    });
    let listed = listed.unwrap();
    assert!(listed.contains(PROJECT) && listed.contains("orphaned"), "{listed}");
    assert!(world.gitops(&["prune", PROJECT]).status.success());
    world.approve();
    eventually("the project is gone", || world.config_maps().is_empty() && world.status() == Value::Null);
    let inventories = || {
        world.namespace.kubectl.ok(&[
            "get",
            "configmap",
            "-l",
            "app.kubernetes.io/managed-by=agentk",
            "-o",
            "name",
        ])
    };
    assert_eq!(inventories().trim(), "");
    // The next list of projects does not bring it back.
    let other = "gitops:\n  manifest_projects:\n  - {id: other, paths: [{glob: '/*.yaml'}]}\n";
    world.repository.commit(other);
    eventually("the other project is known", || inventories().contains("other"));
    assert_eq!(inventories().lines().count(), 1, "{}", inventories());
}

#[test]
fn drift_that_is_only_reported_survives_a_restart() {
    let Some(mut world) = World::or_skip("gitops-report") else { return };
    world.configure("self_heal: report", &[("manifests/app.yaml", Some(&config_maps(&["a"])))]);
    world.wait_for_state("synced");
    world.namespace.kubectl.ok(&["patch", "configmap", "a", "--patch", r#"{"data": {"key": "by hand"}}"#]);
    world.wait_for_state("out-of-sync");

    world.restart_agentk();
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

/// Commands reach the leader through the other pod, too, and none replaces another one.
#[test]
fn commands_through_two_pods_at_the_same_time_are_all_answered() {
    let Some(world) = World::or_skip("gitops-commands") else { return };
    // Without a command, kas looks at the repository every hour.
    let configuration = |settings: &str| {
        format!(
            "gitops:\n  manifest_projects:\n  - {{paths: [{{glob: '/manifests/**/*.yaml'}}], default_namespace: {}, interval: 1h{settings}}}\n",
            world.namespace.name
        )
    };
    let commit = |names: &[&str], value: &str| {
        let text: String = names.iter().map(|name| config_map(name, value)).collect();
        world.repository.commit_files(&[("manifests/app.yaml", Some(&text))]);
    };
    let names = ["a", "b", "c", "d", "e"];
    commit(&names, "zero");
    world.repository.commit_files(&[(CONFIGURATION, Some(&configuration("")))]);
    eventually("the objects are created", || world.config_maps() == names.join(" "));
    let directory = TempDir::new().unwrap();
    let _second = Agent::start(directory.path(), &world.installation.agent_options);
    eventually("both pods have tunnels", || world.installation.kas.metric("kas_tunnels") == 4.0);

    // Requests of callers go to the least loaded tunnels, and so to both pods.
    for value in ["one", "two", "three", "four"] {
        commit(&names, value);
        assert!(world.gitops(&["sync", PROJECT]).status.success());
        eventually("kas has looked at the repository at once", || world.data("a") == value);
    }
    commit(&names[..1], "four");
    assert!(world.gitops(&["sync", PROJECT]).status.success());
    let code = world.wait_for_state("held")["held"]["code"].as_str().unwrap().to_owned();
    let approve = ["approve", PROJECT, "--code", &*code];
    let commands: [&[&str]; 6] = [
        &["sync", PROJECT],
        &["resume", PROJECT],
        &approve,
        &["sync", PROJECT],
        &["resume", PROJECT],
        &["sync", PROJECT],
    ];
    std::thread::scope(|scope| {
        let running = commands.map(|command| scope.spawn(|| world.gitops(command)));
        for output in running.map(|running| running.join().unwrap()) {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    });
    eventually("the approval was not lost", || world.config_maps() == "a");
    assert!(world.gitops(&["suspend", PROJECT]).status.success());
    world.wait_for_state("suspended");
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

/// A project acts as a service account. `agentk check` prints the Role that it lacks, with which the sync succeeds.
#[test]
fn check_prints_the_role_that_a_project_lacks() {
    let Some(world) = World::or_skip("gitops-rights") else { return };
    let kubectl = &world.namespace.kubectl;
    kubectl.ok(&["create", "serviceaccount", "deployer"]);
    let text = config_maps(&["a"]);
    world.configure("run_as: {service_account: deployer}", &[("manifests/app.yaml", Some(&text))]);
    let status = world.wait_for_state("failed");
    assert!(status.to_string().contains("cannot get resource"), "{status}");

    let check = || {
        let output = Agent::check(world.installation.directory(), &world.installation.agent_options);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (succeeded, printed) = check();
    let line = format!("the service account {}/deployer may not create, delete, get,", world.namespace.name);
    assert!(!succeeded && printed.contains(&line), "{printed}");
    let (_, roles) = printed.split_once("---").unwrap();
    kubectl.ok_with_stdin(&["apply", "--filename=-"], roles);
    let account = format!("--serviceaccount={}:deployer", world.namespace.name);
    let role = "--role=agentk-gitops-missing";
    kubectl.ok(&["create", "rolebinding", "deployer", role, &account]);
    let (succeeded, printed) = check();
    assert!(
        succeeded && printed.contains("deployer may write objects of 1 kind in 1 namespace"),
        "{printed}"
    );
    assert!(world.gitops(&["sync", PROJECT]).status.success());
    world.wait_for_state("synced");
    assert_eq!(world.config_maps(), "a");
}

/// Objects that `kubectl apply`, Flux and Helm have applied become those of the project: what leaves Git leaves the cluster.
#[test]
fn objects_of_other_programs_are_taken_over() {
    let Some(world) = World::or_skip("gitops-adopt") else { return };
    let object = |name: &str, value: &str, extra: &str| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{e2e: gitops}}}}\ndata: {{key: {value}{extra}}}\n"
        )
    };
    let programs: [(&str, &[&str]); 3] = [
        ("by-kubectl", &[]),
        ("by-flux", &["--server-side", "--field-manager=kustomize-controller"]),
        ("by-helm", &["--server-side", "--field-manager=helm"]),
    ];
    for (name, options) in programs {
        let apply = [&["apply", "--filename=-"], options].concat();
        world.namespace.kubectl.ok_with_stdin(&apply, &object(name, "theirs", ", extra: theirs"));
    }
    // Fields of programs that do not apply manifests stay.
    let patch = ["patch", "configmap", "by-kubectl", "--patch", r#"{"data": {"hand": "kept"}}"#];
    world.namespace.kubectl.ok(&patch);
    let files = |value: &str, extra: &str| -> String {
        programs.iter().map(|(name, _)| object(name, value, extra)).collect()
    };
    world.configure("", &[("manifests/app.yaml", Some(&files("ours", "")))]);
    let status = world.wait_for_state("failed");
    assert!(status.to_string().contains("inventory_policy: adopt_if_no_inventory"), "{status}");
    assert_eq!(world.data("by-flux"), "theirs", "nothing is written");

    world.configure("inventory_policy: adopt_if_no_inventory", &[]);
    world.wait_for_state("synced");
    for (name, _) in programs {
        let path = ["get", "configmap", name, "-o", "jsonpath={.data}"];
        let data: Value = serde_json::from_str(&world.namespace.kubectl.ok(&path)).unwrap();
        let expected = match name {
            "by-kubectl" => json!({"key": "ours", "hand": "kept"}),
            _ => json!({"key": "ours"}),
        };
        assert_eq!(data, expected, "{name}: what Git does not have is gone");
    }
    world.configure(
        "inventory_policy: adopt_if_no_inventory, max_prune: 9",
        &[("manifests/app.yaml", Some(&object("by-kubectl", "ours", "")))],
    );
    eventually("the others are deleted", || world.config_maps() == "by-kubectl");
}

/// The API server says which fields cannot change, and whether it would create the object.
#[test]
fn object_with_an_immutable_field_is_created_again_only_if_it_can_be() {
    let Some(world) = World::or_skip("gitops-recreate") else { return };
    let object = |annotation: &str, value: &str, key: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, labels: {{e2e: gitops}}, annotations: {{agentk/recreate: \
             '{annotation}'}}}}\nimmutable: true\ndata: {{key: {value}, '{key}': x}}\n"
        )
    };
    let uid = || world.namespace.kubectl.ok(&["get", "configmap", "a", "-o", "jsonpath={.metadata.uid}"]);
    world.configure("", &[("manifests/app.yaml", Some(&object("false", "one", "other")))]);
    eventually("the object is created", || world.data("a") == "one");
    let before = uid();
    // It cannot change; it could not be created either.
    for (annotation, key, reason) in
        [("false", "other", "immutable"), ("true", "not a key", "a valid config key")]
    {
        world.repository.commit_files(&[("manifests/app.yaml", Some(&object(annotation, "two", key)))]);
        eventually(reason, || world.status()["errors"][0]["message"].to_string().contains(reason));
        assert_eq!((uid(), world.data("a")), (before.clone(), "one".to_owned()), "{reason}");
    }
    world.repository.commit_files(&[("manifests/app.yaml", Some(&object("true", "two", "other")))]);
    eventually("the object is created again", || world.data("a") == "two");
    assert_ne!(uid(), before);
}

/// Test 55 of the attack list: a leader that freezes in a sync, and wakes up when another pod has applied a newer commit.
#[test]
fn leader_that_was_frozen_writes_nothing_old() {
    let Some(world) = World::or_skip("gitops-frozen") else { return };
    let names: Vec<String> = (0..40).map(|n| format!("c{n:02}")).collect();
    let commit = |world: &World, value: &str| {
        let text: String = names.iter().map(|name| config_map(name, value)).collect();
        world.configure("", &[("manifests/app.yaml", Some(&text))]);
    };
    let values = |world: &World| {
        let path = "jsonpath={.items[*].data.key}";
        world.namespace.kubectl.ok(&["get", "configmap", "-l", "e2e=gitops", "-o", path])
    };
    let all = |value: &str| vec![value; names.len()].join(" ");
    commit(&world, "first");
    eventually("the objects are created", || values(&world).trim() == all("first"));
    let directory = TempDir::new().unwrap();
    let second = Agent::start(directory.path(), &world.installation.agent_options);
    eventually("both pods have tunnels", || world.installation.kas.metric("kas_tunnels") == 4.0);

    commit(&world, "old");
    eventually("the sync has begun", || values(&world).contains("old"));
    world.installation.agent.process.signal(Signal::STOP);
    eventually("the other pod has taken over", || second.process.printed().contains("this pod leads GitOps"));
    commit(&world, "new");
    eventually("it applies the newer commit", || values(&world).trim() == all("new"));

    world.installation.agent.process.signal(Signal::CONT);
    eventually("the first pod knows that its time is over", || {
        world.installation.agent.process.printed().contains("this pod does not lead GitOps any more")
    });
    assert_eq!(values(&world).trim(), all("new"));
    commit(&world, "newest");
    eventually("the second pod goes on", || values(&world).trim() == all("newest"));
    assert_eq!(second.process.printed().matches("this pod leads GitOps").count(), 1);
}

/// Test 54 of the attack list: after kill -9 of agentk or kas at any point, the cluster becomes what is in Git. `E2E_KILLS` is the number
/// of kills.
#[test]
fn killed_programs_converge() {
    let Some(mut world) = World::or_skip("gitops-kill") else { return };
    let kills = std::env::var("E2E_KILLS").map_or(5, |kills| kills.parse().unwrap());
    let names: Vec<String> = (0..30).map(|n| format!("c{n:02}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    world.configure("max_prune_percent: 100", &[("manifests/app.yaml", Some(&config_maps(&all)))]);
    eventually("the objects are created", || world.config_maps() == all.join(" "));
    for round in 0..kills {
        let kept = if round % 2 == 0 { &all[..10] } else { &all[..] };
        world.configure("max_prune_percent: 100", &[("manifests/app.yaml", Some(&config_maps(kept)))]);
        // The commit arrives after about 0.2 s, and takes about as long.
        std::thread::sleep(std::time::Duration::from_millis(200 + rand::random::<u64>() % 250));
        if round % 3 == 2 {
            world.installation.kas.process.kill();
            world.installation.restart_kas();
        } else {
            world.installation.agent.process.kill();
            world.namespace.kubectl.run(&["delete", "lease", "--all"]);
            world.installation.restart_agent();
        }
        eventually("the cluster is as in Git", || world.config_maps() == kept.join(" "));
        let members = "applyset.kubernetes.io/part-of";
        let path = ["get", "configmap", "-l", members, "-o", "jsonpath={.items[*].metadata.name}"];
        assert_eq!(
            world.namespace.kubectl.ok(&path).trim(),
            kept.join(" "),
            "nobody else's, and none without it"
        );
    }
    drop(world.cluster);
}
