//! kubectl with an agentk that has a policy.

use crate::support::{Cluster, Installation, eventually};

/// Returns a policy that allows to read the pods of one namespace, as agentk or as bob.
fn only_pods_in(namespace: &str, mode: &str) -> String {
    format!(
        "mode: {mode}
rules:
- {{name: no-secrets, action: deny, services: [kubernetes], resources: [secrets]}}
- name: reading-pods
  action: allow
  services: [kubernetes]
  verbs: [get, list, watch]
  apiGroups: ['']
  resources: [pods, pods/log]
  namespaces: [{namespace}]
  impersonate: {{self: true, users: [bob], groups: [painters]}}
- name: discovery
  action: allow
  services: [kubernetes]
  verbs: [get]
  nonResourceURLs: [/api, /api/*, /apis, /apis/*, /openapi/*, /version]
"
    )
}

#[test]
fn refusal_by_policy_names_the_rule() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("policy");
    namespace.pod("shell", "echo started; exec sleep 1000");
    world.put_policy(&only_pods_in(&namespace.name, "enforce"));
    let kubectl = world.kubectl().in_namespace(&namespace.name);

    assert!(kubectl.ok(&["get", "pods"]).contains("shell"));
    assert!(kubectl.ok(&["get", "pod", "shell", "--output=name"]).contains("pod/shell"));
    assert_eq!(kubectl.ok(&["logs", "shell"]), "started\n");
    let bob = kubectl.run(&["get", "pods", "--as=bob", "--as-group=painters"]);
    assert!(
        bob.stderr.contains("User \"bob\" cannot list resource"),
        "the error is that of RBAC: {}",
        bob.stderr
    );

    let no_rule = "the policy of this cluster does not allow this: no rule allows";
    let no_secrets = "the policy of this cluster does not allow this: rule \"no-secrets\" refuses";
    for (arguments, message) in [
        (&["get", "secrets"][..], format!("{no_secrets} list secrets in namespace")),
        (&["get", "secret", "x"], format!("{no_secrets} get secrets \"x\"")),
        (&["delete", "pod", "shell"], format!("{no_rule} delete pods \"shell\"")),
        (&["exec", "shell", "--", "true"], format!("{no_rule} create pods/exec \"shell\"")),
        (&["get", "pods", "--all-namespaces"], format!("{no_rule} list pods")),
        (
            &["get", "pods", "--namespace=kube-system"],
            format!("{no_rule} list pods in namespace \"kube-system\""),
        ),
        (&["get", "services"], format!("{no_rule} list services")),
        (&["get", "pods", "--as=alice"], format!("{no_rule} list pods")),
        (&["get", "pods", "--as=bob", "--as-group=system:masters"], format!("{no_rule} list pods")),
    ] {
        let refused = kubectl.run(arguments);
        assert_eq!(refused.code, 1, "{arguments:?}");
        assert!(refused.stderr.contains(&message), "{arguments:?}: {}", refused.stderr);
    }
    assert!(kubectl.run(&["get", "pods", "--as=alice"]).stderr.contains("as \"alice\""));
    assert!(namespace.kubectl.ok(&["get", "pods"]).contains("Running"), "nothing was deleted");
    let path = format!("/agents/prod/kubernetes/api/v1/namespaces/{}/secrets", namespace.name);
    let response = world.curl(&path, &[]);
    assert_eq!((response.status, response.header("kas-error")), (403, Some("refused-by-policy")));
    assert_eq!(response.json()["reason"], "Forbidden");
}

#[test]
fn dry_run_policy_allows_and_logs() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("policy-dry-run");
    world.put_policy(&only_pods_in(&namespace.name, "dry-run"));
    let kubectl = world.kubectl().in_namespace(&namespace.name);
    kubectl.ok(&["get", "secrets"]);
    kubectl.ok(&["create", "configmap", "made"]);
    let line = world.agent.process.line("the report", |line| {
        line.contains("the policy would refuse this") && line.contains("no-secrets")
    });
    assert!(line.contains("list secrets in namespace"), "{line}");
}

#[test]
fn streams_refused_by_new_policy_are_closed() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("policy-streams");
    namespace.pod("shell", "echo started; exec sleep 1000");
    world.put_policy("rules: [{name: all, action: allow, services: ['*']}]");
    let kubectl = world.kubectl().in_namespace(&namespace.name);
    let mut watch = kubectl.start(&["get", "pods", "--watch", "--output=name"]);
    watch.line("a pod", |line| line == "pod/shell");
    let mut shell =
        kubectl.start_with_open_stdin(&["exec", "--stdin", "shell", "--", "sh", "-c", "echo here; cat"]);
    shell.line("here", |line| line == "here");
    let mut forward = kubectl.start(&["port-forward", "pod/shell", ":8080"]);
    forward.line("Forwarding", |line| line.starts_with("Forwarding from 127.0.0.1:"));
    eventually("three streams are in flight", || world.in_flight() == 3.0);

    world.put_policy(&only_pods_in(&namespace.name, "enforce"));
    // kubectl does not distinguish a closed connection from the end of the program, so its exit code is not checked.
    // Old versions exit with 0 from port-forward, too.
    shell.exit_code();
    forward.exit_code();
    assert!(forward.printed().contains("lost connection to pod"), "{}", forward.printed());
    eventually("only the watch continues", || world.in_flight() == 1.0);
    assert!(watch.runs());
}

/// agentk reads the labels from the API server, which no simulated one answers alike.
#[test]
fn namespace_is_open_while_it_has_the_label() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("policy-labels");
    let label = |label: &str| {
        cluster.kubectl.ok(&["label", "namespace", &namespace.name, "--overwrite", label]);
    };
    label("team=shop");
    world.put_policy(
        "rules:
- {name: discovery, action: allow, services: [kubernetes], verbs: [get], nonResourceURLs: [/api, /api/*, /apis, /apis/*]}
- {name: team, action: allow, services: [kubernetes], resources: [configmaps], namespaceSelector: {matchLabels: {team: shop}}}
- {name: system, action: allow, services: [kubernetes], resources: [configmaps], namespaces: ['kube-s*']}
",
    );
    let kubectl = world.kubectl().in_namespace(&namespace.name);
    assert!(
        kubectl.ok(&["get", "configmaps"]).contains("kube-root-ca.crt"),
        "agentk knew the labels at its start"
    );
    assert!(kubectl.ok(&["get", "configmaps", "--namespace=kube-system"]).contains("kube-root-ca.crt"));
    let mut watch = kubectl.start(&["get", "configmaps", "--watch", "--output=name"]);
    watch.line("an object", |line| line == "configmap/kube-root-ca.crt");

    label("team=other");
    watch.exit_code();
    let refused = kubectl.run(&["get", "configmaps"]);
    assert!(refused.stderr.contains("with the labels of its namespace"), "{}", refused.stderr);
    label("team=shop");
    eventually("the namespace is open again", || kubectl.run(&["get", "configmaps"]).code == 0);
}
