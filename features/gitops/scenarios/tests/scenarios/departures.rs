//! Objects that leave Git.

use super::*;

#[tokio::test(start_paused = true)]
async fn empty_source_and_mass_deletion_need_an_approval() {
    let mut project = Project::new();
    let names: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    project.sync(&config_maps(&names)).await;
    for left in [&names[..0], &names[..5]] {
        let outcome = project.sync(&config_maps(left)).await;
        assert_eq!(outcome.state, ProjectState::Held, "{outcome:?}");
        assert!(outcome.message.contains("kas gitops approve"), "{outcome:?}");
        assert_eq!(project.cluster.ids().len(), 10);
    }
    let half = config_maps(&names[..5]);
    project.approved = project.sync(&half).await.held.map(|held| held.code);
    assert_eq!(project.sync(&config_maps(&names[..4])).await.state, ProjectState::Held, "other deletions");
    assert_eq!(project.sync(&half).await.objects.pruned, 5);
    project.approved = project.sync("").await.held.map(|held| held.code);
    assert_eq!(project.sync("").await.objects.pruned, 5);
    assert_eq!(project.cluster.ids(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn commit_without_objects_is_empty() {
    let mut project = Project::new().with("{paths: [{glob: ./deploy/*.yaml}]}");
    let no_files = SyncInput { files: Vec::new().into(), ..project.input("") };
    let outcome = project.pass(&no_files, &Open).await;
    let told = (outcome.state, &*outcome.message);
    assert_eq!(told, (ProjectState::Empty, "no file matches paths: ./deploy/*.yaml"));
    let outcome = project.sync("# nothing\n").await;
    assert_eq!((outcome.state, &*outcome.message), (ProjectState::Empty, "the files have no objects"));
}

#[tokio::test(start_paused = true)]
async fn namespace_with_objects_of_others_is_kept() {
    let mut project = Project::new().with("{prune_irreplaceable: true}");
    let text = namespace("shop") + &config_maps(&["a"]);
    project.sync(&text).await;
    let foreign = id("ConfigMap", "shop", "foreign");
    project.cluster.put(foreign.clone(), "kubectl", json!({}));
    project.cluster.put(id("ConfigMap", "shop", "kube-root-ca.crt"), "kubernetes", json!({}));
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!((outcome.objects.kept, outcome.objects.pruned), (1, 0), "{outcome:?}");
    assert!(project.events(SyncEventKind::Kept)[0].contains("ConfigMap shop/foreign"));
    // The inventory still has it, so that it is deleted once it is empty.
    let uid = project.cluster.object(&foreign).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let kind = project.engine.objects()[0].1.clone();
    kube_cluster::Cluster::delete(&project.cluster, &kind, &foreign, &uid, None, Default::default())
        .await
        .unwrap();
    assert_eq!(project.sync(&config_maps(&["a"])).await.objects.pruned, 1);
}

#[tokio::test(start_paused = true)]
async fn namespace_that_leaves_git_before_its_objects_is_kept() {
    let mut project = Project::new();
    let inside = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: shop}\n";
    project.sync(&(namespace("shop") + inside)).await;
    let outcome = project.sync(inside).await;
    assert_eq!((outcome.objects.kept, outcome.objects.pruned), (1, 0), "{outcome:?}");
    assert!(project.cluster.ids().contains(&"Namespace shop".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn object_with_a_finalizer_is_reported_and_deleted_later() {
    let mut project = Project::new().with("{prune_timeout: 10s}");
    project.sync(&config_maps(&["a", "b"])).await;
    let stuck = id("ConfigMap", "default", "b");
    project
        .cluster
        .edit(&stuck, "someone", |object| object["metadata"]["finalizers"] = json!(["example.com/wait"]));
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!(outcome.state, ProjectState::Failed);
    assert!(outcome.errors[0].message.contains("finalizers: example.com/wait"), "{outcome:?}");
    project.sync("").await;
    let parent = project.cluster.parent();
    let kinds = &parent["metadata"]["annotations"]["applyset.kubernetes.io/contains-group-kinds"];
    assert_eq!(kinds, "ConfigMap", "it is found again");
}

#[tokio::test(start_paused = true)]
async fn recreated_object_is_not_deleted() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b"])).await;
    let b = id("ConfigMap", "default", "b");
    let recreated = b.clone();
    project.cluster.set_intruder(move |objects, request| {
        if request == "delete ConfigMap default/b" {
            objects.get_mut(&recreated).unwrap()["metadata"]["uid"] = "uid-new".into();
        }
    });
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!(outcome.objects.kept, 1, "{outcome:?}");
    assert_eq!(
        project.events(SyncEventKind::Kept),
        ["ConfigMap default/b: somebody has deleted it and created it again"]
    );
    assert!(project.cluster.object(&b).is_some());
}

#[tokio::test(start_paused = true)]
async fn object_that_got_an_owner_a_moment_ago_is_not_deleted() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b"])).await;
    let mut once = true;
    project.cluster.set_intruder(move |objects, request| {
        if request == "delete ConfigMap default/b" && std::mem::take(&mut once) {
            let metadata = &mut objects.get_mut(&id("ConfigMap", "default", "b")).unwrap()["metadata"];
            metadata["ownerReferences"] = json!([{"kind": "Parent", "uid": "uid-parent"}]);
            metadata["resourceVersion"] = "changed".into();
        }
    });
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert!(project.events(SyncEventKind::Kept)[0].contains("ownerReferences"), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn namespace_with_the_object_of_a_cluster_scoped_owner_is_kept() {
    let mut project = Project::new();
    project.sync(&(namespace("shop") + &config_maps(&["a"]))).await;
    let owned = json!({"metadata": {"ownerReferences": [{"kind": "Tenant", "uid": "uid-of-a-tenant"}]}});
    project.cluster.put(id("ConfigMap", "shop", "of-a-tenant"), "tenant-operator", owned);
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!(outcome.objects.kept, 1, "{outcome:?}");
    assert!(project.cluster.ids().contains(&"Namespace shop".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn object_in_the_namespace_of_agentk_is_deleted_by_the_next_process() {
    let inside = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: agentk}\n";
    let cluster = FakeCluster::new();
    let mut project = Project::of(cluster.clone());
    project.sync(&(config_maps(&["b"]) + inside)).await;
    let secret = id("Secret", "agentk", "a");
    assert!(cluster.object(&secret).is_some());
    let outcome = Project::of(cluster.clone()).sync(&config_maps(&["b"])).await;
    assert_eq!((outcome.objects.pruned, cluster.object(&secret)), (1, None), "{outcome:?}");
}

/// The object may be taken over, but it is not the project's yet.
#[tokio::test(start_paused = true)]
async fn object_of_nobody_is_not_deleted_to_be_created_again() {
    let cluster = FakeCluster::new();
    let existing = id("ConfigMap", "default", "a");
    cluster.put(existing.clone(), "kubectl", json!({"spec": {"immutable": 1}}));
    let mut project = Project::of(cluster).with("{inventory_policy: adopt_if_no_inventory}");
    let manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, annotations: {agentk/recreate: 'true'}}\nspec: {immutable: 2}\n";
    let outcome = project.sync(manifest).await;
    assert!(outcome.errors[0].message.contains("only an object of this project"), "{outcome:?}");
    assert!(project.cluster.object(&existing).is_some());
}

#[tokio::test(start_paused = true)]
async fn definition_with_objects_needs_an_approval_and_stays_with_those_of_others() {
    let definition = "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: toys.example.com}\n\
                      spec: {group: example.com, names: {kind: Toy, plural: toys}, scope: Namespaced}\n";
    let mut project = Project::new();
    project.sync(&(config_maps(&["a"]) + definition + &toy("t"))).await;
    let theirs = ObjectId { group: "example.com".to_owned(), ..id("Toy", "default", "theirs") };
    project.cluster.put(theirs.clone(), "kubectl", json!({}));
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!((outcome.state, outcome.objects.kept), (ProjectState::Synced, 1), "{outcome:?}");
    assert!(
        project.events(SyncEventKind::Kept)[0]
            .contains("has an object of others: Toy.example.com default/theirs")
    );

    let mut project = Project::new();
    project.sync(&(config_maps(&["a"]) + definition + &toy("t"))).await;
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!(outcome.state, ProjectState::Held, "{outcome:?}");
    assert!(outcome.message.contains("all objects of its kind, 1 object now"), "{outcome:?}");
    project.approved = outcome.held.map(|held| held.code);
    assert_eq!(project.sync(&config_maps(&["a"])).await.objects.pruned, 2);
    assert_eq!(project.cluster.ids(), ["ConfigMap default/a"]);

    // Without objects, Git can bring it back.
    let mut project = Project::new();
    project.sync(&(config_maps(&["a"]) + definition)).await;
    assert_eq!(project.sync(&config_maps(&["a"])).await.objects.pruned, 1);
}

/// A change of an immutable field together with another error: the object must not be deleted for a new one that is refused.
#[tokio::test(start_paused = true)]
async fn object_that_could_not_be_created_is_not_deleted() {
    let object = |value: u8| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, annotations: {{agentk/recreate: 'true'}}}}\nspec: {{immutable: {value}}}\n"
        )
    };
    let mut project = Project::new();
    project.sync(&object(1)).await;
    let before = project.cluster.object(&id("ConfigMap", "default", "a"));
    project.cluster.take_requests();
    project.cluster.set_fault(|request| {
        request.starts_with("try-create").then(|| error(422, "Invalid", "spec.immutable: must be odd"))
    });
    let outcome = project.sync(&object(2)).await;
    assert!(outcome.errors[0].message.contains("must be odd"), "{outcome:?}");
    assert_eq!(writes(&project.cluster.take_requests()), [""; 0]);
    assert_eq!(project.cluster.object(&id("ConfigMap", "default", "a")), before);

    // One of two causes is not about immutability.
    project.cluster.set_fault(|request| {
        let cause = |message: &str| Cause { field: "spec".to_owned(), message: message.to_owned() };
        let causes = vec![cause("field is immutable"), cause("Invalid value: 2: must be odd")];
        let error = error(422, "Invalid", "ConfigMap is invalid: field is immutable, must be odd");
        request.starts_with("try ").then_some(kube_cluster::ApiError { causes, ..error })
    });
    let outcome = project.sync(&object(2)).await;
    assert!(outcome.errors[0].message.contains("must be odd"), "{outcome:?}");
    assert_eq!(writes(&project.cluster.take_requests()), [""; 0]);
}

/// The inventory is written before the first object: what a process creates before it is killed is found, also if Git has changed
/// meanwhile.
#[tokio::test(start_paused = true)]
async fn objects_of_a_killed_sync_leave_with_their_commit() {
    let before = config_maps(&["a"]);
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop}\n";
    let after = before.clone() + &namespace("shop") + secret;
    for steps in 1.. {
        let mut project = Project::new();
        project.sync(&before).await;
        let outcome = project.sync_with(&after, &ClosesAfter(AtomicUsize::new(steps))).await;
        // Another process, after a revert in Git.
        let mut next = Project::of(project.cluster.clone()).with("{prune_irreplaceable: true}");
        assert_eq!(next.sync(&before).await.state, ProjectState::Synced, "after {steps} steps");
        assert_eq!(next.cluster.ids(), ["ConfigMap default/a"], "after {steps} steps");
        if outcome.stopped.is_none() {
            assert!(steps > 8, "the sync was stopped at {steps} places");
            break;
        }
    }
}
