//! The graph with two pods of agentk, two replicas of kas and Redis.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{AGENT, Cluster, Fleet, GitRepository, Kas, Process, Redis, eventually};

struct World {
    fleet: Fleet,
    namespace: crate::support::Namespace,
}

impl World {
    fn follow(&self, replica: &Kas, more: &str) -> Process {
        let path = format!("/agents/{AGENT}/graph/v1/watch?namespace={}{more}", self.namespace.name);
        let url = replica.url(&path);
        Process::start(
            "curl",
            Command::new("curl").args(["-sSN", "--header", &self.fleet.authorization(), &url]),
        )
    }

    fn create(&self, name: &str) {
        self.namespace.kubectl.ok(&["create", "configmap", name]);
    }
}

fn names(printed: &str) -> Vec<String> {
    let events = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let nodes = events.filter(|event| event["event"] == "node" && event["node"]["kind"] == "ConfigMap");
    let mut names: Vec<String> =
        nodes.filter_map(|event| event["node"]["name"].as_str().map(str::to_owned)).collect();
    names.retain(|name| name.starts_with("graph-"));
    names
}

fn last_token(printed: &str) -> String {
    let events = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut tokens = events.filter_map(|event| event["token"].as_str().map(str::to_owned));
    tokens.next_back().unwrap()
}

#[test]
fn streams_and_views_survive_pods_and_replicas() {
    let (Some(redis), Some(cluster)) = (Redis::or_skip(), Cluster::or_skip()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let Some(repository) = GitRepository::or_skip(directory.path()) else { return };
    let namespace = cluster.namespace("graph-fleet");
    repository.commit(&format!(
        "graph: {{views: [{{name: maps, count: configmaps, namespaces: [{}]}}]}}",
        namespace.name
    ));
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    fleet.options.configuration = Some(json!({"poll_period": "1s", "repository": {"url": repository.path}}));
    fleet.options.sections.push(super::api_section(directory.path()));
    let [mut first, second] = fleet.start_replicas();
    let views = |replica: &Kas| replica.get_api(&format!("/api/v1/agents/{AGENT}/views"))["values"].clone();
    let one = fleet.start_agent_at(&first);
    // The replica with the first pod follows the views, and the other one sees that.
    eventually("the views are followed", || views(&first)["views"][0]["count"] == 1);
    let mut pods = [one, fleet.start_agent_at(&second)];
    let world = World { fleet, namespace };
    world.create("graph-one");

    // Each replica has a tunnel of its own pod, and both streams show the change.
    let mut followers = [&first, &second].map(|replica| world.follow(replica, ""));
    for follower in &followers {
        eventually("the snapshot is there", || {
            names(&follower.printed()).contains(&"graph-one".to_owned())
                && follower.printed().contains("\"event\":\"commit\"")
        });
    }
    world.create("graph-two");
    for follower in &followers {
        eventually("the change is there", || names(&follower.printed()).contains(&"graph-two".to_owned()));
    }
    let count = |replica: &Kas| views(replica)["views"][0]["count"].as_u64().unwrap_or_default();
    // The namespace has `kube-root-ca.crt`, too.
    eventually("every replica has the views", || [&first, &second].iter().all(|replica| count(replica) >= 2));
    let follows = |replica: &Kas| {
        let record: Value = serde_json::from_str(&redis.run(&["GET", "kas:views:7"])).unwrap_or_default();
        record["replica"] == replica.replica
    };
    assert!(follows(&first));

    // A token of one pod is a new snapshot at the other one, and a delta at the same one.
    let token = last_token(&followers[1].printed());
    let again = world.follow(&second, &format!("&since={token}"));
    eventually("the stream continues", || again.printed().contains("\"mode\":\"delta\""));
    assert_eq!(names(&again.printed()), [""; 0]);
    let mut elsewhere = world.follow(&first, &format!("&since={token}"));
    eventually("the other pod begins anew", || {
        elsewhere.printed().contains("\"mode\":\"reset\"") && names(&elsewhere.printed()).len() == 2
    });

    // The pod of the first replica is killed in the middle of streams: they end, and the first replica uses the other pod.
    pods[0].process.kill();
    eventually("the streams of the killed pod end", || !followers[0].runs() && !elsewhere.runs());
    let token = last_token(&followers[0].printed());
    let mut moved = world.follow(&first, &format!("&since={token}"));
    eventually("the next stream comes from the other pod", || {
        moved.printed().contains("\"mode\":\"reset\"") && names(&moved.printed()).len() == 2
    });
    // The replica is killed: the streams through it end, those through the other one go on, and so do the views.
    first.process.kill();
    eventually("the stream through the killed replica ends", || !moved.runs());
    world.create("graph-three");
    eventually("the other stream goes on", || {
        names(&followers[1].printed()).contains(&"graph-three".to_owned()) && followers[1].runs()
    });
    eventually("the replica that is left follows the views", || follows(&second) && count(&second) >= 4);
    pods[1].process.kill();
    eventually("the last stream ends", || !followers[1].runs());
    assert!(count(&second) >= 4, "the values stay while no pod is connected: {}", views(&second));
}
