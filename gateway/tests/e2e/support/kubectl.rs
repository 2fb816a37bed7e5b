//! kubectl, and when two of its answers are the same.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Process, process::code, run};

/// kubectl with one kubeconfig and, mostly, one namespace.
#[derive(Clone)]
pub(crate) struct Kubectl {
    /// For messages.
    pub(crate) name: &'static str,
    kubeconfig: PathBuf,
    cache: PathBuf,
    /// The path of the server's URL.
    prefix: String,
    namespace: Option<String>,
}

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Negative for a signal.
    pub(crate) code: i32,
    /// What it printed.
    pub(crate) stdout: Vec<u8>,
    /// What it complained about.
    pub(crate) stderr: String,
}

impl Kubectl {
    /// What it discovers is cached below `directory`.
    pub(super) fn new(name: &'static str, prefix: &str, kubeconfig: PathBuf, directory: &Path) -> Self {
        let cache = directory.join(format!("cache-{name}"));
        Self { name, kubeconfig, cache, prefix: prefix.to_owned(), namespace: None }
    }

    /// Without any tunnel.
    pub(crate) fn of_cluster(kubeconfig: &Path, directory: &Path) -> Self {
        Self::new("direct", "", kubeconfig.to_owned(), directory)
    }

    /// The same in a namespace.
    pub(crate) fn within(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// The file that says where its cluster is, and who it is there.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Answer {
        self.pipe(arguments, b"")
    }

    /// Runs to its end with this on its standard input.
    pub(crate) fn pipe(&self, arguments: &[&str], stdin: &[u8]) -> Answer {
        let mut command = Command::new("timeout");
        self.prepare(command.args(["--kill-after=1", "60", "kubectl"]), arguments);
        let output = run(&mut command, stdin);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Answer { code: code(output.status), stdout: output.stdout, stderr }
    }

    /// Runs to its end, which must be a good one, and says what it printed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        self.ok_with(arguments, "")
    }

    /// The same with this on its standard input.
    pub(crate) fn ok_with(&self, arguments: &[&str], stdin: &str) -> String {
        let answer = self.pipe(arguments, stdin.as_bytes());
        assert_eq!(answer.code, 0, "kubectl {arguments:?} ({}): {}", self.name, answer.stderr);
        answer.text()
    }

    /// What the API answers to GET. kubectl takes such a path for that of the URL, and forgets its server's.
    pub(crate) fn raw(&self, path: &str) -> Answer {
        self.run(&["get", "--raw", &format!("{}{path}", self.prefix)])
    }

    /// Runs beside the test, with nothing on its standard input.
    pub(crate) fn start(&self, arguments: &[&str]) -> Process {
        self.start_with(Stdio::null(), arguments)
    }

    /// Runs beside the test, with a standard input that says nothing and does not end.
    pub(crate) fn start_listening(&self, arguments: &[&str]) -> Process {
        self.start_with(Stdio::piped(), arguments)
    }

    /// To be run in some other way.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        self.prepare(&mut command, arguments);
        command
    }

    fn start_with(&self, stdin: Stdio, arguments: &[&str]) -> Process {
        let mut command = self.command(arguments);
        Process::start(&format!("kubectl {} ({})", arguments.join(" "), self.name), command.stdin(stdin))
    }

    /// Runs to its end at a terminal.
    pub(crate) fn at_terminal(&self, arguments: &[&str], typed: &str) -> Answer {
        let output = run(&mut self.terminal("", arguments), typed.as_bytes());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Answer { code: code(output.status), stdout: output.stdout, stderr }
    }

    /// To be run at a terminal of 101 columns and 33 rows, after something of the shell.
    pub(crate) fn terminal(&self, before: &str, arguments: &[&str]) -> Command {
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
        command.env_remove("KUBECONFIG").env("SHELL", "/bin/sh");
        command
    }

    fn prepare(&self, command: &mut Command, arguments: &[&str]) {
        // The variable `KUBECACHEDIR` is not read by kubectl before 1.25.
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(&self.cache);
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        command.args(arguments).env_remove("KUBECONFIG");
    }
}

impl Answer {
    /// What it printed, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// The same command, without the tunnel and through it in several ways. Says with which code all of them ended.
pub(crate) fn assert_same_among(
    direct: &Kubectl,
    through: &[&Kubectl],
    arguments: &[&str],
    stdin: &str,
) -> i32 {
    let expected = direct.comparable(direct.pipe(arguments, stdin.as_bytes()));
    for kubectl in through {
        let actual = kubectl.comparable(kubectl.pipe(arguments, stdin.as_bytes()));
        assert_eq!(actual, expected, "kubectl {arguments:?} ({})", kubectl.name);
    }
    expected.0
}

impl Kubectl {
    fn comparable(&self, answer: Answer) -> (i32, String, String) {
        let namespace = self.namespace.as_deref().unwrap_or("no namespace");
        (answer.code, normal(&answer.text(), namespace), normal(&answer.stderr, namespace))
    }
}

/// A text without what differs between two equal runs: its namespace, ages, times, ids and the padding around them.
pub(crate) fn normal(text: &str, namespace: &str) -> String {
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

/// The keys of what the cluster makes up for each object.
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

/// `5s`, `2m13s`, `1d` and the like.
fn is_age(word: &str) -> bool {
    let mut parts = word.split_inclusive(['s', 'm', 'h', 'd']).peekable();
    let number =
        |part: &str| part.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(|n| n.parse::<u32>().is_ok());
    parts.peek().is_some() && parts.all(number)
}
