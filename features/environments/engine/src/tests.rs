//! Environments in a cluster in memory.

use fake_cluster::{FakeCluster, error};
use kube_cluster::{AllowedKinds, AllowedResources};
use proto::{
    AgentId,
    gitops::ObjectId,
    provision::{Deletion, EnvironmentKey, ObjectChange},
};
use serde_json::{Map, Value, json};

use super::{EnvironmentError, EnvironmentOwner, Environments};
use crate::EnvironmentManifest;
use kube_cluster::{ApiError, Cause, Kind};

const RBAC: &str = "rbac.authorization.k8s.io";

fn cluster() -> FakeCluster {
    let cluster = FakeCluster::new();
    cluster.add_kind("", "v1", "ServiceAccount", "serviceaccounts", true);
    cluster.add_kind("", "v1", "Event", "events", true);
    cluster.add_kind(RBAC, "v1", "RoleBinding", "rolebindings", true);
    cluster.add_kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", false);
    cluster
}

fn environments(cluster: &FakeCluster) -> Environments<FakeCluster> {
    let kinds = |group: &str, resources: &[&str]| AllowedResources {
        groups: Some(vec![group.to_owned()]),
        resources: resources.iter().map(|&name| name.to_owned()).collect(),
    };
    let rbac = kinds(RBAC, &["rolebindings", "clusterrolebindings"]);
    Environments::new(
        cluster.clone(),
        AllowedKinds::new([kinds("", &["namespaces", "serviceaccounts"]), rbac]),
    )
}

fn owner(slug: &str, project: u64) -> EnvironmentOwner {
    EnvironmentOwner::new(AgentId(7), EnvironmentKey::new(project, slug).unwrap()).unwrap()
}

fn object_id(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectId {
    let text = str::to_owned;
    ObjectId { group: text(group), kind: text(kind), namespace: text(namespace), name: text(name) }
}

fn manifest(group: &str, kind: &str, namespace: &str, name: &str) -> EnvironmentManifest {
    let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    EnvironmentManifest {
        id: object_id(group, kind, namespace, name),
        version: "v1".to_owned(),
        object,
        source: "default.yaml:2".to_owned(),
    }
}

/// A namespace, an account and its binding. The namespace is the last one in the template.
fn template(namespace: &str) -> Vec<EnvironmentManifest> {
    vec![
        manifest("", "ServiceAccount", namespace, "deployer"),
        manifest(RBAC, "RoleBinding", namespace, "deployers"),
        manifest("", "Namespace", "", namespace),
    ]
}

fn namespace(name: &str) -> ObjectId {
    object_id("", "Namespace", "", name)
}

async fn ensure(
    cluster: &FakeCluster,
    owner: &EnvironmentOwner,
    objects: Vec<EnvironmentManifest>,
) -> Result<Vec<ObjectChange>, EnvironmentError> {
    let done = environments(cluster).ensure(owner, objects).await?;
    Ok(done.into_iter().map(|object| object.change).collect())
}

async fn delete(cluster: &FakeCluster, owner: &EnvironmentOwner) -> Deletion {
    environments(cluster).delete(owner, &|_: &Kind, _: &str| false).await.unwrap()
}

/// The kinds that stay, each with its reason.
fn kept(deletion: &Deletion) -> Vec<String> {
    deletion.kept.iter().map(|kept| format!("{}: {}", kept.id, kept.reason)).collect()
}

#[tokio::test(start_paused = true)]
async fn objects_are_made_once_with_labels_and_namespaces_first() {
    use ObjectChange::{Created, Unchanged, Updated};

    let (cluster, owner) = (cluster(), owner("review-1", 30));
    assert_eq!(ensure(&cluster, &owner, template("r1")).await.unwrap(), [Created, Created, Created]);
    let applied: Vec<_> =
        cluster.take_requests().into_iter().filter(|request| request.starts_with("apply")).collect();
    assert_eq!(
        applied,
        [
            "apply Namespace r1",
            "apply ServiceAccount r1/deployer",
            "apply RoleBinding.rbac.authorization.k8s.io r1/deployers"
        ]
    );
    let live = cluster.object(&namespace("r1")).unwrap();
    let expected = json!({
        "agent.gitlab.com/id-7": "",
        "agent.gitlab.com/project_id-30": "",
        "agent.gitlab.com/environment_slug-review-1": "",
        "agent.gitlab.com/env-review-1-30-7": "",
    });
    assert_eq!(live["metadata"]["labels"], expected);
    assert!(live["metadata"]["annotations"]["agent.gitlab.com/env-review-1-30-7"].is_string());
    assert_eq!(ensure(&cluster, &owner, template("r1")).await.unwrap(), [Unchanged, Unchanged, Unchanged]);
    let mut changed = template("r1");
    changed[0].object["metadata"]["labels"]["team"] = "shop".into();
    assert_eq!(ensure(&cluster, &owner, changed).await.unwrap(), [Unchanged, Updated, Unchanged]);
    let listed = environments(&cluster).list(&owner).await.unwrap();
    assert_eq!(listed.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_unless_all_objects_may_be() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    let foreign = object_id("", "ServiceAccount", "r1", "deployer");
    cluster.put(namespace("default"), "kubectl", json!({"metadata": {}}));
    for (objects, expected) in [
        (vec![manifest("", "ConfigMap", "r1", "a")], "does not list configmaps among the resources"),
        (vec![manifest(RBAC, "ClusterRoleBinding", "", "a")], "it is cluster-scoped"),
        (vec![manifest("", "ServiceAccount", "", "a")], "the template must name metadata.namespace"),
        (vec![manifest("", "Toy", "r1", "a")], "the cluster does not have the kind Toy in version v1"),
        (vec![manifest("", "Namespace", "x", "r1")], "a Namespace is in no namespace"),
        (vec![manifest("", "Namespace", "", "default")], "it exists, and does not belong to an environment"),
    ] {
        let mut all = template("r1");
        all.extend(objects);
        let error = ensure(&cluster, &owner, all).await.unwrap_err().to_string();
        assert!(error.starts_with("default.yaml:2: "), "{error}");
        assert!(error.contains(expected), "{error}");
        assert!(cluster.object(&namespace("r1")).is_none(), "{expected}");
    }
    cluster.put(foreign, "kubectl", json!({"metadata": {"labels": {"app": "x"}}}));
    let error = ensure(&cluster, &owner, template("r1")).await.unwrap_err().to_string();
    assert!(error.contains("ServiceAccount r1/deployer: it exists, and does not belong"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn objects_of_another_project_are_not_shared() {
    let cluster = cluster();
    ensure(&cluster, &owner("review-1", 30), template("shared")).await.unwrap();
    let error = ensure(&cluster, &owner("review-1", 31), template("shared")).await.unwrap_err().to_string();
    assert!(error.contains("it belongs to another project or agent (review-1-30-7)"), "{error}");
    let error = ensure(&cluster, &owner("review-1", 130), template("shared")).await;
    assert!(error.is_err(), "the number ends like that of the project");
    let live = cluster.object(&namespace("shared")).unwrap();
    assert!(live["metadata"]["labels"].get("agent.gitlab.com/env-review-1-31-7").is_none());
}

#[tokio::test(start_paused = true)]
async fn environment_that_was_faster_keeps_its_object() {
    let (cluster, fast) = (cluster(), owner("review-1", 31));
    let mut object = manifest("", "Namespace", "", "r1").object;
    fast.mark(&mut object);
    object["metadata"]["uid"] = "u".into();
    object["metadata"]["resourceVersion"] = "1".into();
    object["metadata"]["managedFields"] = json!([]);
    let mut object = Some(object);
    cluster.set_intruder(move |objects, request| {
        if request == "apply Namespace r1"
            && let Some(object) = object.take()
        {
            objects.insert(namespace("r1"), object);
        }
    });
    let error = ensure(&cluster, &owner("review-1", 30), template("r1")).await.unwrap_err().to_string();
    assert!(error.contains("it belongs to another project or agent (review-1-31-7)"), "{error}");
    let labels = cluster.object(&namespace("r1")).unwrap()["metadata"]["labels"].clone();
    assert!(labels.get("agent.gitlab.com/env-review-1-30-7").is_none(), "{labels}");
    assert!(labels.get("agent.gitlab.com/env-review-1-31-7").is_some());
    assert!(!cluster.ids().iter().any(|id| id.contains("RoleBinding")), "no rights in it");
}

#[tokio::test(start_paused = true)]
async fn fields_of_others_are_taken_over_and_those_of_environments_are_not() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    let conflict = |manager: &str| ApiError {
        causes: vec![Cause {
            field: ".subjects".to_owned(),
            message: format!("conflict with \"{manager}\" using v1"),
        }],
        ..error(409, "Conflict", "Apply failed with 1 conflict")
    };
    let mut once = Some(conflict("kubectl-edit"));
    cluster.set_fault(move |request| if request.starts_with("apply") { once.take() } else { None });
    ensure(&cluster, &owner, template("r1")).await.unwrap();
    cluster
        .set_fault(move |request| request.starts_with("apply").then(|| conflict("agentk-env-review-2-30-7")));
    let error = ensure(&cluster, &owner, template("r1")).await.unwrap_err().to_string();
    assert!(error.contains("its fields differ from those of review-2-30-7, which uses it, too"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn errors_say_whether_another_attempt_helps() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    for (status, reason, transient) in [
        (503, "ServiceUnavailable", true),
        (403, "Forbidden", false),
        (403, "refused-by-policy", false),
        (422, "Invalid", false),
    ] {
        cluster.set_fault(move |request| {
            request.starts_with("apply").then(|| error(status, reason, "words of the server"))
        });
        let error = environments(&cluster).ensure(&owner, template("r1")).await.unwrap_err();
        assert_eq!(matches!(error, EnvironmentError::Unavailable(_)), transient, "{error}");
        assert!(
            error.to_string().starts_with("default.yaml:2: Namespace r1: words of the server"),
            "{error}"
        );
    }
    // The namespace of a former environment of this name.
    cluster.clear_fault();
    ensure(&cluster, &owner, template("r1")).await.unwrap();
    cluster.edit(&namespace("r1"), "x", |object| object["metadata"]["deletionTimestamp"] = "now".into());
    let error = environments(&cluster).ensure(&owner, template("r1")).await.unwrap_err();
    assert!(
        matches!(&error, EnvironmentError::Unavailable(what) if what.contains("is being deleted")),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn stop_deletes_what_belongs_to_the_environment_alone() {
    let cluster = cluster();
    let (one, other) = (owner("review-1", 30), owner("review-2", 30));
    ensure(&cluster, &one, template("r1")).await.unwrap();
    ensure(&cluster, &other, template("r2")).await.unwrap();
    cluster.put(object_id("", "ConfigMap", "r1", "kube-root-ca.crt"), "kube", json!({"metadata": {}}));
    cluster.put(object_id("", "ServiceAccount", "r1", "default"), "kube", json!({"metadata": {}}));
    cluster.put(object_id("", "Event", "r1", "e"), "kube", json!({"metadata": {}}));
    let token = json!({"metadata": {"annotations": {"kubernetes.io/service-account.name": "default"}}});
    cluster.put(object_id("", "Secret", "r1", "default-token-x"), "kube", token);
    let deletion = delete(&cluster, &one).await;
    assert_eq!((deletion.deleted.len(), kept(&deletion)), (3, vec![]));
    assert_eq!(deletion.deleted[2], namespace("r1"), "the namespace is the last one");
    assert!(cluster.object(&namespace("r1")).is_none() && cluster.object(&namespace("r2")).is_some());
    assert_eq!(delete(&cluster, &one).await, Deletion::default());
}

#[tokio::test(start_paused = true)]
async fn object_of_two_environments_stays_with_the_other() {
    let cluster = cluster();
    let (one, other) = (owner("review-1", 30), owner("review-2", 30));
    let shared = || vec![manifest("", "Namespace", "", "shared")];
    ensure(&cluster, &one, shared()).await.unwrap();
    ensure(&cluster, &other, shared()).await.unwrap();
    ensure(&cluster, &one, shared()).await.unwrap();
    let labels =
        |cluster: &FakeCluster| cluster.object(&namespace("shared")).unwrap()["metadata"]["labels"].clone();
    assert_eq!(labels(&cluster).as_object().unwrap().len(), 6, "{}", labels(&cluster));
    let deletion = delete(&cluster, &one).await;
    assert_eq!(kept(&deletion), ["Namespace shared: it is also an object of review-2-30-7"]);
    let left = labels(&cluster);
    assert!(left.get("agent.gitlab.com/env-review-1-30-7").is_none(), "{left}");
    assert!(left.get("agent.gitlab.com/environment_slug-review-1").is_none(), "{left}");
    let annotations = cluster.object(&namespace("shared")).unwrap()["metadata"]["annotations"].clone();
    assert!(annotations.get("agent.gitlab.com/env-review-1-30-7").is_none(), "{annotations}");
    assert_eq!(delete(&cluster, &other).await.deleted, [namespace("shared")]);
}

#[tokio::test(start_paused = true)]
async fn namespace_with_content_of_others_stays() {
    let workload = object_id("apps", "Deployment", "r1", "web");
    let labelled = |key: &str, value: &str| json!({"metadata": {"labels": {key: value}}});
    for (object, expected, sweepable) in [
        (json!({"metadata": {}}), "it contains Deployment.apps r1/web, and the policy", true),
        (
            labelled("agent.gitlab.com/env-prod-31-7", ""),
            "Deployment.apps r1/web is in it, which is an object of prod-31-7",
            false,
        ),
        (
            labelled("applyset.kubernetes.io/part-of", "x"),
            "Deployment.apps r1/web is in it, which comes from Git",
            false,
        ),
        (
            json!({"metadata": {"ownerReferences": [{"uid": "of-a-node"}]}}),
            "it contains Deployment.apps r1/web",
            true,
        ),
    ] {
        let (cluster, owner) = (cluster(), owner("review-1", 30));
        ensure(&cluster, &owner, template("r1")).await.unwrap();
        cluster.put(workload.clone(), "kubectl", object);
        let deletion = delete(&cluster, &owner).await;
        let reasons = kept(&deletion);
        assert!(
            reasons.len() == 1 && reasons[0].starts_with(&format!("Namespace r1: {expected}")),
            "{reasons:?}"
        );
        assert_eq!(deletion.deleted.len(), 2, "the rights end all the same");
        assert!(cluster.object(&workload).is_some());
        let may_sweep = |kind: &Kind, namespace: &str| kind.plural == "deployments" && namespace == "r1";
        let deletion = environments(&cluster).delete(&owner, &may_sweep).await.unwrap();
        assert_eq!(deletion.kept.is_empty(), sweepable, "{:?}", kept(&deletion));
    }
}

#[tokio::test(start_paused = true)]
async fn dependent_objects_are_those_of_their_owner() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    ensure(&cluster, &owner, template("r1")).await.unwrap();
    cluster.put(object_id("apps", "Deployment", "r1", "web"), "kubectl", json!({"metadata": {}}));
    let uid =
        cluster.object(&object_id("apps", "Deployment", "r1", "web")).unwrap()["metadata"]["uid"].clone();
    let pod = json!({"metadata": {"ownerReferences": [{"uid": uid}]}});
    cluster.put(object_id("", "Service", "r1", "web-x"), "kube", pod);
    let reasons = kept(&delete(&cluster, &owner).await);
    assert!(reasons[0].contains("it contains Deployment.apps r1/web, and"), "{reasons:?}");
}

#[tokio::test(start_paused = true)]
async fn namespace_whose_content_is_not_known_stays() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    ensure(&cluster, &owner, template("r1")).await.unwrap();
    cluster.set_fault(|request| {
        (request == "list Secret r1").then(|| error(403, "Forbidden", "secrets is forbidden"))
    });
    let reasons = kept(&delete(&cluster, &owner).await);
    assert_eq!(
        reasons,
        ["Namespace r1: it is not known what is in it: secrets cannot be listed: secrets is forbidden (403)"]
    );
    cluster.clear_fault();
    cluster.set_unavailable(Some("apps"));
    let reasons = kept(&delete(&cluster, &owner).await);
    assert_eq!(reasons, ["Namespace r1: it is not known what is in it: the API groups apps do not respond"]);
    cluster.set_unavailable(Some(RBAC));
    let error = environments(&cluster).delete(&owner, &|_: &Kind, _: &str| true).await.unwrap_err();
    assert!(matches!(error, EnvironmentError::Unavailable(_)), "{error}");
    cluster.set_unavailable(None);
    assert_eq!(delete(&cluster, &owner).await.deleted, [namespace("r1")]);
}

#[tokio::test(start_paused = true)]
async fn template_may_keep_its_objects_forever() {
    let cluster = cluster();
    let owner = owner("production", 30).with_facts(Map::new(), true);
    ensure(&cluster, &owner, template("p")).await.unwrap();
    let deletion = delete(&cluster, &owner).await;
    assert_eq!((deletion.deleted.len(), deletion.kept.len()), (0, 3));
    assert!(deletion.kept.iter().all(|kept| kept.reason == "its template says delete_resources: never"));
    assert!(cluster.object(&namespace("p")).is_some());
}

/// A namespace that another environment claims between the check and the delete stays.
#[tokio::test(start_paused = true)]
async fn object_that_changes_meanwhile_stays() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    ensure(&cluster, &owner, vec![manifest("", "Namespace", "", "r1")]).await.unwrap();
    cluster.set_intruder(|objects, request| {
        if request == "delete Namespace r1" {
            let object: &mut Value = objects.get_mut(&namespace("r1")).unwrap();
            object["metadata"]["resourceVersion"] = "999".into();
        }
    });
    assert_eq!(kept(&delete(&cluster, &owner).await), ["Namespace r1: it was changed just now: try again"]);
    assert!(cluster.object(&namespace("r1")).is_some());
}

#[test]
fn owner_that_no_label_can_name_is_refused() {
    let key = |project| EnvironmentKey::new(project, &"a".repeat(40)).unwrap();
    assert!(EnvironmentOwner::new(AgentId(7), key(123_456_789)).is_ok());
    assert!(EnvironmentOwner::new(AgentId(u64::MAX), key(u64::MAX)).is_err());
}

const ENDING: &str = "/metadata/annotations/agent.gitlab.com~1ending-review-1-30-7";

/// The process of agentk that stops the environment, and the one that starts it again, are two pods.
#[tokio::test(start_paused = true)]
async fn start_takes_back_the_end_of_its_namespace() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    ensure(&cluster, &owner, template("r1")).await.unwrap();
    let workload = object_id("apps", "Deployment", "r1", "web");
    cluster.put(workload.clone(), "kubectl", json!({"metadata": {}}));
    assert_eq!(kept(&delete(&cluster, &owner).await).len(), 1);
    let ending = |cluster: &FakeCluster| cluster.object(&namespace("r1")).unwrap().pointer(ENDING).is_some();
    assert!(ending(&cluster));
    ensure(&cluster, &owner, template("r1")).await.unwrap();
    assert!(!ending(&cluster));
    cluster.remove(&workload);

    // The stop begins between the look of the start and its apply, which changes nothing.
    let mut stop = Some(json!("999"));
    cluster.set_intruder(move |objects, request| {
        if request == "apply Namespace r1"
            && let Some(version) = stop.take()
        {
            let object: &mut Value = objects.get_mut(&namespace("r1")).unwrap();
            object["metadata"]["annotations"]["agent.gitlab.com/ending-review-1-30-7"] = "".into();
            object["metadata"]["resourceVersion"] = version;
        }
    });
    ensure(&cluster, &owner, template("r1")).await.unwrap();
    assert!(!ending(&cluster));
    assert_ne!(cluster.object(&namespace("r1")).unwrap()["metadata"]["resourceVersion"], "999");

    // The start is complete when the stop deletes the namespace.
    cluster.set_intruder(|objects, request| {
        if request == "delete Namespace r1" {
            let object: &mut Value = objects.get_mut(&namespace("r1")).unwrap();
            let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
            assert!(annotations.remove("agent.gitlab.com/ending-review-1-30-7").is_some());
            object["metadata"]["resourceVersion"] = "1000".into();
        }
    });
    assert_eq!(kept(&delete(&cluster, &owner).await), ["Namespace r1: it was changed just now: try again"]);
}

#[tokio::test(start_paused = true)]
async fn namespace_that_ends_meanwhile_is_a_reason_to_try_again() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    for (status, message) in [
        (
            403,
            "serviceaccounts \"deployer\" is forbidden: unable to create new content in namespace r1 because it is being terminated",
        ),
        (404, "namespaces \"r1\" not found"),
    ] {
        cluster.set_fault(move |request| {
            request.starts_with("apply ServiceAccount").then(|| error(status, "x", message))
        });
        let error = environments(&cluster).ensure(&owner, template("r1")).await.unwrap_err();
        assert!(matches!(error, EnvironmentError::Unavailable(_)), "{error}");
    }
}

/// With a namespace from the name of the environment, developers could choose the namespace of another team.
#[tokio::test(start_paused = true)]
async fn namespace_outside_of_the_template_must_be_of_the_project() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    let binding = || vec![manifest(RBAC, "RoleBinding", "team", "deployers")];
    let error = ensure(&cluster, &owner, binding()).await.unwrap_err().to_string();
    assert!(error.contains("its namespace team does not exist, and is not in the template"), "{error}");
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    let (agent, project) = ("agent.gitlab.com/id-7", "agent.gitlab.com/project_id-30");
    for wrong in [
        labels(json!({})),
        labels(json!({agent: ""})),
        labels(json!({project: ""})),
        labels(json!({agent: "", "agent.gitlab.com/project_id-31": ""})),
        labels(json!({agent: "", project: "", "agent.gitlab.com/env-prod-31-7": ""})),
    ] {
        cluster.put(namespace("team"), "kubectl", wrong);
        let error = ensure(&cluster, &owner, binding()).await.unwrap_err().to_string();
        assert!(
            error.contains("the labels agent.gitlab.com/id-7= and agent.gitlab.com/project_id-30="),
            "{error}"
        );
    }
    assert!(!cluster.ids().iter().any(|id| id.contains("RoleBinding")), "no rights in it");
    cluster.put(namespace("team"), "kubectl", labels(json!({agent: "", project: ""})));
    ensure(&cluster, &owner, binding()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn object_that_somebody_makes_at_the_same_moment_stays_theirs() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    let object = |manager: &str| {
        let managers = json!([{"manager": manager, "operation": "Update"}]);
        json!({"metadata": {"uid": "u", "resourceVersion": "1", "managedFields": managers}})
    };
    for (manager, is_foreign) in [("kubectl-create", true), ("kube-controller-manager", false)] {
        cluster.remove(&namespace("r1"));
        let mut object = Some(object(manager));
        cluster.set_intruder(move |objects, request| {
            if request == "apply Namespace r1"
                && let Some(object) = object.take()
            {
                objects.insert(namespace("r1"), object);
            }
        });
        let made = environments(&cluster).ensure(&owner, vec![manifest("", "Namespace", "", "r1")]).await;
        assert_eq!(matches!(made, Err(EnvironmentError::Unavailable(_))), is_foreign, "{made:?}");
        let labels = cluster.object(&namespace("r1")).unwrap()["metadata"]["labels"].clone();
        assert_eq!(labels.as_object().unwrap().is_empty(), is_foreign, "{labels}");
    }
}

#[tokio::test(start_paused = true)]
async fn scope_is_listed_by_namespace_and_keeps_namespaces() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    ensure(&cluster, &owner, template("r1")).await.unwrap();
    ensure(&cluster, &owner, template("r2")).await.unwrap();
    cluster.set_fault(|request| {
        let elsewhere = request.starts_with("list ") && !request.ends_with(" r1");
        elsewhere.then(|| error(403, "refused-by-policy", "the scope does not contain this"))
    });
    let scoped = || environments(&cluster).within(Some(vec!["r1".to_owned()]));
    let listed: Vec<_> = scoped().list(&owner).await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(
        listed,
        ["Namespace r1", "ServiceAccount r1/deployer", "RoleBinding.rbac.authorization.k8s.io r1/deployers"]
    );
    let deletion = scoped().delete(&owner, &|_: &Kind, _: &str| false).await.unwrap();
    assert_eq!((deletion.deleted.len(), kept(&deletion).len()), (2, 0));
    assert!(cluster.object(&namespace("r1")).is_some());
    assert!(cluster.object(&object_id("", "ServiceAccount", "r2", "deployer")).is_some());
}

/// agentk must not hold all that somebody puts into a namespace.
#[tokio::test(start_paused = true)]
async fn namespace_with_too_many_objects_stays() {
    let (cluster, owner) = (cluster(), owner("review-1", 30));
    ensure(&cluster, &owner, template("r1")).await.unwrap();
    let fill = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            let id = object_id("", "ConfigMap", "r1", &format!("c{number:05}"));
            cluster.put(id, "kubectl", json!({"metadata": {}}));
        }
    };
    fill(0..250);
    let reasons = kept(&delete(&cluster, &owner).await);
    assert!(reasons[0].contains("ConfigMap r1/c00004, 245 more"), "all pages are read: {reasons:?}");
    fill(250..10_001);
    let deletion = environments(&cluster).delete(&owner, &|_: &Kind, _: &str| true).await.unwrap();
    let reasons = kept(&deletion);
    assert!(reasons[0].contains("more than 10000 objects"), "{reasons:?}");
}
