//! A Redis of the test's own.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    Process, eventually, run,
    skip::{installed, skipped},
};

/// A running one, with nothing on disk.
pub(crate) struct Redis {
    /// For signals.
    pub(crate) process: Process,
    arguments: Vec<String>,
    directory: TempDir,
}

/// Two Redis servers, of which one takes over when the other is lost, and who decides that.
pub(crate) struct Sentinel {
    /// The one in use.
    pub(crate) first: Redis,
    /// The one that takes over.
    pub(crate) second: Redis,
    watcher: Redis,
    port: u16,
}

impl Redis {
    /// Starts one that listens on a socket in the file system, or says a word about the test that is left out.
    pub(crate) fn or_skip() -> Option<Self> {
        if !installed("redis-server") || !installed("redis-cli") {
            skipped("there is no redis-server: .ci/install-tools installs it");
            return None;
        }
        Some(Self::start(&["--port", "0"]))
    }

    fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>();
        let process = start(directory.path(), &arguments);
        let redis = Self { process, arguments, directory };
        redis.answers();
        redis
    }

    /// Another one in its place, which knows nothing.
    pub(crate) fn restart(&mut self) {
        self.process = start(self.directory.path(), &self.arguments);
        self.answers();
    }

    /// Where it is, as kas is told.
    pub(crate) fn section(&self) -> Value {
        section(&self.socket())
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    /// What it answers to a command: one line for each value.
    pub(crate) fn says(&self, command: &[&str]) -> String {
        let output = run(Command::new("redis-cli").arg("-s").arg(self.socket()).args(command), b"");
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success() && !said.starts_with("ERR"), "{command:?}: {said}");
        said
    }

    fn answers(&self) {
        eventually("Redis answers", || {
            let ping = run(Command::new("redis-cli").arg("-s").arg(self.socket()).arg("ping"), b"");
            ping.stdout.starts_with(b"PONG")
        });
    }
}

/// Section `redis` for a server at a socket.
pub(crate) fn section(socket: &Path) -> Value {
    json!({"server": {"address": format!("unix:{}", socket.display())}})
}

fn start(directory: &Path, arguments: &[String]) -> Process {
    let mut command = Command::new("redis-server");
    command.args(arguments).args(["--unixsocket", "redis.sock"]).current_dir(directory);
    if !arguments.iter().any(|argument| argument == "--sentinel") {
        command.args(["--save", "", "--appendonly", "no"]);
    }
    Process::start("redis-server", &mut command)
}

impl Sentinel {
    /// Starts all three, and waits until they know each other.
    pub(crate) fn or_skip() -> Option<Self> {
        drop(Redis::or_skip()?);
        let [first, second, port] = free_ports();
        let of_first = first.to_string();
        let first_server = Redis::start(&["--bind", "127.0.0.1", "--port", &of_first]);
        let second = Redis::start(&[
            "--bind",
            "127.0.0.1",
            "--port",
            &second.to_string(),
            "--replicaof",
            "127.0.0.1",
            &of_first,
            "--repl-diskless-sync-delay",
            "0",
        ]);
        eventually("the second follows the first", || {
            second.says(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let directory = tempfile::tempdir().unwrap();
        let watch = format!(
            "sentinel monitor kas 127.0.0.1 {first} 1\nsentinel down-after-milliseconds kas 500\n\
             sentinel failover-timeout kas 5000\n"
        );
        std::fs::write(directory.path().join("sentinel.conf"), watch).unwrap();
        let arguments = ["sentinel.conf", "--sentinel", "--bind", "127.0.0.1", "--port", &port.to_string()];
        let arguments = arguments.map(str::to_owned).to_vec();
        let process = start(directory.path(), &arguments);
        let watcher = Redis { process, arguments, directory };
        watcher.answers();
        eventually("both are known", || {
            watcher.says(&["SENTINEL", "REPLICAS", "kas"]).lines().any(|word| word == "ok")
        });
        Some(Self { first: first_server, second, watcher, port })
    }

    /// Who decides, as kas is told.
    pub(crate) fn section(&self) -> Value {
        json!({"sentinel": {"master_name": "kas", "addresses": [format!("127.0.0.1:{}", self.port)]}})
    }

    /// Whether the second is in use.
    pub(crate) fn has_failed_over(&self) -> bool {
        let master = self.watcher.says(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "kas"]);
        self.second
            .arguments
            .iter()
            .any(|argument| master.lines().any(|word| word == argument && word != "127.0.0.1"))
    }
}

/// Ports that were free a moment ago: all at once, so that they differ.
fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
