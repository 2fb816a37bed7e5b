//! redis-server as a process on this machine, and its command statistics.

use std::{collections::BTreeMap, net::SocketAddr, path::Path};

use anyhow::{Context as _, ensure};
use redis::{Client, FromRedisValue, aio::MultiplexedConnection};
use tokio::{process::Command, time::sleep};

use super::{POLL, START, free_port, process::ChildProcess};

/// A running server that keeps nothing on disk. Dropping it kills the process.
#[derive(Debug)]
pub struct RedisProcess {
    child: ChildProcess,
    /// The address of the server.
    pub address: SocketAddr,
    connection: MultiplexedConnection,
}

/// The commands that clients send. All others are calls of scripts: kas reads and writes by scripts only.
const REQUESTS: [&str; 11] = [
    "auth",
    "client",
    "eval",
    "evalsha",
    "hello",
    "ping",
    "role",
    "script",
    "select",
    "subscribe",
    "unsubscribe",
];

/// The beginning of the keys of the log of events.
const EVENT_LOG: &[u8] = b"{kas}:event-log";

/// The memory of keys, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredBytes {
    /// That of the log of events.
    pub events: u64,
    /// That of all other keys.
    pub other: u64,
}

/// The number of calls of each command, by clients and by scripts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands(BTreeMap<String, u64>);

impl RedisProcess {
    /// Returns whether redis-server is installed.
    pub async fn is_installed() -> bool {
        Command::new("redis-server").arg("--version").output().await.is_ok()
    }

    /// Starts a server on a free port, with its log in `directory`, and waits until it responds.
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], free_port()?)), directory).await
    }

    /// Starts a server at a given loopback address, with its log in `directory`, and waits until it responds.
    pub async fn start_at(address: SocketAddr, directory: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--logfile", "redis.log", "--dir"]).arg(directory);
        let started = ChildProcess::start(command, &directory.join("redis.err"), None, START).await;
        let (child, _) =
            started.context("several replicas need redis-server (apt-get install redis-server)")?;
        let client = Client::open(format!("redis://{address}"))?;
        let deadline = tokio::time::Instant::now() + START;
        let connection = loop {
            match client.get_multiplexed_async_connection().await {
                Ok(connection) => break connection,
                Err(error) => ensure!(tokio::time::Instant::now() < deadline, "redis-server: {error}"),
            }
            sleep(POLL).await;
        };
        Ok(Self { child, address, connection })
    }

    /// Kills the server. Its data is lost.
    pub async fn kill(self) -> anyhow::Result<()> {
        self.child.kill().await
    }

    /// Returns the number of calls of each command so far.
    pub async fn commands(&self) -> anyhow::Result<Commands> {
        let text: String = self.ask(redis::cmd("INFO").arg("commandstats")).await?;
        Ok(Commands::parse(&text))
    }

    /// Returns the memory of the keys of the log of events, and of all others, in bytes, including the overhead of Redis (MEMORY USAGE).
    pub async fn stored(&self) -> anyhow::Result<StoredBytes> {
        let mut stored = StoredBytes::default();
        let keys: Vec<Vec<u8>> = self.ask(redis::cmd("KEYS").arg("*")).await?;
        for key in keys {
            let is_event = key.starts_with(EVENT_LOG);
            // Count all elements instead of a sample. The key may have expired meanwhile.
            let of_key: Option<u64> =
                self.ask(redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0)).await?;
            let bytes = if is_event { &mut stored.events } else { &mut stored.other };
            *bytes += of_key.unwrap_or_default();
        }
        Ok(stored)
    }

    /// Returns the number of fields of all hashes that match a pattern, without the one metadata field of each hash.
    pub async fn fields(&self, pattern: &str) -> anyhow::Result<u64> {
        let mut fields = 0;
        let keys: Vec<Vec<u8>> = self.ask(redis::cmd("KEYS").arg(pattern)).await?;
        for key in keys {
            let of_key: u64 = self.ask(redis::cmd("HLEN").arg(key)).await?;
            fields += of_key.saturating_sub(1);
        }
        Ok(fields)
    }

    /// Returns the number of open connections of clients, without the one of this program.
    pub async fn connections(&self) -> anyhow::Result<u64> {
        let text: String = self.ask(redis::cmd("INFO").arg("clients")).await?;
        let number =
            text.lines().find_map(|line| line.strip_prefix("connected_clients:")?.trim().parse().ok());
        number.map(|clients: u64| clients - 1).context("redis-server names no connected_clients")
    }

    async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> anyhow::Result<T> {
        command.query_async(&mut self.connection.clone()).await.context("redis-server")
    }
}

impl Commands {
    /// Parses `INFO commandstats`, without the commands that this program sends.
    fn parse(info: &str) -> Self {
        let lines = info.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let counts = lines.filter_map(|(name, rest)| {
            let calls = rest.split(',').next()?.parse().ok()?;
            (!matches!(name, "info" | "keys" | "memory|usage")).then(|| (name.to_owned(), calls))
        });
        Self(counts.collect())
    }

    /// Returns the calls since an earlier count.
    pub fn since(&self, before: &Self) -> Self {
        let counts = self.0.iter().map(|(name, calls)| {
            (name.clone(), calls.saturating_sub(before.0.get(name).copied().unwrap_or_default()))
        });
        Self(counts.filter(|(_, calls)| *calls > 0).collect())
    }

    /// Returns the number of all calls.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the number of requests of clients: the calls without those that scripts make.
    pub fn requests(&self) -> u64 {
        let calls = |(name, calls): (&String, &u64)| {
            // For a subcommand, `client|setinfo`.
            let name = name.split('|').next().unwrap_or_default();
            REQUESTS.contains(&name).then_some(*calls)
        };
        self.0.iter().filter_map(calls).sum()
    }

    /// Returns each command with its number of calls, the most frequent first.
    pub fn by_count(&self) -> Vec<(String, u64)> {
        let mut counts: Vec<_> = self.0.iter().map(|(name, calls)| (name.clone(), *calls)).collect();
        counts.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
        counts
    }
}

/// Formats commands and their numbers of calls.
pub fn list(commands: &[(String, u64)]) -> String {
    commands.iter().map(|(name, calls)| format!("{name} {calls}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_since_exclude_own() {
        let look = |evals: u64, infos: u64| {
            Commands::parse(&format!(
                "# Commandstats\r\ncmdstat_evalsha:calls={evals},usec=5,usec_per_call=1.00\r\n\
                 cmdstat_info:calls={infos},usec=9\r\ncmdstat_client|setinfo:calls=4,usec=1\r\ngarbage\r\n"
            ))
        };
        let (before, after) = (look(10, 1), look(17, 5));
        let between = after.since(&before);
        assert_eq!((between.total(), between.by_count()), (7, vec![("evalsha".to_owned(), 7)]));
        let all = Commands::parse(
            "cmdstat_evalsha:calls=7,\r\ncmdstat_publish:calls=7,\r\ncmdstat_client|setinfo:calls=4,\r\n",
        );
        assert_eq!((all.requests(), all.total()), (11, 18));
        assert_eq!(
            after.since(&Commands::default()).by_count(),
            [("evalsha".to_owned(), 17), ("client|setinfo".to_owned(), 4)]
        );
    }
}
