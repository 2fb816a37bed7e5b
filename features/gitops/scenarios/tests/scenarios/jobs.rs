//! Objects that the cluster removes by itself when they have finished.

use proto::gitops::{ObjectId, ProjectState, SyncEventKind};

use super::*;

fn job(ttl: &str, image: &str) -> String {
    format!(
        "---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: migrate}}\nspec: {{{ttl}template: {{spec: {{containers: [{{name: c, \
         image: {image}}}]}}}}}}\n"
    )
}

const TTL: &str = "ttlSecondsAfterFinished: 1, ";

fn job_id() -> ObjectId {
    ObjectId { group: "batch".to_owned(), ..id("Job", "default", "migrate") }
}

#[tokio::test(start_paused = true)]
async fn job_that_the_cluster_has_removed_runs_again_only_when_its_manifest_changes() {
    let mut project = Project::new();
    project.sync(&job(TTL, "v1")).await;
    project.cluster.remove(&job_id());
    let outcome = project.sync(&job(TTL, "v1")).await;
    assert_eq!((outcome.state, outcome.objects.unchanged), (ProjectState::Synced, 1), "{outcome:?}");
    assert_eq!((outcome.reverted, project.cluster.ids()), (0, vec![]));
    assert!(project.events(SyncEventKind::Unchanged)[0].contains("runs again when its manifest changes"));
    assert_eq!(project.engine.health().await.unwrap().len(), 0, "it is not missing");

    let mut restarted = Project::of(project.cluster.clone());
    assert_eq!(restarted.sync(&(job(TTL, "v1") + &config_maps(&["a"]))).await.objects.applied, 1);
    assert_eq!(
        restarted.cluster.ids(),
        ["ConfigMap default/a"],
        "neither a restart nor another commit runs it"
    );

    assert_eq!(restarted.sync(&(job(TTL, "v2") + &config_maps(&["a"]))).await.objects.applied, 1);
    restarted.cluster.remove(&job_id());
    restarted.sync(&config_maps(&["a"])).await;
    assert_eq!(
        restarted.sync(&(job(TTL, "v2") + &config_maps(&["a"]))).await.objects.applied,
        1,
        "it has left Git"
    );
}

/// Another rendering of the same commit gives such fields other values.
#[tokio::test(start_paused = true)]
async fn job_does_not_run_again_because_of_a_field_that_is_written_once() {
    let settings = "{ignore_differences: [{kinds: [Job.batch], names: [migrate], paths: \
                    ['spec.template.spec.containers[name=c].image']}]}";
    let mut project = Project::new().with(settings);
    project.sync(&job(TTL, "random1")).await;
    project.cluster.remove(&job_id());
    assert_eq!(project.sync(&job(TTL, "random2")).await.objects.unchanged, 1);
    assert_eq!(project.cluster.ids(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn job_without_a_lifetime_is_created_again() {
    let mut project = Project::new();
    project.sync(&job("", "v1")).await;
    project.cluster.remove(&job_id());
    let outcome = project.sync(&job("", "v1")).await;
    assert_eq!((outcome.objects.applied, outcome.reverted), (1, 1), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn job_of_a_sync_that_fails_runs_once() {
    let mut project = Project::new();
    project.cluster.set_fault(|request| {
        (request == "apply ConfigMap default/a").then(|| error(403, "Forbidden", "exceeded quota"))
    });
    let text = job(TTL, "v1") + &config_maps(&["a"]);
    assert_eq!(project.sync(&text).await.state, ProjectState::Failed);
    project.cluster.remove(&job_id());
    let mut restarted = Project::of(project.cluster.clone());
    assert_eq!(restarted.sync(&text).await.state, ProjectState::Failed);
    assert_eq!(restarted.cluster.ids(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn wave_begins_when_the_job_before_it_is_gone() {
    let late = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, annotations: {argocd.argoproj.io/sync-wave: '1'}}\n";
    let mut project = Project::new();
    let input = project.input(&(job(TTL, "v1") + late));
    assert_eq!(project.pass(&input, &Open).await.state, ProjectState::Syncing);
    assert!(!project.engine.is_ready().await, "it runs");
    project.cluster.remove(&job_id());
    assert!(project.engine.is_ready().await);
    assert_eq!(project.pass(&input, &Open).await.state, ProjectState::Synced);
    assert_eq!(project.cluster.ids(), ["ConfigMap default/late"]);
}

/// A lost parent costs nothing that the record knows: a migration does not run again after the recovery.
#[tokio::test(start_paused = true)]
async fn recovered_inventory_knows_which_jobs_have_run() {
    let mut project = Project::new();
    let text = job(TTL, "v1") + &config_maps(&["a"]);
    project.sync(&text).await;
    project.cluster.remove(&job_id());
    let is_parent = |id: &ObjectId| id.name.starts_with("gitops-") && !id.name.ends_with("-members");
    let parent = project.cluster.objects().into_keys().find(is_parent).unwrap();
    project.cluster.remove(&parent);
    assert_eq!(project.sync(&text).await.state, ProjectState::InventoryLost);
    let input = project.input(&text);
    let planned = project.engine.recover(&input, None, &Open).await.unwrap();
    let gitops_engine::Recovery::Planned(plan) = planned else { panic!("{planned:?}") };
    project.engine.recover(&input, Some(&plan.code), &Open).await.unwrap();
    let outcome = project.sync(&text).await;
    assert_eq!(
        (outcome.state, project.cluster.ids()),
        (ProjectState::Synced, vec!["ConfigMap default/a".to_owned()])
    );
}
