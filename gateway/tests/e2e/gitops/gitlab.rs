//! The projects of an agent of GitLab, which Gitaly serves.

use super::*;
use crate::support::{AgentOptions, GitLab};

#[test]
fn agent_of_gitlab_applies_its_project_and_those_that_it_may_read() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let namespace = cluster.namespace("gitops-gitlab");
    let gitlab = GitLab::start();
    let project = |id: &str, path: &str| {
        format!(
            "  - {{{id} paths: [{{glob: '{path}/*.yaml'}}], default_namespace: {}, interval: 200ms}}\n",
            namespace.name
        )
    };
    let configuration = format!(
        "gitops:\n  manifest_projects:\n{}{}{}",
        project("", "manifests"),
        project("id: group/other,", "manifests"),
        project("id: group/secret, ", "manifests")
    );
    // GitLab's agent has applied two objects from the project with the id 7, one of which left Git, and one from another project.
    for (name, project) in [("own", 7), ("left", 7), ("foreign", 99)] {
        let mut object: Value = serde_saphyr::from_str(&config_map(name, "zero")).unwrap();
        object["metadata"]["annotations"] =
            json!({"config.k8s.io/owning-inventory": format!("{}-{project}", GitLab::AGENT)});
        let apply = ["apply", "--server-side", "--field-manager=agentk", "--filename=-"];
        namespace.kubectl.ok_with_stdin(&apply, &object.to_string());
    }
    let inventory = format!("inventory-{}-7", GitLab::AGENT);
    let keys = ["own", "left", "foreign"].map(|name| (format!("{}_{name}__ConfigMap", namespace.name), ""));
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": inventory,
            "labels": {"cli-utils.sigs.k8s.io/inventory-id": format!("{}-7", GitLab::AGENT)},
        },
        "data": std::collections::BTreeMap::from(keys),
    });
    namespace.kubectl.ok_with_stdin(&["create", "--filename=-"], &object.to_string());
    let own = gitlab.serve_project(&[
        (".gitlab/agents/gitlab/config.yaml", &configuration),
        ("manifests/a.yaml", &config_map("own", "one")),
    ]);
    let other = gitlab.serve_other_project(&[("manifests/a.yaml", &config_map("other", "one"))]);
    let installation = Installation::start(&cluster.kubeconfig, |options, _| {
        options.sections.push(("gitlab", gitlab.section()));
        options.configuration = Some(json!({"poll_period": "1s"}));
    });
    let options =
        AgentOptions { pod_namespace: Some(namespace.name.clone()), ..installation.agent_options.clone() };
    let _agent = gitlab.start_agent_with(&installation, &options);
    let values = || {
        let path = "jsonpath={range .items[*]}{.metadata.name}={.data.key} {end}";
        namespace.kubectl.ok(&["get", "configmap", "-l", "e2e=gitops", "-o", path]).trim().to_owned()
    };
    eventually("both projects are applied", || values() == "foreign=zero other=one own=one");
    eventually("the inventory of GitLab's agent is taken over", || {
        namespace.kubectl.run(&["get", "configmap", &inventory]).code != 0
    });
    let commit = |gitaly: &testing::kas::gitaly::TestGitaly, name: &str| {
        let file = config_map(name, "two");
        let content = testing::kas::gitaly::TestFile::Content(file.as_bytes());
        gitaly.repository.commit("main", &[("manifests/a.yaml", content)]);
    };
    commit(&own, "own");
    commit(&other, "other");
    eventually("new commits of both are applied", || values() == "foreign=zero other=two own=two");

    // Callers of the identity file may not use agents of GitLab, so that the status is read in the cluster.
    let path = "jsonpath={.items[*].data.status}";
    let statuses = || {
        namespace.kubectl.ok(&["get", "configmap", "-l", "app.kubernetes.io/managed-by=agentk", "-o", path])
    };
    let reason = "GitLab does not let the agent read the project group/secret";
    eventually("the reason is shown", || statuses().contains(reason));
}
