//! kustomize and helm, as kas runs them: with limits, and without an environment, a network and a credential.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use proto::{
    AgentId,
    agent_configuration::gitops::{Helm, ManifestProject},
};
use render::{
    FileTree, RenderErrorKind, RenderSettings, Renderer, Share, TargetCluster,
    limits::{NETWORK_STAYS, can_take_network_away},
    plan::{Job, Tool},
};
use tempfile::TempDir;
use testing::skip::{program_path, skipped};

/// The most bytes of manifests in these tests.
const MAX_BYTES: usize = 1 << 20;

fn settings() -> RenderSettings {
    RenderSettings {
        kustomize: "kustomize".into(),
        helm: "helm".into(),
        // Also the limit of CPU time. Programs wait for a machine that is busy.
        timeout: Duration::from_secs(600),
        max_memory: 512 << 20,
        allow_network: false,
    }
}

fn share() -> Share {
    Share { agent: AgentId(1), project: "group/shop".to_owned() }
}

fn kas() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_kas"))
}

/// Writes a program.
fn write_script(file: &Path, script: &str) {
    fs::write(file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the settings with the real programs, or skips the test.
fn settings_or_skip(tool: Tool) -> Option<RenderSettings> {
    let Some(program) = program_path(tool.name()) else {
        skipped(&format!("there is no {}", tool.name()));
        return None;
    };
    Some(match tool {
        Tool::Kustomize => RenderSettings { kustomize: program, ..settings() },
        Tool::Helm => RenderSettings { helm: program, ..settings() },
    })
}

async fn render(
    settings: RenderSettings,
    tool: Tool,
    project: &ManifestProject,
    files: &[(&str, &str)],
) -> Result<String, String> {
    render_for(TargetCluster::unknown(), settings, tool, project, files).await
}

async fn render_for(
    cluster: &TargetCluster,
    settings: RenderSettings,
    tool: Tool,
    project: &ManifestProject,
    files: &[(&str, &str)],
) -> Result<String, String> {
    let renderer = Renderer::new(settings, kas());
    let tree: FileTree = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).into())).collect();
    let job = Job { tool, directory: "prod".to_owned() };
    let rendered = renderer.render(share(), project, cluster, &job, &tree, MAX_BYTES).await;
    rendered
        .map(|rendering| String::from_utf8(rendering.manifests.to_vec()).unwrap())
        .map_err(|error| error.to_string())
}

/// Renders with a script in place of kustomize.
async fn run_script(script: &str, settings: RenderSettings) -> Result<String, String> {
    let directory = TempDir::new().unwrap();
    let program = directory.path().join("kustomize");
    write_script(&program, script);
    let settings = RenderSettings { kustomize: program, ..settings };
    render(settings, Tool::Kustomize, &ManifestProject::default(), &[("prod/kustomization.yaml", "")]).await
}

/// Returns a chart with one template.
fn chart(template: &str) -> [(&'static str, String); 2] {
    let chart = "apiVersion: v2\nname: shop\nversion: 1.0.0\n".to_owned();
    [("prod/Chart.yaml", chart), ("prod/templates/a.yaml", template.to_owned())]
}

async fn render_chart(settings: RenderSettings, template: &str) -> Result<String, String> {
    let chart = chart(template);
    let files: Vec<_> = chart.iter().map(|(path, text)| (*path, &**text)).collect();
    render(settings, Tool::Helm, &ManifestProject::default(), &files).await
}

#[tokio::test]
async fn overlay_of_kustomize_is_built_from_its_base() {
    let Some(settings) = settings_or_skip(Tool::Kustomize) else { return };
    let files = [
        ("prod/kustomization.yaml", "resources: [../base]\nnamePrefix: prod-\n"),
        ("base/kustomization.yaml", "resources: [a.yaml]\n"),
        ("base/a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"),
    ];
    let project = ManifestProject::default();
    let rendered = render(settings.clone(), Tool::Kustomize, &project, &files).await.unwrap();
    assert!(rendered.contains("name: prod-a"), "{rendered}");
    let error = render(settings, Tool::Kustomize, &project, &files[..2]).await.unwrap_err();
    assert!(error.starts_with("prod (kustomize build): kustomize failed (exit status: 1): "), "{error}");
    assert!(error.contains("base/a.yaml") && !error.contains("/tmp"), "{error}");
}

#[tokio::test]
async fn chart_of_helm_is_rendered_with_its_values() {
    let Some(settings) = settings_or_skip(Tool::Helm) else { return };
    let values = serde_json::json!({"two": 2}).as_object().unwrap().clone();
    let helm = Helm { release_name: None, values_files: vec!["env.yaml".to_owned()], values };
    let project = ManifestProject {
        helm: Some(helm),
        default_namespace: "shop".to_owned(),
        ..ManifestProject::default()
    };
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}\n\
                    data: {a: '{{ .Values.one }}{{ .Values.two }}'}\n";
    let [chart, template] = chart(template);
    let files = [(chart.0, &*chart.1), (template.0, &*template.1), ("env.yaml", "{one: 1, two: 1}")];
    let rendered = render(settings.clone(), Tool::Helm, &project, &files).await.unwrap();
    assert!(rendered.contains("metadata: {name: prod, namespace: shop}\ndata: {a: '12'}"), "{rendered}");
    let broken = "apiVersion: v2\nname: shop\nversion: 1.0.0\ndependencies: [{name: db, version: 1.0.0, repository: 'https://example.com'}]\n";
    let error = render(settings, Tool::Helm, &project, &[("prod/Chart.yaml", broken)]).await.unwrap_err();
    assert!(error.contains("db") || error.contains("env.yaml"), "{error}");
}

/// Each replica of kas renders by itself: passwords would change without a commit.
#[tokio::test]
async fn chart_whose_renderings_differ_is_refused_with_the_object_and_the_field() {
    let Some(settings) = settings_or_skip(Tool::Helm) else { return };
    for function in ["randAlphaNum 20", "uuidv4", "now | unixEpoch", "(genCA \"a\" 1).Key | sha256sum"] {
        let template = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: pw}}\nstringData: {{a: same, password: {{{{ {function} | quote }}}}}}\n"
        );
        let error = render_chart(settings.clone(), &template).await.unwrap_err();
        let expected = "prod (helm template): two renderings of the same commit differ in data.password of Secret pw, which would change \
                        without a commit";
        assert!(error.starts_with(expected) && error.contains("allow_unstable_rendering: true"), "{error}");
    }
}

#[tokio::test]
async fn unstable_fields_that_the_project_allows_are_written_once() {
    let Some(settings) = settings_or_skip(Tool::Helm) else { return };
    let project = ManifestProject { allow_unstable_rendering: true, ..ManifestProject::default() };
    let renderer = Renderer::new(settings, kas());
    let job = Job { tool: Tool::Helm, directory: "prod".to_owned() };
    let rendered = async |name: &str| {
        let template = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ndata: {{a: Yg==, b: {{{{ randAlphaNum 20 | b64enc }}}}}}\n"
        );
        let tree: FileTree =
            chart(&template).into_iter().map(|(path, text)| (path.to_owned(), text.into())).collect();
        renderer.render(share(), &project, TargetCluster::unknown(), &job, &tree, MAX_BYTES).await
    };
    let first = rendered("pw").await.unwrap();
    let unstable = serde_json::to_value(&first.unstable).unwrap();
    assert_eq!(unstable, serde_json::json!([{"kinds": ["Secret."], "names": ["pw"], "paths": ["data.b"]}]));
    assert_eq!(rendered("pw").await.unwrap(), first, "it is rendered once for all agents");
    let error = rendered("pw-{{ randAlpha 9 | lower }}").await.unwrap_err().to_string();
    assert!(error.contains("only one of them has the object Secret pw-"), "{error}");
}

/// helm itself assumes Kubernetes 1.20 with the API groups of its own.
#[tokio::test]
async fn chart_is_rendered_for_the_version_and_the_api_of_the_cluster() {
    let Some(settings) = settings_or_skip(Tool::Helm) else { return };
    let chart = "apiVersion: v2\nname: shop\nversion: 1.0.0\nkubeVersion: '>=1.30.0-0'\n";
    let template = "version: {{ .Capabilities.KubeVersion }}\n\
                    monitor: {{ .Capabilities.APIVersions.Has \"monitoring.coreos.com/v1/ServiceMonitor\" }}\n";
    let files = [("prod/Chart.yaml", chart), ("prod/templates/a.yaml", template)];
    let rendered = async |version: &str, api: &[&str]| {
        let api = api.iter().map(|&version| version.to_owned()).collect();
        let cluster = TargetCluster::new(Some(version.to_owned()), api, Vec::new());
        render_for(&cluster, settings.clone(), Tool::Helm, &ManifestProject::default(), &files).await
    };
    let monitoring = ["monitoring.coreos.com/v1", "monitoring.coreos.com/v1/ServiceMonitor"];
    let with = rendered("v1.37.0", &monitoring).await.unwrap();
    assert!(with.contains("version: v1.37.0\nmonitor: true"), "{with}");
    let without = rendered("v1.31.4-gke.100", &["v1"]).await.unwrap();
    // helm removes the suffix from 3.18 on.
    assert!(without.contains("version: v1.31.4") && without.contains("\nmonitor: false"), "{without}");
    let old = rendered("v1.29.3+k3s1", &[]).await.unwrap_err();
    assert!(old.contains("which is incompatible with Kubernetes v1.29.3"), "{old}");
}

/// `helm --values` is a list with commas: the second file would be one of kas' machine.
#[tokio::test]
async fn values_file_with_a_comma_is_one_file_of_the_commit() {
    let Some(settings) = settings_or_skip(Tool::Helm) else { return };
    let outside = TempDir::new().unwrap();
    let secret = outside.path().join("kas.yaml");
    fs::write(&secret, "stolen: secret").unwrap();
    let name = format!("v.yaml,{}", secret.display());
    let [chart, template] = chart("a: {{ .Values | toJson }}\n");
    let files = [(chart.0, &*chart.1), (template.0, &*template.1), ("v.yaml", "one: 1"), (&*name, "two: 2")];
    let rendered = |values_files: &[&str]| {
        let values_files = values_files.iter().map(|&file| file.to_owned()).collect();
        let helm = Helm { values_files, ..Helm::default() };
        let project = ManifestProject { helm: Some(helm), ..ManifestProject::default() };
        let settings = settings.clone();
        async move { render(settings, Tool::Helm, &project, &files).await.unwrap() }
    };
    let both = rendered(&["v.yaml", &name]).await;
    assert!(both.contains(r#"a: {"one":1,"two":2}"#), "{both}");
    let one = rendered(&[&name]).await;
    assert!(one.contains(r#"a: {"two":2}"#), "{one}");
}

/// The templates try to read the environment, files and the network of kas, and the cluster.
#[tokio::test]
async fn chart_sees_nothing_of_the_machine() {
    let Some(settings) = settings_or_skip(Tool::Helm) else { return };
    let seen = r#"a: "{{ .Files.Get "/etc/passwd" }}{{ .Files.Get "../../../etc/passwd" }}{{ getHostByName "localhost" }}{{ lookup "v1" "Secret" "" "" }}""#;
    assert!(render_chart(settings.clone(), seen).await.unwrap().contains(r#"a: "map[]""#));
    for (template, expected) in [
        (r#"{{ env "HOME" }}"#, "function \"env\" not defined"),
        ("{{ range $i, $_ := until 100000000 }}{{ $i }}{{ end }}", "needs more memory than 512 MiB"),
        (r#"{{ repeat 100000000 "bomb" }}"#, "needs more memory than 512 MiB"),
        (r#"{{ define "a" }}{{ include "a" . }}{{ end }}{{ include "a" . }}"#, "error calling include"),
    ] {
        let error = render_chart(settings.clone(), template).await.unwrap_err();
        assert!(error.contains(expected) && error.len() < 2000, "{template}: {error}");
    }
}

#[tokio::test]
async fn program_has_no_environment_and_no_network() {
    let seen = run_script(
        "/usr/bin/env; echo net; /bin/cat /proc/net/dev; echo limits; ulimit -t; ulimit -n; ulimit -d; /usr/bin/nice",
        settings(),
    )
    .await
    .unwrap();
    let (environment, rest) = seen.split_once("net\n").unwrap();
    for line in environment.lines() {
        let (name, _) = line.split_once('=').unwrap();
        let known =
            ["HOME", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "GOMEMLIMIT", "PWD", "OLDPWD", "_", "SHLVL"];
        assert!(known.contains(&name), "{line}");
    }
    let own = std::process::Command::new("nice").output().unwrap().stdout;
    let own: i32 = String::from_utf8(own).unwrap().trim().parse().unwrap();
    let niceness = (own + 10).min(19).to_string();
    let (network, limits) = rest.split_once("limits\n").unwrap();
    let interfaces = network.lines().skip(2).count();
    // A container may not allow another network. There must be one in CI.
    let alone = std::process::Command::new("unshare").args(["--user", "--net", "true"]).status();
    if alone.is_ok_and(|status| status.success()) {
        assert!(interfaces <= 1 && !network.contains("eth"), "{network}");
    } else {
        skipped("this machine allows no network namespace");
    }
    assert_eq!(limits.lines().collect::<Vec<_>>(), ["600", "256", "524288", &*niceness]);
}

/// Many containers allow no network namespace, but the filter of system calls.
#[tokio::test]
async fn program_has_a_filter_of_system_calls() {
    let status =
        run_script("/bin/grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status", settings()).await.unwrap();
    assert_eq!(status.split_whitespace().collect::<Vec<_>>(), ["NoNewPrivs:", "1", "Seccomp:", "2"]);
    assert!(can_take_network_away(&kas()).unwrap());
}

#[tokio::test]
async fn program_that_would_have_a_network_does_not_run() {
    let directory = TempDir::new().unwrap();
    let (limiter, program) = (directory.path().join("limiter"), directory.path().join("kustomize"));
    write_script(
        &limiter,
        &format!("case \"$*\" in *--allow-network*) exec echo allowed;; esac; exit {NETWORK_STAYS}"),
    );
    write_script(&program, "");
    assert!(!can_take_network_away(&limiter).unwrap());
    let job = Job { tool: Tool::Kustomize, directory: "prod".to_owned() };
    let tree = FileTree::from([("prod/kustomization.yaml".to_owned(), Vec::new())]);
    let rendered = async |allow_network: bool| {
        let settings = RenderSettings { kustomize: program.clone(), allow_network, ..settings() };
        let renderer = Renderer::new(settings, limiter.clone());
        let project = ManifestProject::default();
        renderer.render(share(), &project, TargetCluster::unknown(), &job, &tree, MAX_BYTES).await
    };
    let error = rendered(false).await.unwrap_err();
    assert_eq!(error.kind, RenderErrorKind::NetworkStays);
    let expected = "prod (kustomize build): kas does not run kustomize, because its kernel allows neither a network namespace nor a filter";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(error.to_string().contains("agent.gitops.render.allow_network: true"), "{error}");
    assert_eq!(&*rendered(true).await.unwrap().manifests, b"allowed\n");
}

/// Each agent, and each look at a commit, would run the program again.
#[tokio::test]
async fn failure_of_a_program_is_remembered() {
    let directory = TempDir::new().unwrap();
    let (program, runs) = (directory.path().join("kustomize"), directory.path().join("runs"));
    write_script(&program, &format!("echo run >> {}; echo 'Error: no' >&2; exit 1", runs.display()));
    let renderer = Renderer::new(RenderSettings { kustomize: program, ..settings() }, kas());
    let job = Job { tool: Tool::Kustomize, directory: "prod".to_owned() };
    let render = async |content: &str, agent: u64| {
        let tree = FileTree::from([("prod/kustomization.yaml".to_owned(), content.into())]);
        let share = Share { agent: AgentId(agent), ..share() };
        let project = ManifestProject::default();
        renderer.render(share, &project, TargetCluster::unknown(), &job, &tree, MAX_BYTES).await.unwrap_err()
    };
    let first = render("a", 1).await;
    assert_eq!((render("a", 1).await, render("a", 2).await), (first.clone(), first));
    assert_eq!(fs::read_to_string(&runs).unwrap().lines().count(), 1);
    render("b", 1).await;
    assert_eq!(fs::read_to_string(&runs).unwrap().lines().count(), 2, "another commit is tried at once");
}

#[tokio::test]
async fn program_that_takes_too_much_is_ended() {
    let brief = RenderSettings { timeout: Duration::from_millis(300), ..settings() };
    let error = run_script("/bin/sleep 600", brief).await.unwrap_err();
    assert_eq!(error, "prod (kustomize build): kustomize did not finish within 300ms");
    let error = run_script("/usr/bin/yes bomb", settings()).await.unwrap_err();
    assert_eq!(error, "prod (kustomize build): kustomize printed more than 1 MiB");
    let error = run_script("ulimit -t 1; while :; do :; done", settings()).await.unwrap_err();
    assert!(error.contains("kustomize was killed: it used the CPU") || error.contains("SIGXCPU"), "{error}");
    let absent = RenderSettings { kustomize: "/absent/kustomize".into(), ..settings() };
    let files = [("prod/kustomization.yaml", "")];
    let error = render(absent, Tool::Kustomize, &ManifestProject::default(), &files).await;
    assert_eq!(
        error.unwrap_err(),
        "kas has no kustomize, which prod needs: install kustomize beside kas, or set agent.gitops.render.kustomize to its path"
    );
}

/// An agent that disconnects must not leave programs behind.
#[tokio::test]
async fn dropped_render_kills_the_program_with_its_children() {
    let directory = TempDir::new().unwrap();
    let pids = directory.path().join("pids");
    let script = format!("/bin/sleep 600 & echo $! $$ > {}.new; /bin/mv {0}.new {0}; wait", pids.display());
    let running = tokio::spawn(async move { run_script(&script, settings()).await });
    let text = loop {
        match fs::read_to_string(&pids) {
            Ok(text) => break text,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    for pid in text.split_whitespace() {
        let state = format!("/proc/{pid}/stat");
        // It is gone, or nobody has read its exit status yet.
        while fs::read_to_string(&state).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::task::yield_now().await;
        }
    }
}

/// The kernel ends a program with SIGKILL when the memory of the pod is exhausted.
#[tokio::test]
async fn program_that_was_killed_names_memory_and_time() {
    let error = run_script("kill -9 $$", settings()).await.unwrap_err();
    assert!(error.contains("kustomize was killed: it used the CPU for more than 600 s"), "{error}");
    assert!(error.contains("agent.gitops.render.max_memory"), "{error}");
}
