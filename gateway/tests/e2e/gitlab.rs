//! CI jobs and users of GitLab: the identity that reaches the cluster, read back from a `CertificateSigningRequest`.

use std::fs;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use testing::gitlab::{AgentAccess, Job, Membership, User};

use crate::support::{AgentOptions, Cluster, GitLab, Installation, Kubectl, Namespace, eventually};

/// A caller, and the identity that it must have in the cluster.
struct Caller {
    name: &'static str,
    credential: String,
    /// The subject of a binding that admits this caller only.
    subject: [String; 2],
    username: String,
    uid: Option<&'static str>,
    groups: Vec<String>,
    extra: Value,
}

/// Creates the callers in GitLab. Their project is new, so that no other binding of the cluster names it.
fn callers(gitlab: &GitLab, project: u64) -> [Caller; 3] {
    let agent = GitLab::AGENT;
    let deployer = format!("deployer-{project}");
    let extra = json!([{"key": "team.example.com/name", "val": ["a", "b"]}]);
    let impersonate = json!({"username": deployer, "groups": ["painters"], "uid": "u-1", "extra": extra});
    let job = Job { groups: vec![23, 25], ..Job::new(3, project) };
    let job = job.with_agent(agent, json!({"access_as": {"ci_job": {}}}));
    let configured =
        Job::new(4, project).with_agent(agent, json!({"access_as": {"impersonate": impersonate}}));
    let roles =
        |id, roles: &[&str]| Membership { id, roles: roles.iter().map(ToString::to_string).collect() };
    let access = AgentAccess::User {
        projects: vec![roles(project, &["reporter", "developer"])],
        groups: vec![roles(23, &["reporter"])],
    };
    let mut state = gitlab.standin.state();
    state.add_job("job", job.with_environment("live", "production"));
    state.add_job("configured", configured);
    state.users.push(User::new(5, "alice").with_token("glpat-a").with_access(agent, access));
    drop(state);

    let groups = |text: String| text.split(' ').chain(["system:authenticated"]).map(str::to_owned).collect();
    let group = |name: String| ["--group".to_owned(), name];
    [
        Caller {
            name: "ci-job",
            credential: format!("ci:{agent}:job"),
            subject: group(format!("gitlab:project_env:{project}:live")),
            username: "gitlab:ci_job:3".to_owned(),
            uid: None,
            groups: groups(format!(
                "gitlab:ci_job gitlab:group:23 gitlab:group_env_tier:23:production gitlab:group:25 \
                 gitlab:group_env_tier:25:production gitlab:project:{project} gitlab:project_env:{project}:live \
                 gitlab:project_env_tier:{project}:production"
            )),
            extra: json!({
                "agent.gitlab.com/id": [agent.to_string()],
                "agent.gitlab.com/config_project_id": ["142"],
                "agent.gitlab.com/project_id": [project.to_string()],
                "agent.gitlab.com/ci_pipeline_id": ["1003"],
                "agent.gitlab.com/ci_job_id": ["3"],
                "agent.gitlab.com/username": ["root"],
                "agent.gitlab.com/environment_slug": ["live"],
                "agent.gitlab.com/environment_tier": ["production"],
            }),
        },
        Caller {
            name: "impersonate",
            credential: format!("ci:{agent}:configured"),
            subject: ["--user".to_owned(), deployer.clone()],
            username: deployer,
            uid: Some("u-1"),
            groups: groups("painters".to_owned()),
            extra: json!({"team.example.com/name": ["a", "b"]}),
        },
        Caller {
            name: "user",
            credential: format!("pat:{agent}:glpat-a"),
            subject: group(format!("gitlab:project_role:{project}:developer")),
            username: "gitlab:user:alice".to_owned(),
            uid: None,
            groups: groups(format!(
                "gitlab:user gitlab:project_role:{project}:reporter gitlab:project_role:{project}:developer \
                 gitlab:group_role:23:reporter"
            )),
            extra: json!({
                "agent.gitlab.com/id": [agent.to_string()],
                "agent.gitlab.com/username": ["alice"],
                "agent.gitlab.com/access_type": ["personal_access_token"],
                "agent.gitlab.com/config_project_id": ["142"],
            }),
        },
    ]
}

/// Objects of the whole cluster with this name, which are deleted at the end.
struct ClusterObjects<'a> {
    kubectl: &'a Kubectl,
    name: String,
}

impl ClusterObjects<'_> {
    /// Returns the name of the binding and of the request of a caller.
    fn of(&self, caller: &Caller) -> String {
        format!("{}-{}", self.name, caller.name)
    }

    /// Lets the subject of a caller create certificate signing requests.
    fn bind(&self, caller: &Caller) {
        let [kind, subject] = &caller.subject;
        let role = format!("--clusterrole={}", self.name);
        let subject = format!("{kind}={subject}");
        self.kubectl.ok(&["create", "clusterrolebinding", &self.of(caller), &role, &subject]);
    }
}

impl Drop for ClusterObjects<'_> {
    fn drop(&mut self) {
        for kind in ["certificatesigningrequest", "clusterrolebinding", "clusterrole"] {
            let names = ["ci-job", "impersonate", "user"].map(|caller| format!("{}-{caller}", self.name));
            let mut arguments = vec!["delete", kind, "--ignore-not-found", &self.name];
            arguments.extend(names.iter().map(String::as_str));
            self.kubectl.run(&arguments);
        }
    }
}

/// Returns the manifest of a certificate signing request.
fn request(name: &str) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": BASE64_STANDARD.encode(request),
            "signerName": "example.com/kas-e2e",
            "usages": ["client auth"],
        },
    })
    .to_string()
}

fn sorted(list: &Value) -> Vec<String> {
    let mut list: Vec<_> =
        list.as_array().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect();
    list.sort();
    list
}

#[test]
fn jobs_and_users_of_gitlab_have_their_identity_in_the_cluster() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let gitlab = GitLab::start();
    let world = Installation::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates);
        options.sections.push(("gitlab", gitlab.section()));
    });
    let _agent = gitlab.start_agent(&world);
    let project = u64::from(rand::random::<u32>()) + 1_000_000;
    let callers = callers(&gitlab, project);
    let version: Value = serde_json::from_str(&cluster.kubectl.ok(&["version", "--output=json"])).unwrap();
    let minor =
        version["serverVersion"]["minor"].as_str().unwrap().trim_end_matches('+').parse::<u32>().unwrap();
    // Older servers ignore Impersonate-Uid.
    let knows_uids = minor >= 22;
    let objects = ClusterObjects { kubectl: &cluster.kubectl, name: format!("e2e-gitlab-{project}") };
    let resource = "--resource=certificatesigningrequests.certificates.k8s.io";
    cluster.kubectl.ok(&["create", "clusterrole", &objects.name, "--verb=create", resource]);

    for (index, caller) in callers.iter().enumerate() {
        let kubectl = world.kubectl_with(caller.name, "/k8s-proxy", &caller.credential.clone().into(), "");
        let manifest = request(&objects.of(caller));
        let create =
            || kubectl.run_with_stdin(&["create", "--validate=false", "--filename=-"], manifest.as_bytes());
        let refused = create();
        let expected =
            format!("User \"{}\" cannot create resource \"certificatesigningrequests\"", caller.username);
        // The bindings of the callers before this one do not admit it.
        assert!(refused.code == 1 && refused.stderr.contains(&expected), "{index}: {}", refused.stderr);
        objects.bind(caller);
        eventually("the binding is in force", || create().code == 0);

        let created =
            cluster.kubectl.ok(&["get", "certificatesigningrequest", &objects.of(caller), "--output=json"]);
        let created: Value = serde_json::from_str(&created).unwrap();
        let spec = &created["spec"];
        assert_eq!(spec["username"], caller.username, "{}", caller.name);
        assert_eq!(spec["uid"].as_str(), caller.uid.filter(|_| knows_uids), "{}", caller.name);
        assert_eq!(sorted(&spec["groups"]), sorted(&json!(caller.groups)), "{}", caller.name);
        assert_eq!(spec["extra"], caller.extra, "{}", caller.name);
    }
    let stranger =
        world.kubectl_with("stranger", "/k8s-proxy", &format!("ci:{}:other", GitLab::AGENT).into(), "");
    let refused = stranger.run(&["get", "pods"]);
    assert!(refused.code == 1 && refused.stderr.contains("Unauthorized"), "{}", refused.stderr);
    gitlab.standin.assert_no_violations();
}

/// Returns the documents of the example with a word, for the service account `agentk` of a namespace and with another name.
pub(crate) fn example_role(name: &str, namespace: &str) -> String {
    let examples = include_str!("../../../deploy/kubernetes/rbac-examples.yaml");
    let documents =
        examples.split("\n---\n").filter(|document| document.contains("agentk-impersonate-gitlab"));
    let documents = documents.collect::<Vec<_>>().join("\n---\n").replace("agentk-impersonate-gitlab", name);
    documents.replace("namespace: agentk}", &format!("namespace: {namespace}}}"))
}

/// Returns the policy of docs/ci.md.
fn example_policy() -> &'static str {
    let page = include_str!("../../../docs/ci.md");
    let (_, section) = page.split_once("### Rights of agentk").unwrap();
    section.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap()
}

/// Returns a kubeconfig with the credential of a service account.
pub(crate) fn service_account(cluster: &Cluster, namespace: &Namespace) -> Value {
    namespace.kubectl.ok(&["create", "serviceaccount", "agentk"]);
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/agentk/token", namespace.name);
    let request = r#"{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}"#;
    let token = cluster.kubectl.ok_with_stdin(&["create", "--raw", &path, "--filename=-"], request);
    let token: Value = serde_json::from_str(&token).unwrap();
    let kubeconfig = cluster.kubectl.ok(&["config", "view", "--raw", "--output=json"]);
    let mut kubeconfig: Value = serde_json::from_str(&kubeconfig).unwrap();
    for user in kubeconfig["users"].as_array_mut().unwrap() {
        user["user"] = json!({"token": token["status"]["token"]});
    }
    kubeconfig
}

#[test]
fn example_role_and_policy_are_enough_for_jobs_and_users() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let gitlab = GitLab::start();
    let world = Installation::start(&cluster.kubeconfig, |options, certificates| {
        options.public_tls = Some(certificates);
        options.sections.push(("gitlab", gitlab.section()));
    });
    let namespace = cluster.namespace("role");
    let project = u64::from(rand::random::<u32>()) + 1_000_000;
    let objects = ClusterObjects { kubectl: &cluster.kubectl, name: format!("e2e-role-{project}") };
    let kubeconfig = world.directory().join("service-account.kubeconfig");
    fs::write(&kubeconfig, service_account(&cluster, &namespace).to_string()).unwrap();
    let role = example_role(&objects.name, &namespace.name);
    cluster.kubectl.ok_with_stdin(&["create", "--filename=-"], &role);
    let policy = world.directory().join("policy.yaml");
    fs::write(&policy, example_policy()).unwrap();
    let options = AgentOptions { kubeconfig, policy: Some(policy), ..world.agent_options.clone() };
    let _agent = gitlab.start_agent_with(&world, &options);

    let [job, configured, user] = callers(&gitlab, project);
    for (caller, expected) in [
        (&job, "User \"gitlab:ci_job:3\" cannot list resource \"pods\""),
        (&user, "User \"gitlab:user:alice\" cannot list resource \"pods\""),
        (&configured, "the policy of this cluster does not allow this"),
    ] {
        let kubectl = world.kubectl_with(caller.name, "/k8s-proxy", &caller.credential.clone().into(), "");
        eventually("the role is in force", || {
            let refused = kubectl.run(&["get", "pods"]);
            refused.code == 1 && refused.stderr.contains(expected)
        });
    }
}
