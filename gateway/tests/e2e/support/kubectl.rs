//! Runs kubectl and compares its outputs.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{KubectlVersion, Process, code, run};

/// kubectl with a kubeconfig and an optional namespace.
#[derive(Clone)]
pub(crate) struct Kubectl {
    /// The name in assertion messages.
    pub(crate) name: &'static str,
    kubeconfig: PathBuf,
    cache: PathBuf,
    /// The prefix of the paths of `--raw`.
    raw_prefix: String,
    namespace: Option<String>,
    environment: Vec<(&'static str, &'static str)>,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandResult {
    /// The exit code, or the negative number of the signal that ended the command.
    pub(crate) code: i32,
    /// The standard output.
    pub(crate) stdout: Vec<u8>,
    /// The standard error.
    pub(crate) stderr: String,
}

impl Kubectl {
    /// Creates a kubectl for a server whose URL has a path, with its discovery cache below `directory`.
    pub(super) fn new(name: &'static str, server_path: &str, kubeconfig: PathBuf, directory: &Path) -> Self {
        let cache = directory.join(format!("cache-{name}"));
        let raw_prefix = KubectlVersion::raw_prefix(server_path).to_owned();
        Self { name, kubeconfig, cache, raw_prefix, namespace: None, environment: Vec::new() }
    }

    /// Creates a kubectl that connects to the cluster without the tunnel.
    pub(crate) fn direct(kubeconfig: &Path, directory: &Path) -> Self {
        Self::new("direct", "", kubeconfig.to_owned(), directory)
    }

    /// Returns a copy for a namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// Returns a copy with an environment variable.
    pub(crate) fn with_variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }

    /// Returns the path of the kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandResult {
        self.run_with_stdin(arguments, b"")
    }

    /// Runs a command to its end with the given standard input.
    pub(crate) fn run_with_stdin(&self, arguments: &[&str], stdin: &[u8]) -> CommandResult {
        let mut command = Command::new("timeout");
        self.prepare(command.args(["--kill-after=1", "60", "kubectl"]), arguments);
        let output = run(&mut command, stdin);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        CommandResult { code: code(output.status), stdout: output.stdout, stderr }
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        self.ok_with_stdin(arguments, "")
    }

    /// Runs a command that must succeed with the given standard input, and returns its standard output.
    pub(crate) fn ok_with_stdin(&self, arguments: &[&str], stdin: &str) -> String {
        let result = self.run_with_stdin(arguments, stdin.as_bytes());
        assert_eq!(result.code, 0, "kubectl {arguments:?} ({}): {}", self.name, result.stderr);
        result.text()
    }

    /// Runs `kubectl get --raw` with a path of the cluster.
    pub(crate) fn raw(&self, path: &str) -> CommandResult {
        self.run(&["get", "--raw", &self.raw_path(path)])
    }

    /// Returns a path of the cluster as `--raw` needs it.
    pub(crate) fn raw_path(&self, path: &str) -> String {
        format!("{}{path}", self.raw_prefix)
    }

    /// Starts a command with an empty standard input.
    pub(crate) fn start(&self, arguments: &[&str]) -> Process {
        self.start_with(Stdio::null(), arguments)
    }

    /// Starts a command with a standard input that has no data and stays open.
    pub(crate) fn start_with_open_stdin(&self, arguments: &[&str]) -> Process {
        self.start_with(Stdio::piped(), arguments)
    }

    /// Returns the command, without a timeout.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        self.prepare(&mut command, arguments);
        command
    }

    fn start_with(&self, stdin: Stdio, arguments: &[&str]) -> Process {
        let mut command = self.command(arguments);
        Process::start(&format!("kubectl {} ({})", arguments.join(" "), self.name), command.stdin(stdin))
    }

    /// Runs a command to its end in a terminal.
    pub(crate) fn run_in_terminal(&self, arguments: &[&str], typed: &str) -> CommandResult {
        let output = run(&mut self.terminal_command("", arguments), typed.as_bytes());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        CommandResult { code: code(output.status), stdout: output.stdout, stderr }
    }

    /// Returns a command that runs kubectl in a terminal of 101 columns and 33 rows, after the shell commands `before`.
    pub(crate) fn terminal_command(&self, before: &str, arguments: &[&str]) -> Command {
        let mut shell = format!(
            "stty cols 101 rows 33; {before} exec timeout --foreground 60 kubectl --kubeconfig {} --cache-dir {}",
            self.kubeconfig.display(),
            self.cache.display()
        );
        if let Some(namespace) = &self.namespace {
            shell += &format!(" --namespace {namespace}");
        }
        for argument in arguments {
            shell += &format!(" '{argument}'");
        }
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &shell, "/dev/null"]);
        command.env_remove("KUBECONFIG").env("SHELL", "/bin/sh").envs(self.environment.iter().copied());
        command
    }

    fn prepare(&self, command: &mut Command, arguments: &[&str]) {
        // The variable `KUBECACHEDIR` is not read by kubectl before 1.25.
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(&self.cache);
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        command.args(arguments).env_remove("KUBECONFIG").envs(self.environment.iter().copied());
    }
}

impl CommandResult {
    /// Returns the standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Asserts that a command has the same result without the tunnel and through it. Returns the exit code.
///
/// Other tests use the same cluster: if its own result has changed meanwhile, both are compared again.
pub(crate) fn assert_same_output(
    direct: &Kubectl,
    through: &[&Kubectl],
    arguments: &[&str],
    stdin: &str,
) -> i32 {
    let run = |kubectl: &Kubectl| kubectl.comparable(kubectl.run_with_stdin(arguments, stdin.as_bytes()));
    let mut expected = run(direct);
    for kubectl in through {
        let mut actual = run(kubectl);
        for _ in 0..10 {
            if actual == expected {
                break;
            }
            let again = run(direct);
            if again == expected {
                break;
            }
            expected = again;
            actual = run(kubectl);
        }
        assert_eq!(actual, expected, "kubectl {arguments:?} ({})", kubectl.name);
    }
    expected.0
}

impl Kubectl {
    fn comparable(&self, result: CommandResult) -> (i32, String, String) {
        let namespace = self.namespace.as_deref().unwrap_or("no namespace");
        (result.code, normalize(&result.text(), namespace), normalize(&result.stderr, namespace))
    }
}

/// Replaces the parts of a text that differ between two equal runs: namespace, ages, times, ids and padding.
pub(crate) fn normalize(text: &str, namespace: &str) -> String {
    let text = text.replace(namespace, "NAMESPACE");
    let line = |line: &str| {
        let indent = &line[..line.len() - line.trim_start().len()];
        let key = line.trim().split(':').next().unwrap_or_default().trim_matches('"');
        if VARYING.contains(&key) {
            return format!("{indent}{key}: …");
        }
        let words: Vec<_> = line.split_whitespace().map(word).collect();
        format!("{indent}{}", words.join(" "))
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The keys of fields that the cluster sets to a different value in each object.
const VARYING: [&str; 6] =
    ["uid", "resourceVersion", "creationTimestamp", "time", "lastUpdateTime", "lastTransitionTime"];

fn word(word: &str) -> &str {
    let inner = word.trim_matches(['(', ')', '"', '\\', ':']);
    if is_age(inner) {
        "AGE"
    } else if inner.len() == 64 && inner.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        "ID"
    } else if inner.starts_with("/dev/pts/") {
        "TERMINAL"
    } else {
        word
    }
}

/// Returns whether a word is an age such as `5s`, `2m13s` or `1d`.
pub(crate) fn is_age(word: &str) -> bool {
    let mut parts = word.split_inclusive(['s', 'm', 'h', 'd']).peekable();
    let number =
        |part: &str| part.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(|n| n.parse::<u32>().is_ok());
    parts.peek().is_some() && parts.all(number)
}
