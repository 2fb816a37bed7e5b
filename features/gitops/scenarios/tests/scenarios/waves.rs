//! The order of stages, and what a stage waits for.

use super::*;

#[tokio::test(start_paused = true)]
async fn namespace_and_definition_come_before_what_needs_them() {
    let mut project = Project::new();
    let text = "apiVersion: example.com/v1\nkind: Toy\nmetadata: {name: a, namespace: shop}\n---\n\
                apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: toys.example.com}\n\
                spec: {group: example.com, names: {kind: Toy, plural: toys}, scope: Namespaced}\n"
        .to_owned()
        + &namespace("shop");
    let outcome = project.sync(&text).await;
    assert_eq!(outcome.state, ProjectState::Synced, "{outcome:?}");
    assert_eq!(outcome.objects.applied, 3);
    assert_eq!(project.sync(&text).await.objects.unchanged, 3);
}

#[tokio::test(start_paused = true)]
async fn wave_waits_for_the_health_of_the_one_before() {
    let deployment =
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, generation: 1}\nspec: {replicas: 1}\n";
    let late = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, annotations: {argocd.argoproj.io/sync-wave: '1'}}\n";
    let mut project = Project::new().with("{reconcile_timeout: 30s}");
    let outcome = project.sync(&format!("{deployment}{late}")).await;
    assert_eq!(outcome.state, ProjectState::Failed);
    assert!(outcome.errors[0].message.contains("reconcile_timeout"), "{outcome:?}");
    assert!(!project.cluster.ids().contains(&"ConfigMap default/late".to_owned()));

    let web = ObjectId { group: "apps".to_owned(), ..id("Deployment", "default", "web") };
    let status =
        json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
    project.cluster.edit(&web, "controller", |object| object["status"] = status);
    assert_eq!(project.sync(&format!("{deployment}{late}")).await.state, ProjectState::Synced);
}

/// All objects of a wave are healthy at the same time before the next one begins.
#[tokio::test(start_paused = true)]
async fn wave_waits_for_an_object_that_is_unhealthy_again() {
    let deployment = |name: &str| {
        format!(
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, generation: 1}}\nspec: {{replicas: 1}}\n"
        )
    };
    let late = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, annotations: {argocd.argoproj.io/sync-wave: '1'}}\n";
    let text = deployment("first") + &deployment("second") + late;
    let mut project = Project::new();
    let (mut first, mut second) = (0, 0);
    project.cluster.set_intruder(move |objects, request| {
        let available = |replicas: u8| {
            json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": replicas})
        };
        first += u8::from(request == "get Deployment.apps default/first");
        second += u8::from(request == "get Deployment.apps default/second");
        for (id, object) in objects.iter_mut().filter(|(id, _)| id.kind == "Deployment") {
            // The first one fails while the second one starts, and recovers later.
            let healthy = match &*id.name {
                "first" => second == 0 || first > 3,
                _ => second > 2,
            };
            object["status"] = available(u8::from(healthy));
        }
        if request == "apply ConfigMap default/late" {
            let healthy = |(id, object): (&ObjectId, &serde_json::Value)| {
                id.kind != "Deployment" || object["status"]["availableReplicas"] == 1
            };
            assert!(objects.iter().all(healthy), "{objects:?}");
        }
    });
    assert_eq!(project.sync(&text).await.state, ProjectState::Synced);
}

#[tokio::test(start_paused = true)]
async fn waiting_wave_hinders_neither_healing_nor_the_report_of_deletions() {
    let text = |replicas: u8, late: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec: {{replicas: {replicas}}}\n---\n\
             apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: late, annotations: {{argocd.argoproj.io/sync-wave: '1'}}}}\n\
             data: {{k: {late}}}\n"
        )
    };
    let mut project = Project::new();
    project.cluster.set_controllers(true);
    project.sync(&(text(1, "v") + &config_maps(&["left"]))).await;
    let (late, left) = (id("ConfigMap", "default", "late"), id("ConfigMap", "default", "left"));
    project
        .cluster
        .edit(&left, "someone", |object| object["metadata"]["finalizers"] = json!(["example.com/wait"]));
    project.cluster.remove(&left);
    let replicas = project.input(&text(2, "v"));
    project.cluster.set_controllers(false);
    project.pass(&replicas, &Open).await;

    project.cluster.edit(&late, "kubectl-edit", |object| object["data"]["k"] = "drift".into());
    let outcome = project.pass(&replicas, &Open).await;
    assert_eq!((outcome.state, outcome.reverted), (ProjectState::Syncing, 1), "{outcome:?}");
    assert_eq!(project.cluster.object(&late).unwrap()["data"]["k"], "v");
    let waits: Vec<String> = outcome.waiting.iter().map(|awaited| awaited.object.to_string()).collect();
    assert_eq!(waits, ["Deployment.apps default/web", "ConfigMap default/left"]);
    assert!(outcome.waiting[1].reason.contains("finalizers: example.com/wait"), "{outcome:?}");

    // A change of the commit waits for its wave.
    let changed = project.input(&text(2, "w"));
    assert_eq!(project.pass(&changed, &Open).await.state, ProjectState::Syncing);
    assert_eq!(project.cluster.object(&late).unwrap()["data"]["k"], "v");
}
