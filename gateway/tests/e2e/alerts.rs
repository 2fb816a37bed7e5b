//! Alerts about drops by the policies of a real API server. Hubble Relay is a stand-in.

use cluster_alerts::messages::{DROPPED, EGRESS, Endpoint, Flow, Ip, Layer4, Ports, Protocol, Workload};
use serde_json::{Value, json};

use crate::support::{AGENT, Cluster, Hubble, Installation, Namespace, eventually};

/// Returns the definition of Cilium's policies, as far as this test needs it. The definition stays: other tests may use it, too.
fn definition() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ciliumnetworkpolicies.cilium.io"},
        "spec": {
            "group": "cilium.io", "scope": "Namespaced",
            "names": {"kind": "CiliumNetworkPolicy", "plural": "ciliumnetworkpolicies", "singular": "ciliumnetworkpolicy"},
            "versions": [{"name": "v2", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn policy(name: &str, asks: &str) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": name, "annotations": {"app.gitlab.com/alert": asks}},
        "spec": {"endpointSelector": {"matchLabels": {"app": name}}, "egress": [{"toEntities": ["cluster"]}]},
    })
}

/// A flow as Cilium records it: a pod opens a connection that no policy allows.
fn drop_of(namespace: &Namespace, app: &str) -> Flow {
    Flow {
        verdict: DROPPED,
        drop_reason: 133,
        r#type: 1,
        traffic_direction: EGRESS,
        ip: Some(Ip { source: "10.0.1.7".to_owned(), destination: "93.184.216.34".to_owned() }),
        l4: Some(Layer4 { protocol: Some(Protocol::Tcp(Ports { destination: 443 })) }),
        source: Some(Endpoint {
            namespace: namespace.name.clone(),
            labels: vec![
                format!("k8s:app={app}"),
                format!("k8s:io.kubernetes.pod.namespace={}", namespace.name),
            ],
            pod_name: format!("{app}-5d4b8c7f9-x2x7q"),
            workloads: vec![Workload { name: app.to_owned(), kind: "Deployment".to_owned() }],
        }),
        destination: Some(Endpoint { labels: vec!["reserved:world".to_owned()], ..Endpoint::default() }),
        destination_names: vec!["example.com".to_owned()],
        ..Flow::default()
    }
}

#[test]
fn drop_by_an_annotated_policy_is_an_event_and_an_open_alert() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let namespace = cluster.namespace("alerts");
    let apply =
        |object: &Value| namespace.kubectl.ok_with_stdin(&["apply", "--filename=-"], &object.to_string());
    apply(&definition());
    cluster.kubectl.ok(&["wait", "--for=condition=Established", "crd", "ciliumnetworkpolicies.cilium.io"]);
    apply(&policy("web", "true"));
    apply(&policy("silent", "false"));
    let hubble = Hubble::start(vec![drop_of(&namespace, "web"), drop_of(&namespace, "silent")]);
    let mut installation = Installation::with_cluster(&cluster.kubeconfig);
    installation.agent_options.hubble = Some(format!("http://{}", hubble.address));
    // That of the Lease.
    installation.agent_options.pod_namespace = Some(namespace.name.clone());
    installation.agent.process.terminate();
    installation.agent.process.exit_code();
    installation.restart_agent();

    let ops = &installation.tokens.ops;
    let list = || {
        let path = format!("/agents/{AGENT}/alerts/v1/alerts?namespace={}", namespace.name);
        let response = installation.curl_as(ops, &path, &[]);
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    };
    eventually("the drops are counted", || list()["alerts"][0]["count"].as_u64() >= Some(20));
    let found = list();
    assert_eq!(found["total"], 1, "the other policy does not ask for alerts: {found}");
    let alert = &found["alerts"][0];
    assert_eq!(alert["policy"], json!({"namespace": namespace.name, "name": "web"}));
    assert_eq!(alert["source"]["name"], "web");
    assert_eq!(alert["destination"], json!({"name": "example.com", "port": 443, "protocol": "TCP"}));
    // The pod that leads reports once, however often it happens.
    let reported = || {
        let metrics = installation.agent.get("/metrics").text();
        metrics.lines().any(|line| line == "agentk_events_total{kind=\"alert\"} 1")
    };
    eventually("the alert is reported", reported);

    // The policy stops asking.
    apply(&policy("web", "false"));
    let ignored = || {
        let metrics = installation.agent.get("/metrics").text();
        metrics.lines().any(|line| line == "agentk_alerts_policies 0")
    };
    eventually("the policy is forgotten", ignored);
    let count = list()["alerts"][0]["count"].clone();
    let metric = || {
        let metrics = installation.agent.get("/metrics").text();
        let name = "agentk_alerts_dropped_total{reason=\"not-asked\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        line.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = metric();
    eventually("more drops are ignored", || metric() >= before + 10);
    assert_eq!(list()["alerts"][0]["count"], count);
    assert!(reported());
}
