//! Diffs against a cluster in memory.

use proto::gitops::{DiffLine, DiffSummary};
use tokio::sync::mpsc;

use super::*;

impl Project {
    /// Returns the lines of a diff, each as `action object (note): fields`, and the summary.
    pub(super) async fn diff(&self, text: &str) -> (Vec<String>, DiffSummary) {
        self.diff_of(text, false).await
    }

    async fn diff_of(&self, text: &str, part: bool) -> (Vec<String>, DiffSummary) {
        let (sender, mut receiver) = mpsc::channel(1000);
        // Like a diff of a caller: an engine that knows nothing yet.
        let mut engine = Engine::new(self.cluster.clone(), self.cluster.clone(), "agentk");
        let before = self.cluster.ids();
        self.cluster.take_requests();
        let summary = engine.diff(&self.input(text), part, &Open, &sender).await;
        assert_eq!(self.cluster.ids(), before, "a diff writes nothing");
        let requests = self.cluster.take_requests();
        let writes = |request: &&String| request.starts_with("apply") || request.starts_with("delete");
        assert_eq!(requests.iter().find(writes), None);
        let mut lines = Vec::new();
        while let Ok(line) = receiver.try_recv() {
            lines.push(match line {
                DiffLine::Object(diff) => {
                    let fields: Vec<_> = diff.fields.iter().map(|field| &*field.path).collect();
                    let note = if diff.note.is_empty() { String::new() } else { format!(" ({})", diff.note) };
                    format!("{:?} {}{note}: {}", diff.action, diff.object, fields.join(" "))
                }
                DiffLine::Error(error) => format!("Error {}: {}", error.file, error.message),
                DiffLine::End(_) => unreachable!("the handler sends it"),
            });
        }
        (lines, summary)
    }
}

#[tokio::test(start_paused = true)]
async fn diff_says_what_a_sync_does() {
    let mut project = Project::new();
    project.sync(&config_maps(&["same", "changes", "leaves"])).await;
    let text = config_maps(&["same", "new"]) + &config_map("changes", "a: c, x: y");
    let (lines, summary) = project.diff(&text).await;
    assert_eq!(
        lines,
        [
            "Change ConfigMap default/changes: data.a data.x",
            "Create ConfigMap default/new: ",
            "Delete ConfigMap default/leaves: ",
        ]
    );
    let DiffSummary { create, change, delete, unchanged, errors, .. } = summary;
    assert_eq!([create, change, delete, unchanged, errors], [1, 1, 1, 1, 0]);
    assert!(summary.has_changes());

    // Posted manifests are a part of the project.
    let (lines, _) = project.diff_of(&config_map("changes", "a: c"), true).await;
    assert_eq!(lines, ["Change ConfigMap default/changes: data.a"]);
    let (lines, summary) = project.diff(&config_maps(&["same", "changes", "leaves"])).await;
    assert!(lines.is_empty() && !summary.has_changes(), "{lines:?}");

    // The sync does what the diff has said.
    let outcome = project.sync(&text).await;
    assert_eq!((outcome.objects.applied, outcome.objects.pruned, outcome.objects.unchanged), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn diff_shows_guards_and_errors() {
    let mut project = Project::new().with("{max_prune: 0}");
    project.sync(&config_maps(&["a", "b", "c"])).await;
    let (lines, summary) = project.diff(&config_maps(&["a"])).await;
    assert!(lines[0].starts_with("Delete ConfigMap default/") && lines[0].contains("approve"), "{lines:?}");
    assert_eq!(summary.delete, 2);

    let keep = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, annotations: {config.kubernetes.io/lifecycle: detach}}\n";
    project.settings = "{}".to_owned();
    project.sync(&(config_maps(&["a", "b", "c"]) + keep)).await;
    let (lines, _) = project.diff(&config_maps(&["a", "b", "c"])).await;
    assert!(lines[0].starts_with("Keep ConfigMap default/kept (it has the annotation"), "{lines:?}");

    let (lines, summary) = project.diff("kind: [\n").await;
    assert!(lines[0].starts_with("Error app.yaml:1: "), "{lines:?}");
    assert_eq!(summary.errors, 1);

    // One object that the API server refuses hides no other, and nothing counts as deleted, as in a sync.
    project
        .cluster
        .set_fault(|request| request.contains("default/b").then(|| error(403, "Forbidden", "denied")));
    let (lines, _) = project.diff(&(config_map("a", "a: c") + &config_map("b", "a: c"))).await;
    assert_eq!(lines[0], "Change ConfigMap default/a: data.a");
    assert!(lines[1].starts_with("Error app.yaml:") && lines[1].ends_with("denied (403)"), "{lines:?}");
    assert_eq!(lines.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn diff_shows_objects_of_a_namespace_and_a_kind_that_are_new() {
    let project = Project::new();
    let text = namespace("shop")
        + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: shop}\n"
        + "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: toys.example.com}\n\
           spec: {group: example.com, names: {kind: Toy, plural: toys}, scope: Namespaced}\n"
        + "---\napiVersion: example.com/v1\nkind: Toy\nmetadata: {name: a}\n";
    let (lines, summary) = project.diff(&text).await;
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(has("Create ConfigMap shop/a (the API server cannot check it yet: its namespace"), "{lines:?}");
    assert!(
        has("Create Toy.example.com default/a (the API server cannot check it yet: its kind"),
        "{lines:?}"
    );
    assert_eq!((summary.create, summary.errors), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn change_by_a_controller_between_two_requests_is_no_difference() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b"])).await;
    let mut left = 2;
    project.cluster.set_intruder(move |objects, request| {
        if request == "get ConfigMap default/a" && left > 0 {
            left -= 1;
            let (_, object) = objects.iter_mut().find(|(id, _)| id.name == "a").unwrap();
            object["metadata"]["annotations"]["revision"] = left.to_string().into();
            object["metadata"]["resourceVersion"] = format!("by-controller-{left}").into();
        }
    });
    let (lines, summary) = project.diff(&config_maps(&["a", "b"])).await;
    assert_eq!((lines.len(), summary.unchanged), (0, 2), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn diff_shows_what_is_taken_over_and_refuses_what_belongs_to_others() {
    let project = Project::new().with("{inventory_policy: adopt_if_no_inventory}");
    let id = ObjectId {
        kind: "ConfigMap".to_owned(),
        namespace: "default".to_owned(),
        name: "a".to_owned(),
        ..ObjectId::default()
    };
    project.cluster.put(
        id,
        "kubectl",
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {"a": "b"}}),
    );
    let (lines, _) = project.diff(&config_map("a", "a: b")).await;
    assert!(lines[0].starts_with("Change ConfigMap default/a (taken over from another program"), "{lines:?}");
    let (lines, _) = project.with("{}").diff(&config_map("a", "a: b")).await;
    assert!(lines[0].contains("does not belong to this project"), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn diff_ends_when_its_reader_stops_reading() {
    let project = Project::new();
    let (sender, _receiver) = mpsc::channel(1);
    let mut engine = Engine::new(project.cluster.clone(), project.cluster.clone(), "agentk");
    let input = project.input(&config_maps(&["a", "b", "c"]));
    let started = Instant::now();
    let summary = engine.diff(&input, false, &Open, &sender).await;
    assert!(summary.create < 3 && started.elapsed() < Duration::from_secs(60), "{summary:?}");
}

#[tokio::test(start_paused = true)]
async fn diff_has_the_applications_of_the_manifests_also_if_none_is_in_the_cluster() {
    let mut project = Project::new();
    project.cluster.add_kind("app.k8s.io", "v1beta1", "Application", "applications", true);
    let text = r#"---
apiVersion: app.k8s.io/v1beta1
kind: Application
metadata: {name: shop}
spec:
  descriptor:
    version: "4.2"
    notes: long
    links: [{description: Runbook, url: "https://example.com/runbook"}, {url: "javascript:alert(1)"}]
"#;
    let (lines, summary) = project.diff(&(config_maps(&["a"]) + text)).await;
    assert!(lines.contains(&"Create Application.app.k8s.io default/shop: ".to_owned()), "{lines:?}");
    let [shop] = &*summary.applications else { panic!("{summary:?}") };
    assert_eq!(
        (shop.object.to_string(), &*shop.descriptor.version),
        ("Application.app.k8s.io default/shop".to_owned(), "4.2")
    );
    assert!(shop.file.contains(".yaml:"), "{}", shop.file);
    assert_eq!((shop.descriptor.links.len(), &*shop.descriptor.notes), (1, ""));

    project.sync(&(config_maps(&["a"]) + text)).await;
    let (lines, summary) = project.diff(&(config_maps(&["a"]) + text)).await;
    assert_eq!((lines.len(), summary.applications.len()), (0, 1), "it is unchanged, and still described");
}
