use proto::graph::{Attention, GroupHealth, HealthReport, Node};

use super::{health::show_health, *};

fn branch(kind: &str, name: &str, status: &str, children: Vec<Branch>) -> Branch {
    let node = Node {
        kind: kind.to_owned(),
        name: name.to_owned(),
        namespace: "shop".to_owned(),
        status: status.to_owned(),
        created: "1970-01-01T00:15:00Z".to_owned(),
        ..Node::default()
    };
    Branch { node, children }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1000)
}

#[test]
fn tree_is_shown_without_what_is_over() {
    let mut pod = branch("Pod", "web-2-x", "CrashLoopBackOff", Vec::new());
    (pod.node.health, pod.node.message) = (HealthState::Degraded, "back-off\u{1b}[2J".to_owned());
    let mut old = branch("ReplicaSet", "web-1", "0/0", Vec::new());
    old.node.ready = Some(Ready::default());
    let web = branch("Deployment", "web", "0/1", vec![old, branch("ReplicaSet", "web-2", "0/1", vec![pod])]);
    let tree = Tree {
        roots: vec![branch("ConfigMap", "settings", "", Vec::new()), web],
        omitted: 0,
        partial: vec!["Node: agentk may not list them".to_owned()],
    };
    let expected = "\
NAMESPACE  OBJECT              STATUS            HEALTH    AGE
shop       Deployment/web      0/1               healthy   1m40s
shop       └─ReplicaSet/web-2  0/1               healthy   1m40s
shop         └─Pod/web-2-x     CrashLoopBackOff  degraded  1m40s

Pod/web-2-x: back-off?[2J
Note: Node: agentk may not list them
";
    assert_eq!(show_tree(&tree, false, now()), expected);
    assert!(show_tree(&tree, true, now()).contains("ConfigMap/settings"));
    assert_eq!(show_tree(&Tree::default(), false, now()), "Nothing was found.\n");
    let quiet = Tree { roots: vec![branch("ConfigMap", "settings", "", Vec::new())], ..Tree::default() };
    assert!(show_tree(&quiet, false, now()).ends_with("--all shows them.\n"));
}

#[test]
fn health_is_shown_with_the_worst_objects() {
    let report = HealthReport {
        health: GroupHealth {
            health: HealthState::Degraded,
            counts: [(HealthState::Healthy, 2), (HealthState::Degraded, 1)].into(),
            attention: vec![Attention {
                uid: "u".to_owned(),
                kind: "Pod".to_owned(),
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                health: HealthState::Degraded,
                message: "back-off".to_owned(),
                since: "1970-01-01T00:15:00Z".to_owned(),
            }],
        },
        warnings: Vec::new(),
        partial: Vec::new(),
    };
    let expected =
        "Health:   degraded\nObjects:  2 healthy, 1 degraded\ndegraded: Pod shop/web: back-off (for 1m40s)\n";
    assert_eq!(show_health(&report, now()), expected);
}

#[test]
fn groups_are_a_table() {
    let health = GroupHealth {
        counts: [(HealthState::Healthy, 3), (HealthState::Progressing, 1)].into(),
        ..GroupHealth::default()
    };
    let group = Group {
        id: "helm:shop/web".to_owned(),
        namespaces: vec!["shop".to_owned()],
        health,
        ..Group::default()
    };
    let text = show_groups(&GroupList { groups: vec![group], partial: Vec::new() });
    assert_eq!(
        text,
        "GROUP          HEALTH   OBJECTS  UNHEALTHY  NAMESPACES\nhelm:shop/web  healthy  4        1          shop\n"
    );
    assert_eq!(show_groups(&GroupList::default()), "The cluster has no groups.\n");
}
