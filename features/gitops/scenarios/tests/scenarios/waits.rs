//! The report of a sync while it runs, and the user's health rules for the objects that it waits for.

use object_health::HealthRules;

use super::*;

const DATABASE: &str = "---\napiVersion: example.com/v1\nkind: Database\nmetadata: {name: db}\n";
const LATE: &str = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: late, annotations: {argocd.argoproj.io/sync-wave: '1'}}\n";

#[tokio::test(start_paused = true)]
async fn wave_waits_for_the_health_that_a_rule_of_the_user_says() {
    let cluster = FakeCluster::new();
    cluster.add_kind("example.com", "v1", "Database", "databases", true);
    let mut project = Project::of(cluster);
    let rules = HealthRules::default();
    let engine = Engine::new(project.cluster.clone(), project.cluster.clone(), "agentk");
    project.engine = engine.with_health_rules(rules.clone());
    let rule = "[{kind: Database.example.com, health: \"has(object.spec) ? 'healthy' : 'progressing'\", message: \"'no replicas'\"}]";
    rules.set(&serde_saphyr::from_str::<Vec<_>>(rule).unwrap());

    let input = project.input(&(DATABASE.to_owned() + LATE));
    let outcome = project.pass(&input, &Open).await;
    assert_eq!(
        (outcome.state, &*outcome.waiting[0].reason),
        (ProjectState::Syncing, "no replicas"),
        "{outcome:?}"
    );
    assert!(!project.engine.is_ready().await);
    let database = ObjectId { group: "example.com".to_owned(), ..id("Database", "default", "db") };
    project.cluster.edit(&database, "operator", |object| object["spec"] = json!({"ready": true}));
    assert!(project.engine.is_ready().await);
    assert_eq!(project.pass(&input, &Open).await.state, ProjectState::Synced);
    assert_eq!(project.engine.health().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn wave_waits_for_the_first_status_of_a_custom_resource() {
    let definition = "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
        metadata: {name: databases.example.com}\n\
        spec: {group: example.com, scope: Namespaced, names: {kind: Database, plural: databases}, \
        versions: [{name: v1, subresources: {status: {}}}]}\n";
    let mut project = Project::new();
    let input = project.input(&[definition, DATABASE, LATE].concat());
    let outcome = project.pass(&input, &Open).await;
    let waiting: Vec<&str> = outcome.waiting.iter().map(|waiting| &*waiting.reason).collect();
    assert_eq!(waiting, ["its controller has written no status yet"], "{outcome:?}");

    let database = ObjectId { group: "example.com".to_owned(), ..id("Database", "default", "db") };
    let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    project.cluster.edit(&database, "operator", |object| object["status"] = status);
    assert_eq!(project.pass(&input, &Open).await.state, ProjectState::Synced);
}

/// A webhook that does not respond costs 10 s for each object.
#[tokio::test(start_paused = true)]
async fn first_error_of_a_stage_is_shown_before_the_others_are_tried() {
    let mut project = Project::new();
    let events = Arc::clone(&project.events);
    let shown = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&shown);
    project.cluster.set_fault(move |request| {
        let is_try = request.starts_with("try ConfigMap default/");
        let errors = events.lock().iter().filter_map(|event| event.error.clone()).collect::<Vec<_>>();
        if is_try {
            seen.lock().push(errors.len());
        }
        is_try.then(|| error(403, "Forbidden", "denied"))
    });
    let names: Vec<String> = (0..30).map(|number| format!("a{number}")).collect();
    let text = config_maps(&names.iter().map(|name| &**name).collect::<Vec<_>>());
    let outcome = project.sync(&text).await;
    assert_eq!((outcome.state, outcome.objects.failed), (ProjectState::Failed, 30), "{outcome:?}");
    let shown = shown.lock().clone();
    assert_eq!(
        (shown.first(), shown.last()),
        (Some(&0), Some(&1)),
        "one error is shown, and at once: {shown:?}"
    );
    assert_eq!(project.events(SyncEventKind::Waiting).len(), 1);
    assert_eq!(project.events(SyncEventKind::Failed).len(), 30);
}
