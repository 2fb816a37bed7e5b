//! The objects of environments in a real cluster: agentk has the rights and the policy of docs/managed-resources.md, and no others.

use std::{fs, process::Command, thread};

use kas_testing::gitaly::{TestFile, TestGitaly};
use serde_json::Value;
use testing::gitlab::Job;

use crate::{
    gitlab::{example_role, service_account},
    support::{Agent, AgentOptions, Cluster, GitLab, Installation, Kas, Kubectl, Namespace, eventually},
};

const CONFIGURATION: &str = "ci_access:\n  projects:\n  - id: group/shop\n    access_as: {ci_job: {}}\n    resource_management: {enabled: true}\n";
const TEMPLATE: &str = ".gitlab/agents/gitlab/environment_templates/default.yaml";

/// Returns a block of the documentation, by its beginning.
fn documented(beginning: &str) -> String {
    let page = include_str!("../../../docs/managed-resources.md");
    let mut blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let block = blocks.find(|block| block.trim_start().starts_with(beginning)).unwrap();
    // In a list, the block is indented.
    let indent = block.len() - block.trim_start().len();
    block.lines().map(|line| line.get(indent..).unwrap_or_default().to_owned() + "\n").collect()
}

/// An agent of GitLab with managed resources, and its project, which no other test has.
struct World {
    gitlab: GitLab,
    gitaly: TestGitaly,
    installation: Installation,
    _agent: Agent,
    cluster: Cluster,
    /// The namespace of the service account of agentk.
    home: Namespace,
    project: u64,
}

impl World {
    fn or_skip(template: &str) -> Option<Self> {
        let cluster = Cluster::or_skip()?;
        let gitlab = GitLab::start();
        let gitaly = gitlab
            .serve_project(&[(".gitlab/agents/gitlab/config.yaml", CONFIGURATION), (TEMPLATE, template)]);
        let installation = Installation::start(&cluster.kubeconfig, |options, certificates| {
            options.public_tls = Some(certificates);
            options.sections.push(("gitlab", gitlab.section()));
            options.configuration = Some(serde_json::json!({"poll_period": "1s"}));
        });
        let home = cluster.namespace("managed");
        let project = u64::from(rand::random::<u32>()) + 1_000_000;
        let directory = installation.directory().to_owned();
        let kubeconfig = directory.join("managed.kubeconfig");
        fs::write(&kubeconfig, service_account(&cluster, &home).to_string()).unwrap();
        let name = format!("e2e-managed-{project}");
        cluster.kubectl.ok_with_stdin(&["create", "--filename=-"], &example_role(&name, &home.name));
        let rules = documented("rules:\n  - {apiGroups").replace("[admin]", "[edit]");
        let binding = format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {name}-environments}}\n{rules}---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {name}-environments}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {name}-environments}}\n\
             subjects: [{{kind: ServiceAccount, name: agentk, namespace: {}}}]\n",
            home.name
        );
        cluster.kubectl.ok_with_stdin(&["create", "--filename=-"], &binding);
        let policy = directory.join("managed.yaml");
        let jobs = "  - {name: jobs, action: allow, services: [kubernetes]}\n";
        fs::write(&policy, documented("rules:\n     - name: environments-not-by-jobs") + jobs).unwrap();
        let options = AgentOptions { kubeconfig, policy: Some(policy), ..installation.agent_options.clone() };
        let agent = gitlab.start_agent_with(&installation, &options);
        Some(Self { gitlab, gitaly, installation, _agent: agent, cluster, home, project })
    }

    /// Returns kubectl of a new job of an environment.
    fn job(&self, id: u64, environment: &str) -> Kubectl {
        let configuration =
            serde_json::json!({"access_as": {"ci_job": {}}, "resource_management": {"enabled": true}});
        let job = Job::new(id, self.project).with_agent(GitLab::AGENT, configuration);
        self.gitlab
            .standin
            .state()
            .add_job(&format!("job{id}"), job.with_environment(environment, "development"));
        let credential = format!("ci:{}:job{id}", GitLab::AGENT);
        let name: &'static str = Box::leak(format!("job{id}").into_boxed_str());
        let kubectl = self.installation.kubectl_with(name, "/k8s-proxy", &credential.into(), "");
        kubectl.in_namespace(&self.namespace(environment))
    }

    fn namespace(&self, environment: &str) -> String {
        format!("{environment}-{}-{}", self.project, GitLab::AGENT)
    }

    /// Runs `kas environments` with the token of a job.
    fn environments(&self, action: &str, job: u64, environment: &str) -> (i32, String) {
        let token = self.installation.directory().join("job-token");
        fs::write(&token, format!("ci:{}:job{job}", GitLab::AGENT)).unwrap();
        let kas = &self.installation.kas;
        let output = Command::new(Kas::program())
            .args(["environments", action, "--agent", &GitLab::AGENT.to_string()])
            .args(["--project", &self.project.to_string(), environment])
            .args(["--server", &kas.url("")])
            .arg("--token-file")
            .arg(&token)
            .arg("--cacert")
            .arg(kas.authority().unwrap())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap(), text.into_owned())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let kubectl = &self.cluster.kubectl;
        let label = format!("agent.gitlab.com/project_id-{}", self.project);
        kubectl.run(&["delete", "namespaces", "--selector", &label, "--wait=false"]);
        let name = format!("e2e-managed-{}", self.project);
        for kind in ["clusterrolebinding", "clusterrole"] {
            kubectl.run(&["delete", kind, "--ignore-not-found", &name, &format!("{name}-environments")]);
        }
    }
}

#[test]
fn job_finds_its_namespace_with_account_and_rights() {
    let template = include_str!("../../../deploy/environment-template.example.yaml");
    let Some(world) = World::or_skip(template) else { return };
    let (direct, namespace) = (&world.cluster.kubectl, world.namespace("review-1"));
    assert_ne!(direct.run(&["get", "namespace", &namespace]).code, 0);

    // The first requests of two jobs, at the same time.
    let jobs = [world.job(3, "review-1"), world.job(4, "review-1")];
    let first = jobs.map(|job| thread::spawn(move || job.run(&["create", "configmap", job.name])));
    for first in first {
        let created = first.join().unwrap();
        assert_eq!(created.code, 0, "{}", created.stderr);
    }
    let job = world.job(3, "review-1");
    assert!(job.ok(&["get", "serviceaccount", "app", "--output=name"]).contains("serviceaccount/app"));
    let elsewhere = job.run(&["get", "configmaps", "--namespace", &world.home.name]);
    assert!(
        elsewhere.code == 1 && elsewhere.stderr.contains("cannot list resource \"configmaps\""),
        "{}",
        elsewhere.stderr
    );
    let live: Value =
        serde_json::from_str(&direct.ok(&["get", "namespace", &namespace, "--output=json"])).unwrap();
    let labels = &live["metadata"]["labels"];
    let own = format!("agent.gitlab.com/env-{namespace}");
    assert_eq!((&labels[&own], &labels["example.com/tier"]), (&"".into(), &"development".into()), "{labels}");
    let facts = live["metadata"]["annotations"][&own].as_str().unwrap();
    assert!(facts.contains("\"environment_slug\":\"review-1\""), "{facts}");

    // Another environment of the project has no rights here.
    let other = world.job(5, "review-2");
    other.ok(&["get", "serviceaccount", "app"]);
    let refused = other.run(&["get", "configmaps", "--namespace", &namespace]);
    assert!(refused.code == 1 && refused.stderr.contains("cannot list"), "{}", refused.stderr);

    // Objects of the job keep the namespace, and the rights end.
    let (code, text) = world.environments("show", 3, "review-1");
    assert!(
        code == 0 && text.contains(&format!("RoleBinding.rbac.authorization.k8s.io {namespace}/deployers")),
        "{text}"
    );
    let (code, text) = world.environments("delete", 3, "review-2");
    assert!(code == 64 && text.contains("for the environment of the job alone"), "{text}");
    let (code, text) = world.environments("delete", 3, "review-1");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&format!("kept     Namespace {namespace}: it contains ConfigMap")), "{text}");
    assert!(
        text.contains(&format!("deleted  RoleBinding.rbac.authorization.k8s.io {namespace}/deployers")),
        "{text}"
    );
    eventually("the job has no rights", || job.run(&["get", "configmaps"]).stderr.contains("cannot list"));
    direct.ok(&["delete", "configmaps", "job3", "job4", "--namespace", &namespace]);
    let (code, text) = world.environments("delete", 3, "review-1");
    assert!(code == 0 && text.contains(&format!("deleted  Namespace {namespace}")), "{text}");
    eventually("the namespace is gone", || direct.run(&["get", "namespace", &namespace]).code != 0);
    assert_eq!(direct.run(&["get", "namespace", &world.namespace("review-2")]).code, 0);
    world.gitlab.standin.assert_no_violations();
}

#[test]
fn refused_objects_fail_the_job_with_template_object_and_cause() {
    let template = include_str!("../../../deploy/environment-template.example.yaml");
    let Some(world) = World::or_skip(template) else { return };
    let mut id = 10;
    let mut fails = |template: &str, environment: &str, expected: &str| {
        world.gitaly.repository.commit(
            "main",
            &[
                (".gitlab/agents/gitlab/config.yaml", TestFile::Content(CONFIGURATION.as_bytes())),
                (TEMPLATE, TestFile::Content(template.as_bytes())),
            ],
        );
        eventually(expected, || {
            id += 1;
            let refused = world.job(id, environment).run(&["get", "pods"]);
            refused.code == 1 && refused.stderr.contains(expected) && refused.stderr.contains(TEMPLATE)
        });
    };
    let object = |group: &str, kind: &str, name: &str, rest: &str| {
        format!("objects:\n- apiVersion: {group}\n  kind: {kind}\n  metadata: {{{name}}}\n{rest}")
    };
    let mine = "name: '{{ .environment.slug }}-{{ .project.id }}-{{ .agent.id }}'";
    // The policy lists neither the kind nor the namespace.
    fails(
        &object("v1", "ConfigMap", &format!("name: a, namespace: {}", &mine[6..]), ""),
        "review-1",
        "does not list configmaps",
    );
    fails(
        &object("v1", "Namespace", "name: 'other-{{ .project.id }}'", ""),
        "review-1",
        "no rule allows patch namespaces",
    );
    // It belongs to somebody else.
    let taken = world.namespace("review-9");
    world.cluster.kubectl.ok(&["create", "namespace", &taken]);
    fails(
        &object("v1", "Namespace", mine, ""),
        "review-9",
        "it exists, and does not belong to an environment",
    );
    world.cluster.kubectl.ok(&["delete", "namespace", &taken, "--wait=false"]);
    // RBAC: a role that agentk may not give.
    let binding = template.replace("name: edit", "name: cluster-admin");
    fails(&binding, "review-2", "attempting to grant RBAC permissions not currently held");
    fails("objects: [", "review-3", "default.yaml:1");
    fails(
        &object("v1", "Namespace", "name: '{{ .environment.url }}'", ""),
        "review-4",
        ".environment.url is not known here",
    );
}
