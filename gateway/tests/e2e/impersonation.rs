//! Impersonation: the user of a caller in the cluster.

use crate::support::{AGENT, Cluster, Installation, assert_same_output};

#[test]
fn impersonated_caller_has_the_rights_of_its_user() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("alice");
    let alice = world.kubectl_as_alice().in_namespace(&namespace.name);

    let refused = alice.run(&["get", "pods"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("User \"alice\" cannot list resource \"pods\""), "{}", refused.stderr);
    assert_eq!(alice.run(&["auth", "can-i", "list", "pods"]).text(), "no\n");
    let refused = alice.run(&["exec", "any", "--", "true"]);
    assert!(refused.stderr.contains("User \"alice\" cannot get resource \"pods\""), "{}", refused.stderr);

    namespace.kubectl.ok(&["create", "role", "reader", "--verb=list,get", "--resource=pods"]);
    namespace.kubectl.ok(&["create", "rolebinding", "alice", "--role=reader", "--user=alice"]);
    // The reference is the same command without the tunnel, with `--as`.
    for arguments in [&["get", "pods"][..], &["auth", "can-i", "list", "pods"], &["get", "secrets"]] {
        let direct = namespace.kubectl.run(&[arguments, &["--as=alice"]].concat());
        let through = alice.run(arguments);
        assert_eq!(
            (through.code, through.text(), through.stderr),
            (direct.code, direct.text(), direct.stderr)
        );
    }
}

#[test]
fn impersonated_caller_cannot_impersonate_others() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let refused = world.kubectl_as_alice().run(&["get", "pods", "--as=admin", "--as-group=system:masters"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("nested impersonation is not supported"), "{}", refused.stderr);

    let path = format!("/agents/{AGENT}/kubernetes/api/v1/namespaces/default/pods");
    for header in ["Impersonate-User: admin", "Impersonate-Group: system:masters", "impersonate-extra-a: b"] {
        let response = world.curl_as(&world.tokens.alice, &path, &["--header", header]);
        assert_eq!(
            (response.status, response.header("kas-error")),
            (400, Some("nested-impersonation")),
            "{header}"
        );
        assert_eq!(response.json()["kind"], "Status");
    }
}

#[test]
fn caller_acting_as_agent_may_impersonate() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let [agents, gitlab] = [world.kubectl(), world.kubectl_in_ci()];
    for arguments in [
        &["get", "pods", "--as=bob", "--as-group=painters"][..],
        &["auth", "can-i", "get", "pods", "--as=bob"],
        &["auth", "can-i", "get", "pods", "--as=bob", "--as-group=system:masters"],
        &["get", "namespaces", "default", "--as=bob", "--as-group=system:masters", "--output=name"],
    ] {
        assert_same_output(&cluster.kubectl, &[&agents, &gitlab], arguments, "");
    }
}
