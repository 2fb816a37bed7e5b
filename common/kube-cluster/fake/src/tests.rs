//! The cluster in memory behaves like an API server.

use std::time::Duration;

use kube_cluster::{ApiError, ApplyOptions, Cluster as _, GroupKind, Kind};
use proto::{agent_configuration::gitops::PropagationPolicy, gitops::ObjectId};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Death, FakeCluster, error};

fn id(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectId {
    let text = str::to_owned;
    ObjectId { group: text(group), kind: text(kind), namespace: text(namespace), name: text(name) }
}

fn config_map(name: &str) -> ObjectId {
    id("", "ConfigMap", "shop", name)
}

fn shop() -> ObjectId {
    id("", "Namespace", "", "shop")
}

fn kind(id: &ObjectId) -> Kind {
    Kind {
        kind: GroupKind::of(id),
        version: "v1".to_owned(),
        plural: String::new(),
        namespaced: !id.namespace.is_empty(),
        has_status: false,
    }
}

fn uid(cluster: &FakeCluster, id: &ObjectId) -> String {
    cluster.object(id).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn is_deleting(cluster: &FakeCluster, id: &ObjectId) -> bool {
    cluster.object(id).unwrap()["metadata"]["deletionTimestamp"].is_string()
}

async fn apply(cluster: &FakeCluster, id: &ObjectId, object: Value) -> Result<Value, ApiError> {
    apply_as(cluster, id, object, "agentk", true).await
}

async fn apply_as(
    cluster: &FakeCluster,
    id: &ObjectId,
    object: Value,
    manager: &str,
    force: bool,
) -> Result<Value, ApiError> {
    let options = ApplyOptions { manager, dry_run: false, force };
    cluster.apply(&kind(id), id, &object, options).await.map(|applied| applied.object)
}

/// Returns a cluster with a namespace.
fn cluster() -> FakeCluster {
    let cluster = FakeCluster::new();
    cluster.put(shop(), "kubectl", json!({}));
    cluster
}

/// A definition of the kind Toy, and a cluster with it.
fn cluster_with_toys() -> (FakeCluster, ObjectId) {
    let cluster = cluster();
    let definition = id("apiextensions.k8s.io", "CustomResourceDefinition", "", "toys.example.com");
    let spec =
        json!({"group": "example.com", "names": {"kind": "Toy", "plural": "toys"}, "scope": "Namespaced"});
    cluster.put(definition.clone(), "kubectl", json!({"spec": spec}));
    (cluster, definition)
}

#[tokio::test]
async fn namespace_is_deleted_with_its_objects_and_waits_for_finalizers() {
    let cluster = cluster();
    cluster.put(config_map("a"), "kubectl", json!({}));
    cluster.put(
        config_map("b"),
        "kubectl",
        json!({"metadata": {"finalizers": ["example.com/wait", "example.com/other"]}}),
    );
    let uid = uid(&cluster, &shop());
    cluster.delete(&kind(&shop()), &shop(), &uid, None, PropagationPolicy::Foreground).await.unwrap();
    assert_eq!(cluster.ids(), ["ConfigMap shop/b", "Namespace shop"]);
    assert!(is_deleting(&cluster, &config_map("b")) && is_deleting(&cluster, &shop()));

    let error = apply(&cluster, &config_map("c"), json!({})).await.unwrap_err();
    assert!(error.message.contains("because it is being terminated"), "{error}");
    apply(&cluster, &config_map("b"), json!({"data": {"a": "b"}})).await.unwrap();
    cluster.edit(&config_map("b"), "x", |object| {
        drop(object["metadata"]["finalizers"].as_array_mut().unwrap().pop());
    });
    assert_eq!(cluster.ids().len(), 2, "one finalizer is left");
    cluster.remove_finalizers(&config_map("b"));
    assert_eq!(cluster.ids(), [""; 0]);
    let error = apply(&cluster, &config_map("c"), json!({})).await.unwrap_err();
    assert_eq!((error.status, &*error.message), (404, "namespaces \"shop\" not found"));
}

#[tokio::test]
async fn definition_is_deleted_with_the_objects_of_its_kind() {
    let (cluster, definition) = cluster_with_toys();
    let [stuck, other] = ["stuck", "other"].map(|name| id("example.com", "Toy", "shop", name));
    apply(&cluster, &other, json!({"spec": {"size": 1}})).await.unwrap();
    apply(&cluster, &stuck, json!({"metadata": {"finalizers": ["example.com/wait"]}})).await.unwrap();
    cluster.remove(&definition);
    assert!(cluster.object(&other).is_none() && is_deleting(&cluster, &definition));
    assert_eq!(apply(&cluster, &other, json!({})).await.unwrap_err().status, 405, "the definition ends");
    cluster.remove_finalizers(&stuck);
    assert_eq!(cluster.ids(), ["Namespace shop"]);
    assert_eq!(apply(&cluster, &other, json!({})).await.unwrap_err().status, 404, "the kind is gone");
    assert_eq!(cluster.resolve(&GroupKind::of(&other), None).await.unwrap().found(), None);
}

#[tokio::test]
async fn dependents_are_deleted_with_their_owner_unless_orphaned() {
    for (propagation, left) in
        [(PropagationPolicy::Foreground, &[][..]), (PropagationPolicy::Orphan, &["ConfigMap shop/dependent"])]
    {
        let cluster = cluster();
        let [owner, dependent] = ["owner", "dependent"].map(config_map);
        cluster.put(owner.clone(), "kubectl", json!({}));
        let uid = uid(&cluster, &owner);
        let owners = json!({"metadata": {"ownerReferences": [{"uid": uid}]}});
        cluster.put(dependent.clone(), "controller", owners);
        cluster.delete(&kind(&owner), &owner, &uid, None, propagation).await.unwrap();
        let ids = cluster.ids();
        assert_eq!(ids[..ids.len() - 1], *left);
    }
}

#[tokio::test]
async fn generation_moves_with_the_spec() {
    let (cluster, _) = cluster_with_toys();
    let generation = |id: &ObjectId| cluster.object(id).unwrap()["metadata"]["generation"].clone();
    let toy = id("example.com", "Toy", "shop", "a");
    apply(&cluster, &toy, json!({"metadata": {"generation": 7}, "spec": {"size": 1}})).await.unwrap();
    apply(&cluster, &toy, json!({"metadata": {"labels": {"a": "b"}}, "spec": {"size": 1}})).await.unwrap();
    cluster.edit(&toy, "controller", |object| object["status"]["ready"] = true.into());
    assert_eq!(generation(&toy), 1);
    apply(&cluster, &toy, json!({"spec": {"size": 2}})).await.unwrap();
    assert_eq!(generation(&toy), 2);

    let high = id("scheduling.k8s.io", "PriorityClass", "", "high");
    apply(&cluster, &high, json!({"value": 1, "description": "a"})).await.unwrap();
    cluster.edit(&high, "kubectl", |object| object["description"] = "b".into());
    assert_eq!(generation(&high), 1);
    apply(&cluster, &config_map("a"), json!({})).await.unwrap();
    assert_eq!(generation(&config_map("a")), Value::Null);
}

#[tokio::test]
async fn managers_own_what_they_have_set() {
    let cluster = cluster();
    let a = config_map("a");
    let release = "meta.helm.sh/release-name";
    cluster.put(
        a.clone(),
        "helm",
        json!({"metadata": {"annotations": {release: "shop"}}, "data": {"k": "1"}}),
    );
    let fields = |manager: &str, operation: &str| {
        let object = cluster.object(&a).unwrap();
        let entries = object["metadata"]["managedFields"].as_array().unwrap().clone();
        let found =
            entries.into_iter().find(|entry| entry["manager"] == manager && entry["operation"] == operation);
        found.map(|entry| entry["fieldsV1"].clone()).unwrap_or_default()
    };
    let annotation = json!({"f:annotations": {format!("f:{release}"): {}}});
    assert_eq!(fields("helm", "Update"), json!({"f:metadata": annotation, "f:data": {"f:k": {}}}));

    let manifest = json!({"metadata": {"labels": {"l": "x"}}, "data": {"k": "2"}});
    let error = apply_as(&cluster, &a, manifest.clone(), "agentk", false).await.unwrap_err();
    assert_eq!((error.status, &*error.causes[0].field), (409, ".data.k"));
    apply(&cluster, &a, manifest.clone()).await.unwrap();
    assert_eq!(fields("helm", "Update"), json!({"f:metadata": annotation}), "it was forced");
    let own = json!({"f:metadata": {"f:labels": {"f:l": {}}}, "f:data": {"f:k": {}}});
    assert_eq!(fields("agentk", "Apply"), own);

    // A label that another program has removed comes back, and its value is the manager's again.
    cluster.edit(&a, "kubectl", |object| {
        object["metadata"].as_object_mut().unwrap().remove("labels");
        object["data"]["other"] = "3".into();
    });
    assert_eq!(fields("agentk", "Apply"), json!({"f:data": {"f:k": {}}}));
    assert_eq!(fields("kubectl", "Update"), json!({"f:data": {"f:other": {}}}));
    let applied = apply(&cluster, &a, manifest.clone()).await.unwrap();
    assert_eq!(applied["metadata"]["labels"]["l"], "x");
    let again = apply(&cluster, &a, manifest).await.unwrap();
    assert_eq!(applied, again, "nothing is written if nothing changes");

    cluster.edit(&a, "kubectl", |object| object["data"]["other"] = "4".into());
    let before = cluster.object(&a).unwrap();
    let manifest = json!({"metadata": {"labels": {"l": "x"}}, "data": {"k": "2"}});
    assert_eq!(apply(&cluster, &a, manifest).await.unwrap(), before);

    // What leaves the manifest leaves the object, but for the fields of others.
    let applied = apply(&cluster, &a, json!({})).await.unwrap();
    assert_eq!(applied["data"], json!({"other": "4"}));
    assert_eq!(applied["metadata"].get("labels"), None);
}

#[tokio::test]
async fn preconditions_and_values_are_checked() {
    let cluster = cluster();
    for metadata in [json!({"resourceVersion": "1"}), json!({"uid": "uid-1"})] {
        let error = apply(&cluster, &config_map("new"), json!({"metadata": metadata})).await.unwrap_err();
        assert_eq!(error.status, 409, "the object does not exist");
    }
    let inventory = id("", "ConfigMap", "agentk", "a");
    apply(&cluster, &inventory, json!({"binaryData": {"a": "H4sI"}})).await.unwrap();
    for (data, status) in [
        (json!({"binaryData": {"a": "?"}}), 400),
        (json!({"binaryData": {"a": "H4sI"}, "data": {"a": ""}}), 422),
        (json!({"data": {"a": "x".repeat(1 << 20)}}), 422),
    ] {
        assert_eq!(apply(&cluster, &inventory, data).await.unwrap_err().status, status);
    }
}

#[tokio::test]
async fn controllers_write_the_status_and_nothing_else() {
    let cluster = cluster();
    let web = id("apps", "Deployment", "shop", "web");
    cluster.put(web.clone(), "kubectl", json!({"spec": {"replicas": 2}}));
    assert!(cluster.object(&web).unwrap().get("status").is_none());
    cluster.run_controllers(&web);
    let object = cluster.object(&web).unwrap();
    assert_eq!(
        (&object["status"]["availableReplicas"], &object["metadata"]["generation"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(object["metadata"]["managedFields"][1]["subresource"], "status");
    cluster.set_controllers(true);
    cluster.edit(&web, "kubectl", |object| object["spec"]["replicas"] = 3.into());
    assert_eq!(cluster.object(&web).unwrap()["status"]["observedGeneration"], 2);
}

#[tokio::test(start_paused = true)]
async fn process_dies_before_or_after_a_request_has_its_effect() {
    for (death, at_once, later) in
        [(Death::Before, false, false), (Death::After, true, true), (Death::Late, false, true)]
    {
        let cluster = cluster();
        let (a, b) = (config_map("a"), config_map("b"));
        cluster.kill_at(1, death);
        apply(&cluster, &a, json!({})).await.unwrap();
        let dying = apply(&cluster, &b, json!({}));
        tokio::select! {
            biased;
            _ = dying => panic!("a dead process has no response"),
            () = cluster.died() => {}
        }
        let again = timeout(Duration::from_secs(1), apply(&cluster, &a, json!({}))).await;
        assert!(again.is_err(), "it stays dead");
        cluster.revive();
        assert_eq!(cluster.object(&b).is_some(), at_once);
        assert_eq!(cluster.deliver_late(), death == Death::Late);
        assert_eq!(cluster.object(&b).is_some(), later);
    }
}

#[tokio::test]
async fn requests_fail_before_or_after_their_effects() {
    let cluster = cluster();
    let (a, b, c) = (config_map("a"), config_map("b"), config_map("c"));
    cluster.fail_requests(0..1, error(500, "InternalError", "lost"), true);
    assert_eq!(apply(&cluster, &a, json!({})).await.unwrap_err().status, 500);
    cluster.fail_requests(0..2, error(429, "TooManyRequests", "slow down"), false);
    assert_eq!(apply(&cluster, &b, json!({})).await.unwrap_err().status, 429);
    assert_eq!(apply(&cluster, &c, json!({})).await.unwrap_err().status, 429);
    apply(&cluster, &c, json!({})).await.unwrap();
    assert_eq!(cluster.ids(), ["ConfigMap shop/a", "ConfigMap shop/c", "Namespace shop"]);
    cluster.set_unavailable(Some("apps"));
    let error = cluster.list(&kind(&id("apps", "Deployment", "shop", "")), "", "", true).await.unwrap_err();
    assert_eq!(error.status, 503);
    assert_eq!(cluster.objects().len(), 3);
}

#[tokio::test]
async fn somebody_else_acts_just_before_a_request() {
    let cluster = cluster();
    let (a, b) = (config_map("a"), config_map("b"));
    let (other, taken) = (cluster.clone(), b.clone());
    cluster.interrupt_at(1, move || other.put(taken, "kubectl", json!({"data": {"k": "theirs"}})));
    apply(&cluster, &a, json!({})).await.unwrap();
    let error = apply_as(&cluster, &b, json!({"data": {"k": "ours"}}), "agentk", false).await.unwrap_err();
    assert_eq!(error.status, 409);
}
