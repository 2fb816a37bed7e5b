//! Several agents in one cluster: one for all of it, one for a namespace, and one for two. Each has the rights of its own
//! service account, and the limit of `--namespaces`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use access::token::{self, Holder, TokenHash};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use crate::support::{Agent, AgentOptions, Cluster, Installation, Kubectl, Namespace, eventually};

/// Objects that are deleted at the end of a test.
struct Applied<'a> {
    kubectl: &'a Kubectl,
    text: String,
}

impl<'a> Applied<'a> {
    fn new(kubectl: &'a Kubectl, text: String) -> Self {
        kubectl.ok_with_stdin(&["apply", "--filename=-"], &text);
        Self { kubectl, text }
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        let delete = ["delete", "--wait=false", "--ignore-not-found", "--filename=-"];
        self.kubectl.run_with_stdin(&delete, self.text.as_bytes());
    }
}

/// Writes a kubeconfig of a service account.
fn kubeconfig_of(cluster: &Cluster, home: &Namespace, account: &str, directory: &Path) -> PathBuf {
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", home.name);
    let request = r#"{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}"#;
    let answer = cluster.kubectl.ok_with_stdin(&["create", "--raw", &path, "--filename=-"], request);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let view = cluster.kubectl.ok(&["config", "view", "--raw", "--minify", "--flatten", "--output=json"]);
    let mut config: Value = serde_json::from_str(&view).unwrap();
    config["users"][0]["user"] = json!({"token": answer["status"]["token"]});
    let file = directory.join(format!("kubeconfig-{account}"));
    fs::write(&file, config.to_string()).unwrap();
    file
}

/// Returns the answer of the cluster to `kubectl auth can-i`, without the tunnel.
fn can_i(cluster: &Cluster, home: &Namespace, account: &str, question: &[&str]) -> String {
    let user = format!("--as=system:serviceaccount:{}:{account}", home.name);
    let result = cluster.kubectl.run(&[&["auth", "can-i"], question, &[&user]].concat());
    result.text().trim().to_owned()
}

/// Checks the answers of `kubectl auth can-i` to service accounts.
fn assert_answers(cluster: &Cluster, home: &Namespace, expected: &[(&str, &[&str], &str)]) {
    let answer = |account, question| can_i(cluster, home, account, question);
    // A binding takes effect with a delay. Before that, each answer is `no`.
    for (account, question, _) in expected.iter().filter(|(.., answer)| *answer == "yes") {
        eventually(&format!("{account} may {question:?}"), || answer(account, question) == "yes");
    }
    for (account, question, expected) in expected {
        assert_eq!(answer(account, question), *expected, "{account} {question:?}");
    }
}

#[test]
fn three_agents_in_one_cluster_serve_their_namespaces() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let mut world = Installation::with_cluster(&cluster.kubeconfig);
    let [home, shop, web] = ["home", "shop", "web"].map(|topic| cluster.namespace(topic));
    let missing = format!("{}-missing", home.name);
    let binding = |kind: &str, account: &str, namespace: Option<&str>| {
        let name = format!("{}-{account}", home.name);
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home.name}],
        })
    };
    let accounts = ["whole", "shop", "two"];
    for account in accounts {
        home.kubectl.ok(&["create", "serviceaccount", account]);
    }
    let bindings = [
        binding("ClusterRoleBinding", "whole", None),
        binding("RoleBinding", "shop", Some(&shop.name)),
        binding("RoleBinding", "two", Some(&shop.name)),
        binding("RoleBinding", "two", Some(&web.name)),
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": bindings});
    let _bindings = Applied::new(&cluster.kubectl, list.to_string());

    // Asks the API server itself, without kas: these are the answers of RBAC.
    let questions: [&[&str]; 4] = [
        &["list", "pods", "--namespace", &shop.name],
        &["list", "pods", "--namespace", &web.name],
        &["list", "pods", "--all-namespaces"],
        &["list", "namespaces"],
    ];
    let answers =
        || accounts.map(|account| questions.map(|question| can_i(&cluster, &home, account, question)));
    let expected = [["yes"; 4], ["yes", "no", "no", "no"], ["yes", "yes", "no", "no"]];
    eventually("RBAC answers as expected", || answers() == expected);

    let tokens: [SecretString; 3] = [(); 3].map(|()| token::new(Holder::Agent));
    let file = world.directory().join("identity.yaml");
    let mut identity: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for (index, (account, token)) in accounts.into_iter().zip(&tokens).enumerate() {
        let entry = json!({"id": 20 + index, "name": account, "tokens": [TokenHash::of(token).to_string()]});
        identity["agents"].as_array_mut().unwrap().push(entry);
    }
    fs::write(world.directory().join("identity.new"), identity.to_string()).unwrap();
    fs::rename(world.directory().join("identity.new"), file).unwrap();
    world.agent.process.terminate();
    world.agent.process.exit_code();
    let start = |account: &str, token: &SecretString, kubeconfig: PathBuf, namespaces: Option<String>| {
        let directory = tempfile::tempdir().unwrap();
        let options = AgentOptions {
            token: token.expose_secret().to_owned(),
            kubeconfig,
            namespaces,
            tunnels: 1,
            ..world.agent_options.clone()
        };
        let agent = Agent::start(directory.path(), &options);
        eventually(&format!("{account} is connected"), || agent.readiness().status == 200);
        (agent, directory)
    };
    let scopes = [None, Some(shop.name.clone()), Some(format!("{},{}", shop.name, web.name))];
    let mut running = Vec::new();
    for ((account, token), scope) in accounts.into_iter().zip(&tokens).zip(&scopes) {
        let kubeconfig = kubeconfig_of(&cluster, &home, account, world.directory());
        running.push(start(account, token, kubeconfig, scope.clone()));
    }

    let paths = [
        format!("/api/v1/namespaces/{}/pods", shop.name),
        format!("/api/v1/namespaces/{}/pods", web.name),
        "/api/v1/pods".to_owned(),
        "/api/v1/namespaces".to_owned(),
    ];
    for (account, expected) in
        accounts.into_iter().zip([[200; 4], [200, 403, 403, 403], [200, 200, 403, 403]])
    {
        for (path, expected) in paths.iter().zip(expected) {
            let response = world.curl(&format!("/agents/{account}/kubernetes{path}"), &[]);
            assert_eq!(response.status, expected, "{account} {path}: {}", response.text());
            let refused = (expected == 403).then_some("refused-by-policy");
            assert_eq!(response.header("kas-error"), refused, "{account} {path}");
        }
        let discovery = world.curl(&format!("/agents/{account}/kubernetes/apis"), &[]);
        assert_eq!(discovery.status, 200, "{account}");

        // RBAC answers, also outside of the scope.
        let kubectl = world.kubectl_for_agent(account);
        assert_eq!(
            kubectl.run(&["auth", "can-i", "list", "pods", "--namespace", &shop.name]).text(),
            "yes\n"
        );
        assert_eq!(
            kubectl.run(&["auth", "can-i", "delete", "pods", "--namespace", &web.name]).text(),
            "no\n"
        );
    }

    // The list of agents has the scopes, and the cluster where agentk may read it.
    let list = world.kas.curl(&[&format!("http://{}/agents", world.kas.observability)]).json();
    let tunnel = |name: &str| {
        let agent = list["agents"].as_array().unwrap().iter().find(|agent| agent["name"] == name);
        agent.unwrap()["tunnels"][0].clone()
    };
    let uid = cluster.kubectl.ok(&["get", "namespace", "kube-system", "--output=jsonpath={.metadata.uid}"]);
    assert_eq!((&tunnel("whole")["scope"], &tunnel("whole")["cluster"]), (&json!("cluster"), &json!(uid)));
    assert_eq!((&tunnel("shop")["scope"], &tunnel("shop")["cluster"]), (&json!(shop.name), &Value::Null));
    assert!(tunnel("two")["scope"].as_str().unwrap().starts_with(&shop.name));
    for (agent, _) in &running {
        assert_eq!(agent.readiness().text(), "ready\n");
    }

    // A namespace that does not exist is named until it exists.
    let both = format!("{},{missing}", shop.name);
    let (late, _directory) = start("late", &tokens[1], cluster.kubeconfig.clone(), Some(both));
    let line = format!("scope: the namespace {missing} does not exist");
    eventually("the missing namespace is named", || late.readiness().text().contains(&line));
    cluster.kubectl.ok(&["create", "namespace", &missing]);
    let _missing = Namespace { name: missing.clone(), kubectl: cluster.kubectl.clone() };
    eventually("the namespace is not missing any more", || late.readiness().text() == "ready\n");
}

#[test]
fn rbac_examples_grant_what_they_say() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let [home, shop, monitoring] = ["home", "shop", "monitoring"].map(|topic| cluster.namespace(topic));
    home.kubectl.ok(&["create", "serviceaccount", "agentk"]);
    let examples = include_str!("../../../deploy/kubernetes/rbac-examples.yaml");
    let text = examples
        .replace("name: agentk-", &format!("name: {}-", home.name))
        .replace("namespace: agentk", &format!("namespace: {}", home.name))
        .replace("namespace: shop", &format!("namespace: {}", shop.name))
        .replace("namespace: monitoring", &format!("namespace: {}", monitoring.name));
    // The role for identities of GitLab allows everybody, so it is the last one.
    let (gitlab, others): (Vec<&str>, Vec<&str>) =
        text.split("\n---\n").partition(|object| object.contains("-impersonate-gitlab"));
    assert_eq!(gitlab.len(), 2, "a role and its binding");
    let _others = Applied::new(&cluster.kubectl, others.join("\n---\n"));
    let questions: [(&[&str], &str); 12] = [
        (&["list", "pods", "--all-namespaces"], "yes"),
        (&["list", "secrets", "--namespace", &shop.name], "no"),
        (&["create", "deployments.apps", "--namespace", &shop.name], "yes"),
        (&["create", "deployments.apps", "--namespace", &monitoring.name], "no"),
        (&["create", "pods", "--subresource=exec", "--namespace", &shop.name], "yes"),
        (&["create", "pods", "--subresource=exec", "--namespace", &monitoring.name], "no"),
        (&["impersonate", "users/ci"], "yes"),
        (&["impersonate", "users/admin"], "no"),
        (&["impersonate", "groups/deployers"], "yes"),
        (&["impersonate", "groups/system:masters"], "no"),
        (&["list", "services", "--namespace", &monitoring.name], "yes"),
        (&["get", "services", "--subresource=proxy", "--namespace", &monitoring.name], "no"),
    ];
    assert_answers(&cluster, &home, &questions.map(|(question, answer)| ("agentk", question, answer)));

    let _gitlab = Applied::new(&cluster.kubectl, gitlab.join("\n---\n"));
    let questions: [(&str, &[&str], &str); 3] = [
        ("agentk", &["impersonate", "users/gitlab:ci_job:7"], "yes"),
        ("agentk", &["impersonate", "groups/gitlab:ci_job"], "yes"),
        ("agentk", &["impersonate", "serviceaccounts"], "no"),
    ];
    assert_answers(&cluster, &home, &questions);
}

#[test]
fn printed_manifests_are_accepted_by_the_api_server() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let namespace = cluster.namespace("manifest");
    let mut command = crate::support::Kas::command();
    command.args(["agents", "manifest", "production", "--kas-address", "wss://kas.test:8150"]);
    let output = crate::support::run(command.args(["--namespace", &namespace.name]), b"secret-of-agent\n");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Kubernetes 1.20 has an older version of the PodDisruptionBudget, as the comment in the output says.
    let budget = cluster.kubectl.ok(&["api-versions"]).lines().any(|version| version == "policy/v1");
    let text = if budget { text } else { text.replace("policy/v1\n", "policy/v1beta1\n") };
    let applied = cluster.kubectl.ok_with_stdin(&["apply", "--dry-run=server", "--filename=-"], &text);
    for kind in [
        "namespace/",
        "secret/",
        "poddisruptionbudget",
        "serviceaccount/",
        "clusterrolebinding",
        "deployment.apps/",
    ] {
        assert!(applied.contains(kind), "no {kind} in {applied}");
    }
}
