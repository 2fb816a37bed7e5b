//! Kinds that cannot be listed, and API groups that are down.

use super::*;

#[tokio::test(start_paused = true)]
async fn kind_that_cannot_be_listed_is_not_deleted_and_hinders_nothing() {
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n";
    let mut project = Project::new();
    project.sync(&(config_maps(&["a", "b"]) + secret)).await;
    project.cluster.set_fault(|request| {
        request.starts_with("list Secret").then(|| error(403, "Forbidden", "secrets is forbidden"))
    });
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Synced, 1), "{outcome:?}");
    assert!(outcome.errors[0].message.contains("kind Secret"), "{outcome:?}");
    assert!(project.cluster.ids().contains(&"Secret default/s".to_owned()));
    project.cluster.clear_fault();
    assert_eq!(
        project.sync(&config_maps(&["a"])).await.objects.pruned,
        1,
        "the inventory still has the kind"
    );
}

/// The limits of a project depend on the scopes of kinds, so that Git must not say them.
#[tokio::test(start_paused = true)]
async fn definition_in_git_does_not_change_the_scope_of_a_kind_of_the_cluster() {
    let claim = "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: namespaces}\n\
                 spec: {group: '', names: {kind: Namespace, plural: namespaces}, scope: Namespaced}\n";
    let mut project = Project::new().with("{namespaces: [default], cluster_scoped: false}");
    let outcome = project.sync(&(namespace("kube-system") + claim)).await;
    assert!(outcome.errors.iter().all(|error| error.message.contains("cluster-scoped")), "{outcome:?}");
    assert_eq!((outcome.errors.len(), project.cluster.ids().len()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn kinds_of_an_api_group_that_is_down_are_not_absent() {
    let mut project = Project::new().with("{prune_irreplaceable: true}");
    project.cluster.add_kind("example.com", "v1", "Toy", "toys", true);
    project.sync(&(config_maps(&["a", "b"]) + &namespace("shop") + &toy("t"))).await;
    project.cluster.set_unavailable(Some("example.com"));

    let outcome = project.sync(&(config_maps(&["a", "b"]) + &namespace("shop") + &toy("t"))).await;
    assert_eq!(outcome.state, ProjectState::Failed);
    assert!(outcome.errors[0].message.contains("the API group example.com does not respond"), "{outcome:?}");

    // Other groups go on. A namespace might have objects of this group.
    let outcome = project.sync(&config_map("a", "a: c")).await;
    assert_eq!((outcome.state, outcome.objects.applied), (ProjectState::Synced, 1), "{outcome:?}");
    assert_eq!((outcome.objects.pruned, outcome.objects.kept), (1, 2), "{outcome:?}");
    let kept = project.events(SyncEventKind::Kept).join("\n");
    assert!(
        kept.contains("example.com does not respond") && kept.contains("its kind cannot be listed"),
        "{kept}"
    );
    assert!(outcome.errors[0].message.contains("kind Toy.example.com that left Git"), "{outcome:?}");
    assert_eq!(project.cluster.ids(), ["ConfigMap default/a", "Namespace shop", "Toy.example.com default/t"]);

    project.cluster.set_unavailable(None);
    assert_eq!(project.sync(&config_map("a", "a: c")).await.objects.pruned, 2, "the inventory has both");
}

#[tokio::test(start_paused = true)]
async fn kind_whose_server_is_down_is_not_deleted_and_hinders_nothing() {
    let mut project = Project::new();
    project.cluster.add_kind("example.com", "v1", "Toy", "toys", true);
    project.sync(&(config_maps(&["a", "b"]) + &toy("t"))).await;
    // The kinds are known from an earlier discovery.
    project.cluster.set_fault(|request| {
        request.contains("Toy").then(|| error(503, "ServiceUnavailable", "the server is currently unable"))
    });
    let outcome = project.sync(&config_maps(&["a"])).await;
    assert_eq!((outcome.state, outcome.objects.pruned), (ProjectState::Synced, 1), "{outcome:?}");
    assert!(project.cluster.ids().contains(&"Toy.example.com default/t".to_owned()));
    project.cluster.clear_fault();
    assert_eq!(project.sync(&config_maps(&["a"])).await.objects.pruned, 1);
}
