//! Tests of `kas agents register`: the binary against a stand-in for GitLab, and stand-ins for kubectl and helm.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::response::Redirect;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tempfile::TempDir;
use testing::{
    gitlab::{Agent, Endpoint, Fault, Project, StandIn, State, User},
    skip::{helm, skipped},
};
use tokio::{net::TcpListener, process::Command, time::timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    start_agent,
    workspace::{SOON, Workspace},
};

/// The project, and the path of the configuration of its agent.
const PROJECT: u64 = 30;
const FILE: &str = ".gitlab/agents/production/config.yaml";
/// A part of all tokens that the stand-in creates.
const SECRET: &str = "glagent-secret-of-token";

/// A GitLab with the project `group/shop`, its maintainer, and a directory with stand-ins for kubectl and helm.
struct World {
    gitlab: StandIn,
    directory: TempDir,
}

/// The end of a command.
struct Ended {
    code: i32,
    output: String,
    errors: String,
}

/// Logs its arguments, and does what kubectl does for a cluster that is in files.
const KUBECTL: &str = r#"#!/bin/sh
echo "kubectl $*" >> log
[ -e kubectl-fails ] && { /bin/cat kubectl-fails >&2; exit 1; }
case "$*" in
  "config current-context"*) echo shop-cluster ;;
  "get secret"*) [ ! -e secret ] || /bin/cat secret ;;
  "create namespace"*) [ ! -e namespace ] || { /bin/cat namespace >&2; exit 1; } ;;
  apply*) /bin/cat > applied; [ ! -e apply-fails ] || { echo "error: no $(/bin/cat applied)" >&2; exit 1; } ;;
esac
"#;

const HELM: &str = r#"#!/bin/sh
echo "helm $*" >> log
case "$1" in
  show) [ ! -e no-chart ] || { echo 'Error: repo deploy not found' >&2; exit 1; }; printf 'apiVersion: v2\nname: agentk\nversion: 0.1.0\n' ;;
  list) [ ! -e release ] || echo agentk ;;
  get) if [ -e values ]; then /bin/cat values; else printf '{"config":{"secretName":"agentk-token","token":""}}'; fi ;;
  upgrade) [ ! -e upgrade-fails ] || { printf 'Error: UPGRADE FAILED\033[2J\n' >&2; exit 1; }; touch release 2> /dev/null || : > release ;;
esac
"#;

impl World {
    async fn new() -> Self {
        let world = Self { gitlab: StandIn::start().await, directory: tempfile::tempdir().unwrap() };
        let mut state = world.gitlab.state();
        state.projects.push(Project::new(PROJECT, "group/shop"));
        state.users.push(User::new(5, "alice").with_api_token("glpat-a", PROJECT));
        state.users.push(User::new(6, "bob").with_project("glpat-read", PROJECT));
        state
            .users
            .push(User { developer: true, ..User::new(7, "eve").with_api_token("glpat-dev", PROJECT) });
        state.kas_url = Some("wss://kas.test/-/kubernetes-agent/".to_owned());
        drop(state);
        fs::create_dir(world.path("bin")).unwrap();
        for (name, text) in [("kubectl", KUBECTL), ("helm", HELM)] {
            let file = world.path("bin").join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        world.write("pat", "glpat-a\n");
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns the command for the project, with further options.
    fn command(&self, options: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kas"));
        command.args(["agents", "register", "production"]).args(options.split_whitespace());
        if !options.contains("--gitlab") {
            command.args(["--gitlab", self.gitlab.url()]);
        }
        if !options.contains("--project") {
            command.args(["--project", "group/shop"]);
        }
        if !options.contains("--token-file") {
            command.args(["--token-file", "pat"]);
        }
        command.env_clear().env("PATH", self.path("bin")).current_dir(&self.directory).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    async fn run(&self, options: &str) -> Ended {
        ended(&mut self.command(options)).await
    }

    /// Runs a command that must succeed.
    async fn success(&self, options: &str) -> Ended {
        let ended = self.run(options).await;
        assert_eq!(ended.code, 0, "{options}: {}", ended.errors);
        ended
    }

    /// Runs a command that must fail. Its last line is the error, which is returned with the exit code.
    async fn failure(&self, options: &str) -> (i32, String) {
        let ended = self.run(options).await;
        assert_ne!(ended.code, 0, "{options}: {}", ended.errors);
        let error = ended.errors.lines().last().unwrap_or_default().to_owned();
        assert!(error.starts_with("kas: "), "{}", ended.errors);
        (ended.code, error)
    }

    /// Returns the configuration on a branch.
    fn configuration(&self, branch: &str) -> Option<String> {
        let state = self.gitlab.state();
        let project = state.projects.iter().find(|project| project.id == PROJECT).unwrap();
        project.branches.get(branch)?.get(FILE).cloned()
    }

    /// Returns the ids of the active tokens.
    fn active_tokens(&self) -> Vec<u64> {
        let state = self.gitlab.state();
        state.agent_tokens.iter().filter(|record| record.active).map(|record| record.id).collect()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.gitlab.state());
    }

    fn change_project(&self, change: impl FnOnce(&mut Project)) {
        self.change(|state| change(state.projects.iter_mut().find(|project| project.id == PROJECT).unwrap()));
    }
}

async fn ended(command: &mut Command) -> Ended {
    let output = timeout(SOON, command.output()).await.expect("the command exits").unwrap();
    Ended {
        code: output.status.code().unwrap(),
        output: String::from_utf8(output.stdout).unwrap(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

#[tokio::test]
async fn agent_is_registered_and_the_commands_refer_to_the_file_of_its_token() {
    let world = World::new().await;
    let first = world.success("--token-output agent-token --image r.test/agentk:1").await;
    let token = {
        let state = world.gitlab.state();
        let names: Vec<_> = state.agents.values().map(|agent| &*agent.name).collect();
        assert_eq!(names, ["production"]);
        state.agent_tokens[0].token.clone()
    };
    assert_eq!(world.read("agent-token"), format!("{token}\n"));
    let mode = fs::metadata(world.path("agent-token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let configuration = world.configuration("main").unwrap();
    assert!(configuration.contains("    - id: group/shop\n"), "{configuration}");

    for expected in [
        "project        group/shop (id 30)",
        "kas            wss://kas.test/-/kubernetes-agent/",
        "agent          production is registered (id 1)",
        "configuration  .gitlab/agents/production/config.yaml is committed to the branch main",
        "token          a new one (id 1) is in the file agent-token",
        "/group/shop/-/cluster_agents/production",
        "kubectl config use-context group/shop:production",
    ] {
        assert!(first.errors.contains(expected), "{expected}: {}", first.errors);
    }
    assert!(first.output.contains("--from-file token=agent-token"), "{}", first.output);
    assert!(first.output.contains("--set config.secretName=agentk-token"), "{}", first.output);
    assert!(!first.output.contains(SECRET) && !first.errors.contains(SECRET), "the token is not printed");
    assert!(!world.path("log").exists(), "kubectl and helm do not run");

    let second = world.success("--token-output agent-token --image r.test/agentk:1").await;
    assert_eq!(second.output, first.output);
    for expected in [
        "production exists (id 1)",
        "config.yaml exists, and stays as it is",
        "the one that is there is used: kas-register-production (id 1)",
    ] {
        assert!(second.errors.contains(expected), "{expected}: {}", second.errors);
    }
    assert_eq!(world.active_tokens(), [1], "a second run creates nothing");
    world.gitlab.assert_no_violations();
}

#[tokio::test]
async fn agentk_is_installed_with_the_token_in_a_secret_and_in_no_argument() {
    let world = World::new().await;
    world.write("namespace", "Error from server (AlreadyExists): namespaces \"agentk\" already exists\n");
    let options = "--install --wait 0s --image r.test/agentk:1 --kas wss://kas.test:8150 --release shop --kube-context c";
    let first = world.success(options).await;
    let applied: serde_json::Value = serde_json::from_str(&world.read("applied")).unwrap();
    assert_eq!(applied["metadata"]["name"], "shop-token");
    assert_eq!(applied["metadata"]["namespace"], "agentk");
    assert_eq!(applied["metadata"]["annotations"]["agent.gitlab.com/id"], "1");
    assert_eq!(applied["stringData"]["token"], world.gitlab.state().agent_tokens[0].token);
    let log = world.read("log");
    assert!(
        log.contains("helm upgrade --install shop deploy/charts/agentk --namespace agentk --kube-context c"),
        "{log}"
    );
    assert!(
        log.contains("--set config.kasAddress=wss://kas.test:8150 --set config.secretName=shop-token"),
        "{log}"
    );
    assert!(log.contains("kubectl apply --server-side") && log.matches(" --context c").count() == 3, "{log}");
    for text in [&log, &first.output, &first.errors] {
        assert!(!text.contains(SECRET) && !text.contains("glpat"), "{text}");
    }
    assert!(first.output.is_empty() && first.errors.contains("agentk/shop is installed"), "{}", first.errors);

    let found = format!("found kas\n1\n{}", world.gitlab.url());
    world.write("secret", &found);
    world.write("release", "");
    fs::remove_file(world.path("applied")).unwrap();
    world.success("--install --wait 0s --image r.test/agentk:1").await;
    assert!(
        world.read("log").lines().last().unwrap().ends_with("--reset-then-reuse-values --set config.token="),
        "{}",
        world.read("log")
    );
    assert!(world.active_tokens() == [1] && !world.path("applied").exists(), "the Secret is used");
    let replaced = world.success("--install --wait 0s --new-token").await;
    assert!(
        replaced.errors.contains("a new one (id 2) is in the Secret agentk/agentk-token"),
        "{}",
        replaced.errors
    );
    assert!(replaced.errors.contains("revoke the former token, if no agentk uses it"), "{}", replaced.errors);
    let (code, error) = world.failure("--install --wait 0s --new-token").await;
    assert!(
        code == 64
            && error.contains("kas: token: the agent has 2 active tokens: kas-register-production (id 1)"),
        "{error}"
    );
    assert!(error.contains("/group/shop/-/clusters"), "{error}");
    world.gitlab.assert_no_violations();
}

#[tokio::test]
async fn dry_run_shows_all_steps_and_changes_nothing() {
    let world = World::new().await;
    let shown = world.success("--install --dry-run").await;
    for expected in [
        "cluster        the context shop-cluster",
        "chart          agentk 0.1.0",
        "agent          production would be registered",
        "config.yaml would be committed to the branch main",
        "token          one would be created, for the Secret agentk/agentk-token",
        "installation   the Helm release agentk/agentk would be installed",
        "connection     it would be waited for, at most 5m0s",
    ] {
        assert!(shown.errors.contains(expected), "{expected}: {}", shown.errors);
    }
    let log = world.read("log");
    assert!(!log.contains("apply") && !log.contains("upgrade") && !log.contains("create"), "{log}");
    let shown = world.success("--token-output t --dry-run --branch agents").await;
    assert!(shown.errors.contains("committed to the new branch agents"), "{}", shown.errors);
    assert!(shown.output.is_empty() && !world.path("t").exists(), "{}", shown.output);
    let state = world.gitlab.state();
    assert!(state.agents.is_empty() && state.agent_tokens.is_empty());
    drop(state);
    assert_eq!(world.configuration("main"), None);
}

#[tokio::test]
async fn refusal_of_gitlab_names_the_step_and_the_remedy() {
    let world = World::new().await;
    for (name, token) in [("wrong", "glpat-x"), ("read", "glpat-read"), ("dev", "glpat-dev")] {
        world.write(name, token);
    }
    for (options, code, expected) in [
        (
            "--token-file wrong",
            77,
            &["project: GitLab refuses the token (401: 401 Unauthorized)", "personal_access_tokens"][..],
        ),
        ("--token-file read", 77, &["project: the token lacks the scope api (403: "]),
        ("--project group/other", 64, &["project: GitLab has no project group/other"]),
        (
            "--token-file dev",
            77,
            &["agent: the holder of the token lacks the role Maintainer in group/shop (403: 403 Forbidden)"],
        ),
        ("--token-file absent", 64, &["--token-file absent: the file does not exist"]),
        ("--configuration wrong", 64, &["wrong:1:1"]),
    ] {
        let (exit, error) = world.failure(&format!("--token-output t {options}")).await;
        assert_eq!(exit, code, "{error}");
        for expected in expected {
            assert!(error.contains(expected), "{options}: {error}");
        }
    }
    assert!(world.gitlab.state().agents.is_empty() && !world.path("t").exists());
    let mut command = world.command("--token-output t");
    command.env("GITLAB_TOKEN", "glpat-x");
    assert_eq!(ended(&mut command).await.code, 0, "the file wins over the environment");
}

#[tokio::test]
async fn token_of_the_user_may_be_in_the_environment() {
    let world = World::new().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_kas"));
    let options = format!("--gitlab {} --project 30 --token-output t", world.gitlab.url());
    command.args(["agents", "register", "production"]).args(options.split(' ')).current_dir(&world.directory);
    command.env_clear();
    let without = ended(&mut command).await;
    assert!(
        without.code == 64 && without.errors.contains("or the variable GITLAB_TOKEN"),
        "{}",
        without.errors
    );
    let with = ended(command.env("GITLAB_TOKEN", "glpat-a")).await;
    assert_eq!(with.code, 0, "{}", with.errors);
}

#[tokio::test]
async fn gitlab_that_fails_is_not_the_fault_of_the_user() {
    let world = World::new().await;
    for (fault, expected) in [
        (Fault::Status(http::StatusCode::BAD_GATEWAY), "GitLab responded with 502 Bad Gateway"),
        (Fault::Garbage, "the response is not that of GitLab's API"),
        (Fault::Huge(5 << 20), "the response is too large"),
    ] {
        world.gitlab.set_fault(fault.clone());
        let (code, error) = world.failure("--token-output t").await;
        assert!(
            code == 69 && error.contains(expected) && error.contains("kas: project: http://127.0.0.1"),
            "{error}"
        );
    }
    assert!(world.gitlab.requests(Endpoint::ProjectDetails) > 4, "requests that only read are sent again");
    world.gitlab.set_fault(None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let moved = axum::Router::new().fallback(async || Redirect::permanent("https://gitlab.test/\u{202e}"));
    let _serving = AbortOnDropHandle::new(tokio::spawn(async { axum::serve(listener, moved).await }));
    let (code, error) = world.failure(&format!("--token-output t --gitlab {url}")).await;
    assert!(code == 69 && error.contains("GitLab redirects to https://gitlab.test/"), "{error}");
    assert!(error.contains("give that one as --gitlab") && !error.contains('\u{202e}'), "{error}");
    for url in [Some("grpcs://kas.test"), None] {
        world.change(|state| state.kas_url = url.map(str::to_owned));
        let (code, error) = world.failure("--token-output t").await;
        assert!(code == 64 && error.contains("with --kas"), "{error}");
    }
    world.success("--token-output t --kas wss://kas.test").await;
}

#[tokio::test]
async fn protected_branch_needs_a_merge_request() {
    let world = World::new().await;
    // A maintainer has registered the agent, and may push; the branch is protected for a developer.
    world.change(|state| state.users[0].developer = true);
    world.change_project(|project| project.protected = true);
    let agent = world.gitlab.state().projects[0].clone();
    world.change(|state| {
        state.add_agent(Agent { tokens: Vec::new(), project: agent, ..Agent::new(1, "production", "x") });
    });
    let (code, error) = world.failure("--token-output t").await;
    assert!(code == 77 && error.contains("configuration: the branch main is protected"), "{error}");
    assert!(error.contains("--branch NAME") && error.contains("--no-configuration"), "{error}");
    assert!(!world.path("t").exists(), "there is no token without a configuration");

    world.change(|state| state.users[0].developer = false);
    let merged = world.success("--token-output t --branch agents/production").await;
    let page = "/group/shop/-/merge_requests/new?merge_request%5Bsource_branch%5D=agents%2Fproduction";
    assert!(
        merged.errors.contains("next           merge the branch agents/production")
            && merged.errors.contains(page),
        "{}",
        merged.errors
    );
    assert!(world.configuration("main").is_none() && world.configuration("agents/production").is_some());
    let again = world.success("--token-output t --branch agents/production").await;
    assert!(again.errors.contains("config.yaml exists on the branch agents/production"), "{}", again.errors);
}

#[tokio::test]
async fn configuration_is_that_of_a_file_unless_there_is_one() {
    let world = World::new().await;
    world.change_project(|project| project.branches.clear());
    world.write("config.yaml", "ci_access: {projects: [{id: group/web}]}\n");
    world.success("--token-output t --configuration config.yaml").await;
    let committed = world.configuration("main");
    assert_eq!(
        committed.as_deref(),
        Some("ci_access: {projects: [{id: group/web}]}\n"),
        "the repository was empty"
    );
    world.write("config.yaml", "ci_access: {}\n");
    let second = world.success("--token-output t --configuration config.yaml").await;
    assert!(second.errors.contains("--configuration has no effect"), "{}", second.errors);
    assert_eq!(world.configuration("main"), committed);
    world.change_project(|project| project.branches.clear());
    world.success("--token-output t --no-configuration").await;
    assert_eq!(world.configuration("main"), None);
}

#[tokio::test]
async fn token_that_is_elsewhere_is_not_replaced_without_need() {
    let world = World::new().await;
    world.success("--token-output first").await;
    let (code, error) = world.failure("--token-output second").await;
    assert!(
        code == 64 && error.contains("token: the agent has an active token: kas-register-production (id 1)"),
        "{error}"
    );
    assert!(error.contains("the file second has none: --new-token"), "{error}");
    world.success("--token-output second --new-token").await;
    assert_eq!(world.active_tokens(), [1, 2]);
    let (code, error) = world.failure("--token-output third --new-token").await;
    assert!(code == 64 && error.contains("2 active tokens") && !world.path("third").exists(), "{error}");

    world.change(|state| state.agent_tokens.clear());
    let (code, error) = world.failure("--token-output first --new-token").await;
    assert!(code == 73 && error.contains("--token-output first: the file exists"), "{error}");
    let printed = world.success("--token-output - --new-token").await;
    assert!(printed.output.starts_with(SECRET) && printed.output.lines().count() == 1, "{}", printed.output);
    assert!(printed.errors.contains("--from-file token=/dev/stdin") && !printed.errors.contains(SECRET));
}

#[tokio::test]
async fn secret_of_another_agent_stays_as_it_is() {
    let world = World::new().await;
    for (secret, expected) in [
        ("found kas\n9\nhttps://other.test", "has the token of another agent (id 9 of https://other.test)"),
        ("found Helm\n\n", "belongs to a Helm release"),
        ("found \n\n", "does not name its agent, so that it may be that of another agent"),
    ] {
        world.write("secret", secret);
        for flags in ["--install --wait 0s", "--install --wait 0s --new-token"] {
            let (code, error) = world.failure(flags).await;
            assert!(code == 64 && error.contains(expected), "{secret}: {error}");
        }
    }
    assert!(world.gitlab.state().agents.is_empty(), "nothing is begun");
    fs::remove_file(world.path("secret")).unwrap();
    let replaced = world.success("--install --wait 0s --new-token --secret other").await;
    assert!(replaced.errors.contains("is in the Secret agentk/other"), "{}", replaced.errors);

    // The agent is known now, so that its Secret can be told to name it.
    world.write("secret", "found \n\n");
    let (code, error) = world.failure("--install --wait 0s").await;
    let remedy = format!(
        "kubectl annotate secret agentk-token --namespace agentk agent.gitlab.com/id=1 agent.gitlab.com/gitlab-url={}",
        world.gitlab.url()
    );
    assert!(code == 64 && error.contains(&remedy), "{error}");
}

/// The values of the release have its token, which no message has.
#[tokio::test]
async fn release_of_another_agent_stays_as_it_is() {
    let world = World::new().await;
    world.write("release", "");
    for values in [
        r#"{"config":{"secretName":"of-another","token":""}}"#,
        r#"{"config":{"secretName":"","token":"glagent-of-another"}}"#,
        r#"{"config":{}}"#,
    ] {
        world.write("values", values);
        let (code, error) = world.failure("--install --wait 0s").await;
        assert!(code == 64 && error.contains("does not use the Secret agentk-token"), "{values}: {error}");
        assert!(!error.contains("glagent"), "{error}");
    }
    world.write("values", "Error: release: not found");
    let (code, error) = world.failure("--install --wait 0s").await;
    assert!(code == 69 && error.contains("helm get values agentk does not show the values"), "{error}");
    assert!(world.gitlab.state().agents.is_empty(), "nothing is begun");
}

#[tokio::test]
async fn failure_of_the_cluster_leaves_no_unused_token() {
    let world = World::new().await;
    for (file, text, expected) in [
        ("no-chart", "", "chart: helm show chart failed: Error: repo deploy not found; run it in a checkout"),
        (
            "kubectl-fails",
            "Unable to connect to the server",
            "cluster: kubectl config current-context failed: Unable to connect",
        ),
    ] {
        world.write(file, text);
        let (code, error) = world.failure("--install").await;
        assert!(code == 69 && error.contains(expected), "{error}");
        assert!(world.gitlab.state().agents.is_empty() && world.configuration("main").is_none());
        fs::remove_file(world.path(file)).unwrap();
    }
    world.write("apply-fails", "");
    let (code, error) = world.failure("--install").await;
    assert!(code == 69 && error.contains("secret: kubectl apply failed: error: no "), "{error}");
    assert!(error.contains("the new token has been revoked") && !error.contains(SECRET), "{error}");
    assert!(world.active_tokens().is_empty());

    fs::remove_file(world.path("apply-fails")).unwrap();
    world.write("namespace", "Error from server (InternalError): etcdserver: request timed out\n");
    let (code, error) = world.failure("--install").await;
    assert!(code == 69 && error.contains("secret: kubectl create namespace failed: Error from"), "{error}");
    // A user of a namespace may not create one.
    world.write("namespace", "Error from server (Forbidden): namespaces is forbidden\n");
    world.write("upgrade-fails", "");
    let (code, error) = world.failure("--install").await;
    assert!(
        code == 69 && error.contains("installation: helm upgrade failed: Error: UPGRADE FAILED?[2J"),
        "{error}"
    );
    assert_eq!(world.active_tokens(), [3], "it is in the Secret, which the next run uses");
    fs::remove_file(world.path("bin/helm")).unwrap();
    let (code, error) = world.failure("--install").await;
    assert!(code == 64 && error.contains("there is no helm on the PATH"), "{error}");
}

#[tokio::test]
async fn agent_is_found_among_many() {
    let world = World::new().await;
    let project = world.gitlab.state().projects[0].clone();
    world.change(|state| {
        for id in 1..=250 {
            let name = if id == 230 { "production".to_owned() } else { format!("a-{id}") };
            state.add_agent(Agent {
                tokens: Vec::new(),
                project: project.clone(),
                ..Agent::new(id, &name, "x")
            });
        }
    });
    let ended = world.success("--token-output t").await;
    assert!(ended.errors.contains("production exists (id 230)"), "{}", ended.errors);
    assert_eq!(world.gitlab.state().agents.len(), 250);
}

#[tokio::test]
async fn command_waits_until_gitlab_has_seen_the_agent() {
    let world = World::new().await;
    let (code, error) = world.failure("--install --wait 100ms").await;
    assert!(code == 69 && error.contains("connection: GitLab has not seen the agent within 0s"), "{error}");
    assert!(error.contains("`helm -n agentk test agentk --logs`"), "{error}");

    world.write("secret", &format!("found kas\n1\n{}", world.gitlab.url()));
    world.change(|state| {
        state.agent_tokens[0].last_used_at = Some(SystemTime::now() - Duration::from_secs(3600))
    });
    let (code, _) = world.failure("--install --wait 100ms").await;
    assert_eq!(code, 69, "it was connected an hour ago");
    world.change(|state| state.agent_tokens[0].last_used_at = Some(SystemTime::now()));
    let connected = world.success("--install").await;
    assert!(connected.errors.contains("the agent is connected"), "{}", connected.errors);
    world.change(|state| state.agent_tokens[0].active = false);
    let (code, error) = world.failure("--install").await;
    assert!(code == 64 && error.contains("has been revoked: --new-token replaces it"), "{error}");
}

#[tokio::test]
async fn certificate_of_gitlab_may_be_that_of_an_own_authority() {
    let world = World::new().await;
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    world.write("gitlab.crt", &pair.cert.pem());
    let key = PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der());
    let config = rustls::ServerConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key.into())
        .unwrap();
    let (acceptor, gitlab) = (TlsAcceptor::from(Arc::new(config)), world.gitlab.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let _serving = AbortOnDropHandle::new(tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                gitlab.serve(stream).await;
            }
        }
    }));
    let options = format!("--token-output t --gitlab https://localhost:{port}");
    let (code, error) = world.failure(&options).await;
    assert!(code == 69 && error.contains("use --cacert FILE"), "{error}");
    let trusted = world.success(&format!("{options} --cacert gitlab.crt")).await;
    assert!(!trusted.errors.contains("not encrypted"), "{}", trusted.errors);
}

/// The whole way: a kas that asks this GitLab, and an agent with the token that the command has written.
#[tokio::test]
async fn agent_with_the_new_token_connects_to_kas() {
    let world = World::new().await;
    let mut workspace = Workspace::new().await;
    workspace.write("gitlab-secret", &world.gitlab.secret());
    let section = format!(
        "\ngitlab: {{address: '{}', authentication_secret_file: gitlab-secret}}\n",
        world.gitlab.url()
    );
    workspace.write("kas.yaml", &(workspace.read("kas.yaml") + &section));
    let kas = workspace.serve().await;
    let mut command = world.command(&format!("--kas ws://{} --token-output t --wait 30s", kas.agent));
    let registering = tokio::spawn(async move { ended(&mut command).await });
    let written = timeout(SOON, async {
        loop {
            let token = world.read("t");
            if token.ends_with('\n') {
                return token.trim().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    workspace.agent_token = written.await.expect("the token is written");
    let _agent = start_agent(&workspace, &kas);
    let ended = registering.await.unwrap();
    assert!(ended.code == 0 && ended.errors.contains("the agent is connected"), "{}", ended.errors);
}

/// The arguments of helm are those of the chart.
#[tokio::test]
async fn helm_renders_what_the_command_prints() {
    let Some(helm) = helm() else { return skipped("there is no helm") };
    let world = World::new().await;
    world.write("kas.crt", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n");
    world.write("more.yaml", "replicas: 3\n");
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/charts/agentk");
    let options = format!(
        "--token-output t --namespace tools --release shop --image r.test/agentk:7 --kas-cacert kas.crt --values more.yaml --chart {}",
        chart.display()
    );
    let script = world.success(&options).await.output;
    let (_, command) = script.split_once("\nhelm upgrade --install ").unwrap();
    let words = command.split_whitespace().filter(|word| *word != "\\");
    let rendered = Command::new(helm)
        .arg("template")
        .args(words)
        .args(["--kube-version", "1.34.0", "--skip-tests"])
        .current_dir(&world.directory)
        .output()
        .await
        .unwrap();
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    for expected in [
        "secretName: shop-token",
        "image: r.test/agentk:7",
        "wss://kas.test/-/kubernetes-agent/",
        "replicas: 3",
        "namespace: tools",
        "MIIB",
    ] {
        assert!(rendered.contains(expected), "{expected}: {rendered}");
    }
    assert!(!rendered.contains("kind: Secret"), "the Secret is not of the release");
}
