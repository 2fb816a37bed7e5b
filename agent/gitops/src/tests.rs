//! Whole syncs against a cluster in memory.

mod contested;
mod deletions;
mod diff;
mod gitlab;
mod hooks;
mod jobs;
mod model;
mod waits;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use parking_lot::Mutex;
use proto::gitops::{EventKind, ObjectCounts, ObjectId, ProjectState, SyncEvent};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use crate::{
    Cause, Engine, Fence, Outcome, SourceFile, Stopped, SyncInput,
    fake::{FakeCluster, error},
};

const HOUR: Duration = Duration::from_secs(3600);

struct Open;

impl Fence for Open {
    fn check(&self) -> Result<Instant, Stopped> {
        Ok(Instant::now() + HOUR)
    }
}

/// A fence that closes after some checks, as a lost Lease or a kill would.
struct ClosesAfter(AtomicUsize);

impl Fence for ClosesAfter {
    fn check(&self) -> Result<Instant, Stopped> {
        let left = self.0.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(1))).unwrap();
        if left == 0 { Err(Stopped::LostLease) } else { Ok(Instant::now() + HOUR) }
    }
}

/// A fence that closes when this is true.
struct ClosesOnSignal(Arc<AtomicBool>);

impl Fence for ClosesOnSignal {
    fn check(&self) -> Result<Instant, Stopped> {
        if self.0.load(SeqCst) { Err(Stopped::LostLease) } else { Ok(Instant::now() + HOUR) }
    }
}

struct Project {
    cluster: FakeCluster,
    engine: Engine<FakeCluster>,
    settings: String,
    approved: Option<String>,
    heal: bool,
    events: Arc<Mutex<Vec<SyncEvent>>>,
    start: Instant,
}

impl Project {
    fn new() -> Self {
        Self::of(FakeCluster::new())
    }

    fn of(cluster: FakeCluster) -> Self {
        let engine = Engine::new(cluster.clone(), cluster.clone(), "agentk");
        Self {
            cluster,
            engine,
            settings: "{}".to_owned(),
            approved: None,
            heal: true,
            events: Arc::default(),
            start: Instant::now(),
        }
    }

    fn with(mut self, settings: &str) -> Self {
        settings.clone_into(&mut self.settings);
        self
    }

    fn input(&self, text: &str) -> SyncInput {
        SyncInput {
            agent: proto::AgentId(7),
            project: "group/app".to_owned(),
            settings: serde_saphyr::from_str(&self.settings).unwrap(),
            files: vec![SourceFile { path: "app.yaml".to_owned(), content: text.to_owned().into() }].into(),
            commit: "abc".to_owned(),
            approved: self.approved.clone(),
            heal: self.heal,
            gitlab_project: Some(3),
            waiting: Vec::new(),
            earlier: ObjectCounts::default(),
            now: self.now(),
        }
    }

    /// The time of the paused clock, in milliseconds.
    fn now(&self) -> u64 {
        1_700_000_000_000 + u64::try_from(self.start.elapsed().as_millis()).unwrap()
    }

    async fn sync(&mut self, text: &str) -> Outcome {
        self.sync_with(text, &Open).await
    }

    /// Syncs as the worker does: as long as the sync waits for objects, it goes on.
    async fn sync_with(&mut self, text: &str, fence: &dyn Fence) -> Outcome {
        self.events.lock().clear();
        let mut input = self.input(text);
        loop {
            let outcome = self.pass(&input, fence).await;
            if outcome.stopped.is_some() || outcome.state != ProjectState::Syncing {
                return outcome;
            }
            sleep(Duration::from_secs(1)).await;
            input =
                SyncInput { waiting: outcome.waiting, earlier: outcome.objects, now: self.now(), ..input };
        }
    }

    async fn pass(&mut self, input: &SyncInput, fence: &dyn Fence) -> Outcome {
        let events = Arc::clone(&self.events);
        self.engine.sync(input, fence, &move |event| events.lock().push(event)).await
    }

    /// The events of one kind, as `object: message`.
    fn events(&self, kind: EventKind) -> Vec<String> {
        let events = self.events.lock();
        let of_kind = events.iter().filter(|event| event.event == kind);
        of_kind
            .map(|event| format!("{}: {}", event.object.clone().unwrap_or_default(), event.message))
            .collect()
    }
}

fn config_map(name: &str, data: &str) -> String {
    format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{data}}}\n")
}

fn config_maps(names: &[&str]) -> String {
    names.iter().map(|name| config_map(name, "a: b")).collect()
}

fn namespace(name: &str) -> String {
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")
}

fn id(kind: &str, namespace: &str, name: &str) -> ObjectId {
    let text = str::to_owned;
    ObjectId { group: String::new(), kind: text(kind), namespace: text(namespace), name: text(name) }
}

fn writes(requests: &[String]) -> Vec<&str> {
    let write = |request: &&str| ["apply ", "patch ", "delete "].iter().any(|verb| request.starts_with(verb));
    requests.iter().map(String::as_str).filter(write).collect()
}

const PARENT: &str = "ConfigMap agentk/gitops-7-group-app-";

#[tokio::test(start_paused = true)]
async fn objects_are_created_changed_and_deleted_as_in_git() {
    let mut project = Project::new();
    let outcome = project.sync(&(config_map("a", "k: v") + &config_map("b", "k: v"))).await;
    assert_eq!((outcome.state, outcome.objects.applied), (ProjectState::Synced, 2), "{outcome:?}");
    let requests = project.cluster.take_requests();
    let writes = writes(&requests);
    assert!(
        writes[0].starts_with(&format!("apply {PARENT}")),
        "the inventory comes before the first create: {writes:?}"
    );
    assert_eq!(writes[1..3], ["apply ConfigMap default/a", "apply ConfigMap default/b"]);
    assert!(writes[3].ends_with("-members"), "the members are recorded at the end: {writes:?}");

    let outcome = project.sync(&config_map("a", "k: w")).await;
    assert_eq!((outcome.objects.applied, outcome.objects.pruned), (1, 1), "{outcome:?}");
    assert_eq!(project.cluster.ids(), ["ConfigMap default/a"]);
    assert_eq!(project.cluster.object(&id("ConfigMap", "default", "a")).unwrap()["data"]["k"], "w");
}

#[tokio::test(start_paused = true)]
async fn sync_without_a_change_lists_and_writes_nothing() {
    let mut project = Project::new();
    let text = config_maps(&["a", "b", "c"]);
    project.sync(&text).await;
    project.cluster.take_requests();
    let outcome = project.sync(&text).await;
    assert_eq!((outcome.objects.unchanged, outcome.objects.applied), (3, 0));
    let requests = project.cluster.take_requests();
    assert_eq!(writes(&requests), [""; 0]);
    assert_eq!(requests.len(), 3, "the inventory, its record, and one list: {requests:?}");

    // A new process remembers nothing, and finds out without a write.
    let mut restarted = Project::of(project.cluster.clone());
    assert_eq!(restarted.sync(&text).await.objects.unchanged, 3);
    assert_eq!(writes(&restarted.cluster.take_requests()), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn refused_object_stops_its_stage_before_the_first_write() {
    let mut project = Project::new();
    project.cluster.set_fault(|request| {
        let refused = ["try ConfigMap default/b", "try ConfigMap default/c"].contains(&request);
        refused.then(|| error(403, "Forbidden", "admission webhook denied the request"))
    });
    let outcome = project.sync(&config_maps(&["a", "b", "c"])).await;
    assert_eq!((outcome.state, outcome.errors.len()), (ProjectState::Failed, 2), "all errors are listed");
    assert!(outcome.errors[0].message.contains("webhook denied"), "in the words of the API server");
    assert_eq!(outcome.errors[0].file, "app.yaml:7");
    assert_eq!(project.cluster.ids(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn broken_file_applies_and_deletes_nothing() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b"])).await;
    project.cluster.take_requests();
    for broken in ["a: [", "kind: ConfigMap\n", &(config_map("a", "") + "---\n- x\n")] {
        let outcome = project.sync(broken).await;
        assert_eq!(outcome.state, ProjectState::Failed);
        assert!(outcome.errors[0].file.starts_with("app.yaml:"), "{outcome:?}");
    }
    assert_eq!(project.cluster.take_requests(), [""; 0]);
    assert_eq!(project.cluster.ids().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_write_does_not_stop_the_others_of_its_stage_and_prunes_nothing() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "old"])).await;
    project.cluster.set_fault(|request| {
        (request == "apply ConfigMap default/b").then(|| error(403, "Forbidden", "exceeded quota"))
    });
    let outcome = project.sync(&config_maps(&["a", "b", "c"])).await;
    assert_eq!(
        (outcome.state, outcome.objects.applied, outcome.objects.failed),
        (ProjectState::Failed, 1, 1)
    );
    assert!(outcome.errors[0].message.contains("exceeded quota"));
    assert_eq!(
        project.cluster.ids(),
        ["ConfigMap default/a", "ConfigMap default/c", "ConfigMap default/old"]
    );
    project.cluster.clear_fault();
    let outcome = project.sync(&config_maps(&["a", "b", "c"])).await;
    assert_eq!(
        (outcome.state, outcome.objects.applied, outcome.objects.pruned),
        (ProjectState::Synced, 1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn overloaded_api_server_is_asked_again() {
    let mut project = Project::new();
    let mut failures = 4;
    project.cluster.set_fault(move |request| {
        let fails = request.starts_with("apply ConfigMap default/a") && failures > 0;
        failures -= i32::from(fails);
        fails.then(|| error(if failures % 2 == 0 { 429 } else { 503 }, "TooManyRequests", "slow down"))
    });
    assert_eq!(project.sync(&config_maps(&["a"])).await.state, ProjectState::Synced);
}

/// Test 54 of the attack list: a process that ends after any request. The next one converges, and nothing is orphaned.
#[tokio::test(start_paused = true)]
async fn sync_that_ends_anywhere_is_completed_by_the_next() {
    let before = config_maps(&["a", "b", "c", "d"]) + &namespace("shop");
    let after = config_maps(&["a", "d", "e", "f"]).replace("a: b", "a: c")
        + &namespace("shop")
        + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: g, namespace: shop}\n";
    let mut steps = 1;
    loop {
        let mut project = Project::new();
        assert_eq!(project.sync(&before).await.state, ProjectState::Synced);
        let outcome = project.sync_with(&after, &ClosesAfter(AtomicUsize::new(steps))).await;
        // Another process, which remembers nothing.
        let mut next = Project::of(project.cluster.clone());
        assert_eq!(next.sync(&after).await.state, ProjectState::Synced, "after {steps} steps");
        let expected = [
            "Namespace shop",
            "ConfigMap default/a",
            "ConfigMap default/d",
            "ConfigMap default/e",
            "ConfigMap default/f",
            "ConfigMap shop/g",
        ];
        let (mut found, mut expected) = (next.cluster.ids(), expected.map(str::to_owned).to_vec());
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "after {steps} steps");
        if outcome.stopped.is_none() {
            break;
        }
        steps += 1;
    }
    assert!(steps > 15, "the sync was stopped at {steps} places");
}

#[tokio::test(start_paused = true)]
async fn closed_fence_lets_nothing_be_written() {
    let mut project = Project::new();
    let outcome = project.sync_with(&config_maps(&["a"]), &ClosesAfter(AtomicUsize::new(0))).await;
    assert_eq!(outcome.stopped, Some(Stopped::LostLease));
    assert_eq!(writes(&project.cluster.take_requests()), [""; 0]);
}

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
    assert_eq!(project.events(EventKind::Applied), ["ConfigMap default/a: taken over"]);
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
    assert!(project.events(EventKind::Drifted)[0].contains("changed by kubectl-edit at"), "who did it");
    assert_eq!(project.cluster.object(&changed).unwrap()["data"]["k"], "drift");
    project.heal = true;
    assert_eq!(project.sync(&text).await.objects.applied, 1);
    assert_eq!(project.cluster.object(&changed).unwrap()["data"]["k"], "v");
    assert!(project.events(EventKind::Drifted)[0].contains("changed by kubectl-edit at"), "who did it");
    assert_eq!(project.events(EventKind::Applied), ["ConfigMap default/a: changed back"]);
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
    assert!(project.events(EventKind::Kept)[0].contains("ConfigMap shop/foreign"));
    // The inventory still has it, so that it is deleted once it is empty.
    let uid = project.cluster.object(&foreign).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let kind = project.engine.objects()[0].1.clone();
    crate::Cluster::delete(&project.cluster, &kind, &foreign, &uid, None, Default::default()).await.unwrap();
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
        project.events(EventKind::Kept),
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
    assert!(project.events(EventKind::Kept)[0].contains("ownerReferences"), "{outcome:?}");
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
async fn immutable_field_needs_the_annotation() {
    let object = |value: u8, annotations: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, annotations: {{{annotations}}}}}\nspec: {{immutable: {value}}}\n"
        )
    };
    let mut project = Project::new();
    project.sync(&object(1, "")).await;
    let uid = |project: &Project| {
        project.cluster.object(&id("ConfigMap", "default", "a")).unwrap()["metadata"]["uid"].clone()
    };
    let before = uid(&project);
    let outcome = project.sync(&object(2, "")).await;
    assert!(outcome.errors[0].message.contains("immutable"), "{outcome:?}");
    assert!(
        outcome.errors[0].message.contains("with the annotation agentk/recreate: \"true\""),
        "{outcome:?}"
    );
    assert_eq!(uid(&project), before);
    let outcome = project.sync(&object(2, "agentk/recreate: 'true'")).await;
    assert_eq!(outcome.state, ProjectState::Synced, "{outcome:?}");
    assert_ne!(uid(&project), before);
}

#[tokio::test(start_paused = true)]
async fn key_that_leaves_string_data_leaves_the_secret() {
    let secret =
        |data: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{{data}}}\n");
    let mut project = Project::new();
    project.sync(&secret("a: one, b: two")).await;
    assert_eq!(project.sync(&secret("a: changed")).await.state, ProjectState::Synced);
    let live = project.cluster.object(&id("Secret", "default", "s")).unwrap();
    assert_eq!(
        (&live["data"], &live["stringData"]),
        (&json!({"a": "Y2hhbmdlZA=="}), &serde_json::Value::Null)
    );
}

/// Test 60 of the attack list.
#[tokio::test(start_paused = true)]
async fn value_of_a_secret_is_in_no_error() {
    let mut project = Project::new();
    project.cluster.set_fault(|request| {
        request.starts_with("try Secret").then(|| crate::ApiError {
            causes: vec![Cause { field: "data[token]".to_owned(), message: "hunter2".to_owned() }],
            ..error(422, "Invalid", "Secret is invalid: data[token]: Invalid value: \"hunter2\"")
        })
    });
    let outcome = project
        .sync("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {token: hunter2}\n")
        .await;
    let shown = format!("{outcome:?} {:?}", project.events.lock());
    assert!(shown.contains("data[token]") && !shown.contains("hunter2"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn dry_run_writes_nothing_and_says_what_it_would_do() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b", "c"])).await;
    project.cluster.take_requests();
    for (strategy, text, state, message) in [
        ("client", config_maps(&["a"]), ProjectState::Pending, "nothing was compared"),
        (
            "server",
            config_map("a", "a: c") + &config_maps(&["b"]),
            ProjectState::OutOfSync,
            "1 of 2 objects would be applied, and 1 deleted",
        ),
        ("server", config_maps(&["a", "b", "c"]), ProjectState::Synced, "as in Git"),
    ] {
        project = project.with(&format!("{{dry_run_strategy: {strategy}}}"));
        let outcome = project.sync(&text).await;
        assert_eq!(outcome.state, state, "{outcome:?}");
        assert!(outcome.message.contains(message), "{outcome:?}");
        assert_eq!(writes(&project.cluster.take_requests()), [""; 0]);
    }
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
async fn sync_that_only_reports_writes_nothing() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b"])).await;
    let (kind, deleted) = (project.engine.objects()[0].1.clone(), id("ConfigMap", "default", "a"));
    let uid = project.cluster.object(&deleted).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    crate::Cluster::delete(&project.cluster, &kind, &deleted, &uid, None, Default::default()).await.unwrap();
    project.cluster.take_requests();
    project.heal = false;
    let outcome = project.sync(&config_maps(&["a", "b"])).await;
    assert_eq!(outcome.state, ProjectState::OutOfSync, "{outcome:?}");
    assert_eq!(writes(&project.cluster.take_requests()), [""; 0]);
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
        project.events(EventKind::Kept)[0]
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
    assert_eq!(project.events(EventKind::Drifted)[1], "ConfigMap default/b: deleted by somebody else");

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

fn toy(name: &str) -> String {
    format!("---\napiVersion: example.com/v1\nkind: Toy\nmetadata: {{name: {name}}}\n")
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
    let kept = project.events(EventKind::Kept).join("\n");
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
        request.starts_with("try ").then_some(crate::ApiError { causes, ..error })
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
