//! The binary: a bad configuration is one line and exit code 64, before anything is dialled or bound.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

const KUBECONFIG: &str = "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
    clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}";

/// Runs agentk in `directory`, with a token in its environment if there is one.
fn agentk(directory: &Path, arguments: &[&str], token: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agentk"));
    command.env_clear().current_dir(directory).args(arguments);
    if let Some(token) = token {
        command.env("AGENTK_TOKEN", token);
    }
    command.output().expect("agentk runs")
}

#[test]
fn a_bad_configuration_is_one_line_that_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("token"), "secret\n").unwrap();
    fs::write(directory.path().join("empty"), "\n").unwrap();
    fs::write(directory.path().join("config"), KUBECONFIG).unwrap();
    let policy = "rules:\n- name: a\n  action: allow\n  verbs: [ read ]\n  services: [kubernetes]\n";
    fs::write(directory.path().join("policy"), policy).unwrap();
    let kas = ["--kas-address", "ws://127.0.0.1:1"];
    for (arguments, token, expected) in [
        (&[][..], None, "--token-file"),
        (&["--token-file", "token"], Some("secret"), "there are two agent tokens"),
        (&["--token-file", "absent"], None, "cannot read the token file absent: No such file"),
        (&["--token-file", "empty"], None, "the token file empty is empty"),
        (&["--token-file", "token"], None, "no Kubernetes API is configured"),
        (&["--token-file", "token", "--kubeconfig", "absent"], None, "check --kubeconfig"),
        (&["--token-file", "token", "--kubeconfig", "token"], None, "token:1: "),
        (&["--kubeconfig", "config", "--log-level", "loud=="], Some("secret"), "--log-level"),
        (
            &["--kubeconfig", "config", "--otlp-endpoint", "https://c", "--otlp-ca-cert-file", "absent"],
            Some("secret"),
            "--otlp-ca-cert-file: absent: the file does not exist",
        ),
        (
            &["--kubeconfig", "config", "--otlp-endpoint", "http://c", "--otlp-token-file", "empty"],
            Some("secret"),
            "--otlp-token-file: empty: holds no token",
        ),
        (
            &["--kubeconfig", "config", "--otlp-token-file", "token"],
            Some("secret"),
            "--otlp-token-file has no effect without --otlp-endpoint",
        ),
        (
            &["--kubeconfig", "config", "--policy-file", "absent"],
            Some("secret"),
            "absent: the file does not exist",
        ),
        (
            &["--kubeconfig", "config", "--policy-file", "policy"],
            Some("secret"),
            "policy:4:12: rules[0].verbs[0]: not a verb",
        ),
        (
            &["--kas-address", "wss://kas", "--kas-ca-cert-file", "absent"],
            Some("secret"),
            "--kas-ca-cert-file: cannot read absent",
        ),
        (
            &[
                "--kubeconfig",
                "config",
                "--prometheus-url",
                "https://p",
                "--prometheus-ca-cert-file",
                "absent",
            ],
            Some("secret"),
            "--prometheus-ca-cert-file: cannot read absent",
        ),
        (
            &["--prometheus-url", "http://a", "--prometheus-url", "http://b"],
            Some("secret"),
            "--prometheus-url: there are two for the service prometheus",
        ),
        (
            &["--prometheus-url", "a=http://a", "--prometheus-token-file", "b=token"],
            Some("secret"),
            "--prometheus-token-file: there is no --prometheus-url for the service prometheus.b",
        ),
        (
            &["--prometheus-url", "a=http://a", "--prometheus-token-file", "a=empty"],
            Some("secret"),
            "--prometheus-token-file: the token in empty is empty",
        ),
        (
            &["--prometheus-url", "a=http://a", "--prometheus-basic-auth-file", "a=token"],
            Some("secret"),
            "--prometheus-basic-auth-file: the password in token has no ':'",
        ),
        (
            &[
                "--prometheus-url",
                "http://a",
                "--prometheus-token-file",
                "token",
                "--prometheus-basic-auth-file",
                "token",
            ],
            Some("secret"),
            "are for the same --prometheus-url",
        ),
        (
            &["--prometheus-url", "http://a", "--prometheus-discovery", "monitoring"],
            Some("secret"),
            "--prometheus-discovery and --prometheus-url without a name are both",
        ),
    ] {
        let mut all: Vec<_> = arguments.to_vec();
        if !all.contains(&"--kas-address") {
            all.extend(kas);
        }
        let output = agentk(directory.path(), &all, token);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {error}");
        let line = error.lines().last().unwrap_or_default();
        assert!(line.starts_with("agentk: ") && line.contains(expected), "{arguments:?}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn more_servers_than_a_hello_has_room_for_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config"), KUBECONFIG).unwrap();
    let urls = (0..32).map(|number| format!("--prometheus-url=p{number}=http://p")).collect::<Vec<_>>();
    let mut arguments = vec!["--kas-address", "ws://127.0.0.1:1", "--kubeconfig", "config"];
    arguments.extend(urls.iter().map(String::as_str));
    let output = agentk(directory.path(), &arguments, Some("secret"));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.trim(), "agentk: --prometheus-url: agentk serves at most 31 of them");
}

#[test]
fn a_check_that_fails_is_exit_code_1() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config"), KUBECONFIG).unwrap();
    let arguments = ["check", "--kas-address", "ws://127.0.0.1:1", "--kubeconfig", "config"];
    let output = agentk(directory.path(), &arguments, Some("secret"));
    assert_eq!(output.status.code(), Some(1));
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains("kas: TCP                 FAILED  cannot connect to 127.0.0.1:1: "), "{report}");
    let nowhere = ["check", "--kas-address", "ws://kas.invalid", "--kubeconfig", "config"];
    let report = String::from_utf8(agentk(directory.path(), &nowhere, Some("secret")).stdout).unwrap();
    assert!(report.starts_with("kas: DNS                 FAILED  cannot resolve kas.invalid: "), "{report}");
    assert_eq!(agentk(directory.path(), &arguments, None).status.code(), Some(64), "there is no token");
}

#[test]
fn a_bad_flag_is_exit_code_64_too() {
    let directory = tempfile::tempdir().unwrap();
    let output = agentk(directory.path(), &["--kas-address", "https://kas"], Some("secret"));
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8(output.stderr).unwrap().contains("wss://kas.example.com"));
}

#[test]
fn what_is_asked_for_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["--version"][..], concat!("agentk ", env!("CARGO_PKG_VERSION"))),
        (&["--help"], "--kas-address <URL>"),
        (&["completion", "zsh"], "#compdef agentk"),
        (&["man"], ".TH agentk"),
    ] {
        let output = agentk(directory.path(), arguments, None);
        assert!(output.status.success(), "{arguments:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains(expected), "{arguments:?}");
    }
}
