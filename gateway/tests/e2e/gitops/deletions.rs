//! Deletions that nobody has approved, tried on a real cluster with two pods of agentk.

use super::*;

fn numbered(range: std::ops::Range<usize>) -> String {
    range.map(|n| config_map(&format!("c{n:02}"), "one")).collect()
}

fn names(range: std::ops::Range<usize>) -> String {
    range.map(|n| format!("c{n:02}")).collect::<Vec<_>>().join(" ")
}

/// A deletion that is held survives looks, drift, a restart, another leader and later commits. Afterwards, small commits count together.
#[test]
fn held_deletion_waits_for_its_approval_and_for_nothing_else() {
    let Some(mut world) = World::or_skip("gitops-held") else { return };
    let commit =
        |world: &World, text: &str| world.repository.commit_files(&[("manifests/app.yaml", Some(text))]);
    world.configure("", &[("manifests/app.yaml", Some(&numbered(0..10)))]);
    eventually("the objects are created", || world.config_maps() == names(0..10));
    let directory = TempDir::new().unwrap();
    let second = Agent::start(directory.path(), &world.installation.agent_options);
    eventually("both pods have tunnels", || world.installation.kas.metric("kas_tunnels") == 4.0);

    // 10 objects are replaced by 40 others.
    commit(&world, &numbered(10..50));
    let held = world.wait_for_state("held")["held"].clone();
    assert_eq!((&held["count"], world.config_maps()), (&json!(10), names(0..50)));
    assert!(world.gitops(&["sync", PROJECT]).status.success());
    world.namespace.kubectl.ok(&["patch", "configmap", "c20", "--patch", r#"{"data": {"key": "drift"}}"#]);
    eventually("drift is healed meanwhile", || world.data("c20") == "one");
    commit(&world, &numbered(10..51));
    eventually("a later commit is applied", || world.config_maps() == names(0..51));
    assert_eq!(world.wait_for_state("held")["held"], held);

    let leads = "this pod leads GitOps";
    world.installation.agent.process.kill();
    eventually("the other pod leads", || second.process.printed().contains(leads));
    commit(&world, &numbered(10..52));
    eventually("it applies the next commit", || world.config_maps() == names(0..52));
    assert_eq!(world.wait_for_state("held")["held"], held, "the plan is in the inventory");
    world.approve();
    eventually("the objects are deleted", || world.config_maps() == names(10..52));
    let status = world.wait_for_state("synced");
    let synced =
        status["history"].as_array().unwrap().iter().find(|record| record["objects"]["pruned"] == 10);
    assert!(synced.is_some(), "{status}");

    // 42 objects, of which 30 % may go within an hour.
    commit(&world, &numbered(10..42));
    eventually("a small deletion needs no approval", || world.config_maps() == names(10..42));
    commit(&world, &numbered(10..36));
    let status = world.wait_for_state("held");
    assert!(
        status["held"]["reason"].to_string().contains("16 of 42 objects would be deleted within an hour"),
        "{status}"
    );
}

/// The inventory is deleted while the project is suspended for an emergency. Nothing is written before a person has approved a new one.
#[test]
fn lost_inventory_is_made_anew_by_a_person() {
    let Some(world) = World::or_skip("gitops-lost") else { return };
    let kubectl = &world.namespace.kubectl;
    world.configure("", &[("manifests/app.yaml", Some(&config_maps(&["a", "b", "left"])))]);
    world.wait_for_state("synced");
    let inventory = |suffix: &str| {
        let listed = kubectl.ok(&["get", "configmap", "-o", "jsonpath={.items[*].metadata.name}"]);
        let is_wanted =
            |name: &&str| name.starts_with("gitops-") && name.ends_with("-members") != suffix.is_empty();
        listed.split_whitespace().find(is_wanted).unwrap().to_owned()
    };
    let recover = || {
        eventually("agentk has the commit without the object, and the plan names it", || {
            let output = world.gitops(&["recover", PROJECT]);
            let shown = String::from_utf8_lossy(&output.stdout);
            assert!(shown.contains("Recovers:"), "{output:?}");
            shown.contains("/left")
        });
        let code = world.status()["recovery"]["code"].as_str().unwrap().to_owned();
        assert!(!world.gitops(&["recover", PROJECT, "--code", "0123456789abcdef"]).status.success());
        assert!(world.gitops(&["recover", PROJECT, "--code", &code]).status.success());
    };

    assert!(world.gitops(&["suspend", PROJECT]).status.success());
    world.wait_for_state("suspended");
    kubectl.ok(&["patch", "configmap", "a", "--patch", r#"{"data": {"key": "emergency"}}"#]);
    kubectl.ok(&["delete", "configmap", &inventory("")]);
    // An object leaves Git meanwhile.
    world.repository.commit_files(&[("manifests/app.yaml", Some(&config_maps(&["a", "b"])))]);
    world.wait_for_state("inventory-lost");
    assert_eq!((&*world.data("a"), &*world.config_maps()), ("emergency", "a b left"));
    recover();
    world.wait_for_state("suspended");
    assert_eq!(world.data("a"), "emergency", "the suspension is known");
    assert!(world.gitops(&["resume", PROJECT]).status.success());
    world.wait_for_state("held");
    assert_eq!((&*world.data("a"), &*world.config_maps()), ("one", "a b left"));
    world.approve();
    eventually("the object that left is deleted", || world.config_maps() == "a b");
    world.wait_for_state("synced");

    kubectl.ok(&["delete", "configmap", &inventory("members")]);
    world.wait_for_state("inventory-lost");
    let refused = world.gitops(&["approve", PROJECT, "--code", "0123456789abcdef"]);
    assert!(!refused.status.success());
}

/// Finalizers, labels and namesakes: what waits does not block, and what is not of the project stays.
#[test]
fn guards_hold_on_a_real_cluster() {
    let Some(world) = World::or_skip("gitops-guarded") else { return };
    let kubectl = &world.namespace.kubectl;
    let name = &world.namespace.name;
    let inside = format!("{name}-inside");
    let namespace = format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {inside}}}\n");
    let class = format!(
        "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: 7\ndescription: of Git\n"
    );
    let claim = "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {accessModes: [ReadWriteOnce], \
                 resources: {requests: {storage: 1Mi}}, storageClassName: none}\n";
    let all = config_maps(&["a", "b", "c"]);
    let rest = namespace.clone() + &class + claim;
    world.configure("", &[("manifests/app.yaml", Some(&(all.clone() + &rest)))]);
    world.wait_for_state("synced");

    // The generation of a PriorityClass does not move.
    let description = || kubectl.ok(&["get", "priorityclass", name, "-o", "jsonpath={.description}"]);
    kubectl.ok(&["patch", "priorityclass", name, "--patch", r#"{"description": "by hand"}"#]);
    eventually("drift of a PriorityClass is healed", || description() == "of Git");
    let label = || kubectl.ok(&["get", "configmap", "a", "-o", "jsonpath={.metadata.labels}"]);
    kubectl.ok(&["label", "configmap", "a", "applyset.kubernetes.io/part-of-"]);
    eventually("the label is back", || label().contains("applyset.kubernetes.io/part-of"));

    // A deletion waits for a finalizer. Drift is healed, and the next commit is applied.
    kubectl.ok(&[
        "patch",
        "configmap",
        "c",
        "--patch",
        r#"{"metadata": {"finalizers": ["example.com/wait"]}}"#,
    ]);
    let two = config_maps(&["a", "b"]);
    world.repository.commit_files(&[("manifests/app.yaml", Some(&(two.clone() + &rest)))]);
    eventually("the deletion waits", || world.status()["waiting"][0]["object"]["name"] == "c");
    let status = world.status();
    assert_eq!(status["state"], "syncing", "{status}");
    assert!(status["waiting"][0]["reason"].to_string().contains("example.com/wait"), "{status}");
    kubectl.ok(&["patch", "configmap", "a", "--patch", r#"{"data": {"key": "drift"}}"#]);
    eventually("drift is healed meanwhile", || world.data("a") == "one");
    let next = two + &config_maps(&["d"]) + &rest;
    world.repository.commit_files(&[("manifests/app.yaml", Some(&next))]);
    eventually("the next commit is applied meanwhile", || world.data("d") == "one");
    kubectl.ok(&["patch", "configmap", "c", "--patch", r#"{"metadata": {"finalizers": null}}"#]);
    world.wait_for_state("synced");

    // A copy with the label of the project is in the namespace that leaves Git, and the volume claim leaves, too.
    let copied: Value = serde_json::from_str(&kubectl.ok(&["get", "configmap", "a", "-o", "json"])).unwrap();
    let copy = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": copied["data"],
        "metadata": {"name": "copy", "namespace": inside, "labels": copied["metadata"]["labels"]},
    });
    world.cluster.kubectl.ok_with_stdin(&["create", "--filename=-"], &copy.to_string());
    let kept = config_maps(&["a", "b", "d"]) + &class;
    world.repository.commit_files(&[("manifests/app.yaml", Some(&kept))]);
    let status = world.wait_for_state("held");
    assert_eq!(status["held"]["objects"][0]["kind"], "PersistentVolumeClaim", "{status}");
    assert!(status["kept"].to_string().contains("has an object of others: ConfigMap"), "{status}");
    world.approve();
    eventually("the approved claim is deleted", || kubectl.run(&["get", "pvc", "data"]).code != 0);
    world.wait_for_state("synced");
    let copy = ["--namespace", &inside, "get", "configmap", "copy"];
    assert_eq!(world.cluster.kubectl.run(&copy).code, 0, "the namespace stays with it");
    world.cluster.kubectl.ok(&["delete", "namespace", &inside, "--wait=false"]);
}
