//! Verbs that change something: done twice, in two namespaces, with and without the tunnel.

use serde_json::json;

use crate::support::{Cluster, Kubectl, KubectlVersion, Namespace, World, eventually, normal};

/// The managed fields without their times. `--show-managed-fields` is not in kubectl before 1.21.
const MANAGED_FIELDS: &str = "--output=jsonpath={range .items[*].metadata.managedFields[*]}{.manager} {.operation} {.fieldsV1}{\"\\n\"}{end}";

/// The same work at two places.
struct Twice {
    direct: Kubectl,
    through: Kubectl,
    names: [String; 2],
    _namespaces: [Namespace; 2],
}

impl Twice {
    fn new(cluster: &Cluster, topic: &str, through: &Kubectl) -> Self {
        let namespaces = [cluster.namespace(&format!("{topic}-direct")), cluster.namespace(topic)];
        let [direct, tunnel] = &namespaces;
        let names = [direct.name.clone(), tunnel.name.clone()];
        Self {
            direct: direct.kubectl.clone(),
            through: through.within(&tunnel.name),
            names,
            _namespaces: namespaces,
        }
    }

    fn same(&self, arguments: &[&str]) -> (i32, String) {
        self.same_with(arguments, "")
    }

    /// Both did, printed and complained the same; says what.
    fn same_with(&self, arguments: &[&str], stdin: &str) -> (i32, String) {
        let [direct, through] = [(&self.direct, 0), (&self.through, 1)].map(|(kubectl, place)| {
            let answer = kubectl.pipe(arguments, stdin.as_bytes());
            let [stdout, stderr] =
                [answer.text(), answer.stderr].map(|text| normal(&text, &self.names[place]));
            (answer.code, stdout, stderr)
        });
        assert_eq!(through, direct, "kubectl {arguments:?}");
        (through.0, through.1 + &through.2)
    }
}

#[test]
fn changing_verbs_do_and_print_the_same() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let configmap = |colour: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"sky": colour}})
            .to_string()
    };
    for (topic, through) in [("changes", world.kubectl()), ("changes-ci", world.kubectl_in_ci())] {
        let twice = Twice::new(&cluster, topic, &through);
        let good = |arguments: &[&str]| assert_eq!(twice.same(arguments).0, 0, "{arguments:?}");
        let apply = |flags: &[&str], colour: &str| {
            twice.same_with(&[&["apply", "--filename=-"], flags].concat(), &configmap(colour))
        };

        good(&["create", "configmap", "made", "--from-literal=a=1"]);
        let (code, said) = twice.same(&["create", "configmap", "made"]);
        assert!(code == 1 && said.contains("already exists"), "{said}");
        assert_eq!(apply(&[], "blue"), (0, "configmap/applied created".to_owned()));
        assert_eq!(apply(&[], "blue"), (0, "configmap/applied unchanged".to_owned()));
        assert_eq!(apply(&["--dry-run=server"], "grey").0, 0);
        assert_eq!(twice.same_with(&["diff", "--filename=-"], &configmap("blue")).0, 0);
        assert_eq!(apply(&[], "grey"), (0, "configmap/applied configured".to_owned()));
        let (code, said) = apply(&["--server-side", "--field-manager=other"], "red");
        assert!(code == 1 && said.contains("conflict"), "{said}");
        assert_eq!(apply(&["--server-side", "--field-manager=other", "--force-conflicts"], "red").0, 0);
        good(&["patch", "configmap", "made", "--patch", r#"{"data":{"b":"2"}}"#]);
        good(&["patch", "configmap", "made", "--type=merge", "--patch", r#"{"data":{"a":null}}"#]);
        good(&[
            "patch",
            "configmap",
            "made",
            "--type=json",
            "--patch",
            r#"[{"op":"add","path":"/data/c","value":"3"}]"#,
        ]);
        good(&["label", "configmap", "made", "tier=front"]);
        good(&["annotate", "configmap", "made", "note=a longer text, with a comma"]);
        let replacement = configmap("green").replace("applied", "made");
        assert_eq!(twice.same_with(&["replace", "--filename=-"], &replacement).0, 0);
        good(&["get", "configmaps", "--output=yaml"]);
        let (code, fields) = twice.same(&["get", "configmaps", MANAGED_FIELDS]);
        assert!(code == 0 && fields.contains("other Apply"), "{fields}");
        good(&["delete", "configmap", "made"]);
        let (code, said) = twice.same(&["delete", "configmap", "made"]);
        assert!(code == 1 && said.contains("NotFound"), "{said}");
        good(&["delete", "configmap", "applied", "--cascade=foreground"]);
    }
}

#[test]
fn a_deployment_is_rolled_out_scaled_and_waited_for() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("rollout");
    let through = world.kubectl().within(&namespace.name);
    let pod = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "busybox:1.35", "imagePullPolicy": "Never", "command": ["sleep", "1000"],
            }],
        },
    });
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": pod},
    });
    through.ok_with(&["apply", "--filename=-"], &deployment.to_string());

    let done = "deployment \"web\" successfully rolled out\n";
    let said = through.ok(&["rollout", "status", "deployment/web", "--timeout=40s"]);
    assert!(said.ends_with(done), "{said}");
    assert_eq!(namespace.kubectl.ok(&["rollout", "status", "deployment/web"]), done);
    // Kubernetes 1.20, built by today's Go, panics at this one.
    if namespace.kubectl.run(&["scale", "deployment/web", "--replicas=3"]).code == 0 {
        assert_eq!(through.ok(&["scale", "deployment/web", "--replicas=1"]), "deployment.apps/web scaled\n");
    } else {
        through.ok(&["patch", "deployment", "web", "--patch", r#"{"spec":{"replicas":1}}"#]);
    }
    let replicas = ["get", "deployment", "web", "--output=jsonpath={.status.replicas}"];
    eventually("the deployment is scaled", || through.ok(&replicas) == "1");
    if KubectlVersion::WAIT_FOR_JSONPATH.or_skip("kubectl wait --for=jsonpath") {
        let scaled = ["wait", "--for=jsonpath={.status.replicas}=1", "deployment/web", "--timeout=40s"];
        assert_eq!(through.ok(&scaled), "deployment.apps/web condition met\n");
    }
    through.ok(&["wait", "--for=condition=Available", "deployment/web", "--timeout=40s"]);
    through.ok(&["rollout", "restart", "deployment/web"]);
    assert!(through.ok(&["rollout", "status", "deployment/web", "--timeout=40s"]).ends_with(done));
    for kubectl in [&namespace.kubectl, &through] {
        let late = kubectl.run(&["wait", "--for=condition=NoSuch", "deployment/web", "--timeout=1s"]);
        assert_eq!(
            (late.code, &*late.stderr),
            (1, "error: timed out waiting for the condition on deployments/web\n")
        );
    }
    through.ok(&["delete", "deployment", "web", "--timeout=40s"]);
    assert_eq!(through.run(&["get", "deployment", "web"]).code, 1);
}
