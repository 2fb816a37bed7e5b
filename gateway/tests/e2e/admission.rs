//! The API server asks `agentk admission`, or decides by the rendered policy: both as agentk does.

use std::{fs, path::Path, process::Command};

use agentk_policy::{NamespaceLabels, Policy};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::Request;
use serde_json::{Value, json};
use testing::skip::skipped_by_version;

use crate::support::{Certificates, Cluster, Kas, Kubectl, Namespace, Process, curl, eventually};

/// The minor version of Kubernetes that has `ValidatingAdmissionPolicy`.
const ADMISSION_POLICIES: u32 = 30;
/// The minor version whose webhooks may have `matchConditions`.
const MATCH_CONDITIONS: u32 = 28;
const REFUSED: &str = "the policy of this cluster does not allow this";

/// A request as the API server receives it, and whether agentk would send it.
struct Case {
    method: &'static str,
    path: String,
    body: String,
    content_type: &'static str,
    user: String,
    groups: Vec<String>,
    allowed: bool,
}

/// Two namespaces with objects, and users with all rights of RBAC.
struct World {
    cluster: Cluster,
    spaces: [Namespace; 2],
    topic: String,
    /// `kubectl proxy`, which has the credential of an administrator.
    _proxy: Process,
    url: String,
    directory: tempfile::TempDir,
}

impl World {
    fn or_skip() -> Option<Self> {
        let cluster = Cluster::or_skip()?;
        let spaces = [cluster.namespace("shop"), cluster.namespace("other")];
        let topic = spaces[0].name.replace("shop", "admission");
        cluster.kubectl.ok(&["label", "namespace", &spaces[0].name, "role=shop"]);
        for space in &spaces {
            for name in ["mine", "other"] {
                let objects = ["ConfigMap", "Secret"].map(|kind| object(kind, name)).to_vec();
                for object in objects.into_iter().chain([object("Deployment", name)]) {
                    space.kubectl.ok_with_stdin(&["create", "--filename=-"], &object.to_string());
                }
            }
        }
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": topic},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [
                {"kind": "Group", "name": format!("team-{topic}")},
                {"kind": "ServiceAccount", "name": "agentk", "namespace": spaces[0].name},
            ],
        });
        cluster.kubectl.ok_with_stdin(&["create", "--filename=-"], &binding.to_string());
        let proxy = cluster.kubectl.start(&["proxy", "--port=0"]);
        let line = proxy.line("its address", |line| line.contains("Starting to serve on"));
        let url = format!("http://{}", line.rsplit(' ').next().unwrap());
        let directory = tempfile::tempdir().unwrap();
        Some(Self { cluster, spaces, topic, _proxy: proxy, url, directory })
    }

    fn agentk(&self) -> String {
        format!("system:serviceaccount:{}:agentk", self.spaces[0].name)
    }

    /// Returns the labels of the namespaces, as agentk reads them.
    fn labels(&self) -> NamespaceLabels {
        let mut labels = NamespaceLabels::empty(["role".to_owned()].into());
        labels.set(&self.spaces[0].name, [("role".to_owned(), "shop".to_owned())].into());
        labels.set(&self.spaces[1].name, [].into());
        labels
    }

    /// Returns the policy. The rules are those of one namespace, of its prefix and its labels, of users and groups, and of single objects.
    fn policy(&self) -> String {
        let shop = &self.spaces[0].name;
        let prefix = &shop[..shop.len() - 1];
        format!(
            "rules:
- {{name: no-secrets, action: deny, services: [kubernetes, gitops], resources: [secrets]}}
- {{name: no-root, action: deny, services: [kubernetes], impersonate: {{users: ['gitlab:root'], groups: [masters]}}}}
- {{name: one, action: allow, services: [kubernetes], verbs: [delete, patch], resources: [configmaps], resourceNames: [mine]}}
- {{name: scale, action: allow, services: [kubernetes], resources: ['*/scale'], namespaces: ['{prefix}*']}}
- {{name: ci, action: allow, services: [kubernetes], verbs: [create, update, patch, delete], apiGroups: ['', apps], \
resources: [deployments, configmaps, namespaces], namespaces: [{shop}], impersonate: {{users: ['gitlab:*'], groups: ['team-*']}}}}
- {{name: own, action: allow, services: [gitops], verbs: [patch, delete], resources: [deployments], \
namespaceSelector: {{matchLabels: {{role: shop}}, matchExpressions: [{{key: role, operator: NotIn, values: [x]}}]}}, \
impersonate: {{self: true}}}}
objects:
- {{name: named, apiGroups: [apps], resources: [deployments], names: [mine, other, new, 'web-*']}}
"
        )
    }

    /// Returns each combination of verb, resource, namespace, name and user, with the decision of agentk about the same request.
    fn cases(&self, policy: &Policy) -> Vec<Case> {
        let (team, labels) = (format!("team-{}", self.topic), self.labels());
        let users = [
            (self.agentk(), vec![]),
            ("gitlab:ci".to_owned(), vec![team.clone()]),
            ("gitlab:ci".to_owned(), vec![team.clone(), "masters".to_owned()]),
            ("gitlab:root".to_owned(), vec![team.clone()]),
        ];
        let mut cases = Vec::new();
        for (user, groups) in users {
            for space in &self.spaces {
                for (prefix, kind, resource) in [
                    ("/api/v1", "ConfigMap", "configmaps"),
                    ("/api/v1", "Secret", "secrets"),
                    ("/apis/apps/v1", "Deployment", "deployments"),
                ] {
                    let collection = format!("{prefix}/namespaces/{}/{resource}", space.name);
                    let is_sent = |method: &str, path: &str| {
                        let mut request = Request::builder().method(method).uri(path);
                        if user != self.agentk() {
                            request = request.header("impersonate-user", &user);
                        }
                        for group in &groups {
                            request = request.header("impersonate-group", group);
                        }
                        let request = request.body(()).unwrap();
                        let mut services = ["kubernetes", "gitops"].into_iter();
                        services.any(|service| policy.evaluate(service, &request, &labels).allowed)
                    };
                    let case = |method, path: String, body: Value, content_type| {
                        // The API server gives the requests that have the same effect the same form.
                        let new = format!("{collection}/new");
                        let is_creation = path == collection || path.starts_with(&new);
                        let allowed = match method {
                            "DELETE" => is_sent(method, &path),
                            _ if is_creation => {
                                is_sent("POST", &collection) || is_sent("PATCH", &new) || is_sent("PUT", &new)
                            }
                            _ => is_sent("PUT", &path) || is_sent("PATCH", &path),
                        };
                        let (user, groups) = (user.clone(), groups.clone());
                        Case { method, path, body: body.to_string(), content_type, user, groups, allowed }
                    };
                    let json = "application/json";
                    // The API server reads no option of the query if there is a body.
                    let delete = json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]});
                    for name in ["mine", "other"] {
                        let path = format!("{collection}/{name}");
                        let label = json!({"metadata": {"labels": {"a": "b"}}});
                        cases.push(case("PUT", path.clone(), object(kind, name), json));
                        cases.push(case("PATCH", path.clone(), label, "application/merge-patch+json"));
                        cases.push(case("DELETE", path.clone(), delete.clone(), json));
                        if kind == "Deployment" {
                            let scale = json!({"spec": {"replicas": 0}});
                            cases.push(case(
                                "PATCH",
                                format!("{path}/scale"),
                                scale,
                                "application/merge-patch+json",
                            ));
                        }
                    }
                    let apply = format!("{collection}/new?fieldManager=e2e");
                    cases.push(case("PATCH", apply, object(kind, "new"), "application/apply-patch+yaml"));
                    cases.push(case("POST", collection.clone(), object(kind, "new"), json));
                    cases.push(case("DELETE", collection.clone(), delete, json));
                }
            }
        }
        cases
    }

    /// Sends a request that changes nothing. Returns the message if a policy has refused it.
    fn send(&self, case: &Case) -> Option<String> {
        let separator = if case.path.contains('?') { '&' } else { '?' };
        let url = format!("{}{}{separator}dryRun=All", self.url, case.path);
        let mut headers = vec![format!("Content-Type: {}", case.content_type)];
        headers.push(format!("Impersonate-User: {}", case.user));
        headers.extend(case.groups.iter().map(|group| format!("Impersonate-Group: {group}")));
        let mut arguments = vec!["--request", case.method, "--data-binary", &case.body];
        headers.iter().for_each(|header| arguments.extend(["--header", header]));
        arguments.push(&url);
        let response = curl(&arguments);
        let text = response.text();
        let refused = text.contains(REFUSED);
        let expected = if refused { &[403, 422][..] } else { &[200, 201] };
        assert!(
            expected.contains(&response.status),
            "{} {}: {text} {}",
            case.method,
            case.path,
            response.error
        );
        refused.then_some(text)
    }

    /// Compares the decisions of the API server with those of agentk.
    fn compare(&self, policy: &Policy) {
        let cases = self.cases(policy);
        assert!(cases.len() >= 200, "{}", cases.len());
        let allowed = cases.iter().filter(|case| case.allowed).count();
        assert!((20..cases.len() / 2).contains(&allowed), "{allowed} of {}", cases.len());
        let known = cases.iter().find(|case| !case.allowed).unwrap();
        eventually("the API server knows the policy", || self.send(known).is_some());
        for case in &cases {
            let refusal = self.send(case);
            let Case { method, path, user, groups, .. } = case;
            assert_eq!(refusal.is_none(), case.allowed, "{method} {path} of {user} {groups:?}: {refusal:?}");
        }
        let named = |name: &str| Case {
            method: "POST",
            path: format!("/apis/apps/v1/namespaces/{}/deployments", self.spaces[0].name),
            body: object("Deployment", name).to_string(),
            content_type: "application/json",
            user: "gitlab:ci".to_owned(),
            groups: vec![format!("team-{}", self.topic)],
            allowed: true,
        };
        assert_eq!(self.send(&named("web-1")), None);
        let refusal = self.send(&named("database")).unwrap();
        assert!(refusal.contains("named"), "the rule about objects is named: {refusal}");
        // Everybody else is as before.
        let administrator = self.spaces[1].kubectl.run(&[
            "create",
            "configmap",
            "x",
            "--from-literal=a=b",
            "--dry-run=server",
        ]);
        assert_eq!(administrator.code, 0, "{}", administrator.stderr);
    }

    fn service_account(&self) -> String {
        format!("{}/agentk", self.spaces[0].name)
    }

    /// Returns the arguments that both commands have.
    fn judged(&self, command: &mut Command, policy: &Path) {
        command.args(["--service-account", &self.service_account(), "--impersonated-prefix", "gitlab:"]);
        command.arg("--policy-file").arg(policy);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for kind in ["validatingwebhookconfiguration", "clusterrolebinding"] {
            self.cluster.kubectl.run(&["delete", kind, &self.topic, "--ignore-not-found"]);
        }
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            self.cluster.kubectl.run(&["delete", kind, &self.topic, "--ignore-not-found"]);
        }
    }
}

fn object(kind: &str, name: &str) -> Value {
    let metadata = json!({"name": name});
    match kind {
        "Deployment" => {
            let template = json!({
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "busybox:1.35"}]},
            });
            let selector = json!({"matchLabels": {"app": name}});
            let spec = json!({"replicas": 0, "selector": selector, "template": template});
            json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec})
        }
        _ => json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}),
    }
}

fn minor_version(kubectl: &Kubectl) -> u32 {
    let version: Value = serde_json::from_str(&kubectl.ok(&["get", "--raw", "/version"])).unwrap();
    let minor = version["minor"].as_str().unwrap();
    minor.trim_end_matches('+').parse().unwrap()
}

fn agentk() -> Command {
    Command::new(Kas::program().with_file_name("agentk"))
}

#[test]
fn api_server_decides_as_agentk_with_the_webhook_and_with_the_rendered_policy() {
    let Some(world) = World::or_skip() else { return };
    let file = world.directory.path().join("policy.yaml");
    fs::write(&file, world.policy()).unwrap();
    let policy = Policy::parse(&file, &world.policy()).unwrap();
    let minor = minor_version(&world.cluster.kubectl);

    let tls = Certificates::generate(world.directory.path());
    let mut command = agentk();
    command.args([
        "admission",
        "--listen-address",
        "127.0.0.1:0",
        "--observability-listen-address",
        "127.0.0.1:0",
    ]);
    command.arg("--certificate-file").arg(&tls.certificate).arg("--certificate-key-file").arg(&tls.key);
    world.judged(&mut command, &file);
    let mut webhook = Process::start("agentk admission", &mut command);
    let field = |line: &str| line.split("address=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let address = field(&webhook.line("its address", |line| line.contains("answering admission reviews")));
    let probes = field(&webhook.line("its probes", |line| line.contains("serving /liveness")));
    let rule = json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]});
    let names: Vec<&str> = world.spaces.iter().map(|space| &*space.name).collect();
    for name in &names {
        world.cluster.kubectl.ok(&["label", "namespace", name, &format!("topic={}", world.topic)]);
    }
    let mut hook = json!({
        "name": "agentk.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {
            "url": format!("https://{address}/validate"),
            "caBundle": BASE64_STANDARD.encode(fs::read(&tls.authority).unwrap()),
        },
        "rules": [rule],
        // Other tests use the cluster at the same time.
        "namespaceSelector": {"matchLabels": {"topic": world.topic}},
    });
    if minor >= MATCH_CONDITIONS {
        let expression = format!(
            "request.userInfo.username == '{}' || request.userInfo.username.startsWith('gitlab:')",
            world.agentk()
        );
        hook["matchConditions"] = json!([{"name": "users-of-agentk", "expression": expression}]);
    }
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": world.topic},
        "webhooks": [hook],
    });
    world.cluster.kubectl.ok_with_stdin(&["create", "--filename=-"], &configuration.to_string());
    world.compare(&policy);
    let metrics = curl(&[&format!("http://{probes}/metrics")]).text();
    assert!(metrics.contains("agentk_admission_reviews_total{result=\"refused\"}"), "{metrics}");
    assert!(metrics.contains("rule=\"no-secrets\",decision=\"refused\""), "{metrics}");
    world.cluster.kubectl.ok(&["delete", "validatingwebhookconfiguration", &world.topic]);
    webhook.terminate();
    assert_eq!(webhook.exit_code(), 0);

    if minor < ADMISSION_POLICIES {
        return skipped_by_version("ValidatingAdmissionPolicy: needs Kubernetes 1.30");
    }
    let mut command = agentk();
    command.args(["policy", "render", "--as", "admission-policy", "--name", &world.topic]);
    world.judged(&mut command, &file);
    let rendered = command.output().unwrap();
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    world.cluster.kubectl.ok_with_stdin(&["create", "--filename=-"], &rendered);
    world.compare(&policy);
}
