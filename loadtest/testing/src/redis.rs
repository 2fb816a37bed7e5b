//! redis-server and Redis Sentinel as processes of a test.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    process::{Process, Signal, eventually},
    skip::{installed, skipped},
};

/// A Redis server that keeps nothing on disk and listens on a Unix socket. Dropping it kills it.
pub struct RedisServer {
    process: Process,
    arguments: Vec<String>,
    directory: TempDir,
}

impl RedisServer {
    /// Starts a server with additional command line arguments, and waits until it responds.
    ///
    /// It has no TCP port unless the arguments name one. Without redis-server the running test is
    /// [skipped], and the result is `None`.
    pub fn start_or_skip(arguments: &[&str]) -> Option<Self> {
        if !installed("redis-server") {
            skipped("there is no redis-server: .ci/install-tools installs it");
            return None;
        }
        let defaults = ["--port", "0", "--save", "", "--appendonly", "no"];
        Some(Self::start(tempfile::tempdir().unwrap(), &[&defaults, arguments].concat()))
    }

    /// Starts a Sentinel on a TCP port of the loopback interface, and waits until it responds.
    ///
    /// It watches the server at another port under the name `kas`, and needs no other Sentinel to replace that server.
    pub fn start_sentinel(port: u16, watched_port: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = format!(
            "sentinel monitor kas 127.0.0.1 {watched_port} 1\nsentinel down-after-milliseconds kas 500\n\
             sentinel failover-timeout kas 5000\n"
        );
        fs::write(directory.path().join("sentinel.conf"), config).unwrap();
        let port = port.to_string();
        Self::start(directory, &["sentinel.conf", "--sentinel", "--bind", "127.0.0.1", "--port", &port])
    }

    fn start(directory: TempDir, arguments: &[&str]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let process = spawn(directory.path(), &arguments);
        Self { process, arguments, directory }
    }

    /// Starts an empty server with the same arguments in place of this one.
    pub fn restart(&mut self) {
        self.process = spawn(self.directory.path(), &self.arguments);
    }

    /// Kills the server. Its data is lost.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Returns the path of the Unix socket.
    pub fn socket(&self) -> PathBuf {
        socket(self.directory.path())
    }

    /// Returns the working directory of the server.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

fn spawn(directory: &Path, arguments: &[String]) -> Process {
    let mut command = Command::new("redis-server");
    // A relative path: the path of a Unix socket has at most 107 bytes (unix(7)).
    command.args(arguments).args(["--unixsocket", "redis.sock"]).current_dir(directory).stdin(Stdio::null());
    let process = Process::start("redis-server", &mut command);
    eventually("Redis responds", || responds(&socket(directory)).unwrap_or(false));
    process
}

/// An error is a response, too: a server with a password refuses PING.
fn responds(socket: &Path) -> std::io::Result<bool> {
    let mut connection = UnixStream::connect(socket)?;
    connection.write_all(b"PING\r\n")?;
    Ok(connection.read(&mut [0])? > 0)
}
