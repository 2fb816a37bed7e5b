//! The configuration files of GitLab's packages.

use serde_json::Value;
use tokio::process::Command;

use crate::workspace::Workspace;

const OMNIBUS: &str = include_str!("gitlab/omnibus.yaml");
const CHART: &str = include_str!("gitlab/chart.yaml");

const WARNING: &str =
    "kas: warning: kas.yaml: keys of GitLab's kas without a meaning here are ignored, see docs/gitlab.md: ";

/// Returns a workspace with the files that both configurations name.
async fn workspace(configuration: &str) -> Workspace {
    let workspace = Workspace::new().await;
    let secret = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
    for name in ["gitlab-secret", "private-api-secret", "redis-password"] {
        workspace.write(name, secret);
    }
    workspace.write("kas.yaml", configuration);
    workspace
}

fn check(workspace: &Workspace, scheme: &str) -> Command {
    let mut command = workspace.command("check-config kas.yaml");
    command.env("OWN_PRIVATE_API_URL", format!("{scheme}://localhost:8155"));
    command
}

/// Returns the lines of standard error of a check that must succeed.
async fn warnings(configuration: &str, scheme: &str) -> Vec<String> {
    let workspace = workspace(configuration).await;
    let output = check(&workspace, scheme).output().await.unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "kas.yaml: good; 0 agents, 0 tokens of callers\n");
    errors.lines().map(str::to_owned).collect()
}

/// Returns the line and the column of a line of the file that begins with a text.
fn line(configuration: &str, start: &str) -> usize {
    configuration.lines().position(|line| line.trim().starts_with(start)).unwrap() + 1
}

#[tokio::test]
async fn file_of_omnibus_is_accepted_with_one_warning() {
    let [websocket, grpc_level, sentry, workspaces] =
        ["websocket_token_secret_file", "grpc_level", "sentry", "workspaces"].map(|key| line(OMNIBUS, key));
    let keys = format!(
        "agent.kubernetes_api.websocket_token_secret_file (line {websocket}), observability.logging.grpc_level (line \
         {grpc_level}), observability.sentry (line {sentry}), workspaces (line {workspaces})"
    );
    assert_eq!(warnings(OMNIBUS, "grpc").await, [format!("{WARNING}{keys}")]);
}

#[tokio::test]
async fn file_of_the_chart_is_accepted_with_one_warning() {
    let [websocket, autoflow, workspaces] =
        ["websocket_token_secret_file", "autoflow", "workspaces"].map(|key| line(CHART, key));
    let keys = format!(
        "agent.kubernetes_api.websocket_token_secret_file (line {websocket}), autoflow (line {autoflow}), workspaces (line \
         {workspaces})"
    );
    assert_eq!(warnings(CHART, "grpcs").await, [format!("{WARNING}{keys}")]);
}

/// Omnibus with a Redis on other machines.
#[tokio::test]
async fn file_of_omnibus_with_sentinels_and_tls_is_accepted() {
    let configuration = OMNIBUS
        .replace("network: unix", "network: tcp")
        .replace(
            "    enabled: false\n",
            "    enabled: true\n    ca_certificate_file: \"kas.crt\"\n    certificate_file: \"kas.crt\"\n    key_file: \"kas.key\"\n",
        )
        .replace(
            "  server:\n    address: '/var/opt/gitlab/redis/redis.socket'\n",
            "  sentinel:\n    master_name: gitlab-redis\n    addresses:\n      - 'sentinel.example.com:26379'\n    \
             sentinel_password_file: redis-password\n",
        );
    assert!(configuration.contains("sentinel_password_file") && !configuration.contains("redis.socket"));
    assert_eq!(warnings(&configuration, "grpc").await.len(), 1);
}

#[tokio::test]
async fn key_that_kas_cannot_keep_is_refused_with_its_place() {
    for (old, new, expected) in [
        (
            "websocket: true",
            "websocket: false\n    protocols: [ws-tunnel]",
            "agent.listen.websocket: without WebSocket",
        ),
        ("network: tcp", "network: unix", "agent.listen.network: unix is not supported"),
        ("config:\n", "config:\n  command: /usr/bin/print-secrets\n", "config.command: kas runs no command"),
        (
            "    address: localhost:8151\n",
            "    address: localhost:8151\n    certificate_file: kas.crt\n",
            "observability.listen.certificate_file: this listener does not use TLS",
        ),
        (
            "  logging:\n",
            "  prometheus: {url_path: /-/metrics}\n  logging:\n",
            "observability.prometheus.url_path: the path is always /metrics",
        ),
        (
            "    authentication_secret_file: private-api-secret\n",
            "    authentication_secret_file: private-api-secret\n    certificate_file: kas.crt\n    key_file: kas.key\n",
            "private_api.listen.ca_certificate_file: it is missing",
        ),
        (
            "grpc_level:",
            "grpc_levels:",
            "observability.logging.grpc_levels: unknown field `grpc_levels`, expected one of",
        ),
    ] {
        let configuration = OMNIBUS.replacen(old, new, 1);
        assert_ne!(configuration, OMNIBUS, "{old}");
        let workspace = workspace(&configuration).await;
        let output = check(&workspace, "grpc").output().await.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error.lines().count()), (Some(64), 1), "{error}");
        assert!(error.starts_with("kas: kas.yaml:") && error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn ignored_keys_are_one_line_of_the_log() {
    let workspace = Workspace::new().await;
    let configuration = workspace.read("kas.yaml");
    workspace.write("kas.yaml", &format!("{configuration}workspaces: {{enabled: true}}\nautoflow: {{}}\n"));
    let mut kas = workspace.serve().await;
    let lines: Vec<&Value> =
        kas.started.iter().filter(|line| line.to_string().contains("GitLab's kas")).collect();
    let [line] = lines[..] else { panic!("{:?}", kas.started) };
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["keys"], "autoflow (line 8), workspaces (line 7)");
    kas.child.kill().await.unwrap();
}
