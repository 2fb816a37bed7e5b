//! Objects and fields of others, and writes that arrive late.

use super::*;

#[tokio::test(start_paused = true)]
async fn object_of_somebody_else_is_not_touched() {
    let cluster = FakeCluster::new();
    let existing = id("ConfigMap", "default", "a");
    cluster.put(existing.clone(), "kubectl", json!({"data": {"a": "theirs"}}));
    let mut project = Project::of(cluster);
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert!(outcome.errors[0].message.contains("inventory_policy: adopt_if_no_inventory"), "{outcome:?}");
    assert_eq!(project.cluster.object(&existing).unwrap()["data"]["a"], "theirs");

    project = project.with("{inventory_policy: adopt_if_no_inventory}");
    assert_eq!(project.sync(&config_maps(&["a"])).await.state, ProjectState::Synced);
    assert_eq!(project.cluster.object(&existing).unwrap()["data"]["a"], "b");

    for (key, value) in
        [("labels", "applyset.kubernetes.io/part-of"), ("annotations", "config.k8s.io/owning-inventory")]
    {
        let other = id("ConfigMap", "default", "other");
        project.cluster.put(other, "kubectl", json!({"metadata": {key: {value: "another"}}}));
        let outcome = project.sync(&config_maps(&["a", "other"])).await;
        assert!(outcome.errors[0].message.contains("belongs to another owner ("), "{outcome:?}");
        assert!(outcome.errors[0].message.contains("another): remove it there"), "{outcome:?}");
    }
    project = project.with("{inventory_policy: adopt_all}");
    assert_eq!(project.sync(&config_maps(&["a", "other"])).await.state, ProjectState::Synced);
}

#[tokio::test(start_paused = true)]
async fn object_of_gitlabs_inventory_is_taken_over_with_every_policy() {
    let cluster = FakeCluster::new();
    let annotations = json!({"config.k8s.io/owning-inventory": "7-3"});
    cluster.put(id("ConfigMap", "default", "a"), "agentk", json!({"metadata": {"annotations": annotations}}));
    let mut project = Project::of(cluster);
    assert_eq!(project.sync(&config_maps(&["a"])).await.state, ProjectState::Synced);
    assert_eq!(project.events(SyncEventKind::Applied), ["ConfigMap default/a: taken over"]);
}

#[tokio::test(start_paused = true)]
async fn drift_is_healed_or_reported() {
    let mut project = Project::new();
    let text = config_map("a", "k: v");
    project.sync(&text).await;
    let changed = id("ConfigMap", "default", "a");
    project.cluster.edit(&changed, "kubectl-edit", |object| object["data"]["k"] = "drift".into());
    project.heal = false;
    let outcome = project.sync(&text).await;
    assert_eq!(outcome.state, ProjectState::OutOfSync);
    assert!(project.events(SyncEventKind::Drifted)[0].contains("changed by kubectl-edit at"), "who did it");
    assert_eq!(project.cluster.object(&changed).unwrap()["data"]["k"], "drift");
    project.heal = true;
    assert_eq!(project.sync(&text).await.objects.applied, 1);
    assert_eq!(project.cluster.object(&changed).unwrap()["data"]["k"], "v");
    assert!(project.events(SyncEventKind::Drifted)[0].contains("changed by kubectl-edit at"), "who did it");
    assert_eq!(project.events(SyncEventKind::Applied), ["ConfigMap default/a: changed back"]);
}

/// Test 59 of the attack list: an autoscaler's field is not in Git.
#[tokio::test(start_paused = true)]
async fn field_of_another_manager_is_left_alone() {
    let mut project = Project::new();
    let text = config_map("a", "k: v");
    project.sync(&text).await;
    let changed = id("ConfigMap", "default", "a");
    project.cluster.edit(&changed, "autoscaler", |object| object["data"]["replicas"] = "3".into());
    project.cluster.take_requests();
    assert_eq!(project.sync(&text).await.objects.unchanged, 1);
    assert_eq!(writes(&project.cluster.take_requests()), [""; 0]);
    assert_eq!(project.cluster.object(&changed).unwrap()["data"]["replicas"], "3");
}

#[tokio::test(start_paused = true)]
async fn object_that_was_replaced_before_a_write_is_not_changed() {
    let mut project = Project::new();
    project.sync(&config_map("a", "k: v")).await;
    project.cluster.set_intruder(|objects, request| {
        if request == "apply ConfigMap default/a" {
            objects.get_mut(&id("ConfigMap", "default", "a")).unwrap()["metadata"]["uid"] = "uid-new".into();
        }
    });
    let outcome = project.sync(&config_map("a", "k: w")).await;
    assert_eq!(outcome.state, ProjectState::Failed, "{outcome:?}");
    assert_eq!(project.cluster.object(&id("ConfigMap", "default", "a")).unwrap()["data"]["k"], "v");
}

/// Test 55 of the attack list: the next leader writes while this process is frozen between two requests.
#[tokio::test(start_paused = true)]
async fn write_that_arrives_after_that_of_the_next_leader_changes_nothing() {
    let mut project = Project::new();
    project.sync(&config_map("a", "k: first")).await;
    let object = id("ConfigMap", "default", "a");
    let lost = Arc::new(AtomicBool::new(false));
    let (fence, closes, changed) = (ClosesOnSignal(Arc::clone(&lost)), lost, object.clone());
    project.cluster.set_intruder(move |objects, request| {
        if request == "apply ConfigMap default/a" {
            let live = objects.get_mut(&changed).unwrap();
            live["data"]["k"] = "new".into();
            live["metadata"]["resourceVersion"] = "of the next leader".into();
            closes.store(true, SeqCst);
        }
    });
    let outcome = project.sync_with(&config_map("a", "k: old"), &fence).await;
    assert_eq!(outcome.stopped, Some(Stopped::LostLease), "{outcome:?}");
    assert_eq!(project.cluster.object(&object).unwrap()["data"]["k"], "new");
}

#[tokio::test(start_paused = true)]
async fn object_that_changes_before_a_write_is_examined_again() {
    let mut project = Project::new();
    project.sync(&config_map("a", "k: first")).await;
    let object = id("ConfigMap", "default", "a");
    let (mut times, changed) = (0, object.clone());
    project.cluster.set_intruder(move |objects, request| {
        if request == "apply ConfigMap default/a" && times < 3 {
            times += 1;
            objects.get_mut(&changed).unwrap()["metadata"]["resourceVersion"] = format!("r{times}").into();
        }
    });
    let outcome = project.sync(&config_map("a", "k: second")).await;
    assert_eq!((outcome.state, outcome.objects.applied), (ProjectState::Synced, 1), "{outcome:?}");
    assert_eq!(project.cluster.object(&object).unwrap()["data"]["k"], "second");
}

/// The worker waits longer and longer before it reverts a change that comes back.
#[tokio::test(start_paused = true)]
async fn objects_that_others_changed_or_deleted_are_counted_as_reverted() {
    let mut project = Project::new();
    let text = config_map("a", "k: v") + &config_map("b", "k: v") + &config_map("c", "k: v");
    assert_eq!(project.sync(&text).await.reverted, 0);
    let (changed, deleted) = (id("ConfigMap", "default", "a"), id("ConfigMap", "default", "b"));
    project.cluster.edit(&changed, "kubectl-edit", |object| object["data"]["k"] = "drift".into());
    project.cluster.remove(&deleted);
    let outcome = project.sync(&text).await;
    assert_eq!((outcome.reverted, outcome.objects.applied), (2, 2), "{outcome:?}");
    assert_eq!(project.events(SyncEventKind::Drifted)[1], "ConfigMap default/b: deleted by somebody else");

    // A commit is no revert, and neither is what fails meanwhile.
    assert_eq!(project.sync(&text.replace("k: v", "k: w")).await.reverted, 0);
    project.cluster.edit(&changed, "kubectl-edit", |object| object["data"]["k"] = "drift".into());
    project.cluster.edit(&deleted, "kubectl-edit", |object| object["data"]["k"] = "drift".into());
    project.cluster.set_fault(|request| {
        (request == "apply ConfigMap default/b").then(|| error(403, "Forbidden", "denied"))
    });
    let outcome = project.sync(&text.replace("k: v", "k: w")).await;
    assert_eq!((outcome.state, outcome.reverted), (ProjectState::Failed, 1), "{outcome:?}");
}

/// Test 55 of the attack list: the last write of a former leader arrives when the next one has created objects of another kind.
#[tokio::test(start_paused = true)]
async fn inventory_of_the_next_leader_is_not_replaced() {
    const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n";
    let mut project = Project::new();
    project.sync(&(config_maps(&["a"]) + secret)).await;
    project.cluster.set_intruder(|objects, request| {
        if request.starts_with(&format!("apply {PARENT}")) {
            let parent = objects.iter_mut().find(|(id, _)| id.name.starts_with("gitops-")).unwrap().1;
            parent["metadata"]["annotations"][KINDS] = "ConfigMap,Deployment.apps,Secret".into();
            parent["metadata"]["resourceVersion"] = "of the next leader".into();
        }
    });
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Synced, 1), "{outcome:?}");
    assert_eq!(
        project.cluster.parent()["metadata"]["annotations"][KINDS],
        "ConfigMap,Deployment.apps,Secret"
    );

    // A new kind is added to the inventory, although a command has just changed it.
    let mut once = true;
    project.cluster.set_intruder(move |objects, request| {
        if request.starts_with(&format!("apply {PARENT}")) && std::mem::take(&mut once) {
            let parent = objects.iter_mut().find(|(id, _)| id.name.starts_with("gitops-")).unwrap().1;
            parent["metadata"]["resourceVersion"] = "of a command".into();
        }
    });
    let outcome = project.sync(&(config_maps(&["a"]) + &namespace("shop"))).await;
    assert_eq!(outcome.state, ProjectState::Synced, "{outcome:?}");
    let kinds = project.cluster.parent()["metadata"]["annotations"][KINDS].clone();
    assert!(kinds.as_str().unwrap().contains("Namespace"), "{kinds}");
}
