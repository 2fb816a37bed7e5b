//! What kubectl says where the cluster's owner gave agentk a policy.

use crate::support::{Cluster, World, eventually};

/// Reading pods, in one namespace, as agentk or as bob.
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
fn kubectl_names_the_rule_that_refuses() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("policy");
    namespace.pod("shell", "echo started; exec sleep 1000");
    world.put_policy(&only_pods_in(&namespace.name, "enforce"));
    let kubectl = world.kubectl().within(&namespace.name);

    assert!(kubectl.ok(&["get", "pods"]).contains("shell"));
    assert!(kubectl.ok(&["get", "pod", "shell", "--output=name"]).contains("pod/shell"));
    assert_eq!(kubectl.ok(&["logs", "shell"]), "started\n");
    let bob = kubectl.run(&["get", "pods", "--as=bob", "--as-group=painters"]);
    assert!(bob.stderr.contains("User \"bob\" cannot list resource"), "RBAC answers: {}", bob.stderr);

    let no_rule = "the policy of this cluster does not allow this: no rule allows";
    let no_secrets = "the policy of this cluster does not allow this: rule \"no-secrets\" refuses";
    for (arguments, said) in [
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
        assert!(refused.stderr.contains(&said), "{arguments:?}: {}", refused.stderr);
    }
    assert!(kubectl.run(&["get", "pods", "--as=alice"]).stderr.contains("as \"alice\""));
    assert!(namespace.kubectl.ok(&["get", "pods"]).contains("Running"), "nothing was deleted");
    let path = format!("/agents/prod/kubernetes/api/v1/namespaces/{}/secrets", namespace.name);
    let reply = world.curl(&path, &[]);
    assert_eq!((reply.status, reply.header("kas-error")), (403, Some("refused-by-policy")));
    assert_eq!(reply.json()["reason"], "Forbidden");
}

#[test]
fn a_dry_run_lets_pass_and_reports() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("policy-dry-run");
    world.put_policy(&only_pods_in(&namespace.name, "dry-run"));
    let kubectl = world.kubectl().within(&namespace.name);
    kubectl.ok(&["get", "secrets"]);
    kubectl.ok(&["create", "configmap", "made"]);
    let line = world.agent.process.line("the report", |line| {
        line.contains("the policy would refuse this") && line.contains("no-secrets")
    });
    assert!(line.contains("list secrets in namespace"), "{line}");
}

#[test]
fn streams_that_a_new_version_refuses_are_cut() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("policy-streams");
    namespace.pod("shell", "echo started; exec sleep 1000");
    world.put_policy("rules: [{name: all, action: allow, services: ['*']}]");
    let kubectl = world.kubectl().within(&namespace.name);
    let mut watch = kubectl.start(&["get", "pods", "--watch", "--output=name"]);
    watch.line("a pod", |line| line == "pod/shell");
    let mut shell =
        kubectl.start_listening(&["exec", "--stdin", "shell", "--", "sh", "-c", "echo here; cat"]);
    shell.line("here", |line| line == "here");
    let mut forward = kubectl.start(&["port-forward", "pod/shell", ":8080"]);
    forward.line("Forwarding", |line| line.starts_with("Forwarding from 127.0.0.1:"));
    eventually("three streams are in flight", || world.in_flight() == 3.0);

    world.put_policy(&only_pods_in(&namespace.name, "enforce"));
    // kubectl takes the end of the connection for that of the program: its code says nothing. An old one ends
    // port-forward with 0, too.
    shell.exit_code();
    forward.exit_code();
    assert!(forward.printed().contains("lost connection to pod"), "{}", forward.printed());
    eventually("only the watch goes on", || world.in_flight() == 1.0);
    assert!(watch.runs());
}
