//! kubectl verbs that change objects, run in two namespaces: with and without the tunnel.

use serde_json::json;

use crate::support::{Cluster, Installation, Kubectl, KubectlVersion, Namespace, eventually, normalize};

/// Prints the managed fields without their times. kubectl before 1.21 has no `--show-managed-fields`.
const MANAGED_FIELDS: &str = "--output=jsonpath={range .items[*].metadata.managedFields[*]}{.manager} {.operation} {.fieldsV1}{\"\\n\"}{end}";

/// Two namespaces for the same commands: one without the tunnel, one through it.
struct Comparison {
    direct: Kubectl,
    through: Kubectl,
    names: [String; 2],
    _namespaces: [Namespace; 2],
}

impl Comparison {
    fn new(cluster: &Cluster, topic: &str, through: &Kubectl) -> Self {
        let namespaces = [cluster.namespace(&format!("{topic}-direct")), cluster.namespace(topic)];
        let [direct, tunnel] = &namespaces;
        let names = [direct.name.clone(), tunnel.name.clone()];
        Self {
            direct: direct.kubectl.clone(),
            through: through.in_namespace(&tunnel.name),
            names,
            _namespaces: namespaces,
        }
    }

    fn assert_same(&self, arguments: &[&str]) -> (i32, String) {
        self.assert_same_with_stdin(arguments, "")
    }

    /// Asserts that a command has the same result at both ends. Returns the exit code and the output.
    fn assert_same_with_stdin(&self, arguments: &[&str], stdin: &str) -> (i32, String) {
        let [direct, through] = [(&self.direct, 0), (&self.through, 1)].map(|(kubectl, place)| {
            let output = kubectl.run_with_stdin(arguments, stdin.as_bytes());
            let [stdout, stderr] =
                [output.text(), output.stderr].map(|text| normalize(&text, &self.names[place]));
            (output.code, stdout, stderr)
        });
        assert_eq!(through, direct, "kubectl {arguments:?}");
        (through.0, through.1 + &through.2)
    }
}

#[test]
fn changing_verbs_have_the_same_effect_and_output() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let configmap = |colour: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"sky": colour}})
            .to_string()
    };
    for (topic, through) in [("changes", world.kubectl()), ("changes-ci", world.kubectl_in_ci())] {
        let comparison = Comparison::new(&cluster, topic, &through);
        let succeeds =
            |arguments: &[&str]| assert_eq!(comparison.assert_same(arguments).0, 0, "{arguments:?}");
        let apply = |flags: &[&str], colour: &str| {
            comparison
                .assert_same_with_stdin(&[&["apply", "--filename=-"], flags].concat(), &configmap(colour))
        };

        succeeds(&["create", "configmap", "created", "--from-literal=a=1"]);
        let (code, output) = comparison.assert_same(&["create", "configmap", "created"]);
        assert!(code == 1 && output.contains("already exists"), "{output}");
        assert_eq!(apply(&[], "blue"), (0, "configmap/applied created".to_owned()));
        assert_eq!(apply(&[], "blue"), (0, "configmap/applied unchanged".to_owned()));
        assert_eq!(apply(&["--dry-run=server"], "grey").0, 0);
        assert_eq!(comparison.assert_same_with_stdin(&["diff", "--filename=-"], &configmap("blue")).0, 0);
        assert_eq!(apply(&[], "grey"), (0, "configmap/applied configured".to_owned()));
        let (code, output) = apply(&["--server-side", "--field-manager=other"], "red");
        assert!(code == 1 && output.contains("conflict"), "{output}");
        assert_eq!(apply(&["--server-side", "--field-manager=other", "--force-conflicts"], "red").0, 0);
        succeeds(&["patch", "configmap", "created", "--patch", r#"{"data":{"b":"2"}}"#]);
        succeeds(&["patch", "configmap", "created", "--type=merge", "--patch", r#"{"data":{"a":null}}"#]);
        succeeds(&[
            "patch",
            "configmap",
            "created",
            "--type=json",
            "--patch",
            r#"[{"op":"add","path":"/data/c","value":"3"}]"#,
        ]);
        succeeds(&["label", "configmap", "created", "tier=front"]);
        succeeds(&["annotate", "configmap", "created", "note=a longer text, with a comma"]);
        let replacement = configmap("green").replace("applied", "created");
        assert_eq!(comparison.assert_same_with_stdin(&["replace", "--filename=-"], &replacement).0, 0);
        succeeds(&["get", "configmaps", "--output=yaml"]);
        let (code, fields) = comparison.assert_same(&["get", "configmaps", MANAGED_FIELDS]);
        assert!(code == 0 && fields.contains("other Apply"), "{fields}");
        succeeds(&["delete", "configmap", "created"]);
        let (code, output) = comparison.assert_same(&["delete", "configmap", "created"]);
        assert!(code == 1 && output.contains("NotFound"), "{output}");
        succeeds(&["delete", "configmap", "applied", "--cascade=foreground"]);
    }
}

#[test]
fn deployment_rollout_scale_and_wait_work() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("rollout");
    let through = world.kubectl().in_namespace(&namespace.name);
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
    through.ok_with_stdin(&["apply", "--filename=-"], &deployment.to_string());

    let done = "deployment \"web\" successfully rolled out\n";
    let output = through.ok(&["rollout", "status", "deployment/web", "--timeout=40s"]);
    assert!(output.ends_with(done), "{output}");
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
