//! Redis servers and a Sentinel for a test.

use std::{path::Path, process::Command};

use serde_json::{Value, json};
use testing::{
    redis::RedisServer,
    skip::{installed, skipped},
};

use super::{eventually, run};

/// A running Redis server without persistence.
pub(crate) struct Redis {
    /// The server process.
    pub(crate) server: RedisServer,
}

/// A Redis primary, its standby, and the Sentinel that fails over between them.
pub(crate) struct Sentinel {
    /// The initial primary.
    pub(crate) primary: Redis,
    /// The replica of the primary.
    pub(crate) standby: Redis,
    standby_port: u16,
    sentinel: Redis,
    port: u16,
}

impl Redis {
    /// Starts a server that listens on a Unix socket, or skips the test if Redis is missing.
    pub(crate) fn or_skip() -> Option<Self> {
        Self::start_or_skip(&[])
    }

    fn start_or_skip(arguments: &[&str]) -> Option<Self> {
        if !installed("redis-cli") {
            skipped("there is no redis-cli: .ci/install-tools installs it");
            return None;
        }
        Some(Self { server: RedisServer::start_or_skip(arguments)? })
    }

    /// Returns the configuration section `redis` for this server.
    pub(crate) fn section(&self) -> Value {
        socket_section(&self.server.socket())
    }

    /// Runs a command with `redis-cli`, and returns the response with one line for each value.
    pub(crate) fn run(&self, command: &[&str]) -> String {
        let output = run(Command::new("redis-cli").arg("-s").arg(self.server.socket()).args(command), b"");
        let response = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success() && !response.starts_with("ERR"), "{command:?}: {response}");
        response
    }
}

/// Returns the configuration section `redis` for a server at a Unix socket.
pub(crate) fn socket_section(socket: &Path) -> Value {
    json!({"server": {"address": format!("unix:{}", socket.display())}})
}

impl Sentinel {
    /// Starts all three processes, and waits until the Sentinel has found both servers.
    pub(crate) fn or_skip() -> Option<Self> {
        let [primary_port, standby_port, port] = free_ports();
        let [primary_argument, standby_argument] = [primary_port, standby_port].map(|port| port.to_string());
        let primary = Redis::start_or_skip(&["--bind", "127.0.0.1", "--port", &primary_argument])?;
        let standby = Redis::start_or_skip(&[
            "--bind",
            "127.0.0.1",
            "--port",
            &standby_argument,
            "--replicaof",
            "127.0.0.1",
            &primary_argument,
            "--repl-diskless-sync-delay",
            "0",
        ])?;
        eventually("the standby replicates the primary", || {
            standby.run(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let sentinel = Redis { server: RedisServer::start_sentinel(port, primary_port) };
        eventually("the Sentinel has found both servers", || {
            sentinel.run(&["SENTINEL", "REPLICAS", "kas"]).lines().any(|word| word == "ok")
        });
        Some(Self { primary, standby, standby_port, sentinel, port })
    }

    /// Returns the configuration section `redis` for this Sentinel.
    pub(crate) fn section(&self) -> Value {
        json!({"sentinel": {"master_name": "kas", "addresses": [format!("127.0.0.1:{}", self.port)]}})
    }

    /// Returns whether the standby has become the primary.
    pub(crate) fn has_failed_over(&self) -> bool {
        let master = self.sentinel.run(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "kas"]);
        master.lines().any(|word| word == self.standby_port.to_string())
    }
}

/// Returns three distinct ports that were free a moment ago.
fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
