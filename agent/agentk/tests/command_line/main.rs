//! Tests of the binary: its exit codes, messages and signals.

#![allow(clippy::disallowed_methods, reason = "there is no runtime: the tests wait for a process")]

mod audit_load;
mod listeners;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            net::{SocketAddr, UnixDatagram},
            process::ExitStatusExt as _,
        },
    },
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    fs::{CWD, Mode, mkfifoat},
    process::{Pid, Signal, kill_process},
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
fn invalid_configuration_is_one_line_with_exit_code_64() {
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
            &["--kubeconfig", "config", "--require-scope", "--no-remote-configuration"],
            Some("secret"),
            "--require-scope needs the configuration from kas",
        ),
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
fn too_many_prometheus_servers_are_refused() {
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
fn failed_check_has_exit_code_1() {
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
fn check_names_the_proxy_that_refuses() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config"), KUBECONFIG).unwrap();
    for (answer, expected) in [
        ("HTTP/1.1 407 Proxy Authentication Required", "it requires a user name and password (407)"),
        ("HTTP/1.1 502 Bad Gateway", "it did not connect to kas.invalid:8150: 502 Bad Gateway"),
    ] {
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = proxy.local_addr().unwrap();
        let served = thread::spawn(move || {
            let mut stream = proxy.accept().unwrap().0;
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).unwrap();
            write!(stream, "{answer}\r\nContent-Length: 0\r\n\r\n").unwrap();
        });
        let output = Command::new(env!("CARGO_BIN_EXE_agentk"))
            .env_clear()
            .envs([("AGENTK_TOKEN", "secret"), ("HTTP_PROXY", &format!("http://{address}"))])
            .current_dir(directory.path())
            .args(["check", "--kas-address", "ws://kas.invalid:8150", "--kubeconfig", "config"])
            .output()
            .unwrap();
        served.join().unwrap();
        let report = String::from_utf8(output.stdout).unwrap();
        let line = report.lines().find(|line| line.starts_with("kas: TCP")).unwrap();
        assert!(line.contains(&format!("the proxy http://{address} (HTTP_PROXY): {expected}")), "{line}");
        assert!(line.ends_with("or exempt kas with NO_PROXY"), "{line}");
    }
}

#[test]
fn invalid_flag_has_exit_code_64() {
    let directory = tempfile::tempdir().unwrap();
    let output = agentk(directory.path(), &["--kas-address", "https://kas"], Some("secret"));
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8(output.stderr).unwrap().contains("wss://kas.example.com"));
}

#[test]
fn check_takes_its_flags_in_a_pod_with_variables_of_running() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_agentk"))
        .env_clear()
        .envs([("AGENTK_TOKEN", "secret"), ("POD_NAME", "agentk-0"), ("POD_NAMESPACE", "agentk")])
        .current_dir(directory.path())
        .args(["check", "--kas-address", "ws://127.0.0.1:1"])
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("no Kubernetes API is configured"), "{message}");
}

#[test]
fn help_version_and_completion_are_printed() {
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

/// Returns the body of a response of the observability listener.
#[expect(clippy::unwrap_used, reason = "a failed step is a failed test")]
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agentk\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn sighup_reloads_files_and_sigquit_ends_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "secret\n").unwrap();
    fs::write(directory.path().join("config"), KUBECONFIG).unwrap();
    let mut agentk = Command::new(env!("CARGO_BIN_EXE_agentk"))
        .env_clear()
        .current_dir(&directory)
        .args(["--kas-address", "ws://127.0.0.1:1", "--token-file", "token", "--kubeconfig", "config"])
        .args(["--observability-listen-address", "127.0.0.1:0", "--log-format", "json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(agentk.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        let event: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        Some(event.get("address")?.as_str()?.to_owned())
    });
    let address = address.expect("agentk listens");
    // The rest is read, so that agentk does not block on its log.
    thread::spawn(move || lines.count());
    let signal = |signal| kill_process(Pid::from_child(&agentk), signal).unwrap();

    let refused = "agentk_file_refused_since_timestamp_seconds{file=\"--token-file\"} ";
    assert!(get(&address, "/metrics").contains(&format!("{refused}0\n")));
    fs::remove_file(&token).unwrap();
    fs::create_dir(&token).unwrap();
    signal(Signal::HUP);
    while get(&address, "/metrics").contains(&format!("{refused}0\n")) {
        // Each request has its own connection, so that this loop does not spin.
    }
    fs::remove_dir(&token).unwrap();
    fs::write(&token, "rotated\n").unwrap();
    signal(Signal::HUP);
    while !get(&address, "/metrics").contains(&format!("{refused}0\n")) {
        // A connection per request, as above, keeps this loop from spinning.
    }
    signal(Signal::QUIT);
    assert_eq!(agentk.wait().unwrap().signal(), Some(3));
}

/// Every process of the plugin holds the writing end of a FIFO, so that its reader reaches the end once all have exited.
#[test]
fn credential_plugin_ends_with_agentk() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let config = KUBECONFIG.replace(
        "user: {}",
        "user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never, \
         args: [-c, 'exec 3> fifo; (sleep 60; echo survived >&3) & echo started >&3; wait']}}",
    );
    fs::write(directory.path().join("config"), config.replace("http://", "https://")).unwrap();
    let run = ["--kas-address", "ws://127.0.0.1:1", "--kubeconfig", "config"];
    let listen = ["--observability-listen-address", "127.0.0.1:0"];
    for (arguments, signal) in [
        ([&run[..], &listen].concat(), Signal::TERM),
        ([&["check"], &run[..], &listen].concat(), Signal::INT),
    ] {
        let mut agentk = Command::new(env!("CARGO_BIN_EXE_agentk"))
            .current_dir(directory.path())
            .args(&arguments)
            .env("AGENTK_TOKEN", "secret")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut reader = BufReader::new(fs::File::open(&fifo).unwrap());
        reader.read_line(&mut String::new()).unwrap();
        kill_process(Pid::from_child(&agentk), signal).unwrap();
        agentk.wait().unwrap();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "{arguments:?}");
    }
}

/// The socket has an abstract name, as in a container of systemd.
#[test]
fn service_manager_is_told_of_start_watchdog_and_stop() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config"), KUBECONFIG).unwrap();
    let name = format!("agentk-test-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let received = || {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).expect("agentk sends a message");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let mut agentk = Command::new(env!("CARGO_BIN_EXE_agentk"))
        .env_clear()
        .envs([
            ("AGENTK_TOKEN", "secret"),
            ("NOTIFY_SOCKET", &format!("@{name}")),
            ("WATCHDOG_USEC", "3000000"),
        ])
        .current_dir(&directory)
        .args(["--kas-address", "ws://127.0.0.1:1", "--kubeconfig", "config"])
        .args(["--observability-listen-address", "127.0.0.1:0"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let messages: BTreeSet<_> = [received(), received(), received()].into();
    assert_eq!(messages, BTreeSet::from(["READY=1".to_owned(), "WATCHDOG=1".to_owned()]));
    kill_process(Pid::from_child(&agentk), Signal::TERM).unwrap();
    while received() != "STOPPING=1" {
        // The watchdog gets its messages until the end.
    }
    assert!(agentk.wait().unwrap().success());
}
