use std::convert::Infallible;

use http::Response;
use http_body_util::Full;
use tower::service_fn;

use super::*;

/// Returns a cluster whose API server has these answers. All other paths are those of a server that is down.
fn cluster(answer: fn(&str) -> Value) -> KubeCluster {
    let service = service_fn(move |request: Request<Body>| async move {
        let answer = answer(request.uri().path());
        let status = if answer.is_null() { 503 } else { 200 };
        let body = Full::new(Bytes::from(answer.to_string()));
        Ok::<_, Infallible>(Response::builder().status(status).body(body).expect("a valid response"))
    });
    KubeCluster::new(move || Client::new(service, "default"))
}

fn config_maps() -> Kind {
    Kind {
        kind: GroupKind { group: String::new(), kind: "ConfigMap".to_owned() },
        version: "v1".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
        has_status: false,
    }
}

#[tokio::test]
async fn items_of_a_list_keep_their_managers_and_not_the_fields() {
    let cluster = cluster(|_| {
        let manager = json!({"manager": "agentk", "operation": "Apply", "fieldsV1": {"f:data": {}}});
        json!({"items": [{"metadata": {"name": "a", "managedFields": [manager]}}]})
    });
    let kind = GroupKind { group: "apps".to_owned(), kind: "Deployment".to_owned() };
    let kind = Kind {
        kind,
        version: "v1".to_owned(),
        plural: "deployments".to_owned(),
        namespaced: true,
        has_status: true,
    };
    let listed = cluster.list(&kind, "default", "", true).await.unwrap();
    let managers = json!([{"manager": "agentk", "operation": "Apply"}]);
    let whole = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "managedFields": managers}});
    assert_eq!(listed, [whole]);
}

/// A user who may create objects in a namespace decides about their metadata.
#[tokio::test]
async fn page_of_metadata_keeps_little_of_an_object() {
    let cluster = cluster(|_| {
        let owners: Vec<Value> = (0..20).map(|number| json!({"uid": number.to_string()})).collect();
        let large = json!({
            "name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "7",
            "labels": {"kept/a": "", "other": "x"},
            "annotations": {"kept/a": "x".repeat(5000), "kept/b": "y", "other": "z".repeat(1 << 18)},
            "ownerReferences": owners, "managedFields": [{"manager": "m"}],
        });
        let strange = json!({"name": "b", "ownerReferences": [{"uid": "x".repeat(1 << 16)}]});
        json!({"items": [{"metadata": large}, {"metadata": strange}], "metadata": {"continue": "next"}})
    });
    let kind = config_maps();
    let page = cluster.metadata_page(&kind, "shop", "", |key| key.starts_with("kept/"), None);
    let MetadataPage { objects, next } = page.await.unwrap();
    assert_eq!(next.as_deref(), Some("next"));
    let metadata = &objects[0]["metadata"];
    assert_eq!(metadata["labels"], json!({"kept/a": ""}));
    assert_eq!(metadata["annotations"], json!({"kept/a": "", "kept/b": "y"}));
    assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("u"), &json!("7")));
    let owners = metadata["ownerReferences"].as_array().unwrap();
    assert_eq!((owners.len(), &owners[16]), (17, &json!({})), "there are further owners");
    assert_eq!(objects[1]["metadata"]["ownerReferences"], json!([{}]));
    assert!(objects[0].to_string().len() < 1000 && metadata.get("managedFields").is_none());
}

#[tokio::test]
async fn requests_have_the_identity_and_the_name_of_the_program() {
    let service = service_fn(async |request: Request<Body>| {
        let value = |name: HeaderName| {
            request
                .headers()
                .get_all(name)
                .iter()
                .map(|value| value.to_str().unwrap())
                .collect::<Vec<_>>()
                .join(",")
        };
        let name = format!("{} {}", value(IMPERSONATE_USER), value(USER_AGENT));
        let list = json!({"items": [{"metadata": {"name": name}}]});
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(list.to_string()))))
    });
    let cluster = KubeCluster::new(move || Client::new(service, "default"));
    let kind = config_maps();
    let named = cluster.acting_as("shop", "deployer").with_user_agent("agentk/1 gitops/2 (a)");
    let listed = named.with_user_agent("no\nheader").list(&kind, "default", "", true).await.unwrap();
    assert_eq!(listed[0]["metadata"]["name"], "system:serviceaccount:shop:deployer agentk/1 gitops/2 (a)");
}

/// The names of RBAC are parts of paths, and have no other limit.
#[tokio::test]
async fn name_is_a_part_of_the_path() {
    let cluster = cluster(|path| json!({"kind": "Status", "metadata": {"name": path}}));
    let kind = GroupKind { group: "rbac.authorization.k8s.io".to_owned(), kind: "Role".to_owned() };
    let kind = Kind {
        kind,
        version: "v1".to_owned(),
        plural: "roles".to_owned(),
        namespaced: true,
        has_status: false,
    };
    for (name, expected) in [("system:a", "system:a"), ("a|b #c", "a%7Cb%20%23c"), ("ü?", "%C3%BC%3F")] {
        let (text, group) = (str::to_owned, kind.kind.group.clone());
        let id = ObjectId { group, kind: text("Role"), namespace: text("shop"), name: text(name) };
        let got = cluster.get(&kind, &id).await.unwrap().unwrap();
        let options = ApplyOptions { manager: FIELD_MANAGER, dry_run: false, force: false };
        let applied = cluster.apply(&kind, &id, &json!({}), options).await.unwrap().object;
        let patched = cluster.patch(&kind, &id, &json!([])).await.unwrap();
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles/{expected}");
        assert_eq!(
            [got, applied, patched].map(|object| object["metadata"]["name"].clone()),
            [(); 3].map(|()| json!(path))
        );
        assert!(cluster.delete(&kind, &id, "u", None, PropagationPolicy::Background).await.unwrap());
    }
}

#[tokio::test]
async fn items_that_are_no_objects_are_an_error() {
    let kind = config_maps();
    let error = cluster(|_| json!({"items": ["a"]})).list(&kind, "default", "", true).await.unwrap_err();
    assert!(error.message.contains("is not JSON"), "{error:?}");
}

async fn check_groups(cluster: KubeCluster) {
    let lookup = async |group: &str, kind: &str| {
        let kind = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
        cluster.resolve(&kind, None).await.unwrap()
    };
    assert_eq!(lookup("", "ConfigMap").await.found().unwrap().plural, "configmaps");
    assert_eq!(lookup("apps", "Deployment").await.found().unwrap().version, "v1");
    assert_eq!(lookup("apps", "Toy").await, KindLookup::Missing);
    assert_eq!(lookup("metrics.example.com", "Toy").await, KindLookup::Unavailable);
    let (kinds, unavailable) = cluster.listable_kinds().await.unwrap();
    assert_eq!((kinds.len(), unavailable), (2, vec!["metrics.example.com".to_owned()]));
    let versions = cluster.versions().await.unwrap();
    assert_eq!(versions.api, ["apps/v1", "apps/v1/Deployment", "v1", "v1/ConfigMap"]);
    assert_eq!((&*versions.kubernetes, &*versions.unavailable[0]), ("v1.37.0", "metrics.example.com"));
}

#[tokio::test]
async fn kinds_of_a_group_that_is_down_are_not_missing() {
    let answer = |path: &str| {
        let group = |name: &str, freshness: &str, resources: Value| {
            let version = json!({"version": "v1", "freshness": freshness, "resources": resources});
            json!({"metadata": {"name": name}, "versions": [version]})
        };
        let resource = |name: &str, kind: &str| json!([{"resource": name, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": ["list"]}]);
        match path {
            "/api" => json!({"items": [group("", "Current", resource("configmaps", "ConfigMap"))]}),
            "/apis" => json!({"items": [
                group("apps", "Current", resource("deployments", "Deployment")),
                group("metrics.example.com", "Stale", json!([])),
            ]}),
            "/version" => json!({"major": "1", "gitVersion": "v1.37.0"}),
            _ => Value::Null,
        }
    };
    check_groups(cluster(answer)).await;
}

/// Kubernetes before 1.26 has one list for each group.
#[tokio::test]
async fn kinds_of_a_group_that_is_down_are_not_missing_in_an_old_cluster() {
    let answer = |path: &str| {
        let list = |version: &str, name: &str, kind: &str| {
            let resource = json!({"name": name, "singularName": "", "kind": kind, "namespaced": true, "verbs": ["list"]});
            json!({"kind": "APIResourceList", "groupVersion": version, "resources": [resource]})
        };
        let group = |name: &str| {
            let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
            json!({"name": name, "versions": [version], "preferredVersion": version})
        };
        match path {
            "/api" => {
                json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
            }
            "/api/v1" => list("v1", "configmaps", "ConfigMap"),
            "/apis" => {
                json!({"kind": "APIGroupList", "groups": [group("apps"), group("metrics.example.com")]})
            }
            "/apis/apps/v1" => list("apps/v1", "deployments", "Deployment"),
            "/version" => json!({"major": "1", "gitVersion": "v1.37.0"}),
            _ => Value::Null,
        }
    };
    check_groups(cluster(answer)).await;
}
