//! The projects of an agent of GitLab, which Gitaly serves.

use http::StatusCode;
use kas_testing::gitaly::{TestFile, TestGitaly};
use testing::gitlab::{Fault, User};

use super::*;
use crate::support::{AgentOptions, GitLab};

/// The token of the operator.
const STATUS_TOKEN: &str = "glpat-statuses";

/// Commits a version of the manifests, and returns its id.
fn commit(gitaly: &TestGitaly, text: &str) -> String {
    let content = TestFile::Content(text.as_bytes());
    gitaly.repository.commit("main", &[("manifests/a.yaml", content)])
}

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
    commit(&own, &config_map("own", "two"));
    commit(&other, &config_map("other", "two"));
    eventually("new commits of both are applied", || values() == "foreign=zero other=two own=two");

    // Callers of the identity file may not use agents of GitLab, so that the status is read in the cluster.
    let path = "jsonpath={.items[*].data.status}";
    let statuses = || {
        namespace.kubectl.ok(&["get", "configmap", "-l", "app.kubernetes.io/managed-by=agentk", "-o", path])
    };
    let reason = "GitLab does not let the agent read the project group/secret";
    eventually("the reason is shown", || statuses().contains(reason));
}

/// The statuses that GitLab has: commit, state and description. All are of the agent, in the project with its configuration.
fn statuses(gitlab: &GitLab) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let state = gitlab.standin.state();
    let statuses = state.commit_statuses.iter().map(|(project, commit, body)| {
        assert_eq!((*project, &body["name"]), (7, &json!("agentk/gitlab")), "{body}");
        (commit.clone(), text(&body["state"]), text(&body["description"]))
    });
    statuses.collect()
}

#[test]
fn results_of_syncs_are_statuses_of_commits() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let namespace = cluster.namespace("gitops-statuses");
    let gitlab = GitLab::start();
    // The token may write to both projects.
    let user = User::new(1, "bot").with_api_token(STATUS_TOKEN, 7).with_api_token(STATUS_TOKEN, 8);
    gitlab.standin.state().users.push(user);
    let project = |id: &str| {
        format!(
            "  - {{{id} paths: [{{glob: 'manifests/*.yaml'}}], default_namespace: {}, interval: 200ms}}\n",
            namespace.name
        )
    };
    let configuration =
        format!("gitops:\n  manifest_projects:\n{}{}", project(""), project("id: group/other,"));
    let own = gitlab.serve_project(&[(".gitlab/agents/gitlab/config.yaml", &configuration)]);
    let other = gitlab.serve_other_project(&[("manifests/a.yaml", &config_map("other", "one"))]);
    let first = commit(&own, &config_map("own", "one"));
    let installation = Installation::start(&cluster.kubeconfig, |options, certificates| {
        let file = certificates.authority.with_file_name("status-token");
        std::fs::write(&file, format!("{STATUS_TOKEN}\n")).unwrap();
        let mut section = gitlab.section();
        section["commit_status_token_file"] = json!(file);
        options.sections.push(("gitlab", section));
        options.configuration = Some(json!({"poll_period": "1s"}));
    });
    let options =
        AgentOptions { pod_namespace: Some(namespace.name.clone()), ..installation.agent_options.clone() };
    let mut agent = gitlab.start_agent_with(&installation, &options);
    let state_of = |commit: &str| {
        let all = statuses(&gitlab).into_iter().filter(|(of, ..)| of == commit);
        all.map(|(_, state, _)| state).collect::<Vec<_>>()
    };
    let value = |name: &str| {
        let path = ["get", "configmap", name, "-o", "jsonpath={.data.key}"];
        String::from_utf8(namespace.kubectl.run(&path).stdout).unwrap()
    };
    eventually("the first commit succeeded", || state_of(&first) == ["pending", "success"]);
    eventually("the other project is applied", || value("other") == "one");
    commit(&other, "kind: [\n");

    // A file that is not valid is refused before anything is written.
    let broken = commit(&own, "kind: [\n");
    eventually("the second commit failed", || state_of(&broken) == ["failed"]);
    let (_, _, description) = statuses(&gitlab).pop().unwrap();
    assert!(description.starts_with("manifests/a.yaml:1: the file is not valid YAML"), "{description}");

    // The API server refuses a Secret. Its value is in no description.
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {key: hunter2!}\n";
    let refused = commit(&own, secret);
    eventually("the third commit failed", || {
        state_of(&refused).last().is_some_and(|state| state == "failed")
    });
    let (_, _, description) = statuses(&gitlab).pop().unwrap();
    assert!(
        description.starts_with("manifests/a.yaml:1: ") && !description.contains("hunter"),
        "{description}"
    );

    // A GitLab that fails delays no sync.
    gitlab.standin.set_fault(Fault::Status(StatusCode::SERVICE_UNAVAILABLE));
    let third = commit(&own, &config_map("own", "three"));
    eventually("the commit is applied", || value("own") == "three");
    assert_eq!(state_of(&third), [""; 0]);
    gitlab.standin.set_fault(None);
    eventually("the status arrives later", || {
        state_of(&third).last().is_some_and(|state| state == "success")
    });

    // Another process of agentk applies the same commit, and this is no new result.
    let before = statuses(&gitlab).len();
    let tunnels = installation.kas.metric("kas_tunnels");
    agent.process.terminate();
    agent.process.exit_code();
    eventually("its tunnels are closed", || installation.kas.metric("kas_tunnels") == tunnels - 2.0);
    let _agent = gitlab.start_agent_with(&installation, &options);
    let fourth = commit(&own, &config_map("own", "four"));
    eventually("the next commit succeeded", || {
        state_of(&fourth).last().is_some_and(|state| state == "success")
    });
    let later = statuses(&gitlab).split_off(before);
    assert!(later.iter().all(|(commit, ..)| *commit == fourth), "{later:?}");
    assert_eq!(installation.kas.metric_with("kas_gitops_commit_statuses_total", "refused"), 0.0);
    assert!(!installation.kas.process.printed().contains(STATUS_TOKEN));
}
