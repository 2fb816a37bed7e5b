//! The inventory of GitLab's agent is taken over.

use serde_json::Value;

use super::*;

const OLD: &str = "inventory-7-3";

/// Puts an object there as GitLab's agent has left it.
fn put(cluster: &FakeCluster, name: &str, inventory: &str) {
    let metadata = json!({"annotations": {"config.k8s.io/owning-inventory": inventory}});
    let object = id("ConfigMap", "default", name);
    cluster.put(object.clone(), "agentk", json!({"metadata": metadata, "data": {"a": "b"}}));
    cluster.edit(&object, "agentk", |object| {
        object["metadata"]["managedFields"] = json!([{"manager": "agentk", "operation": "Apply"}]);
    });
}

/// Returns a cluster with an inventory of GitLab's agent, and with the objects in it.
fn cluster(names: &[&str]) -> FakeCluster {
    let cluster = FakeCluster::new();
    names.iter().for_each(|name| put(&cluster, name, "7-3"));
    put_inventory(&cluster, "default", names);
    cluster
}

fn put_inventory(cluster: &FakeCluster, namespace: &str, names: &[&str]) {
    let keys = names.iter().map(|name| (format!("default_{name}__ConfigMap"), Value::from("")));
    let data: serde_json::Map<_, _> = keys.collect();
    let labels = json!({"cli-utils.sigs.k8s.io/inventory-id": "7-3"});
    let object = json!({"metadata": {"labels": labels}, "data": data});
    cluster.put(id("ConfigMap", namespace, OLD), "agentk", object);
}

fn has_inventory(cluster: &FakeCluster) -> bool {
    cluster.object(&id("ConfigMap", "default", OLD)).is_some()
}

#[tokio::test(start_paused = true)]
async fn objects_that_left_git_before_the_take_over_are_deleted() {
    let mut project = Project::of(cluster(&["a", "b", "c", "left"]));
    let (lines, _) = project.diff(&config_maps(&["a", "b", "c"])).await;
    assert!(lines.contains(&"Delete ConfigMap default/left: ".to_owned()), "{lines:?}");
    let outcome = project.sync(&config_maps(&["a", "b", "c"])).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Synced, 1), "{outcome:?}");
    assert!(!project.cluster.ids().contains(&"ConfigMap default/left".to_owned()));
    assert!(!has_inventory(&project.cluster));
    project.sync(&config_maps(&["a", "b", "c"])).await;
    project.cluster.take_requests();
    project.sync(&config_maps(&["a", "b", "c"])).await;
    let requests = project.cluster.take_requests();
    assert!(
        !requests.iter().any(|request| request.contains(OLD)),
        "it is read until it is gone: {requests:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn first_sync_that_would_delete_more_than_allowed_is_held() {
    let names: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut project = Project::of(cluster(&names));
    let outcome = project.sync(&config_maps(&names[..5])).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Held, 0), "{outcome:?}");
    assert!(outcome.message.contains("5 of 10 objects"), "{outcome:?}");
    // They are members now: another process holds the same deletions without the old inventory.
    assert!(!has_inventory(&project.cluster));
    let mut next = Project::of(project.cluster.clone());
    assert_eq!(next.sync(&config_maps(&names[..5])).await.held, outcome.held);
    next.approved = outcome.held.map(|held| held.code);
    assert_eq!(next.sync(&config_maps(&names[..5])).await.objects.pruned, 5);
}

#[tokio::test(start_paused = true)]
async fn inventory_deletes_nothing_that_does_not_name_it() {
    let cluster = cluster(&["a"]);
    put(&cluster, "of-another-inventory", "7-4");
    cluster.put(id("ConfigMap", "default", "of-somebody"), "kubectl", json!({"data": {"a": "b"}}));
    put(&cluster, "annotated-by-hand", "7-3");
    cluster.edit(&id("ConfigMap", "default", "annotated-by-hand"), "kubectl", |object| {
        object["metadata"]["managedFields"] = json!([{"manager": "kubectl", "operation": "Update"}]);
    });
    let names = ["a", "of-another-inventory", "of-somebody", "annotated-by-hand", "gone", "../a"];
    put_inventory(&cluster, "default", &names);
    let mut project = Project::of(cluster);
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!((outcome.state, outcome.objects.pruned, outcome.objects.kept), (ProjectState::Synced, 0, 1));
    assert!(project.events(SyncEventKind::Kept)[0].contains("managedFields"), "{outcome:?}");
    assert_eq!(project.cluster.ids().len(), 4, "{:?}", project.cluster.ids());

    // An inventory without its label is one of somebody else.
    let cluster = self::cluster(&["a", "left"]);
    cluster.edit(&id("ConfigMap", "default", OLD), "kubectl", |object| {
        object["metadata"]["labels"] = json!({});
    });
    let mut project = Project::of(cluster);
    assert_eq!(project.sync(&config_maps(&["a"])).await.objects.pruned, 0);
    assert!(has_inventory(&project.cluster));
}

#[tokio::test(start_paused = true)]
async fn object_out_of_the_limits_of_the_project_stays() {
    let mut project = Project::of(cluster(&["left"])).with("{namespaces: [shop], default_namespace: shop}");
    let inventory = id("ConfigMap", "default", OLD);
    project.cluster.remove(&inventory);
    put_inventory(&project.cluster, "agentk", &["left"]);
    let outcome = project.sync(&namespace("shop")).await;
    assert_eq!(outcome.state, ProjectState::Failed, "cluster-scoped: {outcome:?}");
    project.cluster.put(id("Namespace", "", "shop"), "kubectl", json!({}));
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!((outcome.objects.pruned, outcome.objects.kept), (0, 1), "{outcome:?}");
    assert!(project.cluster.ids().contains(&"ConfigMap default/left".to_owned()));
}

/// Test 54 of the attack list: a process that ends after any request of the take-over.
#[tokio::test(start_paused = true)]
async fn take_over_that_ends_anywhere_is_completed_by_the_next() {
    for steps in 1.. {
        let mut project = Project::of(cluster(&["a", "b", "c", "left", "detached"]));
        project.cluster.edit(&id("ConfigMap", "default", "detached"), "kubectl", |object| {
            object["metadata"]["annotations"]["config.kubernetes.io/lifecycle"] = "detach".into();
        });
        // It has another kind and another namespace than the objects in Git.
        let secret = id("Secret", "shop", "left");
        let moved = project.cluster.object(&id("ConfigMap", "default", "left")).unwrap();
        project.cluster.put(secret.clone(), "agentk", moved);
        project.cluster.edit(&secret, "agentk", |object| {
            object["metadata"]["managedFields"] = json!([{"manager": "agentk", "operation": "Apply"}]);
        });
        project.cluster.edit(&id("ConfigMap", "default", OLD), "agentk", |object| {
            object["data"]["shop_left__Secret"] = "".into();
        });
        let text = config_maps(&["a", "b", "c"]);
        let outcome = project.sync_with(&text, &ClosesAfter(AtomicUsize::new(steps))).await;
        let mut next = Project::of(project.cluster.clone());
        assert_eq!(next.sync(&text).await.state, ProjectState::Synced, "after {steps} steps");
        let names = ["a", "b", "c", "detached"].map(|name| format!("ConfigMap default/{name}"));
        assert_eq!(next.cluster.ids(), names, "after {steps} steps");
        if outcome.stopped.is_none() {
            assert!(steps > 15, "the sync was stopped at {steps} places");
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn inventory_stays_until_all_of_its_objects_are_taken_over() {
    let mut project = Project::of(cluster(&["a", "b", "c", "left"]));
    project.cluster.set_fault(|request| {
        (request == "patch ConfigMap default/left").then(|| error(403, "Forbidden", "no right to patch"))
    });
    let outcome = project.sync(&config_maps(&["a", "b", "c"])).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Synced, 0), "{outcome:?}");
    assert!(outcome.errors[0].message.contains("no right to patch"), "{outcome:?}");
    assert!(has_inventory(&project.cluster));
    project.cluster.clear_fault();
    assert_eq!(project.sync(&config_maps(&["a", "b", "c"])).await.objects.pruned, 1);
    assert!(!has_inventory(&project.cluster));
}
