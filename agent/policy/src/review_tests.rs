//! The review of writes decides as agentk does about the same requests, and so does the rendered policy (see the end-to-end tests).

use std::path::Path;

use http::Request;
use proto::ServiceName;
use serde_json::{Value, json};

use super::{
    FeatureWrites, JudgedUsers, NamespaceLabels, Policy, admission_review::AdmissionReview, review::Review,
};

const POLICY: &str = "rules:
- {name: no-secrets, action: deny, services: [kubernetes, gitops], resources: [secrets, serviceaccounts/token]}
- {name: no-root, action: deny, services: [kubernetes], impersonate: {users: [root], groups: [masters]}}
- {name: no-kube-system, action: deny, services: [kubernetes], namespaces: ['kube-*']}
- {name: one, action: allow, services: [kubernetes], verbs: [delete, patch], resources: [configmaps], resourceNames: [mine]}
- {name: scale, action: allow, services: [kubernetes], resources: ['*/scale'], namespaces: ['sh*']}
- {name: shells, action: allow, services: [kubernetes], verbs: [get], resources: [pods/exec], namespaces: [shop]}
- {name: ci, action: allow, services: [kubernetes], verbs: [create, update, patch, delete], apiGroups: ['', apps], resources: [deployments, configmaps, namespaces], namespaces: [shop, '*'], impersonate: {users: ['gitlab:*'], groups: ['team-*']}}
- {name: own, action: allow, services: [gitops], verbs: [patch, delete], resources: [deployments], namespaces: [shop], impersonate: {self: true}}
- {name: environments, action: allow, services: [provision], verbs: [create, patch, delete], resources: [namespaces, configmaps], namespaces: ['min*', 'sho*'], impersonate: {self: true}}
- {name: paths, action: allow, services: [kubernetes], nonResourceURLs: [/version]}";

/// A write in both forms. The API server gives several requests the same form.
struct Write {
    requests: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    review: Value,
}

fn users() -> JudgedUsers {
    JudgedUsers {
        namespace: "agentk".to_owned(),
        service_account: "agentk".to_owned(),
        prefixes: vec!["gitlab:".to_owned()],
        features: FeatureWrites {
            services: vec![ServiceName::GITOPS, ServiceName::NOTIFY, ServiceName::PROVISION],
            lease_suffixes: vec!["-gitops", "-notify", "-alerts"],
        },
    }
}

/// Returns each combination of operation, resource, namespace, name and user.
fn writes() -> Vec<Write> {
    let mut writes = Vec::new();
    let targets = [
        ("", "configmaps", "", true),
        ("", "secrets", "", true),
        ("apps", "deployments", "", true),
        ("apps", "deployments", "scale", true),
        ("", "nodes", "", false),
        ("", "namespaces", "", false),
    ];
    let people: [(&str, &[&str]); 4] = [
        ("", &[]),
        ("gitlab:ci", &["team-a", "team-b"]),
        ("gitlab:ci", &["team-a", "masters"]),
        ("gitlab:root", &[]),
    ];
    for operation in ["CREATE", "UPDATE", "DELETE"] {
        for (group, resource, subresource, namespaced) in targets {
            for namespace in if namespaced { &["shop", "kube-system"][..] } else { &[""] } {
                for name in ["mine", "other"] {
                    for (user, groups) in people {
                        let mut collection =
                            if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/v1") };
                        if !namespace.is_empty() {
                            collection += &format!("/namespaces/{namespace}");
                        }
                        collection += &format!("/{resource}");
                        let mut object = format!("{collection}/{name}");
                        if !subresource.is_empty() {
                            object += &format!("/{subresource}");
                            collection.clone_from(&object);
                        }
                        let requests = match operation {
                            "CREATE" => {
                                vec![("POST", collection), ("PUT", object.clone()), ("PATCH", object)]
                            }
                            "UPDATE" => vec![("PUT", object.clone()), ("PATCH", object)],
                            _ => vec![("DELETE", object)],
                        };
                        let impersonated =
                            Some(("impersonate-user", user.to_owned())).filter(|_| !user.is_empty());
                        let groups_of = groups.iter().map(|group| ("impersonate-group", (*group).to_owned()));
                        let username =
                            if user.is_empty() { "system:serviceaccount:agentk:agentk" } else { user };
                        let groups: Vec<&str> =
                            groups.iter().copied().chain(["system:authenticated"]).collect();
                        // The API server names the namespace of a namespace.
                        let shown = if resource == "namespaces" { name } else { namespace };
                        writes.push(Write {
                            requests,
                            headers: impersonated.into_iter().chain(groups_of).collect(),
                            review: json!({
                                "uid": "u", "operation": operation,
                                "resource": {"group": group, "version": "v1", "resource": resource},
                                "subResource": subresource, "namespace": shown, "name": name,
                                "userInfo": {"username": username, "groups": groups},
                            }),
                        });
                    }
                }
            }
        }
    }
    writes
}

fn review(policy: &Policy, request: &Value) -> Review {
    let text = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
        .to_string();
    let review = AdmissionReview::parse(text.as_bytes()).unwrap();
    policy.review(&users(), &review.request, &NamespaceLabels::default())
}

fn policy(text: &str) -> Policy {
    Policy::parse(Path::new("policy.yaml"), text).unwrap()
}

#[test]
fn writes_are_judged_as_agentk_judges_the_same_requests() {
    let (policy, users) = (policy(POLICY), users());
    let (mut compared, mut allowed) = (0, 0);
    for write in writes() {
        let is_sent = |(method, path): &(&str, String)| {
            let mut request = Request::builder().method(*method).uri(path);
            for (name, value) in &write.headers {
                request = request.header(*name, value);
            }
            let request = request.body(()).unwrap();
            users
                .writing_services()
                .any(|service| policy.evaluate(service, &request, &NamespaceLabels::default()).allowed)
        };
        let expected = write.requests.iter().any(is_sent);
        let Review::Decided(decision) = review(&policy, &write.review) else {
            // agentk keeps ConfigMaps in its own namespace only, which is not among these.
            panic!("not judged: {}", write.review);
        };
        assert_eq!(decision.allowed, expected, "{:?} {:?}", write.requests, write.headers);
        compared += 1;
        allowed += usize::from(expected);
    }
    assert_eq!(compared, 240);
    assert!((24..120).contains(&allowed), "both results are common: {allowed}");
}

#[test]
fn connection_passes_if_one_of_its_verbs_does() {
    let policy = policy(POLICY);
    let exec = |namespace: &str| {
        let request = json!({
            "uid": "u", "operation": "CONNECT", "resource": {"group": "", "resource": "pods"}, "subResource": "exec",
            "namespace": namespace, "name": "web", "userInfo": {"username": "gitlab:ci"},
        });
        matches!(review(&policy, &request), Review::Decided(decision) if decision.allowed)
    };
    assert!(exec("shop"));
    assert!(!exec("other"));
}

#[test]
fn users_of_others_and_agentks_own_objects_are_not_judged() {
    let policy = policy("rules: []");
    let judged = |user: &str, group: &str, resource: &str, namespace: &str, name: &str, operation: &str| {
        let request = json!({
            "uid": "u", "operation": operation, "resource": {"group": group, "resource": resource},
            "namespace": namespace, "name": name, "userInfo": {"username": user},
        });
        review(&policy, &request) != Review::NotJudged
    };
    let agentk = "system:serviceaccount:agentk:agentk";
    for user in
        ["admin", "gitla", "system:serviceaccount:agentk:agentk2", "system:serviceaccount:other:agentk", ""]
    {
        assert!(!judged(user, "", "secrets", "agentk", "x", "CREATE"), "{user}");
    }
    for (group, resource, namespace, name, operation, of_agentk, of_ci) in [
        ("coordination.k8s.io", "leases", "agentk", "agentk-7-gitops", "UPDATE", false, true),
        ("coordination.k8s.io", "leases", "agentk", "agentk-7-notify", "UPDATE", false, true),
        ("coordination.k8s.io", "leases", "agentk", "agentk-7-alerts", "CREATE", false, true),
        ("coordination.k8s.io", "leases", "agentk", "other", "UPDATE", true, true),
        ("coordination.k8s.io", "leases", "kube-system", "agentk-7-gitops", "UPDATE", true, true),
        ("", "configmaps", "agentk", "gitops-7-shop-1a2b", "DELETE", false, true),
        // That of the policy.
        ("", "configmaps", "agentk", "agentk", "UPDATE", true, true),
        ("", "configmaps", "agentk", "", "DELETE", true, true),
        ("", "configmaps", "shop", "gitops-7-shop-1a2b", "DELETE", true, true),
        ("", "secrets", "agentk", "gitops-7-shop-1a2b", "CREATE", true, true),
        ("", "events", "shop", "x", "CREATE", false, true),
        ("", "events", "shop", "x", "DELETE", true, true),
        ("authorization.k8s.io", "selfsubjectaccessreviews", "", "", "CREATE", false, false),
        ("authorization.k8s.io", "subjectaccessreviews", "", "", "CREATE", true, true),
    ] {
        let found =
            [agentk, "gitlab:ci"].map(|user| judged(user, group, resource, namespace, name, operation));
        assert_eq!(found, [of_agentk, of_ci], "{operation} {resource} {name} in {namespace}");
    }
}

#[test]
fn objects_need_the_demanded_names_and_labels() {
    let policy = policy(
        "rules: [{name: all, action: allow, services: ['*']}]
objects:
- {name: names, apiGroups: [apps], resources: [deployments], namespaces: [shop], names: ['web-*', api]}
- {name: team, namespaces: [shop], labels: {team: [shop], example.com/tier: ['*']}}",
    );
    let shop = json!({"team": "shop", "example.com/tier": "1"});
    for (operation, namespace, subresource, name, labels, expected) in [
        ("CREATE", "shop", "", "web-1", &shop, None),
        ("UPDATE", "shop", "", "api", &shop, None),
        ("CREATE", "shop", "", "db", &shop, Some(0)),
        ("CREATE", "shop", "", "web-1", &json!({"team": "shop"}), Some(1)),
        ("UPDATE", "shop", "", "web-1", &json!({"team": "x", "example.com/tier": "1"}), Some(1)),
        ("UPDATE", "shop", "", "web-1", &Value::Null, Some(1)),
        ("CREATE", "other", "", "db", &Value::Null, None),
        ("DELETE", "shop", "", "db", &Value::Null, None),
        ("UPDATE", "shop", "scale", "db", &Value::Null, None),
    ] {
        let mut metadata = json!({"name": name});
        if !labels.is_null() {
            metadata["labels"] = labels.clone();
        }
        let request = json!({
            "uid": "u", "operation": operation, "resource": {"group": "apps", "resource": "deployments"}, "namespace": namespace,
            "subResource": subresource, "name": name, "userInfo": {"username": "gitlab:ci"}, "object": {"metadata": metadata},
        });
        let found = match review(&policy, &request) {
            Review::Object(index) => Some(index),
            Review::Decided(decision) => {
                assert!(decision.allowed);
                None
            }
            Review::NotJudged => panic!("it is judged"),
        };
        assert_eq!(found, expected, "{operation} {namespace} {name} {labels}");
    }
}

#[test]
fn rendered_policy_has_a_condition_for_users_and_an_action_for_each_mode() {
    let [rendered, binding] = policy(POLICY).render(&users(), "agentk").unwrap();
    assert_eq!(
        rendered["spec"]["matchConditions"][0]["expression"],
        "request.userInfo.username == \"system:serviceaccount:agentk:agentk\" || request.userInfo.username.startsWith(\"gitlab:\")"
    );
    assert_eq!(rendered["spec"]["failurePolicy"], "Fail");
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    let [_, binding] = policy("mode: dry-run\nrules: []").render(&users(), "agentk").unwrap();
    assert_eq!(binding["spec"]["validationActions"], json!(["Warn", "Audit"]));
    let many: String =
        (0..101).map(|index| format!("- {{name: r{index}, action: allow, services: ['*']}}\n")).collect();
    assert!(
        policy(&format!("rules:\n{many}"))
            .render(&users(), "agentk")
            .unwrap_err()
            .to_string()
            .contains("at most 100")
    );
}

#[test]
fn words_of_users_are_literals() {
    let text = r#"rules: [{name: a, action: allow, services: [kubernetes], impersonate: {users: ["x\"') || true || ('"]}}]"#;
    let [rendered, _] = policy(text).render(&users(), "agentk").unwrap();
    let expression = rendered["spec"]["validations"][0]["expression"].as_str().unwrap();
    assert!(expression.contains(r#"request.userInfo.username == "x\"') || true || ('""#), "{expression}");
}
