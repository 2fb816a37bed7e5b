//! Who a caller is in the cluster.

use crate::support::{AGENT, Cluster, World, assert_same_among};

#[test]
fn an_impersonated_caller_has_the_rights_of_whom_it_is() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("alice");
    let alice = world.kubectl_of_alice().within(&namespace.name);

    let refused = alice.run(&["get", "pods"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("User \"alice\" cannot list resource \"pods\""), "{}", refused.stderr);
    assert_eq!(alice.run(&["auth", "can-i", "list", "pods"]).text(), "no\n");
    let refused = alice.run(&["exec", "any", "--", "true"]);
    assert!(refused.stderr.contains("User \"alice\" cannot get resource \"pods\""), "{}", refused.stderr);

    namespace.kubectl.ok(&["create", "role", "reader", "--verb=list,get", "--resource=pods"]);
    namespace.kubectl.ok(&["create", "rolebinding", "alice", "--role=reader", "--user=alice"]);
    // The same as what the cluster itself says to somebody who may impersonate.
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
fn an_impersonated_caller_cannot_be_somebody_else() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let refused = world.kubectl_of_alice().run(&["get", "pods", "--as=admin", "--as-group=system:masters"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("nested impersonation is not supported"), "{}", refused.stderr);

    let path = format!("/agents/{AGENT}/kubernetes/api/v1/namespaces/default/pods");
    for header in ["Impersonate-User: admin", "Impersonate-Group: system:masters", "impersonate-extra-a: b"] {
        let reply = world.curl_as(&world.tokens.alice, &path, &["--header", header]);
        assert_eq!(
            (reply.status, reply.header("kas-error")),
            (400, Some("nested-impersonation")),
            "{header}"
        );
        assert_eq!(reply.json()["kind"], "Status");
    }
}

#[test]
fn a_caller_who_acts_as_the_agent_may_impersonate_as_the_agent_may() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let [agents, gitlab] = [world.kubectl(), world.kubectl_in_ci()];
    for arguments in [
        &["get", "pods", "--as=bob", "--as-group=painters"][..],
        &["auth", "can-i", "get", "pods", "--as=bob"],
        &["auth", "can-i", "get", "pods", "--as=bob", "--as-group=system:masters"],
        &["get", "namespaces", "default", "--as=bob", "--as-group=system:masters", "--output=name"],
    ] {
        assert_same_among(&cluster.kubectl, &[&agents, &gitlab], arguments, "");
    }
}
