//! Whole policies, as the owners of clusters write them.

use std::path::Path;

use kube_cluster::AllowedResources;
use testing::json_schema::Validator;

use super::*;

fn policy(text: &str) -> Policy {
    Policy::parse(Path::new("policy.yaml"), text).unwrap()
}

/// `[user[+group…]@] METHOD /path`.
fn evaluate(policy: &Policy, line: &str) -> PolicyDecision {
    let (who, line) = line.split_once('@').unwrap_or(("", line));
    let (method, path) = line.trim().split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path);
    let mut names = who.split('+');
    if let Some(user) = names.next().filter(|user| !user.is_empty()) {
        request = request.header("impersonate-user", user);
    }
    for group in names {
        request = request.header("impersonate-group", group);
    }
    policy.evaluate("kubernetes", &request.body(()).unwrap(), &NamespaceLabels::default())
}

/// Checks requests. Each is followed by `+` if it may pass, or `-`, and the name of the rule that decides.
fn check(policy: &Policy, table: &[(&str, &str)]) {
    for (line, expected) in table {
        let decision = evaluate(policy, line);
        let sign = if decision.allowed { '+' } else { '-' };
        assert_eq!(format!("{sign}{}", policy.rule_name(decision.source)), *expected, "{line}");
    }
}

/// The documentation refers to this file.
#[test]
fn example_file_decides_as_documented() {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/policy.example.yaml"));
    let example = Policy::parse(file, &std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(example.mode(), PolicyMode::DryRun);
    check(
        &example,
        &[
            ("GET /api/v1/namespaces/a/secrets/b", "-no-secrets"),
            ("GET /api/v1/secrets", "-no-secrets"),
            ("GET /api/v1/watch/secrets", "-no-secrets"),
            ("POST /api/v1/namespaces/a/serviceaccounts/b/token", "-no-secrets"),
            ("GET /api/v1/namespaces/a/pods/b/exec?command=sh", "-no-shells"),
            ("POST /api/v1/namespaces/a/pods/b/portforward", "-no-shells"),
            ("GET /api/v1/nodes/n/proxy/configz", "-no-shells"),
            ("GET /apis/apps/v1/deployments", "+reading"),
            ("GET /api/v1/namespaces/a/pods/b/log", "+reading"),
            ("GET /api", "+discovery"),
            ("GET /apis/apps/v1", "+discovery"),
            ("GET /openapi/v2", "+discovery"),
            ("GET /metrics", "-default"),
            ("ci+deployers@ PATCH /apis/apps/v1/namespaces/shop/deployments/web", "+deploying"),
            ("ci@ PATCH /apis/apps/v1/namespaces/shop/deployments/web", "+deploying"),
            ("ci+system:masters@ PATCH /apis/apps/v1/namespaces/shop/deployments/web", "-default"),
            ("PATCH /apis/apps/v1/namespaces/shop/deployments/web", "-default"),
            ("ci@ PATCH /apis/apps/v1/namespaces/kube-system/deployments/web", "-default"),
            ("ci@ DELETE /apis/apps/v1/deployments", "-default"),
        ],
    );
    let query = Request::get("/api/v1/query").body(()).unwrap();
    assert!(example.evaluate("prometheus", &query, &NamespaceLabels::default()).allowed);
    assert!(!example.evaluate("prometheus.other", &query, &NamespaceLabels::default()).allowed);
}

#[test]
fn policies_in_the_documentation_are_valid() {
    let documentation = include_str!("../../../docs/policy.md");
    let policies: Vec<_> =
        documentation.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(policies.len() >= 4);
    for text in policies {
        Policy::parse(Path::new("docs/policy.md"), text).unwrap();
    }
}

#[test]
fn schema_accepts_the_example_and_refuses_what_the_parser_refuses() {
    let schema = serde_json::from_str(&Policy::json_schema()).unwrap();
    let schema = Validator::new(schema);
    let file = Path::new("policy.yaml");
    let is_valid = |text: &str| schema.is_valid(&settings::parse::<serde_json::Value>(file, text).unwrap());
    let example = include_str!("../../../deploy/policy.example.yaml");
    assert!(is_valid(example) && is_valid("rules: []"));
    for wrong in [
        "mode: enforce",
        "{mode: off, rules: []}",
        "{rules: [], rule: []}",
        "rules: [{name: all, action: alow, services: ['*']}]",
        "rules: [{name: all, services: ['*']}]",
        "rules: [{name: all, action: allow, services: []}]",
        "rules: [{name: all, action: allow, services: kubernetes}]",
        "rules: [{name: a b, action: allow, services: ['*']}]",
        "rules: [{name: all, action: allow, services: ['*'], verb: [get]}]",
        "rules: [{name: all, action: allow, services: ['*'], verbs: }]",
        "rules: [{name: all, action: allow, services: ['*'], impersonate: {user: [ci]}}]",
        "rules: [{name: all, action: allow, services: [kubernetes], namespaceSelector: {}}]",
        "rules: [{name: all, action: allow, services: [kubernetes], namespaceSelector: {matchLabels: {}}}]",
        "rules: [{name: all, action: allow, services: [kubernetes], namespaceSelector: {matchExpressions: []}}]",
        "rules: [{name: all, action: allow, services: [kubernetes], namespaceSelector: }]",
        "rules: [{name: all, action: allow, services: [kubernetes], namespaceSelector: {match_labels: {a: b}}}]",
        "rules: [{name: all, action: allow, services: [kubernetes], namespaceSelector: {matchExpressions: [{key: a, operator: Is}]}}]",
        "{rules: [], objects: [{name: all, names: shop}]}",
        "{rules: [], webhooks: [{url: receiver}]}",
    ] {
        assert!(!is_valid(wrong) && Policy::parse(file, wrong).is_err(), "{wrong}");
    }
}

#[test]
fn first_rule_that_matches_decides() {
    let policy = policy(
        "rules:
- {name: one-secret, action: allow, services: [kubernetes], resources: [secrets], resourceNames: [public]}
- {name: no-secrets, action: deny, services: [kubernetes], resources: [secrets]}
- {name: all, action: allow, services: ['*']}
- {name: late, action: deny, services: ['*']}",
    );
    check(
        &policy,
        &[
            ("GET /api/v1/namespaces/a/secrets/public", "+one-secret"),
            ("GET /api/v1/namespaces/a/secrets?fieldSelector=metadata.name=public", "+one-secret"),
            ("GET /api/v1/namespaces/a/secrets/other", "-no-secrets"),
            ("GET /api/v1/namespaces/a/secrets", "-no-secrets"),
            ("POST /api/v1/namespaces/a/secrets", "-no-secrets"),
            ("DELETE /api/v1/namespaces/a/secrets?fieldSelector=metadata.name=public", "-no-secrets"),
            ("GET /api/v1/pods", "+all"),
            ("GET /anything", "+all"),
            ("GET /api/v1/pods/", "-unclear"),
            ("GET /api/v1/namespaces/a/pods/%2e%2e/secrets/x", "-unclear"),
        ],
    );
}

#[test]
fn allow_rule_matches_requests_that_it_covers() {
    let policy = policy(
        "rules:
- {name: pods, action: allow, services: [kubernetes], verbs: [get, list], apiGroups: [''], resources: [pods], namespaces: [a, b]}
- {name: logs, action: allow, services: [kubernetes], resources: [pods/log], namespaces: [a]}
- {name: scales, action: allow, services: [kubernetes], resources: ['*/scale']}
- {name: status, action: allow, services: [kubernetes], apiGroups: [batch], resources: ['jobs/*']}
- {name: nodes, action: allow, services: [kubernetes], verbs: [get], resources: [nodes], namespaces: ['*']}
- {name: version, action: allow, services: [kubernetes], verbs: [get], nonResourceURLs: [/version, '/healthz*']}
- {name: own, action: allow, services: [kubernetes], resources: [namespaces], namespaces: [a]}",
    );
    check(
        &policy,
        &[
            ("GET /api/v1/namespaces/a/pods", "+pods"),
            ("GET /api/v1/namespaces/b/pods/x", "+pods"),
            ("GET /api/v1/namespaces/a/pods?watch=1", "-default"),
            ("GET /api/v1/watch/namespaces/a/pods", "-default"),
            ("GET /api/v1/namespaces/c/pods", "-default"),
            ("GET /api/v1/pods", "-default"),
            ("GET /api/v1/pods?fieldSelector=metadata.namespace=a", "-default"),
            ("GET /apis/metrics.k8s.io/v1/namespaces/a/pods", "-default"),
            ("GET /api/v1/namespaces/a/pods/x/status", "-default"),
            ("GET /api/v1/namespaces/a/pods/x/exec", "-default"),
            ("GET /api/v1/namespaces/a/pods/x/log", "+logs"),
            ("GET /api/v1/namespaces/b/pods/x/log", "-default"),
            ("PUT /apis/apps/v1/namespaces/z/deployments/x/scale", "+scales"),
            ("GET /apis/batch/v1/namespaces/z/jobs/x/status", "+status"),
            ("GET /apis/batch/v1/namespaces/z/jobs/x", "-default"),
            ("GET /api/v1/nodes/n", "+nodes"),
            ("GET /api/v1/nodes", "-default"),
            ("GET /version", "+version"),
            ("GET /version/x", "-default"),
            ("GET /healthz/etcd", "+version"),
            ("POST /healthz", "-default"),
            ("GET /api/v1/namespaces/a", "+own"),
            ("GET /api/v1/namespaces/b", "-default"),
            ("GET /api/v1/namespaces", "-default"),
        ],
    );
}

/// Otherwise a list of everything would contain objects that a rule denies.
#[test]
fn deny_rule_matches_requests_that_may_include_it() {
    let policy = policy(
        "rules:
- {name: system, action: deny, services: [kubernetes], namespaces: [kube-system]}
- {name: root-ca, action: deny, services: [kubernetes], resources: [configmaps], resourceNames: [root-ca]}
- {name: pods, action: deny, services: [kubernetes], resources: ['pods/*']}
- {name: rest, action: allow, services: [kubernetes]}",
    );
    check(
        &policy,
        &[
            ("GET /api/v1/namespaces/kube-system/pods", "-system"),
            ("GET /api/v1/namespaces/kube-system", "-system"),
            ("GET /api/v1/secrets", "-system"),
            ("GET /api/v1/secrets?fieldSelector=metadata.name=x", "-system"),
            ("GET /api/v1/watch/secrets/x", "-system"),
            ("DELETE /api/v1/configmaps", "-system"),
            ("GET /api/v1/nodes/n", "+rest"),
            ("GET /version", "+rest"),
            ("GET /api/v1/namespaces/a/configmaps/root-ca", "-root-ca"),
            ("GET /api/v1/namespaces/a/configmaps", "-root-ca"),
            ("POST /api/v1/namespaces/a/configmaps", "-root-ca"),
            ("GET /api/v1/namespaces/a/configmaps/other", "+rest"),
            ("GET /api/v1/namespaces/a/pods/p/ephemeralcontainers", "-pods"),
            ("GET /api/v1/namespaces/a/pods/p", "+rest"),
        ],
    );
}

#[test]
fn impersonation_is_matched_by_users_and_groups() {
    let policy = policy(
        "rules:
- {name: no-root, action: deny, services: [kubernetes], impersonate: {users: ['system:*'], groups: ['system:masters']}}
- {name: ci, action: allow, services: [kubernetes], impersonate: {users: [ci, 'bot-*'], groups: ['team-*']}}
- {name: own, action: allow, services: [kubernetes], verbs: [get], impersonate: {self: true}}
- {name: anybody, action: allow, services: [kubernetes], nonResourceURLs: [/version]}",
    );
    check(
        &policy,
        &[
            ("system:admin@ GET /api/v1/pods", "-no-root"),
            ("ci+system:masters@ GET /api/v1/pods", "-no-root"),
            ("ci@ DELETE /api/v1/pods", "+ci"),
            ("bot-7+team-a+team-b@ GET /api/v1/pods", "+ci"),
            ("bot-7+team-a+other@ GET /api/v1/pods", "-default"),
            ("bot@ GET /api/v1/pods", "-default"),
            ("ada@ GET /api/v1/nodes/n", "-default"),
            ("GET /api/v1/nodes/n", "+own"),
            ("DELETE /api/v1/nodes/n", "-default"),
            ("ada@ GET /version", "+anybody"),
        ],
    );
    let ambiguous =
        Request::get("/api/v1/pods").header("impersonate-user", "ci").header("impersonate-user", "x");
    assert!(matches!(
        policy.evaluate("kubernetes", &ambiguous.body(()).unwrap(), &NamespaceLabels::default()).source,
        DecisionSource::Unclear(_)
    ));
}

#[test]
fn other_services_are_matched_by_name() {
    let policy = policy(
        "rules:
- {name: queries, action: allow, services: [prometheus, prometheus.long-term]}
- {name: kubernetes, action: deny, services: [kubernetes]}",
    );
    let request = Request::post("/api/v1//query/../x%2f").header("impersonate-user", "").body(()).unwrap();
    let of = |service: &str| policy.evaluate(service, &request, &NamespaceLabels::default());
    assert!(of("prometheus").allowed);
    assert!(of("prometheus.long-term").allowed);
    assert_eq!(of("prometheus.other").source, DecisionSource::Default);
    assert_eq!(evaluate(&policy, "GET /version").source, DecisionSource::Rule(1));
}

/// A new feature that nobody has added to the policy may do no more than the rules allow.
#[test]
fn unknown_service_is_judged_by_more_than_its_name() {
    let policy = policy("rules: [{name: all, action: allow, services: ['*']}]");
    let allowed = |service: &str, uri: &str| {
        let request = Request::builder().uri(uri).body(()).unwrap();
        policy.evaluate(service, &request, &NamespaceLabels::default()).allowed
    };
    assert!(allowed("hello", "/api/v1/pods"));
    assert!(!allowed("hello", "/api//v1/secrets"), "an unclear request");
    assert!(allowed("audit", "/api//v1/secrets"));
}

/// Environments have namespaces whose names are not known before, so that rules about them have patterns.
#[test]
fn rule_about_environments_has_patterns_of_namespaces_and_lists_kinds() {
    let policy = policy(
        "rules:
- {name: sees, action: allow, services: [provision], verbs: [get, list], resources: ['*']}
- {name: none, action: deny, services: [provision], namespaces: [review-main]}
- {name: makes, action: allow, services: [provision], verbs: [patch, delete], apiGroups: ['', rbac.authorization.k8s.io], resources: [namespaces, rolebindings], namespaces: ['review-*', shop]}
- {name: all, action: allow, services: [gitops]}",
    );
    let decide = |line: &str| {
        let (method, path) = line.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        let decision = policy.evaluate("provision", &request, &NamespaceLabels::default());
        format!("{}{}", if decision.allowed { '+' } else { '-' }, policy.rule_name(decision.source))
    };
    for (line, expected) in [
        ("GET /api/v1/namespaces?labelSelector=a", "+sees"),
        ("PATCH /api/v1/namespaces/review-1", "+makes"),
        ("PATCH /api/v1/namespaces/review-main", "-none"),
        ("PATCH /api/v1/namespaces/reviews", "-default"),
        ("PATCH /api/v1/namespaces/shop", "+makes"),
        ("PATCH /api/v1/namespaces/shopping", "-default"),
        ("DELETE /apis/rbac.authorization.k8s.io/v1/namespaces/review-1/rolebindings/a", "+makes"),
        ("PATCH /apis/apps/v1/namespaces/review-1/deployments/a", "-default"),
        ("DELETE /api/v1/namespaces/shop", "+makes"),
        ("DELETE /api/v1/namespaces", "-none"),
    ] {
        assert_eq!(decide(line), expected, "{line}");
    }
    let named = AllowedResources {
        groups: Some(vec![String::new(), "rbac.authorization.k8s.io".to_owned()]),
        resources: vec!["namespaces".to_owned(), "rolebindings".to_owned()],
    };
    assert_eq!(policy.provisioned(), AllowedKinds::new([named]));
    for rules in [
        "[{name: a, action: allow, services: ['*']}]",
        "[{name: a, action: deny, services: [provision], resources: [namespaces]}]",
        "[{name: a, action: allow, services: [kubernetes], resources: [namespaces]}]",
        "[{name: a, action: allow, services: [provision], verbs: [get], resources: [namespaces]}]",
    ] {
        let policy = Policy::parse(Path::new("p.yaml"), &format!("rules: {rules}")).unwrap();
        assert!(policy.provisioned().is_empty(), "{rules}");
    }
}

/// The content of a namespace is deleted only if the owner of the cluster has written exactly that.
#[test]
fn only_a_rule_with_service_and_verb_by_name_grants() {
    let grants = |text: &str| {
        let request = Request::delete("/apis/apps/v1/namespaces/review-1/deployments").body(()).unwrap();
        policy(text).grants("provision", &request, &NamespaceLabels::default())
    };
    let sweep = "{name: b, action: allow, services: [provision], verbs: [deletecollection], resources: ['*'], namespaces: ['review-*']}";
    assert!(grants(&format!("rules: [{sweep}]")));
    assert!(grants(&format!("mode: dry-run\nrules: [{sweep}]")));
    assert!(grants(&format!("rules: [{{name: a, action: allow, services: ['*']}}, {sweep}]")));
    for rules in [
        "{name: a, action: allow, services: ['*']}".to_owned(),
        "{name: a, action: allow, services: [provision]}".to_owned(),
        "{name: a, action: allow, services: [provision], verbs: ['*']}".to_owned(),
        "{name: a, action: allow, services: [provision], verbs: [delete]}".to_owned(),
        "{name: a, action: allow, services: [gitops], verbs: [deletecollection]}".to_owned(),
        format!("{{name: a, action: deny, services: ['*']}}, {sweep}"),
        sweep.replace("review-*", "staging-*"),
    ] {
        for mode in ["enforce", "dry-run"] {
            assert!(!grants(&format!("mode: {mode}\nrules: [{rules}]")), "{mode} {rules}");
        }
    }
}

#[test]
fn policy_that_gives_callers_the_rights_for_environments_has_a_warning() {
    const MAKES: &str = "{name: m, action: allow, services: [provision], verbs: [create, patch, delete], apiGroups: ['', rbac.authorization.k8s.io], resources: [namespaces, serviceaccounts, rolebindings], namespaces: ['review-*']}";
    const NO_WRITES: &str = "{name: w, action: deny, services: [kubernetes], verbs: [create, update, patch, delete, deletecollection], apiGroups: ['', rbac.authorization.k8s.io], resources: [namespaces, serviceaccounts, rolebindings], impersonate: {self: true}}";
    const NO_SECRETS: &str = "{name: s, action: deny, services: [kubernetes], verbs: [get, list, watch], apiGroups: [''], resources: [secrets], impersonate: {self: true}}";
    const ALL: &str = "{name: a, action: allow, services: [kubernetes]}";
    let warnings = |rules: &[&str]| {
        let served = ["kubernetes".parse().unwrap(), "provision".parse().unwrap()];
        policy(&format!("rules: [{}]", rules.join(", "))).warnings(&served)
    };
    let found = warnings(&[MAKES, ALL]);
    assert!(found[0].contains("may change /api/v1/namespaces/review-zzz, which"), "{found:?}");
    assert!(found[1].contains("may list the Secrets of all namespaces"), "{found:?}");
    assert_eq!(found.len(), 2);
    assert_eq!(warnings(&[NO_WRITES, MAKES, ALL]).len(), 1);
    assert!(warnings(&[NO_WRITES, NO_SECRETS, MAKES, ALL]).is_empty());
    for harmless in [
        "{name: a, action: allow, services: [kubernetes], namespaces: [shop]}",
        "{name: a, action: allow, services: [kubernetes], verbs: [get], resources: [pods]}",
        "{name: a, action: allow, services: [kubernetes], impersonate: {users: ['*'], groups: ['*']}}",
    ] {
        assert!(warnings(&[MAKES, harmless]).is_empty(), "{harmless}");
    }
    assert!(warnings(&[ALL]).is_empty(), "agentk makes nothing");
}
