//! The configuration of an agent from a file, from the path of a Git repository, and from a Git server.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{AGENT, Certificates, GitRepository, GitServer, Installation, eventually};

const ONLY_SHOP: &str = "observability: {logging: {level: error}}\nscope: {namespaces: [shop]}\n";
const ONLY_WEB: &str = "scope: {namespaces: [web]}\n";
const INVALID: &str = "scope: {namespace: [other]}\n";

/// Starts kas and agentk. agentk sends what it does not refuse to a cluster that is unreachable.
fn start(configuration: Value) -> Installation {
    Installation::without_cluster(|options, _| options.configuration = Some(configuration))
}

/// Returns the reason of the error of a request for a namespace.
fn reason(world: &Installation, namespace: &str) -> Option<String> {
    let path = format!("/agents/{AGENT}/kubernetes/api/v1/namespaces/{namespace}/pods");
    world.curl(&path, &[]).header("kas-error").map(str::to_owned)
}

/// Returns the namespaces that requests reach.
fn reached(world: &Installation) -> Vec<&'static str> {
    let is_reached = |namespace: &&str| match &*reason(world, namespace).unwrap() {
        "cluster-unreachable" => true,
        "refused-by-policy" => false,
        other => panic!("{other}"),
    };
    ["shop", "web", "other"].into_iter().filter(is_reached).collect()
}

fn wait_for(world: &Installation, expected: &[&str]) {
    eventually("the configuration is in force", || reached(world) == expected);
}

/// Publishes three versions. `publish` makes one visible to kas, which reads it within a second.
fn versions_take_effect(world: &Installation, publish: impl Fn(&str)) {
    let applied = |log: &str| log.matches("configuration of this agent applied").count();
    publish(ONLY_SHOP);
    wait_for(world, &["shop"]);
    let before = world.agent.process.printed();
    assert!(before.contains("scope in force namespaces=[\"shop\"]"), "{before}");
    publish(ONLY_WEB);
    wait_for(world, &["web"]);
    eventually("the level error ends", || applied(&world.agent.process.printed()) == applied(&before) + 1);
    let log = world.agent.process.printed();
    assert!(!log.contains("scope in force namespaces=[\"web\"]"), "the level was error: {log}");

    publish(INVALID);
    eventually("the error is counted", || world.kas.metric("kas_agent_configuration_errors") == 1.0);
    world.agent.process.line("the error in agentk", |line| {
        line.contains("the configuration of this agent is not used") && line.contains("scope.namespace")
    });
    assert_eq!(reached(world), ["web"], "the last good version stays");
    publish(ONLY_SHOP);
    wait_for(world, &["shop"]);
    assert_eq!(world.kas.metric("kas_agent_configuration_errors"), 0.0);
}

#[test]
fn file_of_the_identity_file_takes_effect() {
    let world = start(json!({"poll_period": "1s"}));
    let file = world.directory().join("prod.yaml");
    let replace = |text: &str| {
        fs::write(file.with_extension("new"), text).unwrap();
        fs::rename(file.with_extension("new"), &file).unwrap();
    };
    replace("");
    let identity = world.directory().join("identity.yaml");
    let mut identities: Value = serde_json::from_slice(&fs::read(&identity).unwrap()).unwrap();
    identities["agents"][0]["configuration"] = json!({"file": "prod.yaml"});
    fs::write(identity.with_extension("new"), identities.to_string()).unwrap();
    fs::rename(identity.with_extension("new"), identity).unwrap();
    versions_take_effect(&world, replace);
}

#[test]
fn commits_of_a_repository_at_a_path_take_effect() {
    let directory = TempDir::new().unwrap();
    let Some(repository) = GitRepository::or_skip(directory.path()) else { return };
    let world = start(json!({"poll_period": "1s", "repository": {"url": repository.path}}));
    assert_eq!(reached(&world), ["shop", "web", "other"]);
    versions_take_effect(&world, |text| repository.commit(text));
}

#[test]
fn pushes_to_a_git_server_take_effect() {
    let directory = TempDir::new().unwrap();
    let Some(repository) = GitRepository::or_skip(directory.path()) else { return };
    let certificates = Certificates::generate(directory.path());
    let Some(server) = GitServer::or_skip(directory.path(), &certificates, "secret") else { return };
    let password = directory.path().join("password");
    fs::write(&password, "secret\n").unwrap();
    let world = start(remote(&server, &certificates, &password));
    versions_take_effect(&world, |text| {
        repository.commit(text);
        repository.push(&server);
    });

    fs::write(&password, "wrong\n").unwrap();
    world.kas.process.line("the refusal of the server", |line| line.contains("it refuses the credentials"));
    assert_eq!(reached(&world), ["shop"]);
    fs::write(&password, "secret\n").unwrap();
    repository.commit(ONLY_WEB);
    repository.push(&server);
    wait_for(&world, &["web"]);
}

fn remote(server: &GitServer, certificates: &Certificates, password: &Path) -> Value {
    json!({"poll_period": "1s", "repository": {
        "url": server.url, "username": "kas", "password_file": password, "ca_certificate_file": certificates.authority,
    }})
}

/// agentk starts while the repository cannot be read, as after an outage of a whole site.
#[test]
fn required_scope_refuses_requests_until_it_arrives() {
    let directory = TempDir::new().unwrap();
    let Some(repository) = GitRepository::or_skip(directory.path()) else { return };
    repository.commit(ONLY_SHOP);
    let elsewhere = directory.path().join("elsewhere");
    fs::rename(&repository.path, &elsewhere).unwrap();
    let mut world = start(json!({"poll_period": "1s", "repository": {"url": repository.path}}));
    assert_eq!(reached(&world), ["shop", "web", "other"], "agentk serves all namespaces without the flag");

    world.agent_options.require_scope = true;
    world.agent.process.terminate();
    world.agent.process.exit_code();
    world.restart_agent();
    assert_eq!(reason(&world, "shop").as_deref(), Some("scope-awaited"));
    let discovery = world.curl(&format!("/agents/{AGENT}/kubernetes/apis"), &[]);
    assert_eq!(discovery.header("kas-error"), Some("cluster-unreachable"), "the discovery passes");
    let readiness = world.agent.readiness();
    assert!(readiness.status == 503 && readiness.text().contains("--require-scope"), "{}", readiness.text());

    fs::rename(&elsewhere, &repository.path).unwrap();
    eventually("the scope is in force", || reason(&world, "shop").as_deref() == Some("cluster-unreachable"));
    assert_eq!(reached(&world), ["shop"]);
    assert!(!world.agent.readiness().text().contains("--require-scope"));
    repository.commit("");
    wait_for(&world, &[]);
    let refused = world.curl(&format!("/agents/{AGENT}/kubernetes/api/v1/nodes"), &[]);
    assert!(
        refused.text().contains("the configuration of this agent has no scope.namespaces"),
        "{}",
        refused.text()
    );
}
