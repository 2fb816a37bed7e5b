//! The tasks of GitLab's document "GitOps with the Kubernetes Agent", with the tests that prove them:
//!
//! | task | test |
//! |---|---|
//! | connect clusters to a GitLab project or group | `gitlab::agent_of_gitlab_applies_its_project_and_those_that_it_may_read` |
//! | synchronize cluster-wide state | `cluster_wide_state_is_synchronized` |
//! | synchronize namespace-scoped state | `commits_become_objects_and_drift_is_healed` |
//! | control the kinds that an agent can manage | `kinds_and_namespaces_of_a_project_are_limited` |
//! | namespaced mode, in a specific namespace | `kinds_and_namespaces_of_a_project_are_limited` |
//! | non-namespaced mode, in any namespace and without one | `cluster_wide_state_is_synchronized` |
//! | synchronize from one or more repositories into a cluster | `gitlab::agent_of_gitlab_applies_its_project_and_those_that_it_may_read` |
//! | several agents synchronize from one repository | `two_agents_synchronize_from_one_repository` |
//! | kas checks that the agent may read the repository | `gitlab::agent_of_gitlab_applies_its_project_and_those_that_it_may_read` |
//! | kas verifies the token of the agent before it sends | `agent_with_a_revoked_token_gets_no_commit` |
//! | agentk applies an updated manifest | `commits_become_objects_and_drift_is_healed` |
//! | agentk stops when a repository leaves the list | `broken_commit_changes_nothing_and_mass_deletion_waits` |

use access::token::{self, Holder, TokenHash};
use secrecy::ExposeSecret as _;

use super::*;
use crate::support::AgentOptions;

#[test]
fn cluster_wide_state_is_synchronized() {
    let Some(world) = World::or_skip("gitops-cluster-wide") else { return };
    // Its name is that of no other test.
    let name = &world.namespace.name;
    let inside = format!("{name}-inside");
    let files = |verb: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {name}}}\nrules: [{{apiGroups: [''], \
             resources: [pods], verbs: [{verb}]}}]\n---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {inside}}}\n---\napiVersion: \
             v1\nkind: ConfigMap\nmetadata: {{name: a, namespace: {inside}}}\ndata: {{key: {verb}}}\n"
        )
    };
    let kubectl = &world.cluster.kubectl;
    let verbs = || {
        let role = kubectl.run(&["get", "clusterrole", name, "-o", "jsonpath={.rules[*].verbs}"]);
        let map =
            kubectl.run(&["--namespace", &inside, "get", "configmap", "a", "-o", "jsonpath={.data.key}"]);
        [role, map].map(|output| String::from_utf8(output.stdout).unwrap())
    };
    world.configure("", &[("manifests/app.yaml", Some(&files("get")))]);
    eventually("objects without a namespace and in a new one are created", || {
        verbs() == [r#"["get"]"#, "get"]
    });
    world.configure("", &[("manifests/app.yaml", Some(&files("list")))]);
    eventually("they are changed", || verbs() == [r#"["list"]"#, "list"]);
    let text = config_maps(&["a"]);
    world.configure("max_prune: 9", &[("manifests/app.yaml", Some(&text))]);
    let status = world.wait_for_state("held");
    let takes = status["held"]["objects"].to_string();
    assert!(takes.contains("all that is in it, 1 object now"), "{status}");
    world.approve();
    eventually("they are deleted", || {
        kubectl.run(&["get", "clusterrole", name]).code != 0
            && kubectl.run(&["get", "namespace", &inside]).code != 0
    });
}

#[test]
fn kinds_and_namespaces_of_a_project_are_limited() {
    let Some(world) = World::or_skip("gitops-limits") else { return };
    let name = &world.namespace.name;
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n";
    let elsewhere = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n";
    let role = format!(
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {name}}}\nrules: []\n"
    );
    let namespaced = format!("namespaces: [{name}]");
    let cases = [
        (
            "resource_inclusions: [{api_groups: [''], kinds: [ConfigMap]}]",
            secret,
            "may not apply the kind Secret",
        ),
        (
            "resource_exclusions: [{api_groups: ['*'], kinds: [Secret]}]",
            secret,
            "may not apply the kind Secret",
        ),
        (&namespaced, elsewhere, "may not apply objects in the namespace default"),
        (&namespaced, &*role, "may not apply cluster-scoped objects"),
        ("cluster_scoped: false", &*role, "may not apply cluster-scoped objects"),
    ];
    // kas reads the settings and the manifests of a commit at different times: the settings come first.
    let configure = |number: usize, settings: &str| {
        world.configure(
            &format!("{settings}, max_prune: {number}"),
            &[("manifests/app.yaml", Some("# No object.\n"))],
        );
        eventually("the settings are in force", || {
            let status = world.status();
            status["settings"]["max_prune"] == number && status["objects"]["total"] == 0
        });
    };
    for (number, (settings, file, reason)) in cases.into_iter().enumerate() {
        configure(100 + number, settings);
        let text = config_maps(&["a"]) + file;
        world.repository.commit_files(&[("manifests/app.yaml", Some(&text))]);
        eventually(&format!("{settings}: {reason}"), || {
            world.status()["errors"][0]["message"].to_string().contains(reason)
        });
        assert_eq!(world.config_maps(), "", "{settings}: nothing is written");
    }
    configure(99, &namespaced);
    world.repository.commit_files(&[("manifests/app.yaml", Some(&config_maps(&["a"])))]);
    eventually("objects within the limits are applied", || world.config_maps() == "a");
}

#[test]
fn two_agents_synchronize_from_one_repository() {
    let Some(world) = World::or_skip("gitops-agents") else { return };
    let other = world.cluster.namespace("gitops-other-agent");
    let token = token::new(Holder::Agent);
    let file = world.installation.directory().join("identity.yaml");
    let mut identity: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let hash = TokenHash::of(&token).to_string();
    identity["agents"][1] = json!({"id": 8, "name": "second", "tokens": [hash]});
    std::fs::write(file.with_extension("new"), identity.to_string()).unwrap();
    std::fs::rename(file.with_extension("new"), &file).unwrap();

    let configuration = format!(
        "gitops:\n  manifest_projects:\n  - {{paths: [{{glob: '/manifests/**/*.yaml'}}], default_namespace: {}, interval: 200ms}}\n",
        other.name
    );
    let text = config_map("a", "one");
    world.configure(
        "",
        &[("manifests/app.yaml", Some(&text)), (".gitlab/agents/second/config.yaml", Some(&configuration))],
    );
    let directory = TempDir::new().unwrap();
    let options = AgentOptions {
        token: token.expose_secret().to_owned(),
        pod_namespace: Some(other.name.clone()),
        ..world.installation.agent_options.clone()
    };
    let _second = Agent::start(directory.path(), &options);
    let value = |namespace: &Namespace| {
        let path = ["get", "configmap", "a", "-o", "jsonpath={.data.key}"];
        String::from_utf8(namespace.kubectl.run(&path).stdout).unwrap()
    };
    eventually("both have the object", || [&world.namespace, &other].map(value) == ["one", "one"]);
    world.repository.commit_files(&[("manifests/app.yaml", Some(&config_map("a", "two")))]);
    eventually("both have the next commit", || [&world.namespace, &other].map(value) == ["two", "two"]);
}

#[test]
fn agent_with_a_revoked_token_gets_no_commit() {
    let Some(world) = World::or_skip("gitops-revoked") else { return };
    let installation = &world.installation;
    world.configure("", &[("manifests/app.yaml", Some(&config_map("a", "one")))]);
    eventually("the object is created", || world.data("a") == "one");
    installation.tokens.write_identity(installation.directory(), true);
    eventually("the tunnels are closed", || installation.kas.metric("kas_tunnels") == 0.0);
    world.configure("", &[("manifests/app.yaml", Some(&config_map("a", "two")))]);
    let handshakes = || installation.kas.metric("kas_handshakes_total");
    let before = handshakes();
    eventually("agentk is refused after the commit", || handshakes() > before);
    assert_eq!(world.data("a"), "one");
    installation.tokens.write_identity(installation.directory(), false);
    eventually("the commit arrives with a valid token", || world.data("a") == "two");
}
