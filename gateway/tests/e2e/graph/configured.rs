//! The effects of section `graph` of the agent's configuration: rules, Secrets, views and limits.

use serde_json::{Value, json};
use testing::skip::skipped_by_version;

use super::World;
use crate::support::{AGENT, Cluster, GitRepository, Installation, eventually};

/// The graph with rules, Secrets and views. `$NAME` is the group of the CRD and the namespace.
const CONFIGURATION: &str = "
graph:
  secrets: metadata
  health_rules:
    - kind: Widget.$NAME.example.com
      health: \"object.?spec.?state.orValue('') == 'up' ? 'healthy' : 'degraded'\"
      message: \"'the state is ' + object.?spec.?state.orValue('unknown')\"
  views:
    - {name: widgets, count: widgets.$NAME.example.com, columns: [health]}
    - {name: secrets, table: secrets, columns: [name, 'label:app'], namespaces: [$NAME]}
    - {name: nodes, count: v1/nodes}
";

fn widget(group: &str, name: &str, state: &str) -> Value {
    json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": name}, "spec": {"state": state}})
}

#[test]
fn configuration_adds_rules_secrets_and_views() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let version: Value = serde_json::from_str(&cluster.kubectl.ok(&["get", "--raw", "/version"])).unwrap();
    if version["minor"] == "20" {
        // Built with Go 1.18 or newer, it reads unstructured maps with an old library (reflect2), and ends.
        skipped_by_version("the API server of Kubernetes 1.20 ends at an object of a new kind");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(repository) = GitRepository::or_skip(directory.path()) else { return };
    let namespace = cluster.namespace("graph-configured");
    let group = format!("{}.example.com", namespace.name);
    let text = CONFIGURATION.replace("$NAME", &namespace.name);
    repository.commit(&text);
    let installation = Installation::start(&cluster.kubeconfig, |options, _| {
        options.configuration = Some(json!({"poll_period": "1s", "repository": {"url": repository.path}}));
        options.sections.push(super::api_section(directory.path()));
    });
    let world = World { cluster, namespace, installation };
    let definition = super::definition(&group);
    world.apply(&definition);
    world.cluster.kubectl.ok(&["wait", "--for=condition=Established", "crd", &format!("widgets.{group}")]);
    world.apply(&widget(&group, "good", "up"));
    world.apply(&widget(&group, "bad", "down"));
    world.namespace.kubectl.ok(&["create", "secret", "generic", "db", "--from-literal=password=hunter2"]);
    world.namespace.kubectl.ok(&["label", "secret", "db", "app=web"]);
    // With another configuration, the graph is loaded anew.
    repository.commit(&format!("{text}    - {{name: pods, count: pods}}\n"));

    let ops = &world.installation.tokens.ops;
    // A change of the configuration ends the streams, so that those of the test begin after it.
    eventually("the second configuration is applied", || {
        let response = world.installation.curl_as(ops, &format!("/agents/{AGENT}/graph/v1/views"), &[]);
        let list = if response.status == 200 { response.json() } else { Value::Null };
        list["views"].as_array().is_some_and(|views| views.iter().any(|view| view["name"] == "pods"))
    });
    let of_kind = |kind: &str| {
        let path = format!("objects?kind={kind}&namespace={}", world.namespace.name);
        let response = world.installation.curl_as(ops, &format!("/agents/{AGENT}/graph/v1/{path}"), &[]);
        if response.status == 200 { response.json()["objects"].clone() } else { json!([]) }
    };
    eventually("the rule judges", || {
        let objects = of_kind("widgets");
        let health = |name: &str| {
            let found = objects.as_array().unwrap().iter().find(|node| node["name"] == name);
            found.map(|node| (node["health"].clone(), node["message"].clone()))
        };
        health("good") == Some((json!("healthy"), Value::Null))
            && health("bad") == Some((json!("degraded"), json!("the state is down")))
    });
    let report = world.kas("health", &[]);
    assert_eq!(report.status.code(), Some(1), "{}", super::text(&report));
    assert!(super::text(&report).contains("the state is down"), "{}", super::text(&report));

    // The name of a Secret is known, and its contents are nowhere.
    let secrets = of_kind("secrets");
    let db = secrets.as_array().unwrap().iter().find(|node| node["name"] == "db");
    let db = db.unwrap_or_else(|| panic!("{secrets} {}", world.get(ops, "status")));
    assert_eq!(db["labels"]["app"], "web");
    let all = world.get(ops, "objects?limit=5000").to_string();
    assert!(!all.contains("hunter2") && !all.contains("aHVudGVyMg"), "contents of a Secret");

    let views = |list: &Value, name: &str| {
        let found = list["views"].as_array().into_iter().flatten().find(|view| view["name"] == name);
        found.cloned().unwrap_or_default()
    };
    let seen = world.get(ops, "views");
    assert_eq!(views(&seen, "widgets")["rows"], json!([["degraded", "1"], ["healthy", "1"]]));
    let rows = views(&seen, "secrets")["rows"].clone();
    assert!(rows.as_array().unwrap().contains(&json!(["db", "web"])), "{rows}");
    // alice may list nothing.
    let hidden = world.get(&world.installation.tokens.alice, "views");
    assert_eq!(
        (&views(&hidden, "nodes")["count"], &views(&hidden, "secrets")["count"]),
        (&json!(0), &json!(0))
    );
    let follower = world.follow(ops, "views=all");
    eventually("kas keeps the views", || {
        let kept = world.installation.kas.get_api(&format!("/api/v1/agents/{AGENT}/views"));
        views(&kept["values"], "nodes")["count"] != Value::Null
            && views(&kept["values"], "widgets")["count"] == 2
    });
    world.apply(&widget(&group, "third", "up"));
    eventually("the follower and kas see the change", || {
        let kept = world.installation.kas.get_api(&format!("/api/v1/agents/{AGENT}/views"));
        views(&kept["values"], "widgets")["count"] == 3 && follower.printed().contains("[\"healthy\",\"2\"]")
    });
    let metrics = || world.installation.agent.get("/metrics").text();
    assert!(metrics().contains("agentk_graph_limit{limit=\"objects\"} 200000"), "{}", metrics());

    // A limit that is too low is a sentence and a metric.
    repository.commit("graph: {limits: {objects_per_resource: 1}}");
    eventually("what is beyond the limit is counted", || {
        let list = world.get(ops, "objects?kind=ServiceAccount");
        list["partial"].to_string().contains("objects are only counted, because it has more than 1 objects")
    });
    let over =
        |line: &str| line.starts_with("agentk_graph_resources_over_limit{limit=\"objects_per_resource\"}");
    let line = metrics().lines().find(|line| over(line)).unwrap().to_owned();
    assert!(!line.ends_with(" 0"), "{line}");
    world.cluster.kubectl.ok(&["delete", "crd", &format!("widgets.{group}")]);
}
