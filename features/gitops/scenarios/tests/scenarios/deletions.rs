//! Sequences that have deleted, orphaned or overwritten something that nobody had approved.

use super::*;
use gitops_engine::Recovery;

const LABEL: &str = "applyset.kubernetes.io/part-of";

fn numbered(range: std::ops::Range<usize>) -> String {
    range.map(|n| config_map(&format!("c{n}"), "a: b")).collect()
}

fn claim(name: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec: {{volumeName: pv-1}}\n"
    )
}

/// Returns the ConfigMaps of the inventory: the parent and the record.
fn inventories(cluster: &FakeCluster) -> (ObjectId, ObjectId) {
    let ids: Vec<ObjectId> =
        cluster.objects().into_keys().filter(|id| id.name.starts_with("gitops-")).collect();
    let record = ids.iter().find(|id| id.name.ends_with("-members")).expect("a record").clone();
    let parent = ids.into_iter().find(|id| *id != record).expect("a parent");
    (parent, record)
}

fn copy_label(project: &Project) -> serde_json::Value {
    project.cluster.objects().into_iter().find(|(id, _)| id.namespace == "default").unwrap().1["metadata"]["labels"]
        [LABEL]
        .clone()
}

#[tokio::test(start_paused = true)]
async fn held_deletion_stays_held_through_looks_restarts_drift_and_commits() {
    let mut project = Project::new();
    project.sync(&numbered(0..10)).await;
    let next = numbered(10..50);
    let outcome = project.sync(&next).await;
    assert_eq!((outcome.state, outcome.objects.applied), (ProjectState::Held, 40), "{outcome:?}");
    let held = outcome.held.unwrap();

    assert_eq!(project.sync(&next).await.held.as_ref(), Some(&held), "the next look");
    let drifted = id("ConfigMap", "default", "c20");
    project.cluster.edit(&drifted, "kubectl-edit", |object| object["data"]["a"] = "drift".into());
    let outcome = project.sync(&next).await;
    assert_eq!((outcome.held.as_ref(), outcome.reverted), (Some(&held), 1), "drift is healed meanwhile");
    let mut restarted = Project::of(project.cluster.clone());
    assert_eq!(restarted.sync(&next).await.held.as_ref(), Some(&held), "a restart");
    let more = restarted.sync(&numbered(10..60)).await;
    assert_eq!(more.held.as_ref(), Some(&held), "another commit");

    // Without the right to prune for a while, the plan is the same afterwards.
    restarted = restarted.with("{prune: false}");
    assert_eq!(restarted.sync(&numbered(10..60)).await.state, ProjectState::Synced);
    restarted = restarted.with("{}");
    assert_eq!(restarted.sync(&numbered(10..60)).await.held.unwrap().count, 10);
    assert_eq!(restarted.cluster.ids().len(), 60);
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_deleted_dilute_no_deletion() {
    let kept = |n: usize| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: k{n}, annotations: {{config.kubernetes.io/lifecycle: detach}}}}\n"
        )
    };
    let kept: String = (0..80).map(kept).collect();
    let mut project = Project::new();
    project.sync(&(kept.clone() + &numbered(0..20))).await;
    let outcome = project.sync(&(kept + &numbered(0..1))).await;
    assert_eq!(outcome.state, ProjectState::Held, "{outcome:?}");
    assert!(outcome.message.contains("19 of 20 objects"), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn small_commits_are_one_deletion() {
    let mut project = Project::new();
    project.sync(&numbered(0..10)).await;
    assert_eq!(project.sync(&numbered(0..7)).await.objects.pruned, 3);
    for left in [4, 1] {
        assert_eq!(project.sync(&numbered(0..left)).await.state, ProjectState::Held, "{left} are left");
    }
    assert_eq!(project.cluster.ids().len(), 7);
    sleep(HOUR).await;
    assert_eq!(project.sync(&numbered(0..4)).await.state, ProjectState::Held, "it is still the same plan");
    project.sync(&numbered(0..7)).await;
    assert_eq!(project.sync(&numbered(0..4)).await.objects.pruned, 3, "the hour is over");
}

#[tokio::test(start_paused = true)]
async fn volume_claim_needs_an_approval() {
    let mut project = Project::new();
    project.sync(&(config_maps(&["a"]) + &claim("data"))).await;
    // The namespace of all objects changes.
    project.cluster.put(id("Namespace", "", "shop"), "kubectl", json!({}));
    project = project.with("{default_namespace: shop}");
    let outcome = project.sync(&(config_maps(&["a"]) + &claim("data"))).await;
    assert_eq!(outcome.state, ProjectState::Held, "{outcome:?}");
    let takes = |outcome: &Outcome| {
        let held = outcome.held.as_ref().unwrap();
        held.objects.iter().map(|held| held.takes.clone()).collect::<String>()
    };
    assert_eq!(takes(&outcome), "the data of its volume pv-1");
    assert!(project.cluster.object(&id("PersistentVolumeClaim", "default", "data")).is_some());

    let set = "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db}\nspec: {volumeClaimTemplates: [{metadata: {name: data}}]}\n";
    let mut project = Project::new();
    project.sync(&(config_maps(&["a", "b"]) + set)).await;
    project.cluster.put(id("PersistentVolumeClaim", "default", "data-db-0"), "kubernetes", json!({}));
    project.cluster.put(id("PersistentVolumeClaim", "default", "data-db-other"), "kubernetes", json!({}));
    let outcome = project.sync(&config_maps(&["a", "b"])).await;
    assert_eq!(takes(&outcome), "its volume claim data-db-0");
    project = project.with("{prune_irreplaceable: true}");
    assert_eq!(project.sync(&config_maps(&["a", "b"])).await.state, ProjectState::Held, "it is held already");
}

/// A new object would cost the claims of the old one.
#[tokio::test(start_paused = true)]
async fn object_with_volume_claims_is_not_deleted_to_be_created_again() {
    let set = |value: u8, allow: &str| {
        format!(
            "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: db, annotations: {{agentk/recreate: 'true'{allow}}}}}\n\
             spec: {{immutable: {value}, volumeClaimTemplates: [{{metadata: {{name: data}}}}]}}\n"
        )
    };
    let map = |value: u8| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: owner, annotations: {{agentk/recreate: 'true'}}}}\nspec: {{immutable: {value}}}\n"
        )
    };
    let mut project = Project::new();
    project.sync(&(set(1, "") + &map(1))).await;
    let uid = |project: &Project, kind: &str| {
        let objects = project.cluster.objects();
        let found =
            objects.iter().find(|(id, _)| id.kind == kind && id.namespace == "default").unwrap().1.clone();
        found["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    assert_eq!(project.sync(&(set(2, "") + &map(1))).await.state, ProjectState::Synced, "it has no claim");
    project.cluster.put(id("PersistentVolumeClaim", "default", "data-db-0"), "kubernetes", json!({}));
    let owner = json!([{"kind": "ConfigMap", "name": "owner", "uid": uid(&project, "ConfigMap")}]);
    let owned = json!({"metadata": {"ownerReferences": owner}});
    project.cluster.put(id("PersistentVolumeClaim", "default", "owned"), "kubernetes", owned);
    let before = uid(&project, "StatefulSet");
    let outcome = project.sync(&(set(3, "") + &map(2))).await;
    let messages: Vec<_> = outcome.errors.iter().map(|error| &*error.message).collect();
    assert!(messages.iter().any(|message| message.contains("its volume claim data-db-0")), "{outcome:?}");
    assert!(messages.iter().any(|message| message.contains("the volume claim owned")), "{outcome:?}");
    assert_eq!(uid(&project, "StatefulSet"), before);
    let outcome = project.sync(&(set(3, ", agentk/prune: allow") + &map(1))).await;
    assert_eq!(outcome.state, ProjectState::Synced, "Git allows it: {outcome:?}");

    // An ordinary object that owns a claim needs an approval, too.
    let outcome = project.sync(&set(3, "")).await;
    assert!(outcome.message.contains("the volume claim owned, which it owns"), "{outcome:?}");
}

fn queue(name: &str) -> String {
    format!("---\napiVersion: example.com/v1\nkind: Queue\nmetadata: {{name: {name}}}\n")
}

/// The object of an operator may own volume claims that nobody lets agentk list.
#[tokio::test(start_paused = true)]
async fn object_whose_volume_claims_cannot_be_listed_needs_an_approval() {
    for namespaced in [true, false] {
        let mut project = Project::new();
        project.cluster.add_kind("example.com", "v1", "Queue", "queues", namespaced);
        let rest = config_maps(&["a", "b", "c"]);
        project.sync(&(rest.clone() + &queue("orders") + &config_map("d", "a: b"))).await;
        project.cluster.set_fault(|request| {
            let is_of_claims = request.starts_with("list PersistentVolumeClaim");
            is_of_claims.then(|| error(403, "Forbidden", "no right to list"))
        });
        let outcome = project.sync(&(rest.clone() + &queue("orders"))).await;
        assert_eq!(
            (outcome.state, outcome.objects.pruned),
            (ProjectState::Synced, 1),
            "a ConfigMap owns none"
        );
        let outcome = project.sync(&rest).await;
        assert_eq!(outcome.state, ProjectState::Held, "{outcome:?}");
        assert!(outcome.message.contains("volume claims that it may own"), "{outcome:?}");

        project.cluster.clear_fault();
        let owner = project.cluster.objects().into_iter().find(|(id, _)| id.kind == "Queue").unwrap().1;
        let owner = json!([{"kind": "Queue", "name": "orders", "uid": owner["metadata"]["uid"]}]);
        let owned = json!({"metadata": {"ownerReferences": owner}});
        project.cluster.put(id("PersistentVolumeClaim", "elsewhere", "data"), "operator", owned);
        let outcome = project.sync(&rest).await;
        let is_seen = outcome.message.contains("the volume claim data, which it owns");
        assert_eq!(is_seen, !namespaced, "only a cluster-scoped object owns a claim in another namespace");
    }
}

/// An approval is for the volume claims that were shown, also if the deletion waits for days.
#[tokio::test(start_paused = true)]
async fn approval_ends_when_the_deletion_would_take_more() {
    let set = "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db}\nspec: {volumeClaimTemplates: [{metadata: {name: data}}]}\n";
    let mut project = Project::new();
    let rest = config_maps(&["a", "b", "c"]);
    project.sync(&(rest.clone() + set)).await;
    let volume = |project: &Project, name: &str| {
        project.cluster.put(id("PersistentVolumeClaim", "default", name), "kubernetes", json!({}));
    };
    volume(&project, "data-db-0");
    let held = project.sync(&rest).await.held.unwrap();
    assert_eq!(held.objects[0].takes, "its volume claim data-db-0");
    // The approval is recorded, and the deletion fails.
    project.approved = Some(held.code);
    project.cluster.set_fault(|request| {
        request.starts_with("delete StatefulSet").then(|| error(403, "Forbidden", "no right to delete"))
    });
    assert_eq!(project.sync(&rest).await.state, ProjectState::Failed);
    project.cluster.clear_fault();
    project.approved = None;
    volume(&project, "data-db-1");
    let outcome = project.sync(&rest).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Held, 0), "{outcome:?}");
    assert!(outcome.held.unwrap().objects[0].takes.contains("its 2 volume claims"));
}

/// An object whose owner keeps it after the approval is not deleted when the annotation goes, perhaps months later.
#[tokio::test(start_paused = true)]
async fn approval_ends_when_the_owner_keeps_the_object() {
    let mut project = Project::new();
    project.sync(&numbered(0..10)).await;
    let held = project.sync(&numbered(0..5)).await.held.unwrap();
    project.approved = Some(held.code);
    project.cluster.set_fault(|request| {
        request.starts_with("delete ConfigMap").then(|| error(403, "Forbidden", "no right to delete"))
    });
    project.sync(&numbered(0..5)).await;
    project.cluster.clear_fault();
    project.approved = None;
    let keep = |project: &Project, value: serde_json::Value| {
        for n in 5..10 {
            let object = id("ConfigMap", "default", &format!("c{n}"));
            project.cluster.edit(&object, "kubectl", |object| {
                object["metadata"]["annotations"]["helm.sh/resource-policy"] = value.clone();
            });
        }
    };
    keep(&project, json!("keep"));
    assert_eq!(project.sync(&numbered(0..5)).await.state, ProjectState::Synced);
    keep(&project, json!("none"));
    let outcome = project.sync(&numbered(0..5)).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Held, 0), "{outcome:?}");
}

/// A person sees first what is lost for good, wherever it is in the order of the deletion.
#[tokio::test(start_paused = true)]
async fn plan_shows_first_what_git_cannot_bring_back() {
    let mut project = Project::new();
    let claims: String = (0..30).map(|n| claim(&format!("data-{n}"))).collect();
    project.sync(&(numbered(0..50) + &claims)).await;
    let held = project.sync(&numbered(0..1)).await.held.unwrap();
    assert_eq!(held.count, 79);
    assert_eq!(held.objects.iter().filter(|held| held.object.kind == "PersistentVolumeClaim").count(), 30);
    assert!(held.reason.contains("and 29 more need an approval"), "{}", held.reason);
}

/// An object that its owner keeps was once in a plan. It does not hold what leaves Git months later.
#[tokio::test(start_paused = true)]
async fn kept_object_holds_no_others() {
    let mut project = Project::new();
    project.sync(&numbered(0..20)).await;
    project.sync(&numbered(10..20)).await.held.unwrap();
    let kept = id("ConfigMap", "default", "c0");
    project.cluster.edit(&kept, "kubectl", |object| {
        object["metadata"]["annotations"]["helm.sh/resource-policy"] = "keep".into();
    });
    project.approved = project.sync(&numbered(10..20)).await.held.map(|held| held.code);
    assert_eq!(project.sync(&numbered(10..20)).await.objects.pruned, 9);
    project.approved = None;
    let outcome = project.sync(&numbered(11..20)).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Synced, 1), "{outcome:?}");
}

/// The objects of a definition go with it, also if it leaves Git together with them.
#[tokio::test(start_paused = true)]
async fn objects_of_a_deleted_definition_are_gone() {
    let definition = "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: queues.example.com}\n\
                      spec: {group: example.com, scope: Namespaced, names: {kind: Queue, plural: queues}, versions: [{name: v1}]}\n";
    let mut project = Project::new().with("{prune_irreplaceable: true, max_prune: 9}");
    let rest = config_maps(&["a", "b"]);
    project.cluster.add_kind("example.com", "v1", "Queue", "queues", true);
    project.sync(&(rest.clone() + definition + &queue("orders"))).await;
    // The definition is deleted, and an API server that starts does not list its kinds yet.
    project.cluster.remove_kind("example.com", "Queue");
    let outcome = project.sync(&(rest.clone() + definition)).await;
    assert_eq!(outcome.kept.len(), 1, "the definition is there: {outcome:?}");
    for (group, object) in [
        ("apiextensions.k8s.io", id("CustomResourceDefinition", "", "queues.example.com")),
        ("example.com", id("Queue", "default", "orders")),
    ] {
        project.cluster.remove(&ObjectId { group: group.to_owned(), ..object });
    }
    let outcome = project.sync(&rest).await;
    assert_eq!((outcome.state, outcome.kept, outcome.errors), (ProjectState::Synced, vec![], vec![]));
}

/// A sync that only reports does not say that the cluster is as in Git while it leaves an object that left Git.
#[tokio::test(start_paused = true)]
async fn report_names_what_would_be_deleted() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b", "c"])).await;
    let input = SyncInput { heal: false, ..project.input(&config_maps(&["a", "b"])) };
    let outcome = project.pass(&input, &Open).await;
    assert_eq!(outcome.state, ProjectState::OutOfSync, "{outcome:?}");
    assert!(outcome.message.contains("1 object that left Git would be deleted"), "{outcome:?}");
}

/// The text that a person approves is that of the moment.
#[tokio::test(start_paused = true)]
async fn approval_of_an_outdated_text_is_none() {
    let mut project = Project::new();
    let rest = config_maps(&["a", "b"]);
    project.sync(&(rest.clone() + &namespace("shop"))).await;
    let held = project.sync(&rest).await.held.unwrap();
    assert!(held.objects[0].takes.contains("which is empty now"), "{held:?}");
    let inside =
        "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: shop}\n";
    project.sync(&(rest.clone() + &namespace("shop") + inside)).await;
    let first = project.sync(&rest).await.held.unwrap();
    assert!(first.objects.iter().any(|held| held.takes.contains("1 object now")), "{first:?}");

    // Somebody else uses the namespace after it was shown.
    project.cluster.put(id("ConfigMap", "shop", "theirs"), "kubectl", json!({}));
    project.approved = Some(first.code);
    let outcome = project.sync(&rest).await;
    assert!(project.cluster.object(&id("Namespace", "", "shop")).is_some(), "{outcome:?}");
    assert!(outcome.kept.iter().any(|kept| kept.message.contains("has an object of others")), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn namespace_with_a_copy_or_a_namesake_of_a_record_is_kept() {
    let group = |id: ObjectId, group: &str| ObjectId { group: group.to_owned(), ..id };
    let token = json!({"metadata": {"annotations": {"kubernetes.io/service-account.name": "builder"}}});
    for (foreign, object) in [
        (id("ConfigMap", "shop", "copy"), json!({"metadata": {"labels": {LABEL: "of the project"}}})),
        (group(id("Lease", "shop", "theirs"), "example.com"), json!({})),
        (id("Secret", "shop", "default-token-of-somebody"), json!({})),
        (id("Secret", "shop", "default-token-x"), token),
    ] {
        let mut project = Project::new().with("{prune_irreplaceable: true}");
        project.cluster.add_kind("example.com", "v1", "Lease", "leases", true);
        project.sync(&(config_maps(&["a", "b"]) + &namespace("shop"))).await;
        let mut object = object;
        if let Some(label) = object.pointer_mut("/metadata/labels/applyset.kubernetes.io~1part-of") {
            *label = copy_label(&project);
        }
        project.cluster.put(foreign.clone(), "kubectl", object);
        let outcome = project.sync(&config_maps(&["a", "b"])).await;
        assert_eq!((outcome.objects.kept, outcome.objects.pruned), (1, 0), "{foreign}: {outcome:?}");
        assert!(project.events(SyncEventKind::Kept)[0].contains(&foreign.to_string()), "{foreign}");
        assert!(project.cluster.object(&foreign).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn annotations_of_helm_and_argo_cd_keep_an_object() {
    let annotated = |name: &str, key: &str, value: &str| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, annotations: {{{key}: {value}}}}}\n"
        )
    };
    let mut project = Project::new();
    let rest = config_maps(&["a", "b"]);
    project.sync(&(rest.clone() + &annotated("kept", "helm.sh/resource-policy", "keep"))).await;
    assert_eq!(project.sync(&rest).await.objects.kept, 1);
    let confirm = annotated("confirm", "argocd.argoproj.io/sync-options", "Prune=confirm");
    project.sync(&(rest.clone() + &confirm)).await;
    let outcome = project.sync(&rest).await;
    assert_eq!((outcome.state, outcome.held.unwrap().count), (ProjectState::Held, 1));
}

#[tokio::test(start_paused = true)]
async fn object_without_its_label_belongs_to_its_project() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b", "c"])).await;
    let remove_label = |name: &str| {
        project.cluster.edit(&id("ConfigMap", "default", name), "kubectl-label", |object| {
            object["metadata"]["labels"].as_object_mut().unwrap().remove(LABEL);
        });
    };
    remove_label("a");
    remove_label("b");
    let mut project = Project::of(project.cluster.clone());
    let outcome = project.sync(&config_maps(&["a", "c"])).await;
    assert_eq!((outcome.state, outcome.objects.applied), (ProjectState::Synced, 1), "{outcome:?}");
    assert_eq!(outcome.objects.pruned, 1, "the other one left Git: {outcome:?}");
    let label =
        &project.cluster.object(&id("ConfigMap", "default", "a")).unwrap()["metadata"]["labels"][LABEL];
    assert!(label.is_string(), "the label is back");
}

#[tokio::test(start_paused = true)]
async fn lost_inventory_is_not_an_empty_one() {
    type Loss = fn(&FakeCluster, &ObjectId, &ObjectId);
    let losses: [(&str, Loss); 6] = [
        ("the parent is deleted", |cluster, parent, _| cluster.remove(parent)),
        ("the record is deleted", |cluster, _, record| cluster.remove(record)),
        ("both are deleted", |cluster, parent, record| {
            cluster.remove(parent);
            cluster.remove(record);
        }),
        ("the parent comes from a backup", |cluster, parent, _| {
            let object = cluster.object(parent).unwrap();
            cluster.remove(parent);
            cluster.put(parent.clone(), "velero", object);
        }),
        ("the record is broken", |cluster, _, record| {
            cluster.edit(record, "kubectl", |object| object["binaryData"]["inventory.json.gz"] = "?".into());
        }),
        ("the generation is newer", |cluster, parent, _| {
            cluster.edit(parent, "kubectl", |object| {
                object["metadata"]["annotations"]["agentk/generation"] = "99".into();
            });
        }),
    ];
    for (what, lose) in losses {
        for restarts in [false, true] {
            let mut project = Project::new();
            let text = config_maps(&["a", "b"]);
            project.sync(&(text.clone() + &config_map("left", "a: b"))).await;
            let patched = id("ConfigMap", "default", "a");
            project.cluster.edit(&patched, "kubectl-edit", |object| object["data"]["a"] = "emergency".into());
            let (parent, record) = inventories(&project.cluster);
            lose(&project.cluster, &parent, &record);
            if restarts {
                project = Project::of(project.cluster.clone());
            }
            project.cluster.take_requests();
            let outcome = project.sync(&text).await;
            assert_eq!(outcome.state, ProjectState::InventoryLost, "{what}, {restarts}: {outcome:?}");
            assert_eq!(writes(&project.cluster.take_requests()), [""; 0], "{what}, {restarts}");

            let input = project.input(&text);
            let planned = project.engine.recover(&input, None, &Open).await.unwrap();
            let Recovery::Planned(plan) = planned else { panic!("{planned:?}") };
            assert_eq!((plan.count, plan.left, &*plan.objects[0].name), (3, 1, "left"), "{what}, {restarts}");
            let other = project.engine.recover(&input, Some("0123"), &Open).await.unwrap();
            assert!(matches!(other, Recovery::Planned(_)), "{what}: nobody has approved it");
            let done = project.engine.recover(&input, Some(&plan.code), &Open).await.unwrap();
            assert!(matches!(done, Recovery::Done { .. }), "{what}, {restarts}: {done:?}");
            let outcome = project.sync(&text).await;
            assert_eq!(
                (outcome.state, outcome.reverted + outcome.objects.applied > 0),
                (ProjectState::Held, true),
                "{what}"
            );
            assert!(project.cluster.ids().contains(&"ConfigMap default/left".to_owned()), "{what}");
            project.approved = outcome.held.map(|held| held.code);
            assert_eq!(project.sync(&text).await.objects.pruned, 1, "{what}");
        }
    }
}

/// A project that may read objects and not list them notices that its inventory is lost, and its first sync needs none.
#[tokio::test(start_paused = true)]
async fn inventory_that_is_lost_is_noticed_without_the_right_to_list() {
    let mut project = Project::new();
    let text = config_maps(&["a", "b"]);
    project.cluster.set_fault(|request| {
        request.starts_with("list ").then(|| error(403, "Forbidden", "no right to list"))
    });
    assert_eq!(project.sync(&text).await.objects.applied, 2);
    let (parent, record) = inventories(&project.cluster);
    project.cluster.remove(&parent);
    project.cluster.remove(&record);
    let mut project = Project::of(project.cluster.clone());
    project.cluster.take_requests();
    let outcome = project.sync(&text).await;
    assert_eq!(outcome.state, ProjectState::InventoryLost, "{outcome:?}");
    assert_eq!(writes(&project.cluster.take_requests()), [""; 0]);

    // Nor is anything written while nothing can be read.
    project.cluster.set_fault(|request| {
        let is_own = request.contains("gitops-");
        (!is_own && !request.starts_with("try ")).then(|| error(403, "Forbidden", "no right to read"))
    });
    let outcome = project.sync(&text).await;
    assert_eq!((outcome.state, outcome.errors.len()), (ProjectState::Failed, 2), "{outcome:?}");
    assert!(outcome.errors[0].message.contains("no right to read"), "{outcome:?}");
    assert_eq!(writes(&project.cluster.take_requests()), [""; 0]);
}

/// An older agentk has kept no record: its members are those with the label.
#[tokio::test(start_paused = true)]
async fn members_of_an_older_agentk_are_those_with_the_label() {
    let mut project = Project::new();
    project.sync(&numbered(0..10)).await;
    let (parent, record) = inventories(&project.cluster);
    project.cluster.remove(&record);
    project.cluster.edit(&parent, "kubectl", |object| {
        object["metadata"]["annotations"].as_object_mut().unwrap().remove("agentk/generation");
    });
    let mut next = Project::of(project.cluster.clone());
    let outcome = next.sync(&(numbered(0..5) + &config_maps(&["p", "q", "r"]))).await;
    assert_eq!(outcome.state, ProjectState::Held, "{outcome:?}");
    assert!(outcome.message.contains("5 of 10 objects"), "{outcome:?}");
    let outcome = next.sync(&numbered(0..10)).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Synced, 3), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn suspension_survives_the_loss_of_the_parent() {
    let mut project = Project::new();
    let text = config_maps(&["a"]);
    project.sync(&text).await;
    let input = project.input(&text);
    project.engine.note_suspension(&input, true, &Open).await.unwrap();
    let (parent, record) = inventories(&project.cluster);
    project.cluster.remove(&parent);
    let recover = async |project: &mut Project| {
        let Ok(Recovery::Planned(plan)) = project.engine.recover(&input, None, &Open).await else { panic!() };
        project.engine.recover(&input, Some(&plan.code), &Open).await.unwrap()
    };
    assert_eq!(recover(&mut project).await, Recovery::Done { suspended: Some(true) });
    let (parent, _) = inventories(&project.cluster);
    project.cluster.remove(&parent);
    project.cluster.remove(&record);
    assert_eq!(recover(&mut project).await, Recovery::Done { suspended: None }, "nobody knows");
}

/// A restored etcd has the inventory and the objects of the same moment.
#[tokio::test(start_paused = true)]
async fn inventory_of_an_older_moment_heals_with_its_objects() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b"])).await;
    let before = project.cluster.objects();
    project.sync(&config_maps(&["a", "b", "c"])).await;
    project.cluster.restore(before);
    let mut next = Project::of(project.cluster.clone());
    assert_eq!(next.sync(&config_maps(&["a", "b", "c"])).await.state, ProjectState::Synced);
}

#[tokio::test(start_paused = true)]
async fn finalizer_blocks_neither_drift_nor_the_next_commit() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b", "c"])).await;
    let stuck = id("ConfigMap", "default", "c");
    project
        .cluster
        .edit(&stuck, "kubectl", |object| object["metadata"]["finalizers"] = json!(["example.com/x"]));
    let text = config_maps(&["a", "b"]);
    let started = Instant::now();
    let outcome = project.pass(&project.input(&text), &Open).await;
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Syncing, 1), "{outcome:?}");
    assert_eq!(outcome.waiting[0].object, stuck);
    assert!(outcome.message.contains("finalizers: example.com/x"), "{outcome:?}");
    assert!(!project.engine.is_ready().await);

    let drifted = id("ConfigMap", "default", "a");
    project.cluster.edit(&drifted, "kubectl-edit", |object| object["data"]["a"] = "drift".into());
    let next = text.clone() + &config_map("d", "a: b");
    let input = SyncInput { waiting: outcome.waiting, ..project.input(&next) };
    let outcome = project.pass(&input, &Open).await;
    assert_eq!((outcome.state, outcome.objects.applied), (ProjectState::Syncing, 2), "{outcome:?}");
    assert_eq!(project.cluster.object(&drifted).unwrap()["data"]["a"], "b");

    sleep(HOUR).await;
    let late = SyncInput { waiting: outcome.waiting, now: project.now() + 1, ..input };
    let outcome = project.pass(&late, &Open).await;
    assert_eq!(outcome.state, ProjectState::Failed, "{outcome:?}");
    assert!(outcome.message.contains("1 object failed"), "{outcome:?}");
    assert!(outcome.errors[0].message.contains("not gone within prune_timeout"), "{outcome:?}");

    project.cluster.remove_finalizers(&stuck);
    assert!(project.engine.is_ready().await);
    let outcome = project.pass(&SyncInput { waiting: outcome.waiting, ..late }, &Open).await;
    assert_eq!(outcome.state, ProjectState::Synced, "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn object_that_is_being_deleted_is_not_synced() {
    let mut project = Project::new();
    let text = config_maps(&["a", "b"]);
    project.sync(&text).await;
    let dying = id("ConfigMap", "default", "a");
    project
        .cluster
        .edit(&dying, "kubectl", |object| object["metadata"]["finalizers"] = json!(["example.com/x"]));
    let uid = project.cluster.object(&dying).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let kind = project.engine.objects()[0].1.clone();
    kube_cluster::Cluster::delete(&project.cluster, &kind, &dying, &uid, None, Default::default())
        .await
        .unwrap();
    let outcome = project.pass(&project.input(&text), &Open).await;
    assert_eq!(outcome.state, ProjectState::Syncing, "{outcome:?}");
    assert!(outcome.waiting[0].reason.contains("it is being deleted"), "{outcome:?}");
    project.cluster.remove_finalizers(&dying);
    assert_eq!(project.sync(&text).await.state, ProjectState::Synced);
    assert_ne!(project.cluster.object(&dying).unwrap()["metadata"]["uid"], uid, "it was created again");
}

#[tokio::test(start_paused = true)]
async fn approved_deletion_that_was_interrupted_goes_on() {
    for steps in (20..200).step_by(7) {
        let mut project = Project::new();
        project.sync(&numbered(0..60)).await;
        let text = numbered(50..60);
        let code = project.sync(&text).await.held.unwrap().code;
        project.approved = Some(code.clone());
        project.sync_with(&text, &ClosesAfter(AtomicUsize::new(steps))).await;
        // Another process, before anybody has removed the approval.
        let mut next = Project::of(project.cluster.clone());
        next.approved = Some(code);
        let outcome = next.sync(&text).await;
        assert_eq!(outcome.state, ProjectState::Synced, "after {steps} steps: {outcome:?}");
        assert_eq!(next.cluster.ids().len(), 10, "after {steps} steps");
    }
}

#[tokio::test(start_paused = true)]
async fn adoption_leaves_objects_of_other_programs_alone() {
    for (metadata, owner) in [
        (json!({"annotations": {"meta.helm.sh/release-name": "shop"}}), "the Helm release shop"),
        (json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}), "the Kustomization of Flux apps"),
        (
            json!({"annotations": {"argocd.argoproj.io/tracking-id": "shop:x"}}),
            "the application of Argo CD shop:x",
        ),
        (
            json!({"ownerReferences": [{"kind": "Deployment", "name": "web", "uid": "u"}]}),
            "Deployment web (ownerReferences)",
        ),
    ] {
        let cluster = FakeCluster::new();
        cluster.put(id("ConfigMap", "default", "a"), "somebody", json!({"metadata": metadata}));
        let mut project = Project::of(cluster).with("{inventory_policy: adopt_if_no_inventory}");
        let outcome = project.sync(&config_maps(&["a"])).await;
        assert_eq!(outcome.state, ProjectState::Failed, "{outcome:?}");
        assert!(outcome.errors[0].message.contains(owner), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_the_project_may_not_have_any_more_stays() {
    let mut project = Project::new();
    project.cluster.put(id("Namespace", "", "shop"), "kubectl", json!({}));
    let inside = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: shop}\n";
    project.sync(&(config_maps(&["a", "b"]) + inside)).await;
    project = project.with("{namespaces: [default]}");
    let outcome = project.sync(&config_maps(&["a", "b"])).await;
    assert_eq!((outcome.objects.pruned, outcome.objects.kept), (0, 1), "{outcome:?}");
    assert!(project.events(SyncEventKind::Kept)[0].contains("may not have such objects any more"));
}
