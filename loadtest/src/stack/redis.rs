//! A redis-server of our own on this machine, and what it was asked to do.

use std::{collections::BTreeMap, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use redis::{Client, FromRedisValue, aio::MultiplexedConnection};
use tokio::{process::Command, time::sleep};

use super::{START, child::Child, free_port};

/// How often it is looked whether it answers.
const POLL: Duration = Duration::from_millis(20);

/// A server that keeps nothing on disk. Dropping it kills it.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    connection: MultiplexedConnection,
}

/// How often each command was called, by clients and by scripts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands(BTreeMap<String, u64>);

impl Redis {
    /// Whether the program is installed.
    pub async fn is_installed() -> bool {
        Command::new("redis-server").arg("--version").output().await.is_ok()
    }

    /// Starts one, whose log is in `directory`, and waits until it answers.
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], free_port()?)), directory).await
    }

    /// The same at a given address of this machine, where another may have been.
    pub async fn start_at(address: SocketAddr, directory: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
        let mut command = Command::new("redis-server");
        command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--logfile", "redis.log", "--dir"]).arg(directory);
        let started = Child::start(command, &directory.join("redis.err"), None, START).await;
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

    /// Ends it, with everything in it.
    pub async fn kill(self) -> anyhow::Result<()> {
        self.child.kill().await
    }

    /// What it was asked to do so far.
    pub async fn commands(&self) -> anyhow::Result<Commands> {
        let text: String = self.ask(redis::cmd("INFO").arg("commandstats")).await?;
        Ok(Commands::parse(&text))
    }

    /// Bytes of all keys, with what Redis needs to keep them.
    pub async fn stored(&self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        let keys: Vec<Vec<u8>> = self.ask(redis::cmd("KEYS").arg("*")).await?;
        for key in keys {
            // All of its elements, and not a sample. A key may have expired meanwhile.
            let of_key: Option<u64> =
                self.ask(redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0)).await?;
            bytes += of_key.unwrap_or_default();
        }
        Ok(bytes)
    }

    /// How many fields the hashes have whose names match a pattern, besides one in each that is about the hash.
    pub async fn fields(&self, pattern: &str) -> anyhow::Result<u64> {
        let mut fields = 0;
        let keys: Vec<Vec<u8>> = self.ask(redis::cmd("KEYS").arg(pattern)).await?;
        for key in keys {
            let of_key: u64 = self.ask(redis::cmd("HLEN").arg(key)).await?;
            fields += of_key.saturating_sub(1);
        }
        Ok(fields)
    }

    async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> anyhow::Result<T> {
        command.query_async(&mut self.connection.clone()).await.context("redis-server")
    }
}

impl Commands {
    /// Reads `INFO commandstats`. What this program asks itself is left out.
    fn parse(info: &str) -> Self {
        let lines = info.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let counts = lines.filter_map(|(name, rest)| {
            let calls = rest.split(',').next()?.parse().ok()?;
            (!matches!(name, "info" | "keys" | "memory|usage")).then(|| (name.to_owned(), calls))
        });
        Self(counts.collect())
    }

    /// What was asked since an earlier look.
    pub fn since(&self, before: &Self) -> Self {
        let counts = self.0.iter().map(|(name, calls)| {
            (name.clone(), calls.saturating_sub(before.0.get(name).copied().unwrap_or_default()))
        });
        Self(counts.filter(|(_, calls)| *calls > 0).collect())
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Each with its count, the most frequent first.
    pub fn by_count(&self) -> Vec<(&str, u64)> {
        let mut counts: Vec<_> = self.0.iter().map(|(name, calls)| (name.as_str(), *calls)).collect();
        counts.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_asked_between_two_looks_is_counted() {
        let look = |evals: u64, infos: u64| {
            Commands::parse(&format!(
                "# Commandstats\r\ncmdstat_evalsha:calls={evals},usec=5,usec_per_call=1.00\r\n\
                 cmdstat_info:calls={infos},usec=9\r\ncmdstat_client|setinfo:calls=4,usec=1\r\ngarbage\r\n"
            ))
        };
        let (before, after) = (look(10, 1), look(17, 5));
        let between = after.since(&before);
        assert_eq!((between.total(), between.by_count()), (7, vec![("evalsha", 7)]));
        assert_eq!(after.since(&Commands::default()).by_count(), [("evalsha", 17), ("client|setinfo", 4)]);
    }
}
