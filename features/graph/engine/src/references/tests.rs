use serde_json::json;

use super::*;

/// The references of an object, as `relation kind.group namespace/name`.
fn named(object: &Value) -> Vec<String> {
    let api = object["apiVersion"].as_str().unwrap();
    let group = api.split_once('/').map_or("", |(group, _)| group);
    let references = references(group, object["kind"].as_str().unwrap(), object);
    let name = |Reference { relation, target }: Reference| {
        let relation = serde_json::to_value(relation).unwrap();
        let kind = format!("{}.{}", target.kind, target.group);
        let kind = kind.trim_end_matches('.');
        format!("{} {kind} {}/{}", relation.as_str().unwrap(), target.namespace, target.name)
    };
    references.into_iter().map(name).collect()
}

#[test]
fn pod_refers_to_what_it_uses() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a"},
        "spec": {
            "nodeName": "n1", "serviceAccountName": "sa",
            "volumes": [
                {"configMap": {"name": "c1"}}, {"secret": {"secretName": "s1"}}, {"persistentVolumeClaim": {"claimName": "p1"}},
                {"projected": {"sources": [{"configMap": {"name": "c1"}}, {"secret": {"name": "s2"}}]}},
            ],
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"envFrom": [{"secretRef": {"name": "s3"}}], "env": [{"valueFrom": {"configMapKeyRef": {"name": "c2"}}}]}],
            "initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s4"}}}]}],
        },
    });
    assert_eq!(
        named(&pod),
        [
            "runs-on Node /n1",
            "uses ServiceAccount a/sa",
            "uses ConfigMap a/c1",
            "uses Secret a/s1",
            "uses PersistentVolumeClaim a/p1",
            "uses Secret a/s2",
            "uses Secret a/pull",
            "uses Secret a/s3",
            "uses ConfigMap a/c2",
            "uses Secret a/s4",
        ]
    );
}

#[test]
fn routes_and_autoscalers_refer_to_their_targets() {
    let object = |api: &str, kind: &str, spec: Value| {
        named(&json!({"apiVersion": api, "kind": kind, "metadata": {"namespace": "a"}, "spec": spec}))
    };
    assert_eq!(
        object(
            "networking.k8s.io/v1",
            "Ingress",
            json!({
                "rules": [{"http": {"paths": [{"backend": {"service": {"name": "web"}}}, {"backend": {"service": {"name": "web"}}}]}}],
                "defaultBackend": {"service": {"name": "default"}}, "tls": [{"secretName": "cert"}],
            })
        ),
        ["routes Service a/default", "routes Service a/web", "uses Secret a/cert"]
    );
    assert_eq!(
        object(
            "gateway.networking.k8s.io/v1",
            "HTTPRoute",
            json!({
                "parentRefs": [{"name": "gw", "namespace": "infra"}], "rules": [{"backendRefs": [{"name": "web"}]}],
            })
        ),
        ["binds Gateway.gateway.networking.k8s.io infra/gw", "routes Service a/web"]
    );
    assert_eq!(
        object(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            json!({
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"},
            })
        ),
        ["scales StatefulSet.apps a/db"]
    );
    assert_eq!(
        object("v1", "PersistentVolumeClaim", json!({"volumeName": "pv", "storageClassName": "fast"})),
        ["binds PersistentVolume /pv", "uses StorageClass.storage.k8s.io /fast"]
    );
    assert_eq!(
        object(
            "cert-manager.io/v1",
            "Certificate",
            json!({"secretName": "tls", "issuerRef": {"kind": "ClusterIssuer", "name": "le"}})
        ),
        ["uses Secret a/tls", "uses ClusterIssuer.cert-manager.io /le"]
    );
    assert_eq!(
        object(
            "kustomize.toolkit.fluxcd.io/v1",
            "Kustomization",
            json!({"sourceRef": {"kind": "OCIRepository", "name": "app", "namespace": "flux"}})
        ),
        ["uses OCIRepository.source.toolkit.fluxcd.io flux/app"]
    );
}

#[test]
fn templates_refer_to_what_the_next_pods_use() {
    let spec = json!({
        "serviceAccountName": "robot",
        "volumes": [{"configMap": {"name": "c"}}, {"persistentVolumeClaim": {"claimName": "p"}}],
        "containers": [{"envFrom": [{"secretRef": {"name": "s"}}]}],
    });
    let used = [
        "uses ServiceAccount a/robot",
        "uses ConfigMap a/c",
        "uses PersistentVolumeClaim a/p",
        "uses Secret a/s",
    ];
    let template = json!({"spec": spec});
    let object = |api: &str, kind: &str, spec: Value| {
        named(&json!({"apiVersion": api, "kind": kind, "metadata": {"namespace": "a"}, "spec": spec}))
    };
    let cron = json!({"jobTemplate": {"spec": {"template": template}}});
    assert_eq!(object("batch/v1", "CronJob", cron), used);
    for kind in ["Deployment", "StatefulSet"] {
        let scaled = |replicas: u32| json!({"replicas": replicas, "template": template});
        assert_eq!(object("apps/v1", kind, scaled(0)), used, "{kind}");
        assert!(object("apps/v1", kind, scaled(1)).is_empty(), "its Pods do");
    }
    let job = |suspend: bool| json!({"suspend": suspend, "template": template});
    assert_eq!(object("batch/v1", "Job", job(true)), used);
    assert!(object("batch/v1", "Job", job(false)).is_empty());
}

#[test]
fn objects_refer_to_what_they_need_by_name() {
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": "a"}, "spec": {"serviceName": "db"}});
    assert_eq!(named(&set), ["uses Service a/db"]);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "a"}, "imagePullSecrets": [{"name": "pull"}]});
    assert_eq!(named(&account), ["uses Secret a/pull"]);
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {}, "spec": {"claimRef": {"namespace": "a", "name": "data"}}});
    assert_eq!(named(&volume), ["binds PersistentVolumeClaim a/data"]);
    let service = json!({"service": {"namespace": "hooks", "name": "check", "path": "/x"}});
    for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
        let hooks = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {}, "webhooks": [{"clientConfig": service}]});
        assert_eq!(named(&hooks), ["routes Service hooks/check"], "{kind}");
    }
    let conversion = json!({"conversion": {"webhook": {"clientConfig": service}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {}, "spec": conversion});
    assert_eq!(named(&definition), ["routes Service hooks/check"]);
    let mirror =
        |name: &str| json!([{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": name}}}]);
    let rules = json!([{"filters": mirror("of-rule"), "backendRefs": [{"name": "web", "filters": mirror("of-backend")}]}]);
    let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"namespace": "a"}, "spec": {"rules": rules}});
    assert_eq!(
        named(&route),
        ["routes Service a/web", "routes Service a/of-backend", "routes Service a/of-rule"]
    );
}

#[test]
fn services_and_policies_select_pods() {
    let selects = |group: &str, kind: &str, spec: Value| {
        let selector = pod_selector(group, kind, &json!({"spec": spec}))?;
        selector.labels.matches(|key| (key == "app").then_some("web")).then_some(selector.relation)
    };
    assert_eq!(selects("", "Service", json!({"selector": {"app": "web"}})), Some(Relation::Selects));
    assert_eq!(
        selects("", "Service", json!({"selector": {}})),
        None,
        "a Service without a selector selects nothing"
    );
    assert_eq!(selects("policy", "PodDisruptionBudget", json!({"selector": {}})), Some(Relation::Protects));
    let policy = json!({"podSelector": {"matchLabels": {"app": "db"}}});
    assert_eq!(selects("networking.k8s.io", "NetworkPolicy", policy), None);
}

#[test]
fn claim_has_the_templates_that_may_have_made_it() {
    let templates = |claim| templates_of_claim(claim).collect::<Vec<_>>();
    assert_eq!(templates("data-web-0"), [("data", "web")]);
    assert_eq!(templates("my-data-web-12"), [("my", "data-web"), ("my-data", "web")]);
    for other in ["data", "data-web", "data-web-", "data-web-x", "data-web-01", "-web-0", "data-web-0-x", ""]
    {
        let found = templates(other);
        assert!(found.is_empty(), "{other}: {found:?}");
    }
}

#[test]
fn hostile_objects_have_bounded_references() {
    let volumes: Vec<Value> = (0..100_000).map(|n| json!({"configMap": {"name": n.to_string()}})).collect();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"volumes": volumes}});
    assert_eq!(references("", "Pod", &pod).len(), MAX_REFERENCES);
    for spec in [json!(1), json!([]), json!({"volumes": {}}), json!({"containers": [1, null, {"env": 3}]})] {
        references("", "Pod", &json!({"spec": spec}));
    }
}
