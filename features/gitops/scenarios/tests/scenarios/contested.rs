//! Objects that others change again and again, and fields that are left to others.

use proto::gitops::{ObjectId, ProjectState, SyncEventKind};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn edit(project: &Project, name: &str) {
    let object = id("ConfigMap", "default", name);
    project.cluster.edit(&object, "rival", |object| object["data"]["a"] = "theirs".into());
}

fn value(project: &Project, name: &str) -> serde_json::Value {
    project.cluster.object(&id("ConfigMap", "default", name)).unwrap()["data"]["a"].clone()
}

#[tokio::test(start_paused = true)]
async fn third_revert_makes_an_object_contested_and_lets_it_wait_alone() {
    let mut project = Project::new();
    let text = config_maps(&["a", "b"]);
    project.sync(&text).await;
    for expected in [ProjectState::Synced, ProjectState::Synced, ProjectState::Contested] {
        edit(&project, "a");
        sleep(SECOND).await;
        let outcome = project.sync(&text).await;
        assert_eq!((outcome.state, outcome.reverted), (expected, 1), "{outcome:?}");
    }
    edit(&project, "a");
    edit(&project, "b");
    let outcome = project.sync(&text).await;
    assert_eq!((outcome.state, outcome.reverted), (ProjectState::Contested, 1), "{outcome:?}");
    assert_eq!((value(&project, "a"), value(&project, "b")), ("theirs".into(), "b".into()), "only one waits");
    assert!(outcome.message.starts_with("ConfigMap default/a: others change"), "{outcome:?}");
    assert_eq!(outcome.errors[0].file, "app.yaml:2");
    assert!(outcome.errors[0].message.contains("rival changes data.a again and again"), "{outcome:?}");
    assert!(project.engine.waits(&id("ConfigMap", "default", "a"), project.now()));
    assert_eq!(project.engine.next_revert(project.now()), Some(10_000));

    sleep(10 * SECOND).await;
    assert_eq!(project.sync(&text).await.reverted, 1);
    assert_eq!(value(&project, "a"), "b");
    // A commit that changes the object does not wait.
    edit(&project, "a");
    assert_eq!(project.sync(&text.replace("a: b", "a: c")).await.state, ProjectState::Contested);
    assert_eq!(value(&project, "a"), "c");

    sleep(300 * SECOND).await;
    assert_eq!(project.sync(&text.replace("a: b", "a: c")).await.state, ProjectState::Synced, "it was quiet");
    // It belongs to the project all the time.
    assert_eq!(project.sync(&config_maps(&["b"])).await.objects.pruned, 1);
}

#[tokio::test(start_paused = true)]
async fn object_that_somebody_deletes_again_and_again_is_contested() {
    let mut project = Project::new();
    let (text, contested) = (config_maps(&["a", "b"]), id("ConfigMap", "default", "a"));
    let before = text.clone() + &config_maps(&["old"]);
    project.sync(&before).await;
    for _ in 0..3 {
        project.cluster.remove(&contested);
        project.sync(&before).await;
    }
    project.cluster.remove(&contested);
    let outcome = project.sync(&text).await;
    assert_eq!(outcome.state, ProjectState::Contested, "{outcome:?}");
    let message = &outcome.errors[0].message;
    assert!(message.contains("it is deleted by somebody else again and again"), "{message}");
    assert_eq!(
        project.cluster.ids(),
        ["ConfigMap default/b", "ConfigMap default/old"],
        "what left Git stays until all is as in Git"
    );
    sleep(10 * SECOND).await;
    project.sync(&text).await;
    assert_eq!(project.cluster.ids(), ["ConfigMap default/a", "ConfigMap default/b"]);
}

#[tokio::test(start_paused = true)]
async fn two_projects_that_take_over_the_same_object_are_contested() {
    let cluster = FakeCluster::new();
    let mut projects = ["group/app", "group/other"].map(|name| {
        let project = Project::of(cluster.clone()).with("{inventory_policy: adopt_all}");
        (name, project)
    });
    let text = config_maps(&["a"]);
    let mut last = Vec::new();
    cluster.take_requests();
    for _ in 0..100 {
        last.clear();
        for (name, project) in &mut projects {
            let input =
                SyncInput { project: (*name).to_owned(), gitlab_project: None, ..project.input(&text) };
            last.push(project.pass(&input, &Open).await);
        }
        sleep(SECOND).await;
    }
    for (outcome, other) in last.iter().zip(["group/other", "group/app"]) {
        assert_eq!(outcome.state, ProjectState::Contested, "{outcome:?}");
        let expected = format!("it is taken over by the project {other} again and again");
        assert!(outcome.errors[0].message.contains(&expected), "{outcome:?}");
    }
    let requests = cluster.take_requests();
    let count = requests.iter().filter(|request| *request == "apply ConfigMap default/a").count();
    assert!(count < 20, "{count} writes in 100 s");

    // The one that does not have it does not delete it.
    let loser = usize::from(
        cluster.object(&id("ConfigMap", "default", "a")).unwrap()["metadata"]["labels"]["applyset.kubernetes.io/part-of"]
            == gitops_engine::applyset::ApplySet::new(proto::AgentId(7), "group/app", "agentk").id(),
    );
    let (name, project) = &mut projects[loser];
    let input = SyncInput { project: (*name).to_owned(), gitlab_project: None, ..project.input("") };
    project.pass(&input, &Open).await;
    assert!(cluster.object(&id("ConfigMap", "default", "a")).is_some());
}

#[tokio::test(start_paused = true)]
async fn ignored_field_is_written_once_and_left_to_others() {
    let settings = "{ignore_differences: [{kinds: [ConfigMap], paths: [data.a]}]}";
    let mut project = Project::new().with(settings);
    project.sync(&config_map("a", "a: b, k: v")).await;
    assert_eq!(value(&project, "a"), "b", "it is created as in Git");
    edit(&project, "a");
    let outcome = project.sync(&config_map("a", "a: b, k: v")).await;
    assert_eq!((outcome.objects.unchanged, outcome.reverted), (1, 0), "{outcome:?}");
    assert_eq!(project.sync(&config_map("a", "a: b, k: w")).await.objects.applied, 1);
    let live = project.cluster.object(&id("ConfigMap", "default", "a")).unwrap();
    assert_eq!(live["data"], json!({"a": "theirs", "k": "w"}), "a commit changes the rest");
}

#[tokio::test(start_paused = true)]
async fn replicas_of_a_workload_with_an_autoscaler_in_git_are_left_to_it() {
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 2}\n---\n\
                apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\n\
                spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxReplicas: 9}\n";
    let cluster = FakeCluster::new();
    cluster.add_kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", true);
    let mut project = Project::of(cluster);
    project.sync(text).await;
    let web = ObjectId { group: "apps".to_owned(), ..id("Deployment", "default", "web") };
    project.cluster.edit(&web, "autoscaler", |object| object["spec"]["replicas"] = 7.into());
    let outcome = project.sync(text).await;
    assert_eq!((outcome.state, outcome.objects.unchanged), (ProjectState::Synced, 2), "{outcome:?}");
    assert_eq!(project.events(SyncEventKind::Drifted), [""; 0]);
    assert_eq!(project.cluster.object(&web).unwrap()["spec"]["replicas"], 7);
}
