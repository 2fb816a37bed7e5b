//! The graph of a real cluster.

mod configured;
mod fleet;
mod rights;

use std::{
    path::Path,
    process::{Command, Output},
};

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use crate::support::{AGENT, Cluster, Installation, Kas, Namespace, Process, eventually};

struct World {
    cluster: Cluster,
    namespace: Namespace,
    installation: Installation,
}

impl World {
    fn or_skip(topic: &str) -> Option<Self> {
        let cluster = Cluster::or_skip()?;
        let namespace = cluster.namespace(topic);
        let installation = Installation::start(&cluster.kubeconfig, |_, _| {});
        Some(Self { cluster, namespace, installation })
    }

    /// Runs a command of kas about the graph of the namespace, as the caller with all services.
    fn kas(&self, command: &str, arguments: &[&str]) -> Output {
        let token = self.installation.directory().join("ops-token");
        std::fs::write(&token, self.installation.tokens.ops.expose_secret()).unwrap();
        let mut kas = Kas::command();
        kas.args([command, AGENT, "--namespace", &self.namespace.name]).args(arguments);
        kas.args(["--server", &self.installation.kas.url("")]).arg("--token-file").arg(token);
        kas.output().unwrap()
    }

    fn get(&self, token: &SecretString, path: &str) -> Value {
        let response = self.installation.curl_as(token, &format!("/agents/{AGENT}/graph/v1/{path}"), &[]);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        response.json()
    }

    /// Follows the graph with curl, which prints the lines.
    fn follow(&self, token: &SecretString, query: &str) -> Process {
        let url = self.installation.kas.url(&format!("/agents/{AGENT}/graph/v1/watch?{query}"));
        let authorization = format!("Authorization: Bearer {}", token.expose_secret());
        Process::start("curl", Command::new("curl").args(["-sSN", "--header", &authorization, &url]))
    }

    fn apply(&self, manifest: &Value) {
        self.namespace.kubectl.ok_with_stdin(&["apply", "--filename=-"], &manifest.to_string());
    }
}

fn deployment(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [
                    {"name": "c", "image": image, "imagePullPolicy": "Never", "command": ["sleep", "infinity"]},
                ]},
            },
        },
    })
}

/// Returns the section `api` of the configuration of kas, whose secret the tests know.
fn api_section(directory: &Path) -> (&'static str, Value) {
    let secret = directory.join("api-secret");
    std::fs::write(&secret, "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=").unwrap();
    ("api", json!({"listen": {"address": "127.0.0.1:0", "authentication_secret_file": secret}}))
}

/// Returns the definition of the kind Widget in a group.
fn definition(group: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn deployment_is_shown_as_a_tree_with_its_health() {
    let Some(world) = World::or_skip("graph-tree") else { return };
    let found = world.kas("health", &[]);
    assert_eq!(found.status.code(), Some(0), "{}", text(&found));
    world.apply(&deployment("web", "busybox:1.35"));
    world.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP"}]},
    }));
    let follower =
        world.follow(&world.installation.tokens.ops, &format!("namespace={}", world.namespace.name));
    let healthy = world.kas("health", &["--label", "app=web", "--wait", "60s"]);
    assert_eq!(healthy.status.code(), Some(0), "{}", text(&healthy));

    let tree = text(&world.kas("tree", &[]));
    let pod = world.namespace.kubectl.ok(&["get", "pods", "-o", "jsonpath={.items[0].metadata.name}"]);
    for line in
        ["Deployment/web ", "└─ReplicaSet/web-", &format!("  └─Pod/{pod} "), "Running 1/1", "Service/web "]
    {
        assert!(tree.contains(line), "{line}: {tree}");
    }
    let nothing = world.kas("tree", &["deployment/nope"]);
    assert_eq!((nothing.status.code(), &*text(&nothing)), (Some(1), "Nothing was found.\n"));
    let service = world.get(
        &world.installation.tokens.ops,
        &format!("objects?kind=Service&namespace={}", world.namespace.name),
    );
    assert_eq!(service["objects"][0]["edges"][0]["name"], pod, "{service}");
    let groups = text(&world.kas("groups", &[]));
    assert!(groups.contains(&format!("namespace:{}  healthy", world.namespace.name)), "{groups}");

    // A new version does not start.
    world.apply(&deployment("web", "does-not-exist:1"));
    eventually("the new Pod is degraded", || text(&world.kas("health", &[])).contains("degraded: Pod"));
    let report = world.kas("health", &["--label", "app=web"]);
    assert_eq!(report.status.code(), Some(1), "{}", text(&report));
    assert!(text(&report).contains("ErrImageNeverPull"), "{}", text(&report));

    world.namespace.kubectl.ok(&["delete", "deployment", "web"]);
    eventually("the follower sees that the Pod is gone", || {
        let printed = follower.printed();
        printed.contains("\"event\":\"gone\"") && printed.contains("\"reason\":\"deleted\"")
    });
    let printed = follower.printed();
    assert!(printed.starts_with("{\"event\":\"begin\",\"mode\":\"snapshot\"}"), "{printed}");
    assert!(printed.contains("\"status\":\"Running\"") && printed.contains("ErrImageNeverPull"), "{printed}");
    eventually("nothing is left, and the report says so", || {
        let report = world.kas("health", &["--label", "app=web"]);
        report.status.code() == Some(1) && text(&report).contains("do the objects have these labels?")
    });
}

/// `kas health --environment` asks for all places, and is as bad as the worst one.
#[test]
fn environment_is_as_healthy_as_its_worst_place() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (namespace, other) = (cluster.namespace("graph-environment"), cluster.namespace("graph-review"));
    let file = tempfile::NamedTempFile::new().unwrap();
    let place = |namespace: &Namespace, app: &str| json!({"agent": AGENT, "namespace": namespace.name, "labels": {"app": app}});
    let environment = |id: u32, slug: &str, places: Value| json!({"id": id, "project": "shop/web", "slug": slug, "tier": "production", "agents": places});
    let environments = json!({"environments": [
        environment(1, "live", json!([place(&namespace, "web")])),
        environment(2, "review", json!([place(&namespace, "web"), place(&other, "broken")])),
    ]});
    std::fs::write(file.path(), environments.to_string()).unwrap();
    let installation = Installation::start(&cluster.kubeconfig, |options, _| {
        options.sections.push(("environments", json!({"file": file.path()})));
    });
    let world = World { cluster, namespace, installation };
    world.apply(&deployment("web", "busybox:1.35"));
    other
        .kubectl
        .ok_with_stdin(&["apply", "--filename=-"], &deployment("broken", "does-not-exist:1").to_string());
    let health = |slug: &str, more: &[&str]| {
        let token = world.installation.directory().join("ops-token");
        std::fs::write(&token, world.installation.tokens.ops.expose_secret()).unwrap();
        let mut kas = Kas::command();
        kas.args(["health", "--environment", &format!("shop/web:{slug}")]).args(more);
        kas.arg("--config").arg(world.installation.directory().join("kas.yaml"));
        kas.args(["--server", &world.installation.kas.url("")]).arg("--token-file").arg(token);
        kas.output().unwrap()
    };
    let live = health("live", &["--wait", "60s"]);
    assert_eq!(live.status.code(), Some(0), "{}", text(&live));
    assert!(text(&live).starts_with("Environment: healthy\n"), "{}", text(&live));
    // The reason is in an Event of the cluster before it is in the status of the Pod.
    eventually("the broken place is degraded", || {
        text(&health("review", &[])).starts_with("Environment: degraded\n")
    });
    assert!(text(&health("review", &[])).contains("ErrImageNeverPull"));
    let review = health("review", &["--output", "json"]);
    assert_eq!(review.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&review.stdout).unwrap();
    let states = [&report["health"], &report["places"][0]["health"], &report["places"][1]["health"]];
    // The Deployment is not given up yet, and its Pod cannot start.
    assert_eq!(states, ["degraded", "healthy", "degraded"], "{report}");
    assert_eq!(report["places"][1]["namespace"], other.name);

    let unknown = health("nowhere", &[]);
    assert_eq!(unknown.status.code(), Some(64));
    assert!(text(&unknown).contains("there is no environment shop/web:nowhere in"), "{}", text(&unknown));
    assert_eq!(health("live", &["--namespace", "x"]).status.code(), Some(64));
    assert_eq!(health("live", &["other-agent"]).status.code(), Some(64));
}

#[test]
fn wrong_requests_say_what_is_right() {
    let Some(world) = World::or_skip("graph-errors") else { return };
    let get = |path: &str| {
        let path = format!("/agents/{AGENT}/graph/v1/{path}");
        let response = world.installation.curl_as(&world.installation.tokens.ops, &path, &[]);
        (response.status, response.text())
    };
    for (path, status, message) in [
        ("trees", 404, "/v1/tree"),
        ("objects?kinds=Pod", 400, "the parameters are kind, namespace"),
        ("objects?kind=Podd", 400, "the graph has"),
        ("objects?health=good", 400, "use healthy"),
        ("watch?since=1", 400, "the token is not one of a watch"),
    ] {
        let (found, text) = get(path);
        assert!(found == status && text.contains(message), "{path}: {found} {text}");
    }
    eventually("everything is loaded", || {
        world.get(&world.installation.tokens.ops, "status")["loaded"] == true
    });
    let status = world.get(&world.installation.tokens.ops, "status");
    let pods =
        status["resources"].as_array().unwrap().iter().find(|resource| resource["kind"] == "Pod").unwrap();
    assert_eq!((&pods["state"], &status["loaded"]), (&json!("synced"), &json!(true)), "{status}");
    assert!(status["resources"].as_array().unwrap().iter().all(|resource| resource["kind"] != "Secret"));
}

#[test]
fn policy_limits_the_graph() {
    let Some(mut world) = World::or_skip("graph-policy") else { return };
    world.namespace.kubectl.ok(&["create", "configmap", "hidden"]);
    let follower =
        world.follow(&world.installation.tokens.ops, &format!("namespace={}", world.namespace.name));
    eventually("the ConfigMap is shown", || follower.printed().contains("\"name\":\"hidden\""));
    drop(follower);
    world.installation.put_policy(
        "rules:\n- {name: pods, action: allow, services: [graph], verbs: [list, watch], resources: [pods, services]}\n\
         - {name: discovery, action: allow, services: [graph], verbs: [get], nonResourceURLs: [/version, /api, \"/api/*\", /apis, \"/apis/*\"]}\n",
    );
    world.installation.agent.process.terminate();
    world.installation.agent.process.exit_code();
    world.installation.restart_agent();
    let state = |kind: &str| {
        let status = world.get(&world.installation.tokens.ops, "status");
        let resources = status["resources"].as_array().unwrap();
        let found = resources.iter().find(|resource| resource["kind"] == kind);
        let found = found.cloned().unwrap_or_default();
        (found["state"].clone(), found["message"].as_str().unwrap_or_default().to_owned())
    };
    eventually("the policy lets agentk list Pods", || state("Pod").0 == "synced");
    eventually("agentk knows that it may not list ConfigMaps", || state("ConfigMap").0 == "denied");
    let (denied, message) = state("ConfigMap");
    assert!(
        denied == "denied" && message.contains("the policy of this cluster does not allow this"),
        "{message}"
    );
}
