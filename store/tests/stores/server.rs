//! A redis-server for one test, on a Unix socket in a temporary directory.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use proto::ReplicaId;
use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection};
use store::{
    Replica,
    redis::{RedisAddress, RedisServers, RedisSettings},
};
use testing::redis::RedisServer;

/// A redis-server process. Dropping it kills the process.
pub(crate) struct Server(RedisServer);

/// Starts a redis-server with additional arguments; `None` if the program is missing.
pub(crate) fn start(arguments: &[&str]) -> Option<Server> {
    RedisServer::start_or_skip(arguments).map(Server)
}

/// Starts a Sentinel that monitors a server with a quorum of one.
pub(crate) fn start_sentinel(port: u16, server: u16) -> Server {
    Server(RedisServer::start_sentinel(port, server))
}

pub(crate) fn replica(id: ReplicaId) -> Replica {
    Replica { id, url: "http://127.0.0.1:8155".into() }
}

/// Returns the settings of a store for these servers.
pub(crate) fn settings(servers: RedisServers) -> RedisSettings {
    RedisSettings {
        servers,
        tls: None,
        username: None,
        password_file: None,
        database: 0,
        prefix: "kas".into(),
        fleet: "blue".into(),
        dial_timeout: Duration::from_secs(5),
        response_timeout: Duration::from_secs(2),
        urls: None,
        records: None,
    }
}

impl Server {
    pub(crate) fn socket(&self) -> PathBuf {
        self.0.socket()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.0.directory()
    }

    pub(crate) fn settings(&self) -> RedisSettings {
        settings(RedisServers::Single(RedisAddress::Unix(self.socket())))
    }

    /// Kills the process. Its data is lost.
    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }

    /// Starts the process again, without data.
    pub(crate) fn restart(&mut self) {
        self.0.restart();
    }

    pub(crate) async fn run<T: FromRedisValue>(&self, command: &str) -> T {
        self.run_cmd(self::command(command)).await
    }

    pub(crate) async fn run_cmd<T: FromRedisValue>(&self, command: Cmd) -> T {
        command.query_async(&mut self.connection().await.unwrap()).await.unwrap()
    }

    async fn connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        let url = format!("redis+unix://{}", self.socket().display());
        redis::Client::open(url)?.get_multiplexed_async_connection().await
    }
}

pub(crate) fn command(line: &str) -> Cmd {
    let mut cmd = Cmd::new();
    for word in line.split_whitespace() {
        cmd.arg(word);
    }
    cmd
}
