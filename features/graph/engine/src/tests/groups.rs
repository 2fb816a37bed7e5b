//! Groups and their health.

use proto::graph::{HealthState, ResourceState};
use serde_json::{Value, json};

use super::{NOW, World, object, owned, query_of};
use crate::{access::Access, applications::ApplicationDetail};

fn failing_pod(name: &str, owner: Option<(&str, &str, &str)>) -> Value {
    let mut pod = match owner {
        Some(owner) => owned("v1", "Pod", name, owner),
        None => object("v1", "Pod", name, &json!({})),
    };
    pod["status"] = json!({"phase": "Running", "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}]});
    pod["spec"] = json!({"restartPolicy": "Always"});
    pod
}

fn groups(world: &World) -> Vec<String> {
    let list = world.graph.groups(&query_of(""), &Access::of_agent(), NOW);
    let show = |group: &proto::graph::Group| {
        format!("{} {} {}", group.id, group.health.health, group.health.counts.values().sum::<u64>())
    };
    list.groups.iter().map(show).collect()
}

#[test]
fn health_is_unknown_while_a_part_is_not_loaded() {
    let mut world = World::new();
    world.add_deployment("web");
    let health = |world: &World| {
        world.graph.health(&query_of("namespace=a"), "", &Access::of_agent(), NOW).health.health
    };
    assert_eq!(health(&world), HealthState::Healthy);
    let pods = world.resource("v1", "Pod");
    world.graph.set_state(pods, ResourceState::Loading, "");
    assert_eq!(health(&world), HealthState::Unknown);
    world.apply(failing_pod("alone", None));
    world.graph.set_state(pods, ResourceState::Loading, "");
    assert_eq!(health(&world), HealthState::Degraded, "that is known already");
}

#[test]
fn objects_are_in_the_groups_of_their_owners() {
    let mut world = World::new();
    world.add_deployment("web");
    world.add_deployment("other");
    world.apply(object(
        "apps/v1",
        "Deployment",
        "web",
        &json!({"metadata": {
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"meta.helm.sh/release-name": "shop", "meta.helm.sh/release-namespace": "a"},
        }}),
    ));
    assert_eq!(groups(&world), ["helm:a/shop healthy 3", "namespace:a healthy 6"]);
    let group = &world.graph.groups(&query_of(""), &Access::of_agent(), NOW).groups[0];
    assert_eq!((&*group.found_by, &*group.namespaces), ("the annotations of Helm", &["a".to_owned()][..]));
}

#[test]
fn group_is_as_healthy_as_its_worst_object_without_an_owner() {
    let mut world = World::new();
    world.add_deployment("web");
    // The Deployment has replaced this Pod already, and is healthy.
    world.apply(failing_pod("web-1-old", Some(("apps/v1", "ReplicaSet", "web-1"))));
    let report = |world: &World| world.graph.health(&query_of("namespace=a"), "", &Access::of_agent(), NOW);
    let health = report(&world).health;
    assert_eq!(health.health, HealthState::Healthy);
    assert_eq!(health.counts, [(HealthState::Healthy, 3), (HealthState::Degraded, 1)].into());
    assert_eq!(
        (&*health.attention[0].name, health.attention[0].health),
        ("web-1-old", HealthState::Degraded)
    );

    world.apply(failing_pod("alone", None));
    assert_eq!(report(&world).health.health, HealthState::Degraded);
}

#[test]
fn applications_push_out_no_other_group() {
    let mut world = World::new();
    world.apply(failing_pod("alone", None));
    let everything = json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]});
    for n in 0..8 {
        let spec = json!({"spec": {"selector": everything}});
        world.apply(object("app.k8s.io/v1beta1", "Application", &format!("app-{n}"), &spec));
    }
    let groups = groups(&world);
    assert!(groups.contains(&"namespace:a degraded 9".to_owned()), "{groups:?}");
    assert_eq!(groups.len(), 5, "four Applications and the namespace: {groups:?}");
    let cut = "Application: 9 objects are members of more than 4, and only the first 4 by name count them";
    let query = query_of("");
    let list = world.graph.groups(&query, &Access::of_agent(), NOW);
    assert!(list.partial.contains(&cut.to_owned()), "{:?}", list.partial);
    let list = world.graph.applications(&query, &Access::of_agent(), NOW, ApplicationDetail::Full);
    assert!(list.partial.contains(&cut.to_owned()), "{:?}", list.partial);
    assert!(
        world
            .graph
            .groups(&query_of("namespace=b"), &Access::of_agent(), NOW)
            .partial
            .iter()
            .all(|it| it != cut)
    );
}

#[test]
fn parts_of_an_object_with_too_many_applications_are_counted_with_it() {
    let mut world = World::new();
    world.add_deployment("web");
    let labels = json!({"metadata": {"labels": {"tier": "front"}}});
    world.apply(object("apps/v1", "Deployment", "web", &labels));
    let of_the_deployment = json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]});
    for n in 0..5 {
        let spec = json!({"spec": {"selector": of_the_deployment}});
        world.apply(object("app.k8s.io/v1beta1", "Application", &format!("app-{n}"), &spec));
    }
    let cut = "Application: 3 objects are members of more than 4, and only the first 4 by name count them";
    let list = world.graph.groups(&query_of(""), &Access::of_agent(), NOW);
    assert!(
        list.partial.contains(&cut.to_owned()),
        "the Deployment, its ReplicaSet and its Pod: {:?}",
        list.partial
    );
}

/// A world with an owner and one object that it owns. Returns the health of both.
fn health_of(owner: Value, part: Value) -> HealthState {
    let mut world = World::new();
    world.apply(owner);
    world.apply(part);
    world.graph.health(&query_of(""), "", &Access::of_agent(), NOW).health.health
}

#[test]
fn owner_hides_only_the_objects_that_it_judges() {
    use HealthState::{Degraded, Healthy, Progressing};
    let stateful_set = |owner| {
        let mut set = owned("apps/v1", "StatefulSet", "db", owner);
        set["spec"] = json!({"replicas": 3});
        set["status"] = json!({"observedGeneration": 1});
        set
    };
    let job = |owner| {
        let mut job = owned("batch/v1", "Job", "job", owner);
        job["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        job["status"] = json!({"conditions": [{"type": "Failed", "status": "True"}]});
        job
    };
    let request = |owner| {
        let mut request = owned("cert-manager.io/v1", "CertificateRequest", "web-1", owner);
        request["status"] = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Failed"}]});
        request
    };
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let (database, cron_job) = (("example.com/v1", "Database", "db"), ("batch/v1", "CronJob", "job"));
    let certificate = ("cert-manager.io/v1", "Certificate", "web");
    for (name, (api, kind, owner), fields, part, expected) in [
        ("without a health", database, json!({"status": {"url": "a"}}), stateful_set(database), Progressing),
        (
            "whose operator is content",
            database,
            json!({"status": ready}),
            stateful_set(database),
            Progressing,
        ),
        ("that is suspended", cron_job, json!({"spec": {"suspend": true}}), job(cron_job), Degraded),
        (
            "whose last run succeeded",
            cron_job,
            json!({"status": {"lastScheduleTime": "2026-01-01T00:00:00Z", "lastSuccessfulTime": "2026-01-01T00:01:00Z"}}),
            job(cron_job),
            Healthy,
        ),
        (
            "that runs again after its first run has failed",
            cron_job,
            json!({"status": {"lastScheduleTime": "2026-01-01T00:05:00Z", "active": [{"name": "job-2"}]}}),
            job(cron_job),
            Degraded,
        ),
        (
            "that runs again after a run that succeeded after this one",
            cron_job,
            json!({"status": {
                "lastScheduleTime": "2026-01-01T00:05:00Z", "lastSuccessfulTime": "2026-01-01T00:01:00Z",
                "active": [{"name": "job-2"}],
            }}),
            job(cron_job),
            Healthy,
        ),
        ("that was issued since", certificate, json!({"status": ready}), request(certificate), Healthy),
        ("without a status", certificate, json!({"status": {"revision": 1}}), request(certificate), Degraded),
    ] {
        assert_eq!(health_of(object(api, kind, owner, &fields), part), expected, "{kind} {name}");
    }
}

/// An object of the namespace with an owner, a time of its creation and a status.
fn run(api: &str, kind: &str, name: &str, owner: (&str, &str, &str), minute: u8, status: &Value) -> Value {
    let mut run = owned(api, kind, name, owner);
    run["metadata"]["creationTimestamp"] = format!("2026-01-01T00:{minute:02}:00Z").into();
    run["status"] = status.clone();
    run
}

#[test]
fn failed_tries_of_a_run_count_until_it_has_ended() {
    use HealthState::{Degraded, Healthy};
    let ended = |status: &str| json!({"conditions": [{"type": "Succeeded", "status": status}]});
    for (api, kind, running, done) in [
        ("argoproj.io/v1alpha1", "Workflow", json!({"phase": "Running"}), json!({"phase": "Succeeded"})),
        ("tekton.dev/v1", "TaskRun", ended("Unknown"), ended("True")),
    ] {
        let world = |status: &Value| {
            let mut world = World::new();
            world.apply(object(api, kind, "build", &json!({"status": status})));
            world.apply(failing_pod("try-1", Some((api, kind, "build"))));
            world.graph.health(&query_of(""), "", &Access::of_agent(), NOW).health.health
        };
        assert_eq!((world(&running), world(&done)), (Degraded, Healthy), "{kind}");
    }
    // A task that may fail: the PipelineRun has succeeded without it.
    let mut world = World::new();
    let (pipeline, task) = (("tekton.dev/v1", "PipelineRun", "build"), ("tekton.dev/v1", "TaskRun", "lint"));
    world.apply(object(pipeline.0, pipeline.1, pipeline.2, &json!({"status": ended("True")})));
    let failed = json!({"conditions": [{"type": "Succeeded", "status": "False", "reason": "Failed"}]});
    world.apply(run(task.0, task.1, task.2, pipeline, 0, &failed));
    world.apply(failing_pod("lint-pod", Some(task)));
    assert_eq!(world.graph.health(&query_of(""), "", &Access::of_agent(), NOW).health.health, Healthy);
}

#[test]
fn failed_run_of_a_schedule_counts_until_a_later_one_succeeds() {
    use HealthState::{Degraded, Healthy};
    let mut world = World::new();
    let nightly = ("argoproj.io/v1alpha1", "CronWorkflow", "nightly");
    world.apply(object(nightly.0, nightly.1, nightly.2, &json!({"status": {"phase": "Active"}})));
    let mut health = |name: &str, minute, phase: &str| {
        world.apply(run(nightly.0, "Workflow", name, nightly, minute, &json!({"phase": phase})));
        world.graph.health(&query_of(""), "", &Access::of_agent(), NOW).health.health
    };
    assert_eq!(health("first", 1, "Succeeded"), Healthy);
    assert_eq!(health("second", 2, "Failed"), Degraded, "the run before does not matter");
    assert_eq!(health("third", 3, "Succeeded"), Healthy);
}

/// A Deployment whose rollout was complete has no deadline any more. A Job has a limit of tries.
#[test]
fn failed_pod_counts_while_its_owner_waits_for_it() {
    use HealthState::{Degraded, Healthy, Progressing};
    let wanted = json!({"spec": {"replicas": 1, "backoffLimit": 6}, "status": {
        "observedGeneration": 1, "replicas": 1, "active": 1, "desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "updatedReplicas": 1,
    }});
    for (api, kind, expected) in [
        ("apps/v1", "DaemonSet", Degraded),
        ("apps/v1", "StatefulSet", Degraded),
        ("apps/v1", "ReplicaSet", Degraded),
        ("batch/v1", "Job", Progressing),
    ] {
        let pod = failing_pod("p", Some((api, kind, "web")));
        assert_eq!(health_of(object(api, kind, "web", &wanted), pod), expected, "{kind}");
        let mut evicted = owned("v1", "Pod", "p", (api, kind, "web"));
        evicted["status"] = json!({"phase": "Failed", "reason": "Evicted"});
        assert_eq!(
            health_of(object(api, kind, "web", &wanted), evicted),
            Progressing,
            "{kind} has replaced it"
        );
    }
    let mut world = World::new();
    let (deployment, set) = (("apps/v1", "Deployment", "web"), ("apps/v1", "ReplicaSet", "web-1"));
    world.apply(object(deployment.0, deployment.1, deployment.2, &wanted));
    let mut replica_set = owned(set.0, set.1, set.2, deployment);
    (replica_set["spec"], replica_set["status"]) = (wanted["spec"].clone(), wanted["status"].clone());
    world.apply(replica_set);
    let health =
        |world: &World| world.graph.health(&query_of(""), "", &Access::of_agent(), NOW).health.health;
    assert_eq!(health(&world), Progressing);
    world.apply(failing_pod("web-1-x", Some(set)));
    assert_eq!(health(&world), Degraded);
    // The pod of an older version: all new ones are available.
    let done =
        json!({"status": {"desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberAvailable": 1}});
    let pod = failing_pod("p", Some(("apps/v1", "DaemonSet", "web")));
    assert_eq!(health_of(object("apps/v1", "DaemonSet", "web", &done), pod), Healthy);
}

/// A Pod that fills its disk is evicted after some seconds, and its ReplicaSet is healthy until then.
#[test]
fn pods_that_are_evicted_again_and_again_count_until_it_is_over() {
    use HealthState::{Degraded, Healthy};
    let mut world = World::new();
    let set = ("apps/v1", "ReplicaSet", "web");
    let replicas = json!({"spec": {"replicas": 2}, "status": {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2}});
    world.apply(object(set.0, set.1, set.2, &replicas));
    let health =
        |world: &World, now| world.graph.health(&query_of(""), "", &Access::of_agent(), now).health.health;
    for (number, expected) in [(1, Healthy), (2, Healthy), (3, Degraded)] {
        let mut evicted = owned("v1", "Pod", &format!("web-{number}"), set);
        evicted["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "disk"});
        world.apply(evicted);
        assert_eq!(health(&world, NOW), expected, "{number} pods of 2 replicas");
    }
    assert_eq!((health(&world, NOW + 599), health(&world, NOW + 600)), (Degraded, Healthy));
}

#[test]
fn static_pod_counts_beside_its_node() {
    let ready = json!({"metadata": {"namespace": ""}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let pod = failing_pod("kube-apiserver", Some(("v1", "Node", "node-1")));
    assert_eq!(health_of(object("v1", "Node", "node-1", &ready), pod), HealthState::Degraded);
}

#[test]
fn short_dip_is_hidden() {
    let mut world = World::new();
    world.apply(object(
        "v1",
        "Pod",
        "p",
        &json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Succeeded"}}),
    ));
    world.apply(failing_pod("p", None));
    let health = |now: i64| {
        let query = query_of("degraded_after=60s");
        world.graph.health(&query, "", &Access::of_agent(), now).health.health
    };
    assert_eq!(
        (health(NOW), health(NOW + 59), health(NOW + 60)),
        (HealthState::Healthy, HealthState::Healthy, HealthState::Degraded)
    );
}

#[test]
fn empty_selection_is_unknown_with_what_was_looked_for() {
    let mut world = World::new();
    world.add_deployment("web");
    let report =
        world.graph.health(&query_of("namespace=b&label=app=web"), "app=web", &Access::of_agent(), NOW);
    assert_eq!(report.health.health, HealthState::Unknown);
    assert_eq!(
        report.partial,
        ["no object was found in the namespace b with the labels app=web; do the objects have these labels?"]
    );
}

#[test]
fn applications_and_projects_of_gitops_are_groups() {
    let mut world = World::new();
    world.add_deployment("web");
    world.apply(object(
        "app.k8s.io/v1beta1",
        "Application",
        "shop",
        &json!({"spec": {"selector": {"matchLabels": {"part": "shop"}}}}),
    ));
    world.apply(object(
        "v1",
        "Service",
        "web",
        &json!({"metadata": {"labels": {"part": "shop", "applyset.kubernetes.io/part-of": "applyset-1-v1"}}}),
    ));
    world.apply(object("v1", "ConfigMap", "gitops-1", &json!({"metadata": {
        "labels": {"applyset.kubernetes.io/id": "applyset-1-v1"}, "annotations": {"agentk/project": "group/shop"},
    }})));
    assert_eq!(
        groups(&world),
        ["application:a/shop healthy 1", "gitops:group/shop healthy 1", "namespace:a healthy 6"]
    );
}
