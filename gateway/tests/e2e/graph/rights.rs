//! Each caller sees exactly the objects that `kubectl get --as` shows, in snapshots and in streams.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use access::token::TokenHash;
use secrecy::SecretString;
use serde_json::{Deserializer, Value, json};

use super::World;
use crate::support::{AGENT, Namespace, Process, eventually};

/// The kinds that are compared: resource, kind, and whether its objects are in namespaces.
const KINDS: [(&str, &str, bool); 4] = [
    ("configmaps", "ConfigMap", true),
    ("services", "Service", true),
    ("serviceaccounts", "ServiceAccount", true),
    ("nodes", "Node", false),
];

/// A caller, with what RBAC lets it do.
struct Person {
    name: &'static str,
    token: SecretString,
    follower: Option<Process>,
}

/// The rights of each caller: in the first namespace, in the second one, and in the whole cluster. A right is
/// `<verbs> <resources>[ <names>]`, or the name of a ClusterRole after `@`.
const PEOPLE: [(&str, &str, &str, &str); 20] = [
    ("nobody", "", "", ""),
    ("one", "list,watch configmaps", "", ""),
    ("two", "list,watch configmaps,services", "list,watch configmaps", ""),
    ("list-only", "list configmaps", "", ""),
    ("watch-only", "watch configmaps,services", "", ""),
    ("get-only", "get configmaps,services,serviceaccounts", "", ""),
    ("writer", "create,update,delete configmaps", "list,watch services", ""),
    ("named", "get,list,watch configmaps a", "", ""),
    ("all-verbs", "* configmaps", "", ""),
    ("all-resources", "list,watch *", "", ""),
    ("reader", "@view", "", ""),
    ("editor", "@edit", "@view", ""),
    ("owner", "@admin", "", ""),
    ("root-in-one", "@cluster-admin", "", ""),
    ("nodes", "", "", "list,watch nodes"),
    ("cluster-lists", "", "", "list configmaps,nodes"),
    ("cluster-maps", "", "", "list,watch configmaps"),
    ("mixed", "watch configmaps", "list,watch serviceaccounts", "list configmaps"),
    ("cluster-view", "", "", "@view"),
    ("everything", "", "", "@cluster-admin"),
];

struct Rights {
    world: World,
    other: Namespace,
    people: Vec<Person>,
}

impl Rights {
    fn new() -> Option<Self> {
        let world = World::or_skip("graph-rights")?;
        let other = world.cluster.namespace("graph-other");
        let people = PEOPLE.map(|(name, ..)| Person {
            name,
            token: SecretString::from(format!("{name}-{}", "x".repeat(40))),
            follower: None,
        });
        Some(Self { world, other, people: people.into() })
    }

    fn user(&self, person: &str) -> String {
        format!("{}-{person}", self.world.namespace.name)
    }

    /// The half of the people whose rights are those of their group.
    fn group(&self, person: &str) -> Option<String> {
        person.len().is_multiple_of(2).then(|| format!("{}-group-{person}", self.world.namespace.name))
    }

    /// Lets the people use the graph.
    fn introduce(&self) {
        let callers: Vec<Value> = self.people.iter().map(|person| {
            let groups: Vec<String> = self.group(person.name).into_iter().collect();
            // As for a job of GitLab's CI.
            let extra = json!([{"key": "agent.gitlab.com/id", "val": ["7"]}]);
            json!({
                "name": person.name, "tokens": [TokenHash::of(&person.token).to_string()], "agents": [AGENT], "services": ["graph"],
                "access_as": {"impersonate": {"username": self.user(person.name), "groups": groups, "extra": extra}},
            })
        }).collect();
        let installation = &self.world.installation;
        let hash = TokenHash::of(&installation.tokens.agent).to_string();
        let identity = json!({"agents": [{"id": 7, "name": AGENT, "tokens": [hash]}], "callers": callers});
        let file = installation.directory().join("identity.yaml");
        std::fs::write(file.with_extension("new"), identity.to_string()).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
        eventually("kas knows the callers", || {
            let path = format!("/agents/{AGENT}/graph/v1/status");
            installation.curl_as(&self.people[0].token, &path, &[]).status == 200
        });
    }

    fn namespaces(&self) -> [&str; 2] {
        [&self.world.namespace.name, &self.other.name]
    }

    /// Returns the manifests of one right; `namespace` is empty for the whole cluster.
    fn manifests(&self, person: &str, namespace: &str, right: &str) -> Vec<Value> {
        let subject = match self.group(person) {
            Some(group) => json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}),
            None => {
                json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.user(person)})
            }
        };
        let name = self.user(person);
        let prefix = if namespace.is_empty() { "Cluster" } else { "" };
        let object = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
        let mut binding = object(&format!("{prefix}RoleBinding"));
        binding["subjects"] = json!([subject]);
        if let Some(role) = right.strip_prefix('@') {
            binding["roleRef"] =
                json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
            return vec![binding];
        }
        let mut words = right.split(' ').map(|words| words.split(',').collect::<Vec<_>>());
        let mut rule = json!({"apiGroups": [""], "verbs": words.next(), "resources": words.next()});
        if let Some(names) = words.next() {
            rule["resourceNames"] = json!(names);
        }
        let kind = format!("{prefix}Role");
        let mut role = object(&kind);
        role["rules"] = json!([rule]);
        binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
        vec![role, binding]
    }

    fn grant(&self) -> Value {
        let [first, second] = self.namespaces();
        let mut items = Vec::new();
        for (person, in_first, in_second, in_cluster) in PEOPLE {
            for (namespace, right) in [(first, in_first), (second, in_second), ("", in_cluster)] {
                if !right.is_empty() {
                    items.extend(self.manifests(person, namespace, right));
                }
            }
        }
        json!({"apiVersion": "v1", "kind": "List", "items": items})
    }

    /// Returns what kubectl may list and watch, as `kind namespace/name`.
    fn expected(&self, person: &str) -> BTreeSet<String> {
        let identity = [
            Some(format!("--as={}", self.user(person))),
            self.group(person).map(|group| format!("--as-group={group}")),
        ];
        let identity: Vec<&str> = identity.iter().flatten().map(String::as_str).collect();
        let kubectl = &self.world.cluster.kubectl;
        let places = self.namespaces().map(|namespace| (namespace, true)).into_iter().chain([("", false)]);
        let places: Vec<_> = places
            .flat_map(|(namespace, is_namespace)| {
                let of_place = KINDS.into_iter().filter(move |kind| kind.2 == is_namespace);
                of_place.map(move |(resource, kind, _)| (namespace, resource, kind))
            })
            .collect();
        let reviews = places.iter().flat_map(|(namespace, resource, _)| {
            ["list", "watch"].map(|verb| json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": namespace, "resource": resource, "verb": verb}},
        }))
        });
        let reviews: String = reviews.map(|review| review.to_string() + "\n").collect();
        let answers = kubectl.ok_with_stdin(
            &[&["create", "--filename=-", "--output=json", "--validate=false"], &identity[..]].concat(),
            &reviews,
        );
        let answers = Deserializer::from_str(&answers)
            .into_iter::<Value>()
            .map(|answer| answer.unwrap()["status"]["allowed"] == true);
        let answers: Vec<bool> = answers.collect();
        assert_eq!(answers.len(), 2 * places.len());
        let mut all = BTreeSet::new();
        for ((namespace, resource, kind), may) in places.iter().zip(answers.chunks(2)) {
            if *may != [true, true] {
                continue;
            }
            let list =
                ["get", resource, "--namespace", namespace, "--output", "jsonpath={.items[*].metadata.name}"];
            let names = kubectl.ok(&[&list, &identity[..]].concat());
            all.extend(names.split_whitespace().map(|name| format!("{kind} {namespace}/{name}")));
        }
        all
    }

    /// Returns a node as `kind namespace/name`, if its namespace is one of the test.
    fn name_of(&self, node: &Value) -> Option<String> {
        let namespace = node["namespace"].as_str().unwrap_or_default();
        let is_compared = namespace.is_empty() || self.namespaces().contains(&namespace);
        is_compared.then_some(format!("{} {namespace}/{}", node["kind"].as_str()?, node["name"].as_str()?))
    }

    /// Returns what a stream has sent.
    fn streamed(&self, person: &Person) -> BTreeSet<String> {
        let printed = person.follower.as_ref().unwrap().printed();
        let events = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter_map(|event| self.name_of(&event["node"])).collect()
    }
}

#[test]
fn callers_see_what_kubectl_shows_them() {
    let Some(mut rights) = Rights::new() else { return };
    rights.introduce();
    for namespace in [&rights.world.namespace, &rights.other] {
        for name in ["a", "b"] {
            namespace.kubectl.ok(&["create", "configmap", name]);
            namespace.kubectl.ok(&["create", "service", "clusterip", name, "--tcp=80"]);
        }
    }
    let grant = rights.grant().to_string();
    rights.world.cluster.kubectl.ok_with_stdin(&["apply", "--filename=-"], &grant);
    let query = "kind=ConfigMap,Service,ServiceAccount,Node";
    let expected: Vec<BTreeSet<String>> = PEOPLE.iter().map(|person| rights.expected(person.0)).collect();
    let different: BTreeSet<&BTreeSet<String>> = expected.iter().collect();
    assert!(different.len() >= 10, "the people have different rights: {expected:#?}");
    for (person, expected) in rights.people.iter().zip(&expected) {
        let list = rights.world.get(&person.token, &format!("objects?limit=5000&{query}"));
        let names = list["objects"].as_array().unwrap().iter().filter_map(|node| rights.name_of(node));
        assert_eq!(names.collect::<BTreeSet<_>>(), *expected, "the snapshot of {}", person.name);
    }
    let followers: Vec<Process> =
        rights.people.iter().map(|person| rights.world.follow(&person.token, query)).collect();
    for (person, follower) in rights.people.iter_mut().zip(followers) {
        person.follower = Some(follower);
    }
    for person in &rights.people {
        eventually(&format!("the stream of {} has begun", person.name), || {
            person.follower.as_ref().unwrap().printed().contains("\"event\":\"commit\"")
        });
    }

    // A new object reaches exactly the streams of those who may see it.
    rights.world.namespace.kubectl.ok(&["create", "configmap", "new"]);
    let new = format!("ConfigMap {}/new", rights.world.namespace.name);
    let old = format!("ConfigMap {}/a", rights.world.namespace.name);
    for (person, before) in rights.people.iter().zip(&expected) {
        let mut after = before.clone();
        if before.contains(&old) {
            after.insert(new.clone());
        }
        eventually(&format!("the stream of {} has it", person.name), || {
            rights.streamed(person).is_superset(&after)
        });
        assert_eq!(rights.streamed(person), after, "the stream of {}", person.name);
    }

    // Lost rights take the objects out of an open stream.
    let lost = expected[1].len() + 1;
    assert!(lost >= 3, "{:?}", expected[1]);
    rights.world.namespace.kubectl.ok(&["delete", "rolebinding", &rights.user("one")]);
    let removed = || {
        let printed = rights.people[1].follower.as_ref().unwrap().printed();
        printed.matches("\"reason\":\"permission\"").count()
    };
    // A stream asks every 30 s, and the answer to another viewer counts for 30 s: this may take a minute.
    let begin = Instant::now();
    while removed() < lost && begin.elapsed() < Duration::from_secs(70) {
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(removed(), lost, "the objects are gone");
    rights.world.cluster.kubectl.ok_with_stdin(&["delete", "--filename=-", "--ignore-not-found"], &grant);
}
