//! kubectl verbs that only read.

use crate::support::{Cluster, Installation, assert_same_output};

#[test]
fn reading_verbs_have_the_same_output() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("reading");
    namespace.pod("web", "echo ready; exec sleep 1000");
    namespace.kubectl.ok(&[
        "create",
        "configmap",
        "colours",
        "--from-literal=sky=blue",
        "--from-literal=sea=grün",
    ]);

    let [agents, gitlab] =
        [world.kubectl(), world.kubectl_in_ci()].map(|kubectl| kubectl.in_namespace(&namespace.name));
    for arguments in [
        &["version", "--output=json"][..],
        &["api-resources"],
        &["api-versions"],
        &["explain", "pod.spec.containers.image"],
        &["get", "nodes", "--output=wide"],
        &["get", "pods"],
        &["get", "pods,configmaps", "--output=wide", "--show-labels"],
        &["get", "all", "--all-namespaces", "--selector=app=web"],
        &["get", "pod", "web", "--output=yaml"],
        &["get", "pod/web", "configmap/colours", "--output=json"],
        &["get", "configmaps", "--chunk-size=1", "--output=name"],
        &["get", "pod", "web", "--output=jsonpath={.status.phase}"],
        &["get", "pods", "--field-selector=status.phase=Running", "--output=name"],
        &["describe", "pod", "web"],
        &["describe", "node"],
        &["logs", "web"],
        &["logs", "--selector=app=web", "--tail=1", "--timestamps"],
        &["auth", "can-i", "delete", "pods"],
        &["auth", "can-i", "--list"],
        &["get", "events", "--output=name"],
    ] {
        let code = assert_same_output(&namespace.kubectl, &[&agents, &gitlab], arguments, "");
        assert_eq!(code, 0, "{arguments:?}");
    }
    for path in ["/healthz", "/api/v1", "/openapi/v2", "/no/such/path"] {
        let direct = cluster.kubectl.raw(path);
        for kubectl in [&agents, &gitlab] {
            assert_eq!(kubectl.raw(path), direct, "{path} ({})", kubectl.name);
        }
    }
}

#[test]
fn cluster_errors_have_the_same_output() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let [agents, gitlab] = [world.kubectl(), world.kubectl_in_ci()];
    for arguments in [
        &["get", "pod", "no-such-pod"][..],
        &["get", "no-such-things"],
        &["get", "pods", "--field-selector=no.such.field=1"],
        &["delete", "configmap", "no-such-configmap"],
        &["logs", "no-such-pod"],
        &["exec", "no-such-pod", "--", "true"],
        &["create", "configmap", "Not_A_Name"],
        &["auth", "can-i", "list", "pods", "--as=nobody"],
        &["get", "pods", "--as=nobody"],
    ] {
        let code = assert_same_output(&cluster.kubectl, &[&agents, &gitlab], arguments, "");
        assert_ne!(code, 0, "{arguments:?}");
    }
}

#[test]
fn ten_megabyte_list_is_complete() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("large");
    let through = world.kubectl().in_namespace(&namespace.name);
    let line = "0123456789abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ äöü\n";
    for number in 0..12 {
        let text = line.repeat(900_000 / line.len());
        let manifest = serde_json::json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": format!("large-{number}")},
            "data": {"text": text},
        });
        // Half of the objects are created through the tunnel.
        let kubectl = if number % 2 == 0 { &through } else { &namespace.kubectl };
        kubectl.ok_with_stdin(&["create", "--filename=-"], &manifest.to_string());
    }

    let path = format!("/api/v1/namespaces/{}/configmaps", namespace.name);
    // A list starts with the resource version of the whole cluster, which other tests change.
    let [direct, through] = [&namespace.kubectl, &through].map(|kubectl| {
        let mut list = kubectl.raw(&path).stdout;
        let items = list.windows(8).position(|word| word == b"\"items\":").unwrap();
        list.split_off(items)
    });
    assert!(direct.len() > 10_000_000, "{}", direct.len());
    assert!(direct == through, "the lists differ: {} and {} bytes", direct.len(), through.len());
}
