//! `kas gitops diff`: what a sync would change, against real objects and against `kubectl diff`.

use std::{collections::BTreeMap, fs, path::Path};

use super::*;
use crate::support::KubectlVersion;

impl World {
    fn diff(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.gitops(&[&["diff", PROJECT], arguments].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code().unwrap(), text + &String::from_utf8_lossy(&output.stderr))
    }
}

#[test]
fn branch_is_compared_before_it_is_merged() {
    let Some(world) = World::or_skip("gitops-diff") else { return };
    let secret = |value: &str| {
        format!("---\napiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{key: {value}}}\n")
    };
    let files = |maps: &str, value: &str| maps.to_owned() + &secret(value);
    world.configure("", &[("manifests/app.yaml", Some(&files(&config_maps(&["a", "b"]), "hunter2")))]);
    world.wait_for_state("synced");
    assert_eq!(world.diff(&[]).0, 0);

    let changed = files(&(config_map("a", "two") + &config_maps(&["c"])), "hunter3");
    world.repository.commit_to_branch(
        "feature",
        &[("manifests/app.yaml", &changed), ("other/d.yaml", &config_maps(&["a", "b", "d"]))],
    );
    let directory = TempDir::new().unwrap();
    let second = Agent::start(directory.path(), &world.installation.agent_options);
    eventually("both pods have tunnels", || world.installation.kas.metric("kas_tunnels") == 4.0);
    for _ in 0..4 {
        // Either pod answers, the leader or the other one.
        let (code, text) = world.diff(&["--ref", "feature"]);
        assert_eq!(code, 1, "{text}");
        let namespace = &world.namespace.name;
        for expected in [
            &*format!(
                "~ change ConfigMap {namespace}/a (manifests/app.yaml:2)\n-   data.key: \"one\"\n+   data.key: \"two\"\n"
            ),
            &format!("+ create ConfigMap {namespace}/c (manifests/app.yaml:7)\n"),
            &format!("- delete ConfigMap {namespace}/b\n"),
            "-   data.key: \"*** (before)\"\n+   data.key: \"*** (after)\"\n",
            "1 to create, 2 to change, 1 to delete (branch feature, commit ",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        assert!(!text.contains("hunter") && !text.contains("aHVudGVy"), "{text}");
    }
    drop(second);
    assert_eq!(world.config_maps(), "a b", "nothing was written");

    let (code, text) = world.diff(&["--ref", "feature", "--directory", "other", "--output", "markdown"]);
    assert!(
        code == 1 && text.starts_with("**1 to create, 1 to delete, 2 unchanged (`branch feature, commit "),
        "{text}"
    );
    let file = directory.path().join("posted.yaml");
    fs::write(&file, config_map("a", "three")).unwrap();
    let (code, text) = world.diff(&["-f", file.to_str().unwrap(), "--output", "json"]);
    let posted: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &posted["summary"]["delete"]), (1, &json!(0)), "{posted}");
    assert_eq!(
        posted["objects"][0]["fields"],
        json!([{"path": "data.key", "before": "one", "after": "three"}])
    );

    for (arguments, expected) in [
        (&["--ref", "absent"][..], "the repository has no branch \"absent\""),
        (&["--ref", "a..b"], "not the name of a branch"),
        (&["--directory", "../x"], "not a path from the root"),
        (&["--directory", "empty"], "3 to delete"),
    ] {
        let (code, text) = world.diff(arguments);
        assert!(code != 0 && text.contains(expected), "{arguments:?}: {text}");
    }
    fs::write(&file, "kind: [\n").unwrap();
    let (code, text) = world.diff(&["-f", file.to_str().unwrap()]);
    assert!(code == 2 && text.contains("posted.yaml:1: the file is not valid YAML"), "{text}");
}

/// A diff must not show a caller what the cluster would not show him.
#[test]
fn diff_has_the_rights_of_its_caller() {
    let Some(world) = World::or_skip("gitops-alice") else { return };
    world.configure("", &[("manifests/app.yaml", Some(&config_maps(&["a"])))]);
    world.wait_for_state("synced");
    world.namespace.kubectl.ok(&["patch", "configmap", "a", "--patch", r#"{"data": {"other": "private"}}"#]);
    let diff = || {
        let path = format!("/agents/{AGENT}/gitops/v1/projects/{PROJECT}/diff");
        let files = json!({"files": [{"path": "a.yaml", "content": config_map("a", "two")}]}).to_string();
        String::from_utf8(
            world.installation.curl_as(&world.installation.tokens.alice, &path, &["--data", &files]).body,
        )
        .unwrap()
    };
    let refused = diff();
    assert!(refused.contains("User \\\"alice\\\" cannot patch resource"), "{refused}");
    assert!(!refused.contains("private") && !refused.contains("\"one\""), "{refused}");
    world.namespace.kubectl.ok(&[
        "create",
        "role",
        "editor",
        "--verb=get,list,patch,create",
        "--resource=configmaps",
    ]);
    world.namespace.kubectl.ok(&["create", "rolebinding", "alice", "--role=editor", "--user=alice"]);
    let shown = diff();
    assert!(shown.contains(r#""before":"one","after":"two""#), "{shown}");
}

/// Two versions of an object: the one in the cluster, and the one that is compared.
type Case = (Value, Value);

fn case(kind: &str, name: &str, before: Value, after: Value) -> Case {
    let api = if kind == "Deployment" { "apps/v1" } else { "v1" };
    let with_head = |mut object: Value| {
        object["apiVersion"] = api.into();
        object["kind"] = kind.into();
        object["metadata"]["name"] = name.into();
        object
    };
    (with_head(before), with_head(after))
}

/// A hundred changes that people make.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let data: [(Value, Value); 10] = [
        (json!({"a": "1"}), json!({"a": "2"})),
        (json!({"a": "1"}), json!({"a": "1", "b": "2"})),
        (json!({"a": "1", "b": "2"}), json!({"a": "1"})),
        (json!({"a.conf": "x\ny\nz\n"}), json!({"a.conf": "x\nY\nz\n"})),
        (json!({"a": ""}), json!({"a": " "})),
        (json!({"a": "1"}), json!({})),
        (json!({}), json!({"a": "1"})),
        (json!({"a": "ü\u{1f600}"}), json!({"a": "ü"})),
        (json!({"true": "1", "1": "x"}), json!({"true": "2", "1": "x"})),
        (json!({"same": "1"}), json!({"same": "1"})),
    ];
    for (n, (before, after)) in data.iter().enumerate() {
        cases.push(case("ConfigMap", &format!("data-{n}"), json!({"data": before}), json!({"data": after})));
        let labels = |values: &Value| json!({"metadata": {"labels": {"x/y": "z"}, "annotations": values}});
        cases.push(case("ConfigMap", &format!("annotations-{n}"), labels(before), labels(after)));
        let binary = |values: &Value| {
            let encode = |value: &Value| Value::from(base64(value.as_str().unwrap_or_default()));
            let map = values.as_object().unwrap();
            map.iter().map(|(key, value)| (key.clone(), encode(value))).collect::<serde_json::Map<_, _>>()
        };
        cases.push(case(
            "Secret",
            &format!("secret-{n}"),
            json!({"data": binary(before)}),
            json!({"data": binary(after)}),
        ));
        let string = |values: &Value| json!({"stringData": values, "type": "example.com/kind"});
        cases.push(case("Secret", &format!("string-{n}"), string(before), string(after)));
    }
    let container = |name: &str, image: &str| json!({"name": name, "image": image});
    let containers = |list: Value| json!({"containers": list});
    let with = |key: &str, value: Value| {
        let mut web = container("web", "nginx");
        web[key] = value;
        containers(json!([web]))
    };
    let env = |values: &[(&str, &str)]| -> Value {
        values.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    let plain = || containers(json!([container("web", "nginx")]));
    let pods: [(Value, Value); 20] = [
        (plain(), containers(json!([container("web", "nginx:2")]))),
        (plain(), containers(json!([container("web", "nginx"), container("log", "log")]))),
        (containers(json!([container("web", "nginx"), container("log", "log")])), plain()),
        (plain(), plain()),
        (with("env", env(&[("A", "1")])), with("env", env(&[("A", "2")]))),
        (with("env", env(&[("A", "1")])), with("env", env(&[("A", "1"), ("B", "2")]))),
        (with("env", env(&[("A", "1"), ("B", "2")])), with("env", env(&[("B", "2")]))),
        (with("args", json!(["a", "b"])), with("args", json!(["a", "c"]))),
        (with("args", json!(["a"])), plain()),
        (
            with("ports", json!([{"containerPort": 80, "protocol": "TCP"}])),
            with("ports", json!([{"containerPort": 81, "protocol": "TCP"}])),
        ),
        (
            with("ports", json!([{"containerPort": 80, "protocol": "TCP", "name": "http"}])),
            with("ports", json!([{"containerPort": 80, "protocol": "TCP", "name": "web"}])),
        ),
        (
            with("resources", json!({"limits": {"cpu": "1"}})),
            with("resources", json!({"limits": {"cpu": "2"}})),
        ),
        (
            with("resources", json!({"limits": {"cpu": "1000m"}})),
            with("resources", json!({"limits": {"cpu": "1"}})),
        ),
        (plain(), with("readinessProbe", json!({"httpGet": {"path": "/", "port": 80}}))),
        (plain(), with("securityContext", json!({"runAsNonRoot": true}))),
        (plain(), with("imagePullPolicy", json!("Never"))),
        (plain(), json!({"containers": [container("web", "nginx")], "serviceAccountName": "web"})),
        (plain(), json!({"containers": [container("web", "nginx")], "nodeSelector": {"a/b": "c"}})),
        (
            plain(),
            json!({"containers": [container("web", "nginx")], "volumes": [{"name": "tmp", "emptyDir": {}}]}),
        ),
        (
            plain(),
            json!({"containers": [container("web", "nginx")], "tolerations": [{"operator": "Exists"}]}),
        ),
    ];
    for (n, (before, after)) in pods.into_iter().enumerate() {
        let labels = json!({"app": format!("pods-{n}")});
        for replicas in [1, 2] {
            let of = |spec: &Value, replicas: i64| {
                let template = json!({"metadata": {"labels": labels}, "spec": spec});
                json!({"spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}})
            };
            // Nothing has to run.
            let name = format!("pods-{n}-{replicas}");
            cases.push(case("Deployment", &name, of(&before, 0), of(&after, replicas - 1)));
        }
    }
    for n in 0..20 {
        let port = |port: i64, name: &str| json!({"port": port, "protocol": "TCP", "name": name, "targetPort": 8080});
        let of =
            |ports: Value, selector: &str| json!({"spec": {"ports": ports, "selector": {"app": selector}}});
        let before = of(json!([port(80, "http")]), "web");
        let after = match n % 4 {
            0 => of(json!([port(81, "http")]), "web"),
            1 => of(json!([port(80, "http"), port(443, "https")]), "web"),
            2 => of(json!([port(80, "http")]), &format!("web-{n}")),
            _ => of(json!([port(80, "web")]), "other"),
        };
        cases.push(case("Service", &format!("service-{n}"), before, after));
    }
    cases
}

fn base64(text: &str) -> String {
    use base64::Engine as _;

    base64::engine::general_purpose::STANDARD.encode(text)
}

/// The leaves of an object that differ: `path value`, each with how often it left (negative) or came.
type Leaves = BTreeMap<String, i64>;

/// Counts the leaves of a value. Items of lists have no place: the two programs name them differently.
fn count_leaves(path: &str, value: &Value, by: i64, leaves: &mut Leaves) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(key, value)| count_leaves(&format!("{path}/{key}"), value, by, leaves));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().for_each(|item| count_leaves(&format!("{path}/*"), item, by, leaves));
        }
        leaf => *leaves.entry(format!("{path} {leaf}")).or_default() += by,
    }
}

/// Turns `spec.ports[name=http]["a.b"]` into `/spec/ports/*/a.b`.
fn pointer(path: &str) -> String {
    let (mut pointer, mut rest) = (String::new(), path);
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let end = quoted.find("\"]").unwrap();
            pointer += &format!("/{}", &quoted[..end]);
            rest = &quoted[end + 2..];
        } else if let Some(item) = rest.strip_prefix('[') {
            pointer += "/*";
            rest = &item[item.find(']').unwrap() + 1..];
        } else {
            let plain = rest.strip_prefix('.').unwrap_or(rest);
            let end = plain.find(['.', '[']).unwrap_or(plain.len());
            pointer += &format!("/{}", &plain[..end]);
            rest = &plain[end..];
        }
    }
    pointer
}

/// Returns the differences without what only servers set.
fn without_zero(leaves: Leaves) -> Leaves {
    let of_server =
        |path: &str| path.starts_with("/metadata/generation ") || path.contains("applyset.kubernetes.io");
    leaves.into_iter().filter(|(path, count)| *count != 0 && !of_server(path)).collect()
}

/// Reads what `kubectl diff` has compared: the live and the merged object of each case.
fn compared_by_kubectl(directory: &Path) -> BTreeMap<String, Leaves> {
    let mut all = BTreeMap::new();
    for (side, by) in [("live", -1), ("merged", 1)] {
        for entry in fs::read_dir(directory.join(side)).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            let Ok(mut object @ Value::Object(_)) = serde_saphyr::from_str::<Value>(&text) else { continue };
            // kubectl 1.20 compares them too, and each write changes their time.
            object["metadata"].as_object_mut().unwrap().remove("managedFields");
            let name = format!(
                "{} {}",
                object["kind"].as_str().unwrap(),
                object["metadata"]["name"].as_str().unwrap()
            );
            count_leaves("", &object, by, all.entry(name).or_default());
        }
    }
    all.into_iter()
        .map(|(name, leaves)| (name, without_zero(leaves)))
        .filter(|(_, leaves)| !leaves.is_empty())
        .collect()
}

/// Returns the fields that differ for `kubectl diff`, by object.
fn kubectl_diff(world: &World, file: &Path) -> BTreeMap<String, Leaves> {
    let directory = TempDir::new().unwrap();
    let script = directory.path().join("keep");
    let kept = directory.path().display();
    fs::write(&script, format!("#!/bin/sh\ncp -r \"$1\" {kept}/live && cp -r \"$2\" {kept}/merged\n"))
        .unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let arguments = [
        "diff",
        "--server-side",
        "--force-conflicts",
        "--field-manager=agentk",
        "-f",
        file.to_str().unwrap(),
    ];
    let output =
        world.namespace.kubectl.command(&arguments).env("KUBECTL_EXTERNAL_DIFF", &script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    compared_by_kubectl(directory.path())
}

#[test]
fn diff_equals_that_of_kubectl() {
    let Some(world) = World::or_skip("gitops-kubectl-diff") else { return };
    let cases = cases();
    assert_eq!(cases.len(), 100);
    let text =
        |objects: Vec<&Value>| objects.iter().map(|object| format!("---\n{object}\n")).collect::<String>();
    let before = text(cases.iter().map(|(before, _)| before).collect());
    let after = text(cases.iter().map(|(_, after)| after).collect());
    world.configure("", &[("manifests/all.yaml", Some(&before))]);
    eventually("all objects are there", || {
        world.status()["objects"]["applied"] == 100 || world.status()["objects"]["unchanged"] == 100
    });
    // Controllers have written what they write.
    world.wait_for_state("synced");

    let directory = TempDir::new().unwrap();
    let file = directory.path().join("after.yaml");
    fs::write(&file, after).unwrap();
    let (code, text) = world.diff(&["-f", file.to_str().unwrap(), "--output", "json"]);
    assert_eq!(code, 1, "{text}");
    let diff: Value = serde_json::from_str(&text).unwrap();
    let mut ours = BTreeMap::new();
    for object in diff["objects"].as_array().unwrap() {
        let mut leaves = Leaves::new();
        for field in object["fields"].as_array().unwrap() {
            let path = pointer(field["path"].as_str().unwrap());
            for (side, by) in [("before", -1), ("after", 1)] {
                if let Some(value) = field.get(side) {
                    count_leaves(&path, value, by, &mut leaves);
                }
            }
        }
        let id = &object["object"];
        ours.insert(
            format!("{} {}", id["kind"].as_str().unwrap(), id["name"].as_str().unwrap()),
            without_zero(leaves),
        );
    }

    // kubectl reads each object twice. A Deployment whose first Pods become ready in between differs in its status, too.
    let theirs = (0..10)
        .map(|_| kubectl_diff(&world, &file))
        .find(|theirs| {
            !theirs.values().any(|leaves| leaves.keys().any(|leaf| leaf.contains("/resourceVersion ")))
        })
        .expect("a diff of kubectl during which no controller writes");
    assert!(theirs.len() > 70, "only {} cases differ", theirs.len());
    let masks = KubectlVersion::DIFF_MASKS_SECRETS.or_skip("Secrets in kubectl diff");
    for name in ours.keys().chain(theirs.keys()).filter(|name| masks || !name.starts_with("Secret ")) {
        assert_eq!(ours.get(name), theirs.get(name), "{name}");
    }
}
