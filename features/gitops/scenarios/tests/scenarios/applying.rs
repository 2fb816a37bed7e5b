//! The writes of a sync, and those of the next one.

use super::*;

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
        request.starts_with("try Secret").then(|| kube_cluster::ApiError {
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
async fn sync_that_only_reports_writes_nothing() {
    let mut project = Project::new();
    project.sync(&config_maps(&["a", "b"])).await;
    let (kind, deleted) = (project.engine.objects()[0].1.clone(), id("ConfigMap", "default", "a"));
    let uid = project.cluster.object(&deleted).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    kube_cluster::Cluster::delete(&project.cluster, &kind, &deleted, &uid, None, Default::default())
        .await
        .unwrap();
    project.cluster.take_requests();
    project.heal = false;
    let outcome = project.sync(&config_maps(&["a", "b"])).await;
    assert_eq!(outcome.state, ProjectState::OutOfSync, "{outcome:?}");
    assert_eq!(writes(&project.cluster.take_requests()), [""; 0]);
}
