//! The two sides at which rows run: directly at the cluster, and through the tunnel.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    result::RowResult,
    table::{Expected, Row},
};
use crate::support::{KubectlVersion, code, run};

/// The shell functions that rows use.
const PRELUDE: &str = include_str!("tables/prelude.sh");

/// A side at which rows run.
pub(super) struct Side {
    /// The name of the side, which [`Side::anonymize`] replaces by `SIDE`.
    name: &'static str,
    pub(super) namespace: String,
    server: String,
    /// The path of the server's URL.
    prefix: String,
    /// A node of the cluster.
    node: String,
    directory: PathBuf,
}

impl Side {
    /// Creates a side from a kubeconfig with a token and a certificate authority. Returns `None` for other kubeconfigs.
    pub(super) fn new(
        name: &'static str,
        kubeconfig: &Path,
        (namespace, node): (&str, &str),
        directory: &Path,
    ) -> Option<Self> {
        let directory = directory.join(name);
        fs::create_dir_all(directory.join("tmp")).unwrap();
        let mut kubectl = Command::new("kubectl");
        kubectl.args(["config", "view", "--raw", "--minify", "--flatten", "--output=json", "--kubeconfig"]);
        let config: Value = serde_json::from_slice(&run(kubectl.arg(kubeconfig), b"").stdout).unwrap();
        let [cluster, user] = [&config["clusters"][0]["cluster"], &config["users"][0]["user"]];
        let server = cluster["server"].as_str()?.trim_end_matches('/').to_owned();
        let authority = STANDARD.decode(cluster["certificate-authority-data"].as_str()?).unwrap();
        fs::write(directory.join("ca.crt"), authority).unwrap();
        let token = user["token"].as_str()?;

        let mut with_namespace = config.clone();
        with_namespace["contexts"][0]["context"]["namespace"] = json!(namespace);
        fs::write(directory.join("kubeconfig"), with_namespace.to_string()).unwrap();
        let curl = format!(
            "silent\nshow-error\npath-as-is\ngloboff\nmax-time = 60\nuser-agent = differential\ncacert = {}\n\
             header = \"Authorization: Bearer {token}\"\n",
            directory.join("ca.crt").display()
        );
        fs::write(directory.join(".curlrc"), curl).unwrap();
        let prefix = server.splitn(4, '/').nth(3).map(|path| format!("/{path}")).unwrap_or_default();
        let (namespace, node) = (namespace.to_owned(), node.to_owned());
        Some(Self { name, namespace, server, prefix, node, directory })
    }

    /// Runs a row to its end, and returns its result and duration.
    pub(super) fn run(&self, row: &Row) -> (RowResult, Duration) {
        let started = Instant::now();
        let mut bash = Command::new("timeout");
        bash.args(["--kill-after=1", "60", "bash", "-c", &format!("{PRELUDE}\n{}", row.command)]);
        bash.env("KUBECONFIG", self.directory.join("kubeconfig"));
        // The variable `KUBECACHEDIR` is not read by kubectl before 1.25.
        bash.env("HOME", &self.directory).env_remove("KUBECACHEDIR");
        bash.env("CURL_HOME", &self.directory).env("TMP", self.tmp()).current_dir(&self.directory);
        bash.env("SERVER", &self.server).env("PREFIX", &self.prefix);
        bash.env("RAW_PREFIX", KubectlVersion::raw_prefix(&self.prefix));
        bash.env("NS", &self.namespace).env("NODE", &self.node).env("SIDE", self.name);
        let output = run(&mut bash, b"");
        let result = match row.expected {
            Expected::Status(_) => RowResult::of_curl(&output.stdout, &output.stderr),
            _ => RowResult::of_program(code(output.status), &output.stdout, &output.stderr),
        };
        (result, started.elapsed())
    }

    /// Replaces the names in a text that differ between the sides.
    pub(super) fn anonymize(&self, text: &str) -> String {
        let text =
            text.replace(self.directory.to_str().unwrap(), "DIRECTORY").replace(&self.server, "SERVER");
        let text = text.replace(&self.namespace, "NAMESPACE").replace(self.name, "SIDE");
        if self.prefix.is_empty() { text } else { text.replace(&self.prefix, "") }
    }

    fn tmp(&self) -> PathBuf {
        self.directory.join("tmp")
    }
}
