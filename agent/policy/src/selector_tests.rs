//! Rules that select namespaces by prefixes and by labels.

use std::{collections::BTreeMap, path::Path};

use cel::{Context, Program, Value as CelValue};
use serde_json::{Value, json};

use super::{
    admission_review::AdmissionReview,
    review::{FeatureWrites, JudgedUsers, Review},
    *,
};

/// The services whose requests are those for the API of the cluster.
const OF_CLUSTER: [&str; 6] = ["kubernetes", "alerts", "gitops", "graph", "notify", "provision"];

const POLICY: &str = "rules:
- {name: no-prod, action: deny, services: [kubernetes, alerts, gitops, graph, notify, provision], resources: [secrets], namespaceSelector: {matchLabels: {tier: prod}}}
- {name: team, action: allow, services: [kubernetes, alerts, gitops, graph, notify, provision], namespaceSelector: {matchLabels: {team: shop}}}
- {name: not-ours, action: allow, services: [kubernetes, alerts, gitops, graph, notify, provision], verbs: [get], resources: [configmaps], namespaces: ['open-*'], namespaceSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]}}
- {name: reviews, action: allow, services: [kubernetes, alerts, gitops, graph, notify, provision], namespaces: ['review-*']}";

fn policy(text: &str) -> Policy {
    Policy::parse(Path::new("policy.yaml"), text).unwrap()
}

fn keys(keys: &[&str]) -> LabelKeys {
    keys.iter().map(|&key| key.to_owned()).collect()
}

fn known(namespaces: &[(&str, &[(&str, &str)])]) -> NamespaceLabels {
    let mut known = NamespaceLabels::empty(keys(&["team", "tier"]));
    for (namespace, labels) in namespaces {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        known.set(namespace, labels.collect::<BTreeMap<_, _>>());
    }
    known
}

fn labels() -> NamespaceLabels {
    known(&[
        ("shop", &[("team", "shop"), ("tier", "prod")]),
        ("shop-dev", &[("team", "shop")]),
        ("other", &[("team", "other")]),
        ("open-data", &[]),
        ("open-shop", &[("team", "x")]),
    ])
}

/// Returns `+` or `-`, the rule, and `?` if a rule depended on labels that are not known.
fn decide(policy: &Policy, service: &str, line: &str, labels: &NamespaceLabels) -> String {
    let (method, path) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(path).body(()).unwrap();
    let decision = policy.evaluate(service, &request, labels);
    let sign = if decision.allowed { '+' } else { '-' };
    let unknown = if decision.labels == LabelUse::Unknown { "?" } else { "" };
    format!("{sign}{}{unknown}", policy.rule_name(decision.source))
}

#[test]
fn invalid_selector_is_refused_with_line_and_key() {
    for (keys, expected) in [
        (
            "services: [kubernetes], namespaceSelector: {}",
            "p.yaml:1:77: rules[0].namespaceSelector: the selector has no requirement",
        ),
        ("services: [kubernetes], namespaceSelector: ", "rules[0].namespaceSelector: "),
        ("services: [kubernetes], namespaceSelector: {matchLabel: {a: b}}", "unknown field `matchLabel`"),
        (
            "services: [kubernetes], namespaceSelector: {matchLabels: {team: 'shop-*'}}",
            "rules[0].namespaceSelector.matchLabels.team: \"shop-*\" is not the value of a label",
        ),
        (
            "services: [kubernetes], namespaceSelector: {matchExpressions: [{key: a, operator: In}]}",
            "rules[0].namespaceSelector.matchExpressions[0]: the operator In needs values",
        ),
        (
            "services: [kubernetes], namespaceSelector: {matchExpressions: [{key: a, operator: Is}]}",
            "unknown variant `Is`",
        ),
        (
            "services: [prometheus], namespaceSelector: {matchLabels: {a: b}}",
            "another rule for other services",
        ),
    ] {
        let text = format!("rules: [{{name: a, action: allow, {keys}}}]");
        let error = Policy::parse(Path::new("p.yaml"), &text).unwrap_err().to_string();
        assert!(error.contains(expected), "{keys}\n gave {error}");
    }
}

#[test]
fn labels_and_prefixes_select_namespaces_for_every_service() {
    let (policy, labels) = (policy(POLICY), labels());
    for service in OF_CLUSTER {
        for (line, expected) in [
            ("GET /api/v1/namespaces/shop/pods", "+team"),
            ("GET /api/v1/namespaces/shop/pods?watch=1", "+team"),
            ("GET /api/v1/namespaces/shop/secrets", "-no-prod"),
            ("GET /api/v1/namespaces/shop-dev/secrets/a", "+team"),
            ("GET /api/v1/namespaces/shop-dev", "+team"),
            ("GET /api/v1/namespaces/other/pods", "-default"),
            ("GET /api/v1/namespaces/open-data/configmaps/a", "+not-ours"),
            ("GET /api/v1/namespaces/open-shop/configmaps/a", "-default"),
            ("PATCH /api/v1/namespaces/review-7/pods/a", "+reviews?"),
            ("GET /api/v1/namespaces/reviews/pods", "-default?"),
            // A selector and a prefix cover no request for all namespaces, which may include one that is denied.
            ("GET /api/v1/pods", "-default"),
            ("GET /api/v1/secrets", "-no-prod"),
            ("DELETE /api/v1/secrets", "-no-prod"),
            ("GET /api/v1/secrets?fieldSelector=metadata.namespace=shop-dev", "-no-prod"),
            ("GET /api/v1/namespaces", "-default"),
            ("GET /api/v1/namespaces?labelSelector=team=shop", "-default"),
            ("POST /api/v1/namespaces", "-default"),
            ("GET /api/v1/nodes/shop", "-default"),
            ("GET /version", "-default"),
        ] {
            assert_eq!(decide(&policy, service, line, &labels), expected, "{service} {line}");
        }
    }
}

/// The states of the namespace `review-1` whose rules are tried: its label is there, was removed, or is another one since the namespace was made
/// anew; it was deleted; or agentk does not know the labels of any namespace.
fn states() -> [(&'static str, NamespaceLabels); 5] {
    [
        ("labelled", known(&[("review-1", &[("team", "shop")])])),
        ("label removed", known(&[("review-1", &[])])),
        ("recreated", known(&[("review-1", &[("team", "other"), ("tier", "prod")])])),
        ("deleted", known(&[("review-2", &[("team", "shop")])])),
        ("unknown", NamespaceLabels::default()),
    ]
}

#[test]
fn each_kind_of_rule_decides_in_each_state_of_the_namespace_for_every_service() {
    const BY_LABEL: &str = "namespaceSelector: {matchLabels: {team: shop}}";
    let kinds = [
        ("namespaces: [review-1]", false),
        ("namespaces: ['review-*']", false),
        (BY_LABEL, true),
        ("namespaces: ['review-*'], namespaceSelector: {matchLabels: {team: shop}}", true),
        (
            "namespaces: [review-1], namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [shop]}]}",
            true,
        ),
    ];
    for (service, (kind, by_label)) in
        OF_CLUSTER.into_iter().flat_map(|service| kinds.map(|kind| (service, kind)))
    {
        let allows = policy(&format!("rules: [{{name: a, action: allow, services: [{service}], {kind}}}]"));
        let denies = policy(&format!(
            "rules: [{{name: d, action: deny, services: [{service}], {kind}}}, {{name: all, action: allow, services: [{service}]}}]"
        ));
        for (state, labels) in states() {
            let is = |policy: &Policy, line: &str| decide(policy, service, line, &labels).starts_with('+');
            let case = format!("{service} {kind} {state}");
            for line in [
                "GET /api/v1/namespaces/review-1/pods?watch=1",
                "POST /apis/apps/v1/namespaces/review-1/deployments",
                "DELETE /api/v1/namespaces/review-1",
            ] {
                assert_eq!(is(&allows, line), !by_label || state == "labelled", "{case} {line}");
                let spared = by_label && ["label removed", "recreated"].contains(&state);
                assert_eq!(is(&denies, line), spared, "{case} {line}");
            }
            for line in
                ["GET /api/v1/pods", "GET /api/v1/pods?labelSelector=team=shop", "POST /api/v1/namespaces"]
            {
                assert!(!is(&allows, line) && !is(&denies, line), "{case} {line}");
            }
            let elsewhere = "GET /api/v1/namespaces/shop/pods";
            assert!(!is(&allows, elsewhere), "{case}");
        }
    }
}

#[test]
fn unknown_labels_allow_nothing_and_deny_everything() {
    let policy = policy(POLICY);
    for labels in [NamespaceLabels::default(), NamespaceLabels::unknown("forbidden"), known(&[])] {
        for (line, expected) in [
            ("GET /api/v1/namespaces/shop/pods", "-default?"),
            ("GET /api/v1/namespaces/shop/secrets", "-no-prod?"),
            // Without labels, a namespace would satisfy DoesNotExist.
            ("GET /api/v1/namespaces/open-data/configmaps/a", "-default?"),
            ("GET /api/v1/namespaces/review-7/secrets", "-no-prod?"),
            ("GET /api/v1/namespaces/review-7/pods", "+reviews?"),
            ("GET /api/v1/secrets", "-no-prod"),
        ] {
            assert_eq!(decide(&policy, "kubernetes", line, &labels), expected, "{line} {labels:?}");
        }
    }
}

#[test]
fn consent_by_a_selector_needs_known_labels() {
    let policy = policy(
        "rules: [{name: a, action: allow, services: [provision], verbs: [deletecollection], namespaceSelector: {matchLabels: {team: shop}}}]",
    );
    let request = Request::delete("/apis/apps/v1/namespaces/shop/deployments").body(()).unwrap();
    assert!(policy.grants("provision", &request, &labels()));
    assert!(!policy.grants("provision", &request, &NamespaceLabels::default()));
}

fn users() -> JudgedUsers {
    JudgedUsers {
        namespace: "agentk".to_owned(),
        service_account: "agentk".to_owned(),
        prefixes: Vec::new(),
        features: FeatureWrites { services: Vec::new(), lease_suffixes: vec!["-gitops"] },
    }
}

/// Returns the question about a write of agentk. The labels are those of the object.
fn question(operation: &str, resource: &str, namespace: &str, labels: &Value) -> Value {
    json!({
        "uid": "u", "operation": operation, "namespace": namespace, "name": "a",
        "requestResource": {"group": "", "version": "v1", "resource": resource},
        "resource": {"group": "", "version": "v1", "resource": resource},
        "userInfo": {"username": users().username()}, "object": {"metadata": {"name": "a", "labels": labels}},
    })
}

fn review(policy: &Policy, request: &Value, labels: &NamespaceLabels) -> Review {
    let text = json!({"apiVersion": "admission.k8s.io/v1", "request": request}).to_string();
    policy.review(&users(), &AdmissionReview::parse(text.as_bytes()).unwrap().request, labels)
}

#[test]
fn rule_about_objects_applies_where_labels_are_not_known() {
    let policy = policy(
        "rules: [{name: all, action: allow, services: ['*']}]
objects: [{name: o, namespaces: ['sho*', other], namespaceSelector: {matchLabels: {team: shop}}, names: [b]}]",
    );
    for (namespace, known, expected) in [
        ("shop", true, true),
        ("shop-dev", true, true),
        ("other", true, false),
        ("other", false, true),
        ("open-data", false, false),
        ("", true, false),
    ] {
        let labels = if known { labels() } else { NamespaceLabels::default() };
        let refused = review(&policy, &question("CREATE", "configmaps", namespace, &json!({})), &labels);
        assert_eq!(refused == Review::Object(0), expected, "{namespace} {known}");
    }
}

/// The name of the rule would show the writer that the namespace has the labels.
#[test]
fn refusal_of_an_object_names_no_rule_with_a_selector() {
    let policy = policy(
        "rules: [{name: all, action: allow, services: ['*']}]
objects: [{name: of-all, names: [b]}, {name: of-prod, namespaceSelector: {matchLabels: {tier: prod}}, names: [b]}]",
    );
    let [rendered, _] = policy.render(&users(), "agentk").unwrap();
    for (index, name) in ["of-all", "of-prod"].into_iter().enumerate() {
        let message = policy.object_refusal(index);
        assert!(message.contains("demands another name or other labels of the object"), "{message}");
        assert_eq!(message.contains(name), name == "of-all", "{message}");
        assert!(rendered.to_string().contains(&serde_json::to_string(&message).unwrap()), "{rendered}");
    }
}

/// Returns the expression in which the variables of a rendered policy are replaced.
fn expanded(rendered: &Value, expression: &str) -> String {
    let mut variables: Vec<_> = rendered["spec"]["variables"].as_array().unwrap().iter().collect();
    variables.sort_by_key(|variable| std::cmp::Reverse(variable["name"].as_str().unwrap().len()));
    let mut text = expression.to_owned();
    while text.contains("variables.") {
        for variable in &variables {
            let name = format!("variables.{}", variable["name"].as_str().unwrap());
            text = text.replace(&name, &format!("({})", variable["expression"].as_str().unwrap()));
        }
    }
    text
}

/// The API server has the labels of the namespace itself.
#[test]
fn rendered_policy_decides_by_labels_as_the_review_does() {
    let policy = policy(POLICY);
    let [rendered, _] = policy.render(&users(), "agentk").unwrap();
    let program = expanded(&rendered, rendered["spec"]["validations"][0]["expression"].as_str().unwrap());
    let program = Program::compile(&program).unwrap();
    let namespaces: [(&str, Value); 4] = [
        ("shop", json!({"team": "shop", "tier": "prod"})),
        ("shop-dev", json!({"team": "shop"})),
        ("other", json!({"team": "other"})),
        ("open-data", Value::Null),
    ];
    let mut allowed = 0;
    for (namespace, of_namespace) in &namespaces {
        for (operation, resource) in [
            ("CREATE", "secrets"),
            ("UPDATE", "pods"),
            ("DELETE", "configmaps"),
            ("UPDATE", "namespaces"),
            ("DELETE", "namespaces"),
            ("CREATE", "namespaces"),
        ] {
            let is_namespace = resource == "namespaces";
            let request = question(operation, resource, namespace, &json!({}));
            let metadata = match of_namespace {
                Value::Null => json!({"metadata": {}}),
                labels => json!({"metadata": {"labels": labels}}),
            };
            let exists = operation != "CREATE";
            let mut context = Context::default();
            context.add_variable("request", &request).unwrap();
            let of_object = if is_namespace && exists { metadata.clone() } else { Value::Null };
            context.add_variable("oldObject", of_object).unwrap();
            context
                .add_variable("namespaceObject", if is_namespace { Value::Null } else { metadata })
                .unwrap();
            let CelValue::Bool(by_server) = program.execute(&context).unwrap() else {
                panic!("a truth value")
            };
            let labels = if is_namespace && !exists { known(&[]) } else { labels() };
            let Review::Decided(decision) = review(&policy, &request, &labels) else {
                panic!("it is judged")
            };
            assert_eq!(by_server, decision.allowed, "{operation} {resource} in {namespace}");
            allowed += usize::from(by_server);
        }
    }
    assert_eq!(allowed, 9, "both results are common");
}
