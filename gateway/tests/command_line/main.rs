//! Tests of the subcommands of the binary: check-config, token, kubeconfig, agents and others.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod documents;
mod gitlab_files;
mod hosts;
mod login;
mod manifest;
mod manifests;
mod packages;
mod process;
mod quickstart;
mod quickstart_scripts;
mod register;
mod rendering;
mod repositories;
mod workspace;

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    process::Stdio,
    time::Duration,
};

use agentk_core::{AgentToken, Services, upstream::ClientTlsConfig};
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::Value;
use testing::{
    gitlab::{Project, StandIn, User},
    process::Signal,
    skip::skipped,
};
use tokio::{
    process::Command,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use self::workspace::{Kas, SOON, Workspace, run_agent};

#[tokio::test]
async fn token_command_prints_matching_token_and_hash() {
    let workspace = Workspace::new().await;
    let mut hash =
        workspace.command("token hash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = hash.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, workspace.caller_token.as_bytes()).await.unwrap();
    drop(stdin);
    let output = timeout(SOON, hash.wait_with_output()).await.unwrap().unwrap();
    let hash = String::from_utf8(output.stdout).unwrap();
    assert!(workspace.read("identity.yaml").contains(hash.trim()), "{hash}");
}

#[tokio::test]
async fn check_config_takes_the_file_as_option_and_as_argument() {
    let workspace = Workspace::new().await;
    for arguments in ["check-config --config kas.yaml", "check-config kas.yaml"] {
        let good = "kas.yaml: good; 2 agents, 1 tokens of callers\n";
        assert_eq!(workspace.stdout(arguments).await, good, "{arguments}");
    }
}

#[tokio::test]
async fn check_config_checks_the_configurations_of_agents_that_are_files() {
    let workspace = Workspace::new().await;
    let identity = workspace.read("identity.yaml");
    workspace.write(
        "identity.yaml",
        &identity.replacen("name: production,", "name: production, configuration: {file: agent.yaml},", 1),
    );
    let check = async |text: Option<&str>| {
        if let Some(text) = text {
            workspace.write("agent.yaml", text);
        }
        workspace.failure("check-config kas.yaml").await
    };
    let (exit, text) = check(None).await;
    assert_eq!(exit, 64, "{text}");
    assert!(text.contains("agent.yaml: the file does not exist"), "{text}");
    let (exit, text) = check(Some("scope: {namespaces: [a]}\ngitop: {}\n")).await;
    assert_eq!(exit, 64, "{text}");
    assert!(text.contains("agent.yaml:2:1: ") && text.contains("gitop"), "{text}");

    workspace.write("agent.yaml", "container_scanning: {}\n");
    let output = workspace.run("check-config kas.yaml").await;
    assert!(output.status.success());
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.contains("agent.yaml: container_scanning has no effect"), "{warning}");
    assert_eq!(workspace.stdout("check-config --agent-configuration agent.yaml").await, "agent.yaml: good\n");
    workspace.write("agent.yaml", "gitops: {manifest_projects: [{id: a}, {id: a}]}\n");
    let (exit, text) = workspace.failure("check-config --agent-configuration agent.yaml").await;
    assert_eq!(exit, 64, "{text}");
    assert!(text.contains("a is listed twice"), "{text}");
}

#[tokio::test]
async fn upgrade_check_lists_what_a_newer_version_reads_in_another_way() {
    let workspace = Workspace::new().await;
    let config = workspace.read("kas.yaml") + "private_api: {listen: {address: '192.0.2.7:8155'}}\n";
    workspace.write("kas.yaml", &config);
    let text = workspace.stdout("upgrade-check --config kas.yaml").await;
    let expected = "kas.yaml:7:1: private_api.allow_plaintext: new in 0.2.0 with the default false: ";
    assert!(
        text.contains(expected) && text.ends_with("kas.yaml: accepted; 5 changes to look at\n"),
        "{text}"
    );

    workspace.write("kas.yaml", &(config + "removed: {}\n"));
    let output = workspace.run("upgrade-check --config kas.yaml").await;
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(64), false));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("kas: kas.yaml:8:1: removed: unknown field `removed`"), "{error}");
}

#[tokio::test]
async fn kubeconfig_is_readable_by_kubectl() {
    let workspace = Workspace::new().await;
    let arguments = "kubeconfig --config kas.yaml --agent 1 --token-file caller-token --caller me --namespace web \
                     --server https://kas.example.com:8154 --output kubeconfig";
    assert_eq!(workspace.stdout(arguments).await, "");
    let mode = fs::metadata(workspace.directory.path().join("kubeconfig")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let kubectl = ["config", "view", "--raw", "--output", "json", "--kubeconfig", "kubeconfig"];
    let Ok(view) = Command::new("kubectl").args(kubectl).current_dir(&workspace.directory).output().await
    else {
        return skipped("kubectl is missing");
    };
    assert!(view.status.success(), "{}", String::from_utf8_lossy(&view.stderr));
    let view: Value = serde_json::from_slice(&view.stdout).unwrap();
    assert_eq!(view["current-context"], "production");
    assert_eq!(view["contexts"][0]["name"], "production");
    let context = &view["contexts"][0]["context"];
    assert_eq!((&context["namespace"], &context["user"]), (&"web".into(), &"me@production".into()));
    assert_eq!(view["users"][0]["user"]["token"], workspace.caller_token);
    let cluster = &view["clusters"][0]["cluster"];
    assert_eq!(cluster["server"], "https://kas.example.com:8154/agents/production/kubernetes");
    let authority = cluster["certificate-authority-data"].as_str().unwrap();
    let authority = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, authority).unwrap();
    assert_eq!(
        String::from_utf8(authority).unwrap(),
        workspace.read("kas.crt").replace('\r', ""),
        "the self-signed certificate is its own authority"
    );
}

#[tokio::test]
async fn kubeconfig_with_a_login_names_the_claims_that_kas_needs() {
    let workspace = Workspace::new().await;
    let identity = workspace.read("identity.yaml")
        + "- {name: dev, oidc: {issuer: dex, claims: {groups: dev, hd: a}}, agents: [production], services: [kubernetes]}\n";
    workspace.write("identity.yaml", &identity);
    let config = workspace.read("kas.yaml");
    let arguments = "kubeconfig --config kas.yaml --agent 1 --exec dex --server https://kas";
    for (keys, expected) in [
        (
            "groups_claim: groups, username_claim: email",
            &["--claim=email", "--claim=groups", "--claim=hd"][..],
        ),
        ("username_claim: email, scopes: [openid, 'federated:id']", &["--scopes", "openid federated:id"]),
    ] {
        let issuer = format!("{{name: dex, issuer: 'https://dex.example.com', audiences: [kas], {keys}}}");
        workspace.write("kas.yaml", &format!("{config}oidc: {{issuers: [{issuer}]}}\n"));
        let text = workspace.stdout(&format!("{arguments} --login-arg=--device")).await;
        let kubeconfig: Value = serde_saphyr::from_str(&text).unwrap();
        let login = ["login", "--issuer", "https://dex.example.com", "--client-id", "kas"];
        let expected = [&login[..], expected, &["--device"]].concat();
        assert_eq!(kubeconfig["users"][0]["user"]["exec"]["args"], serde_json::json!(expected), "{text}");
    }
    for scopes in ["[]", "['']", "['a b']"] {
        let issuer =
            format!("{{name: dex, issuer: 'https://dex.example.com', audiences: [kas], scopes: {scopes}}}");
        workspace.write("kas.yaml", &format!("{config}oidc: {{issuers: [{issuer}]}}\n"));
        let (exit, text) = workspace.failure("check-config --config kas.yaml").await;
        assert_eq!(exit, 64, "{text}");
        assert!(text.contains("oidc.issuers[0].scopes: scopes are a list of names"), "{text}");
    }
}

#[tokio::test]
async fn invalid_kubeconfig_is_not_written() {
    let workspace = Workspace::new().await;
    workspace.write("strange-token", "strange");
    workspace.write("kubeconfig", "mine");
    for (arguments, code, expected) in [
        ("--agent production --token-file strange-token", 77, "not of a caller"),
        ("--agent production --token-file agent-token", 77, "the token is that of the agent production"),
        ("--agent production --token-file caller-token --caller you", 77, "of the caller me, not of you"),
        ("--agent staging --token-file caller-token", 77, "caller me may not use the agent staging"),
        ("--agent nowhere --token-file caller-token", 64, "there is no agent \"nowhere\" in identity.yaml"),
        ("--agent production --token-file absent", 64, "the token file absent: the file does not exist"),
        ("--agent production --token-file caller-token", 64, "--server is needed"),
        (
            "--agent production --token-file caller-token --server https://kas --certificate-authority kas.key",
            64,
            "kas.key: holds no PEM certificate",
        ),
        (
            "--agent 1 --token-file caller-token --server https://kas --output kubeconfig",
            73,
            "the file exists",
        ),
    ] {
        let (exit, text) = workspace.failure(&format!("kubeconfig --config kas.yaml {arguments}")).await;
        assert!(exit == code && text.contains(expected), "{arguments}: {exit} {text}");
        assert!(!text.contains(&workspace.caller_token) && !text.contains(&workspace.agent_token), "{text}");
    }
    assert_eq!(workspace.read("kubeconfig"), "mine");

    let service = workspace.read("identity.yaml").replace("services: [kubernetes]", "services: [prometheus]");
    workspace.write("identity.yaml", &service);
    let (_, text) =
        workspace.failure("kubeconfig --config kas.yaml --agent 1 --token-file caller-token").await;
    assert!(text.contains("caller me may not use the service kubernetes"), "{text}");
}

#[tokio::test]
async fn kubeconfig_server_defaults_to_the_config() {
    let workspace = Workspace::new().await;
    workspace.configure("127.0.0.1:8154", "127.0.0.1:0".parse().unwrap());
    let text = workspace.stdout("kubeconfig --config kas.yaml --agent 1 --token-file caller-token").await;
    assert!(text.contains("server: https://127.0.0.1:8154/agents/production/kubernetes\n"), "{text}");

    let arguments = "kubeconfig --config kas.yaml --agent 1 --token-file caller-token --server http://kas";
    let output = workspace.run(arguments).await;
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no token over plain http"), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("certificate-authority"), "{output:?}");
}

#[tokio::test]
async fn kubeconfig_takes_agent_and_namespace_from_the_environment() {
    let workspace = Workspace::new().await;
    let environment = |flags: &str| {
        format!(
            "kubeconfig --config kas.yaml --token-file caller-token --server https://kas --environment {flags}"
        )
    };
    let (exit, text) = workspace.failure(&environment("shop/web:live")).await;
    assert!(exit == 64 && text.contains("set the key environments.file"), "{text}");

    let output = workspace.run(&environment("live")).await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(64) && text.contains("write PROJECT:SLUG"), "{text}");

    workspace
        .write("kas.yaml", &(workspace.read("kas.yaml") + "\nenvironments: {file: environments.yaml}\n"));
    workspace.write(
        "environments.yaml",
        "environments:\n\
         - {id: 1, project: shop/web, slug: live, agents: [{agent: production, namespace: web}]}\n\
         - {id: 2, project: shop/web, slug: wide, agents: [{agent: '1', namespace: web-a}, {agent: '1', namespace: web-b}]}\n",
    );
    let text = workspace.stdout(&environment("shop/web:live")).await;
    assert!(text.contains("/agents/production/kubernetes\n") && text.contains("namespace: web\n"), "{text}");
    let text = workspace.stdout(&environment("shop/web:wide --namespace web-b")).await;
    assert!(text.contains("namespace: web-b\n"), "{text}");

    for (flags, expected) in [
        ("shop/web:dead", "there is no environment shop/web:dead in environments.yaml"),
        ("shop/web:wide", "choose one: --agent 1 --namespace web-a; --agent 1 --namespace web-b"),
        ("shop/web:live --agent staging", "not in this namespace of this agent"),
    ] {
        let (exit, text) = workspace.failure(&environment(flags)).await;
        assert!(exit == 64 && text.contains(expected), "{flags}: {exit} {text}");
    }
}

#[tokio::test]
async fn kubeconfig_for_an_agent_of_gitlab_has_its_id() {
    let workspace = Workspace::new().await;
    let command = |flags: &str| format!("kubeconfig --config kas.yaml --server https://kas {flags}");
    let caller = |agents: &str| {
        let text = workspace.read("identity.yaml");
        let (before, rest) = text.split_once("agents: [").unwrap();
        let after = rest.split_once(']').unwrap().1;
        workspace.write("identity.yaml", &format!("{before}agents: [{agents}]{after}"));
    };
    let with_gitlab = workspace.read("kas.yaml")
        + "\ngitlab: {address: 'https://gitlab.example.com', authentication_secret_file: secret}\n";
    caller("production, 'gitlab:42', 'gitlab:shop/**'");
    let (exit, text) = workspace.failure(&command("--agent 42 --token-file caller-token")).await;
    assert!(exit == 64 && text.contains("there is no agent \"42\""), "without GitLab: {text}");

    workspace.write("kas.yaml", &with_gitlab);
    for agent in ["42", "gitlab:42"] {
        let text = workspace.stdout(&command(&format!("--agent {agent} --token-file caller-token"))).await;
        assert!(text.contains("server: https://kas/agents/42/kubernetes\n"), "{text}");
        assert!(text.contains("current-context: gitlab-42\n"), "{text}");
    }
    let output = workspace.run(&command("--agent 43 --token-file caller-token")).await;
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && warning.contains("43 of GitLab is one of them"), "{warning}");

    caller("'gitlab:42'");
    let (exit, text) = workspace.failure(&command("--agent 43 --token-file caller-token")).await;
    assert!(exit == 77 && text.contains("may not use the agent 43 of GitLab"), "all entries are ids: {text}");

    caller("production");
    for (agent, code, expected) in [
        ("42", 77, "caller me may not use the agent 42 of GitLab"),
        ("gitlab:1", 64, "1 is an agent of the identity file, which wins over GitLab: write production"),
        ("gitlab:shop/web:prod", 64, "of an agent of GitLab, write the id"),
    ] {
        let arguments = command(&format!("--agent {agent} --token-file caller-token"));
        let (exit, text) = workspace.failure(&arguments).await;
        assert!(exit == code && text.contains(expected), "{agent}: {exit} {text}");
    }
}

#[tokio::test]
async fn kubeconfig_with_a_login_is_for_agents_of_gitlab_that_an_entry_may_name() {
    let workspace = Workspace::new().await;
    let config = workspace.read("kas.yaml")
        + "\ngitlab: {address: 'https://gitlab.example.com', authentication_secret_file: secret}\n\
           oidc: {issuers: [{name: dex, issuer: 'https://dex.example.com', audiences: [kas]}]}\n";
    workspace.write("kas.yaml", &config);
    for (agents, code, expected) in [
        ("'gitlab:42'", 0, ""),
        ("'gitlab:**'", 0, ""),
        ("'gitlab:shop/**', 'gitlab:42'", 0, ""),
        ("'gitlab:41', 'gitlab:shop/**'", 0, "42 of GitLab is one of them"),
        ("'gitlab:41'", 77, "no caller with oidc.issuer dex may use the service kubernetes of 42 of GitLab"),
    ] {
        let caller = format!(
            "{{name: dev, oidc: {{issuer: dex, claims: {{groups: dev}}}}, agents: [{agents}], services: [kubernetes]}}"
        );
        workspace.write("identity.yaml", &format!("callers: [{caller}]\n"));
        let output =
            workspace.run("kubeconfig --config kas.yaml --agent 42 --exec dex --server https://kas").await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && text.contains(expected), "{agents}: {text}");
        assert_eq!(
            text.contains("by projects or groups"),
            code == 0 && !expected.is_empty(),
            "{agents}: {text}"
        );
    }
}

#[tokio::test]
async fn kubeconfig_takes_agent_and_namespace_from_gitlab() {
    let workspace = Workspace::new().await;
    let command = |flags: &str| {
        format!("kubeconfig --config kas.yaml --gitlab-token-file pat --server https://kas {flags}")
    };
    workspace.write("pat", "glpat-a\n");
    let (exit, text) = workspace.failure(&command("--agent 7")).await;
    assert!(exit == 64 && text.contains("has no section gitlab"), "{text}");

    let gitlab = StandIn::start().await;
    let project = Project::new(30, "shop/web").with_environment(1, "live", "production", (7, "shop"));
    let mut empty = project.environments[0].clone();
    (empty.slug, empty.name, empty.place) = ("empty".to_owned(), "empty".to_owned(), None);
    let project = Project { environments: vec![project.environments[0].clone(), empty], ..project };
    gitlab.state().projects.push(project);
    gitlab.state().users.push(User::new(5, "alice").with_project("glpat-a", 30));
    workspace.write("gitlab-secret", &gitlab.secret());
    let section =
        format!("\ngitlab: {{address: '{}', authentication_secret_file: gitlab-secret}}\n", gitlab.url());
    workspace.write("kas.yaml", &(workspace.read("kas.yaml") + &section));
    let text = workspace.stdout(&command("--environment shop/web:live")).await;
    for expected in [
        "/agents/7/kubernetes\n",
        "namespace: shop\n",
        "token: pat:7:glpat-a\n",
        "current-context: gitlab-7\n",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let text = workspace.stdout(&command("--agent 7 --namespace other")).await;
    assert!(text.contains("namespace: other\n") && text.contains("pat:7:glpat-a"), "{text}");

    for (flags, code, expected) in [
        (
            "--environment shop/web:dead",
            64,
            "there is no environment shop/web:dead in GitLab at http://127.0.0.1",
        ),
        ("--environment shop/web:empty", 64, "no agent with a namespace for the environment shop/web:empty"),
        ("--environment shop/web:live --agent 8", 64, "not in this namespace of this agent"),
        ("--agent production", 64, "\"production\" is not the id of an agent of GitLab"),
    ] {
        let (exit, text) = workspace.failure(&command(flags)).await;
        assert!(exit == code && text.contains(expected), "{flags}: {exit} {text}");
    }
    gitlab.assert_no_violations();
    workspace.write("pat", "glpat-b\n");
    let (exit, text) = workspace.failure(&command("--environment shop/web:live")).await;
    assert!(exit == 77 && text.contains("GitLab refuses the token"), "{exit} {text}");
}

#[tokio::test]
async fn agents_command_lists_agents_of_running_kas() {
    let workspace = Workspace::new().await;
    let kas = workspace.serve().await;
    let (exit, text) = workspace.failure("agents --config kas.yaml").await;
    assert!(exit == 64 && text.contains("127.0.0.1:0") && text.contains("give kas a fixed one"), "{text}");

    workspace.configure("127.0.0.1:0", kas.observability);
    let never = workspace.stdout("agents --config kas.yaml").await;
    let states: Vec<_> = never.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(states, ["never", "never"], "{never}");

    let _agent = start_agent(&workspace, &kas);
    let connected = timeout(SOON, async {
        loop {
            let text = workspace.stdout("agents --config kas.yaml --output json").await;
            let listing: Value = serde_json::from_str(&text).unwrap();
            if listing["agents"][0]["tunnels"].as_array().unwrap().len() == 2 {
                return listing;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    let connected = connected.await.expect("the agent connects");
    let tunnel = &connected["agents"][0]["tunnels"][0];
    assert!(tunnel["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{tunnel}");

    let table = workspace.stdout("agents --config kas.yaml").await;
    let replica = &connected["replica"].as_str().unwrap()[..8];
    let expected = format!("1   production  connected  -     {replica}  2");
    assert!(table.lines().nth(1).unwrap().starts_with(&expected), "{table}");
    let wide = workspace.stdout("agents --config kas.yaml --output wide").await;
    assert_eq!(wide.lines().count(), 4, "the header, two tunnels, and the agent without tunnels: {wide}");
    let id = &connected["agents"][0]["tunnels"][0]["id"].as_str().unwrap()[..8];
    assert!(wide.contains(id), "{wide}");
}

#[tokio::test]
async fn invalid_command_line_has_exit_code_64() {
    let workspace = Workspace::new().await;
    for arguments in ["serve", "serv", "agents --colour", "check-config"] {
        let output = workspace.run(arguments).await;
        assert_eq!((output.status.code(), output.stdout.len()), (Some(64), 0), "{arguments}");
        assert!(!output.stderr.is_empty(), "{arguments}");
    }
    assert!(workspace.stdout("--version").await.starts_with("kas "));
}

#[tokio::test]
async fn missing_identity_file_error_names_its_key() {
    let workspace = Workspace::new().await;
    fs::remove_file(workspace.directory.path().join("identity.yaml")).unwrap();
    let expected = "kas: kas.yaml:6:18: identity.file: identity.yaml: the file does not exist\n";
    assert_eq!(workspace.failure("check-config kas.yaml").await, (64, expected.to_owned()));
}

#[tokio::test]
async fn agents_command_without_kas_is_an_error() {
    let workspace = Workspace::new().await;
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    workspace.configure("127.0.0.1:0", unused);
    let (exit, text) = workspace.failure("agents --config kas.yaml").await;
    assert!(exit == 69 && text.contains(&unused.to_string()) && text.contains("is kas running?"), "{text}");
    assert!(text.contains("observability.listen.address of kas.yaml"), "{text}");

    let (exit, text) = workspace.failure("agents --config absent.yaml").await;
    assert_eq!((exit, &*text), (64, "kas: absent.yaml: the file does not exist\n"));
}

#[tokio::test]
async fn identity_file_that_is_a_pipe_is_reported_without_delay() {
    let workspace = Workspace::new().await;
    let mut kas = workspace.serve().await;
    assert_eq!(kas.get("/readiness").await, "ready\n");
    let (file, text) = (workspace.directory.path().join("identity.yaml"), workspace.read("identity.yaml"));
    fs::remove_file(&file).unwrap();
    mkfifoat(CWD, &file, Mode::RUSR).unwrap();
    let problem = "identity.yaml: cannot be read: it is a named pipe, and only regular files are read\n";
    kas.wait_until("/readiness", |body| body.starts_with("ready, degraded\n") && body.ends_with(problem))
        .await;
    let refused = "kas_file_refused_since_timestamp_seconds{file=\"identity.file\"} ";
    kas.wait_until("/metrics", |body| body.contains(refused) && !body.contains(&format!("{refused}0\n")))
        .await;

    fs::remove_file(&file).unwrap();
    workspace.write("identity.yaml", &text);
    kas.wait_until("/readiness", |body| body == "ready\n").await;
    fs::remove_file(&file).unwrap();
    mkfifoat(CWD, &file, Mode::RUSR).unwrap();
    kas.wait_until("/readiness", |body| body.starts_with("ready, degraded\n")).await;
    kas.signal(Signal::TERM);
    let status = timeout(SOON, kas.child.wait()).await.expect("kas stops").unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn sighup_keeps_kas_running_and_sigquit_ends_it_at_once() {
    let workspace = Workspace::new().await;
    let mut kas = workspace.serve().await;
    workspace.write("identity.yaml", "agents: 7");
    kas.signal(Signal::HUP);
    kas.wait_until("/readiness", |body| body.contains("identity.file since")).await;
    assert!(kas.child.try_wait().unwrap().is_none());
    kas.signal(Signal::QUIT);
    let status = timeout(SOON, kas.child.wait()).await.expect("kas ends").unwrap();
    assert_eq!(status.signal(), Some(3));
}

#[tokio::test]
async fn expired_certificate_is_a_warning_and_a_metric() {
    let workspace = Workspace::new().await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    (params.not_before, params.not_after) =
        (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 1, 1));
    workspace.write("kas.crt", &params.self_signed(&key).unwrap().pem());
    workspace.write("kas.key", &key.serialize_pem());
    let output = workspace.run("check-config kas.yaml").await;
    assert!(output.status.success());
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(
        warning.starts_with("kas: warning: kas.yaml:4:")
            && warning.contains("agent.kubernetes_api.listen.certificate_file: kas.crt: ")
            && warning.ends_with("the certificate expired at 2021-01-01T00:00:00Z\n"),
        "{warning}"
    );

    let kas = workspace.serve().await;
    let metric = "kas_certificate_expiration_timestamp_seconds{file=\"agent.kubernetes_api.listen.certificate_file\"} \
                  1609459200\n";
    kas.wait_until("/metrics", |body| body.contains(metric)).await;
}

#[tokio::test]
async fn each_listener_and_each_followed_file_has_its_series() {
    let workspace = Workspace::new().await;
    workspace.write("secret", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n");
    workspace.write("disabled.yaml", "rules: []\n");
    workspace.write("environments.yaml", "environments: []\n");
    let pair = "address: '127.0.0.1:0', certificate_file: kas.crt, key_file: kas.key";
    let secret = "authentication_secret_file: secret";
    let text = format!(
        "agent: {{listen: {{{pair}}}, kubernetes_api: {{listen: {{{pair}}}}}}}\n\
         private_api: {{listen: {{{pair}, ca_certificate_file: kas.crt, {secret}}}}}\n\
         api: {{listen: {{{pair}, {secret}}}}}\nobservability: {{listen: {{address: '127.0.0.1:0'}}}}\n\
         identity: {{file: identity.yaml}}\ndisabled: {{file: disabled.yaml}}\n\
         environments: {{file: environments.yaml}}\n"
    );
    workspace.write("kas.yaml", &text);
    let kas = workspace.serve().await;
    let listeners = ["agent.listen", "agent.kubernetes_api.listen", "private_api.listen", "api.listen"];
    let certificates = listeners.map(|listener| format!("{listener}.certificate_file"));
    let others = [
        "private_api.listen.ca_certificate_file",
        "private_api.listen.authentication_secret_file",
        "api.listen.authentication_secret_file",
        "identity.file",
        "disabled.file",
        "environments.file",
    ];
    for file in &certificates {
        let expiration = format!("kas_certificate_expiration_timestamp_seconds{{file=\"{file}\"}} ");
        kas.wait_until("/metrics", |body| body.contains(&expiration)).await;
    }
    let metrics = kas.get("/metrics").await;
    for file in certificates.iter().map(String::as_str).chain(others) {
        let accepted = format!("kas_file_refused_since_timestamp_seconds{{file=\"{file}\"}} 0\n");
        assert!(metrics.contains(&accepted), "{file}: {metrics}");
    }
}

#[tokio::test]
async fn manual_and_completion_are_printed() {
    let workspace = Workspace::new().await;
    workspace.stdout("man --directory manual").await;
    for page in [
        "kas",
        "kas-serve",
        "kas-check-config",
        "kas-agents",
        "kas-agents-register",
        "kas-kubeconfig",
        "kas-token-new",
    ] {
        assert!(workspace.read(&format!("manual/{page}.1")).contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(!workspace.directory.path().join("manual/kas-man.1").exists(), "the command man is hidden");
    assert!(workspace.stdout("man").await.contains(".TH kas 1"));
    assert!(workspace.stdout("completion bash").await.contains("--token-file"));
}

#[tokio::test]
async fn schema_of_the_configuration_is_that_of_the_chart() {
    let schema = Workspace::new().await.stdout("config-schema").await;
    let mut schema: Value = serde_json::from_str(&schema).unwrap();
    let keys = schema.as_object_mut().unwrap();
    assert_eq!(keys.remove("$schema").unwrap(), "http://json-schema.org/draft-07/schema#");
    assert_eq!(keys.remove("title").unwrap(), "kas.yaml");
    let chart = include_str!("../../../deploy/charts/kas/values.schema.json");
    let chart: Value = serde_json::from_str(chart).unwrap();
    assert!(chart["properties"]["customConfig"] == schema, "run `make charts-update`");
}

#[tokio::test]
async fn redis_command_prints_the_documented_records() {
    let text = Workspace::new().await.stdout("redis-schema").await;
    assert!(text.lines().count() > 5 && include_str!("../../../docs/redis.md").contains(&text), "{text}");
}

/// Runs an agent in this process.
fn start_agent(workspace: &Workspace, kas: &Kas) -> AbortOnDropHandle<()> {
    let services = Services::new().with_fn("kubernetes", async |_: http::Request<tunnel::Body>| {
        http::Response::new(tunnel::Body::empty())
    });
    let token = AgentToken::value(workspace.agent_token.clone());
    run_agent(&format!("ws://{}", kas.agent), token, ClientTlsConfig::default(), services)
}
