//! The audit log of a real cluster: a change of a CI job through kas is one line that names the job and the result.
//!
//! kube-apiserver needs the flags that `.ci/audit-webhook` prints. `E2E_AUDIT_WEBHOOK` is the directory that it has filled.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use testing::{gitlab::Job, skip::skipped};

use crate::support::{
    Agent, AgentOptions, Cluster, GitLab, Installation, Kas, Kubectl, Namespace, Process, eventually,
};

const JOB: u64 = 302;
const PROJECT: u64 = 300;

/// kas, two pods of an agent of GitLab, of which one receives the audit events, and a CI job.
struct World {
    cluster: Cluster,
    namespace: Namespace,
    installation: Installation,
    /// kubectl of the CI job.
    job: Kubectl,
    _gitlab: GitLab,
    _agents: [Agent; 2],
}

impl World {
    fn or_skip() -> Option<Self> {
        let cluster = Cluster::or_skip()?;
        let Some(webhook) = std::env::var_os("E2E_AUDIT_WEBHOOK").map(PathBuf::from) else {
            skipped("E2E_AUDIT_WEBHOOK is not set: the API server has no audit webhook");
            return None;
        };
        let gitlab = GitLab::start();
        let job = Job::new(JOB, PROJECT).with_environment("live", "production");
        // The job acts as agentk, so that only kas knows who it is.
        gitlab
            .standin
            .state()
            .add_job("job", job.with_agent(GitLab::AGENT, json!({"access_as": {"agent": {}}})));
        let installation = Installation::start(&cluster.kubeconfig, |options, certificates| {
            options.public_tls = Some(certificates);
            options.sections.push(("gitlab", gitlab.section()));
        });
        let namespace = cluster.namespace("audit");
        // agentk knows its user by the token of a service account.
        let kubeconfig = installation.directory().join("service-account.kubeconfig");
        fs::write(&kubeconfig, crate::gitlab::service_account(&cluster, &namespace).to_string()).unwrap();
        let account = format!("{}:agentk", namespace.name);
        let binding = ["create", "rolebinding", "agentk", "--clusterrole=edit", "--serviceaccount", &account];
        namespace.kubectl.ok(&binding);
        let user = format!("--as=system:serviceaccount:{account}");
        eventually("agentk may delete ConfigMaps", || {
            namespace.kubectl.run(&["auth", "can-i", "delete", "configmaps", &user]).code == 0
        });
        let options = AgentOptions { kubeconfig, ..installation.agent_options.clone() };
        let first = gitlab.start_agent_with(&installation, &options);
        let file = |name: &str| webhook.join(name).to_str().unwrap().to_owned();
        let environment = vec![
            ("AGENTK_AUDIT_LISTEN", fs::read_to_string(webhook.join("address")).unwrap().trim().to_owned()),
            ("AGENTK_AUDIT_CERTIFICATE_FILE", file("server.crt")),
            ("AGENTK_AUDIT_CERTIFICATE_KEY_FILE", file("server.key")),
            ("AGENTK_AUDIT_CLIENT_CA_FILE", file("client.crt")),
            ("AGENTK_AUDIT_DIRECTORY", installation.directory().join("ring").to_str().unwrap().to_owned()),
        ];
        let options = AgentOptions { environment, ..options };
        let second = gitlab.start_agent_with(&installation, &options);
        let credential: SecretString = format!("ci:{}:job", GitLab::AGENT).into();
        let job =
            installation.kubectl_with("job", "/k8s-proxy", &credential, "").in_namespace(&namespace.name);
        Some(Self { cluster, namespace, installation, job, _gitlab: gitlab, _agents: [first, second] })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let token = self.installation.directory().join("ops-token");
        fs::write(&token, self.installation.tokens.ops.expose_secret()).unwrap();
        let mut kas = Kas::command();
        kas.args(["audit", "--agent", &GitLab::AGENT.to_string(), "--namespace", &self.namespace.name])
            .args(arguments);
        kas.args(["--server", &self.installation.kas.url("")]).arg("--token-file").arg(token);
        if let Some(authority) = self.installation.kas.authority() {
            kas.arg("--cacert").arg(authority);
        }
        kas
    }

    fn kas(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Returns the lines of `kas audit --output json`.
    fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let mut all = vec!["--output", "json"];
        all.extend(arguments);
        let output = self.kas(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the lines about the creation of the test's ConfigMap. Kubernetes itself creates another one in each namespace.
    fn creations(&self) -> Vec<Value> {
        let mut lines = self.lines(&["--resource", "configmaps", "--verb", "create"]);
        lines.retain(|line| line["object"]["name"] == "settings");
        lines
    }

    /// Waits until the log has as many reads of a ConfigMap, and returns them.
    fn reads(&self, name: &str, number: usize) -> Vec<Value> {
        let found = || {
            let mut lines = self.lines(&["--resource", "configmaps", "--verb", "get"]);
            lines.retain(|line| line["object"]["name"] == name);
            lines
        };
        eventually(&format!("{number} reads of {name} are in the log"), || found().len() == number);
        found()
    }

    /// Waits until the log has lines, and returns them.
    fn wait_for(&self, what: &str, arguments: &[&str]) -> Vec<Value> {
        eventually(what, || !self.lines(arguments).is_empty());
        self.lines(arguments)
    }
}

/// The API server has one address for its events, so that there is one test.
#[test]
fn change_of_a_job_is_one_line_with_the_job_and_the_result() {
    let Some(world) = World::or_skip() else { return };
    check_change(&world);
    check_ids_and_rights(&world);
    check_unusual_requests(&world);
}

fn check_change(world: &World) {
    let secret = "do-not-keep-this";
    world.namespace.kubectl.ok(&[
        "create",
        "configmap",
        "settings",
        &format!("--from-literal=password={secret}"),
    ]);
    let follow = Process::start(
        "kas audit",
        &mut world.command(&["--follow", "--verb", "delete", "--output", "json"]),
    );
    eventually("the creation is in the log", || !world.creations().is_empty());

    world.job.ok(&["delete", "configmap", "settings"]);
    let lines =
        world.wait_for("the deletion is in the log", &["--resource", "configmaps", "--verb", "delete"]);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let request = &line["request"];
    assert_eq!(
        (&line["through"], &request["caller"]),
        (&json!("kas"), &json!("gitlab:ci_job:302")),
        "{line}"
    );
    let job = json!({"id": "302", "pipeline": "1302", "project_id": "300", "user": "root", "environment": "live", "environment_tier": "production"});
    assert_eq!(request["job"], job);
    assert_eq!(
        line["object"],
        json!({"resource": "configmaps", "namespace": world.namespace.name, "name": "settings"})
    );
    assert_eq!(
        (&line["status"], &line["decision"], &line["cluster_user"]["name"]),
        (
            &json!(200),
            &json!("allow"),
            &json!(format!("system:serviceaccount:{}:agentk", world.namespace.name))
        )
    );
    assert!(
        line["impersonated_user"].is_null() && line["audit_id"].as_str().unwrap().starts_with("kas-"),
        "{line}"
    );

    let direct = world.creations();
    let [direct] = &direct[..] else { panic!("{direct:?}") };
    assert_eq!((&direct["through"], &direct["request"]), (&json!("direct"), &Value::Null));
    assert_eq!((&line["of_agentk"], &direct["of_agentk"]), (&json!(true), &json!(false)));
    let followed = follow.line("the deletion", |line| line.contains("\"verb\":\"delete\""));
    let followed: Value = serde_json::from_str(&followed).unwrap();
    assert_eq!(&followed, line, "who follows sees the same line");

    let text = world.kas(&["--user", "gitlab:ci_job:302"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("root, job 302 of 300 for live"), "{text}");
    assert!(text.contains(&format!("delete configmaps {}/settings", world.namespace.name)), "{text}");
    assert_eq!(world.lines(&["--user", "nobody"]), [Value::Null; 0]);
    let ring = world.installation.directory().join("ring");
    for entry in fs::read_dir(ring).unwrap() {
        let kept = fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(!kept.contains(secret), "the policy of the test sends bodies of ConfigMaps");
    }
}

/// Callers without the right read nothing, and neither a caller nor a client of the cluster chooses under whose name it acts.
fn check_ids_and_rights(world: &World) {
    let url = format!("/agents/{}/audit", GitLab::AGENT);
    let refused = world.installation.curl_as(&world.installation.tokens.alice, &url, &[]);
    assert_eq!(refused.status, 404, "{}", refused.text());
    let job: SecretString = format!("ci:{}:job", GitLab::AGENT).into();
    let refused = world.installation.curl_as(&job, &url, &[]);
    assert_eq!(refused.status, 403, "{}", refused.text());

    let path = format!("/k8s-proxy/api/v1/namespaces/{}/configmaps/none", world.namespace.name);
    let theirs = "4c5a4b4d-6f6e-4b6b-8d8d-4b4b4b4b4b4b";
    let response = world.installation.curl_as(
        &job,
        &path,
        &["--user-agent", "e2e", "--header", &format!("Audit-ID: {theirs}")],
    );
    assert_eq!(response.status, 404, "{}", response.text());
    let lines = world.reads("none", 1);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (&line["status"], &line["reason"], &line["through"]),
        (&json!(404), &json!("NotFound"), &json!("kas"))
    );
    assert_ne!(line["audit_id"], theirs);
    // Another client of the cluster repeats that request with its id.
    let id = line["audit_id"].as_str().unwrap();
    let proxy = world.cluster.kubectl.start(&["proxy", "--port=0"]);
    let started = proxy.line("its address", |line| line.contains("Starting to serve on"));
    let server = format!("http://{}", started.rsplit(' ').next().unwrap());
    let url = format!("{server}/api/v1/namespaces/{}/configmaps/none", world.namespace.name);
    let forged = crate::support::curl(&["--user-agent", "e2e", "--header", &format!("Audit-ID: {id}"), &url]);
    assert_eq!(forged.status, 404, "{}", forged.text());
    let lines = world.reads("none", 2);
    for line in &lines {
        assert_eq!(line["audit_id"], id, "{lines:?}");
    }
    let through: Vec<&Value> = lines.iter().map(|line| &line["through"]).collect();
    assert_eq!(through, ["kas", "direct"], "{lines:?}");
}

/// A job cannot hide behind a path that servers interpret differently, or behind a query that makes its event large.
fn check_unusual_requests(world: &World) {
    let job: SecretString = format!("ci:{}:job", GitLab::AGENT).into();
    let query = "&".repeat(12_000);
    for (name, path) in [("app.config", "app%2econfig"), ("long", &*format!("long?{query}"))] {
        let path = format!("/k8s-proxy/api/v1/namespaces/{}/configmaps/{path}", world.namespace.name);
        world.installation.curl_as(&job, &path, &[]);
        let lines = world.reads(name, 1);
        assert_eq!(
            (&lines[0]["through"], &lines[0]["request"]["caller"]),
            (&json!("kas"), &json!("gitlab:ci_job:302")),
            "{lines:?}"
        );
    }
    assert_eq!(world.reads("long", 1)[0]["cut"], true);
}
