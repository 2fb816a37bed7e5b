//! A redis-server of the test's own, on a socket in a directory of its own.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use proto::ReplicaId;
use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection};
use router::{
    Replica,
    redis::{Address, Servers, Settings},
};
use tempfile::TempDir;
use tokio::time::sleep;

/// Runs until this is dropped.
pub(crate) struct Server {
    directory: TempDir,
    arguments: Vec<String>,
    child: Child,
}

/// Starts one with these arguments besides.
pub(crate) async fn start(arguments: &[&str]) -> Option<Server> {
    if !present("redis-server") {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>();
    let child = spawn(directory.path(), &arguments);
    let server = Server { directory, arguments, child };
    server.answers().await;
    Some(server)
}

/// Starts a Sentinel that watches a server and needs nobody's consent.
pub(crate) async fn start_sentinel(port: u16, server: u16) -> Server {
    let directory = tempfile::tempdir().unwrap();
    let watch = [
        format!("sentinel monitor kas 127.0.0.1 {server} 1"),
        "sentinel down-after-milliseconds kas 500".to_owned(),
        "sentinel failover-timeout kas 5000".to_owned(),
    ];
    std::fs::write(directory.path().join("sentinel.conf"), watch.join("\n")).unwrap();
    let child = Command::new("redis-server")
        .args(["sentinel.conf", "--sentinel", "--port", &port.to_string(), "--unixsocket", "redis.sock"])
        .current_dir(directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let server = Server { directory, arguments: Vec::new(), child };
    server.answers().await;
    server
}

/// Whether there is a program. Says so where the test harness does not capture it; with `E2E_REQUIRE=1` it is a failure.
#[allow(clippy::print_stderr, reason = "a person shall see what was not tested")]
pub(crate) fn present(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    let required = std::env::var("E2E_REQUIRE").is_ok_and(|required| required == "1");
    assert!(found || !required, "{program} is missing: .ci/install-tools installs it");
    if !found {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED {test}: {program} is missing: .ci/install-tools installs it"
        );
    }
    found
}

pub(crate) fn replica(id: ReplicaId) -> Replica {
    Replica { id, url: "http://127.0.0.1:8155".into() }
}

/// How a store reaches a server there.
pub(crate) fn settings(servers: Servers) -> Settings {
    Settings {
        servers,
        tls: None,
        username: None,
        password_file: None,
        database: 0,
        prefix: "kas".into(),
        fleet: "blue".into(),
        dial_timeout: Duration::from_secs(5),
        response_timeout: Duration::from_secs(2),
    }
}

impl Server {
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn settings(&self) -> Settings {
        settings(Servers::One(Address::Unix(self.socket())))
    }

    /// Kills it: what it knew is lost.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, with nothing.
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.directory.path(), &self.arguments);
        self.answers().await;
    }

    pub(crate) async fn run<T: FromRedisValue>(&self, command: &str) -> T {
        self.run_cmd(words(command)).await
    }

    pub(crate) async fn run_cmd<T: FromRedisValue>(&self, command: Cmd) -> T {
        command.query_async(&mut self.connection().await.unwrap()).await.unwrap()
    }

    async fn connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        let url = format!("redis+unix://{}", self.socket().display());
        redis::Client::open(url)?.get_multiplexed_async_connection().await
    }

    async fn answers(&self) {
        while self.connection().await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

pub(crate) fn words(command: &str) -> Cmd {
    let mut cmd = Cmd::new();
    for word in command.split_whitespace() {
        cmd.arg(word);
    }
    cmd
}

fn spawn(directory: &Path, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--appendonly", "no"])
        .args(arguments)
        .current_dir(directory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}
