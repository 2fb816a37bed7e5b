//! Hooks of Argo CD and of Helm.

use serde_json::{Value, json};

use super::*;

fn hook(name: &str, annotations: &str) -> String {
    format!(
        "---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\nspec: {{template: {{spec: \
         {{containers: [{{name: c, image: v1}}]}}}}}}\n"
    )
}

fn argo(name: &str, phase: &str, policy: &str) -> String {
    hook(name, &format!("argocd.argoproj.io/hook: {phase}, argocd.argoproj.io/hook-delete-policy: {policy}"))
}

fn job(name: &str) -> ObjectId {
    ObjectId { group: "batch".to_owned(), ..id("Job", "default", name) }
}

fn end(project: &Project, name: &str, condition: &str) {
    project.cluster.edit(&job(name), "job-controller", |object| {
        object["status"] =
            json!({"conditions": [{"type": condition, "status": "True", "message": "no more attempts"}]});
    });
}

fn uid(project: &Project, name: &str) -> Value {
    project.cluster.object(&job(name)).unwrap()["metadata"]["uid"].clone()
}

async fn pass(project: &mut Project, text: &str) -> Outcome {
    let input = project.input(text);
    project.pass(&input, &Open).await
}

#[tokio::test(start_paused = true)]
async fn hooks_run_before_and_after_all_other_objects() {
    let mut project = Project::new();
    let text = argo("before", "PreSync", "BeforeHookCreation")
        + &argo("after", "PostSync", "HookSucceeded")
        + &config_map("skipped", "k: v")
            .replace("name: skipped", "name: skipped, annotations: {argocd.argoproj.io/hook: Skip}")
        + &config_maps(&["a"]);
    let outcome = pass(&mut project, &text).await;
    assert_eq!((outcome.state, outcome.objects.total), (ProjectState::Syncing, 3), "{outcome:?}");
    assert_eq!(project.cluster.ids(), ["Job.batch default/before"]);
    assert!(!project.engine.is_ready().await, "it runs");

    end(&project, "before", "Complete");
    assert!(project.engine.is_ready().await);
    assert_eq!(pass(&mut project, &text).await.state, ProjectState::Syncing);
    assert_eq!(
        project.cluster.ids(),
        ["ConfigMap default/a", "Job.batch default/after", "Job.batch default/before"]
    );

    end(&project, "after", "Complete");
    assert_eq!(pass(&mut project, &text).await.state, ProjectState::Synced);
    assert_eq!(
        project.cluster.ids(),
        ["ConfigMap default/a", "Job.batch default/before"],
        "its policy is HookSucceeded"
    );
}

#[tokio::test(start_paused = true)]
async fn hook_runs_once_for_each_version_of_the_manifests() {
    let mut project = Project::new();
    let hooks = argo("before", "PreSync", "BeforeHookCreation") + &argo("once", "PreSync", "HookSucceeded");
    let first = hooks.clone() + &config_maps(&["a"]);
    pass(&mut project, &first).await;
    end(&project, "before", "Complete");
    end(&project, "once", "Complete");
    assert_eq!(pass(&mut project, &first).await.state, ProjectState::Synced);
    let run = uid(&project, "before");

    let mut restarted = Project::of(project.cluster.clone());
    let outcome = pass(&mut restarted, &first).await;
    assert_eq!((outcome.state, outcome.objects.applied), (ProjectState::Synced, 0), "{outcome:?}");
    assert_eq!(uid(&restarted, "before"), run, "a restart runs nothing");
    assert!(restarted.cluster.object(&job("once")).is_none());

    let second = hooks + &config_map("a", "k: w");
    assert_eq!(pass(&mut restarted, &second).await.state, ProjectState::Syncing);
    assert_ne!(uid(&restarted, "before"), run);
    assert_ne!(uid(&restarted, "once"), Value::Null);
}

/// An older agentk applied hooks like all other objects: its successor must not run a migration again.
#[tokio::test(start_paused = true)]
async fn job_that_becomes_a_hook_does_not_run_again() {
    let mut project = Project::new();
    let other = "argocd.argoproj.io/sync-wave: '0'";
    project.sync(&(hook("migrate", other) + &config_maps(&["a"]))).await;
    end(&project, "migrate", "Complete");
    let run = uid(&project, "migrate");
    let text = argo("migrate", "PreSync", "BeforeHookCreation") + &config_maps(&["a"]);
    assert_eq!(pass(&mut project, &text).await.state, ProjectState::Synced);
    assert_eq!(uid(&project, "migrate"), run);
    assert_eq!(pass(&mut project, &(text + &config_maps(&["b"]))).await.state, ProjectState::Syncing);
    assert_ne!(uid(&project, "migrate"), run, "the next version runs it");
}

#[tokio::test(start_paused = true)]
async fn running_hook_is_not_cut_off_by_the_next_version() {
    let mut project = Project::new();
    let hook = argo("migrate", "PreSync", "HookSucceeded");
    pass(&mut project, &hook).await;
    let run = uid(&project, "migrate");
    let next = hook + &config_maps(&["a"]);
    let outcome = pass(&mut project, &next).await;
    assert_eq!(
        (outcome.state, uid(&project, "migrate")),
        (ProjectState::Syncing, run.clone()),
        "{outcome:?}"
    );
    assert!(outcome.waiting[0].reason.starts_with("the hook runs for an earlier version: "), "{outcome:?}");
    // It has failed, and is repaired by the next version.
    end(&project, "migrate", "Failed");
    assert!(project.engine.is_ready().await);
    assert_eq!(pass(&mut project, &next).await.state, ProjectState::Syncing);
    assert_ne!(uid(&project, "migrate"), run);
}

#[tokio::test(start_paused = true)]
async fn failed_hook_stops_the_sync_and_runs_again_when_it_is_deleted() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "old"])).await;
    let text = argo("migrate", "PreSync", "HookFailed") + &config_map("a", "k: w") + &config_map("b", "k: v");
    pass(&mut project, &text).await;
    end(&project, "migrate", "Failed");
    assert!(project.engine.is_ready().await, "the failure is shown at once");
    for _ in 0..2 {
        let outcome = pass(&mut project, &text).await;
        assert_eq!(outcome.state, ProjectState::Failed, "{outcome:?}");
        assert_eq!(outcome.errors[0].message, "the hook has failed: no more attempts");
        assert_eq!(
            project.cluster.ids(),
            ["ConfigMap default/a", "ConfigMap default/old", "Job.batch default/migrate"]
        );
    }
    project.cluster.remove(&job("migrate"));
    assert_eq!(pass(&mut project, &text).await.state, ProjectState::Syncing);
    end(&project, "migrate", "Complete");
    assert_eq!(pass(&mut project, &text).await.state, ProjectState::Synced);
    assert_eq!(
        project.cluster.ids(),
        ["ConfigMap default/a", "ConfigMap default/b", "Job.batch default/migrate"]
    );
}

#[tokio::test(start_paused = true)]
async fn hooks_of_helm_run_in_the_order_of_their_weights() {
    let mut project = Project::new();
    let policy = "helm.sh/hook-delete-policy: 'before-hook-creation,hook-succeeded'";
    let account = format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: script, annotations: {{helm.sh/hook: pre-install, helm.sh/hook-weight: '-5', \
         {policy}}}}}\ndata: {{k: v}}\n"
    );
    let text = account
        + &hook("migrate", &format!("helm.sh/hook: 'pre-install,pre-upgrade', {policy}"))
        + &hook("cleanup", "helm.sh/hook: pre-delete")
        + &config_maps(&["a"]);
    assert_eq!(pass(&mut project, &text).await.state, ProjectState::Syncing);
    assert_eq!(project.cluster.ids(), ["ConfigMap default/script", "Job.batch default/migrate"]);
    end(&project, "migrate", "Complete");
    assert_eq!(pass(&mut project, &text).await.state, ProjectState::Synced);
    assert_eq!(project.cluster.ids(), ["ConfigMap default/a"], "those of a phase are deleted together");
    assert_eq!(pass(&mut project, &text).await.objects.applied, 0);
}

/// An object that becomes skipped stays as it is: it has not left Git.
#[tokio::test(start_paused = true)]
async fn object_that_is_skipped_is_not_deleted() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b"])).await;
    let text = config_maps(&["a"])
        + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, annotations: {argocd.argoproj.io/hook: Skip}}\ndata: {k: w}\n\
           ---\napiVersion: nowhere/v1\nkind: Unknown\nmetadata: {name: c, annotations: {helm.sh/hook: test}}\n";
    let outcome = project.sync(&text).await;
    assert_eq!((outcome.state, outcome.objects.total), (ProjectState::Synced, 1), "{outcome:?}");
    assert_eq!(project.cluster.object(&id("ConfigMap", "default", "b")).unwrap()["data"], json!({"a": "b"}));
}
