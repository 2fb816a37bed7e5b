//! A real Prometheus that watches itself.

use std::{fs, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    Process, curl, eventually,
    skip::{installed, skipped},
};

/// A running Prometheus with some data.
pub(crate) struct Prometheus {
    /// Where it listens.
    pub(crate) url: String,
    /// A time, in Unix seconds, at which there is data and nothing changes any more.
    pub(crate) time: f64,
    server: Server,
}

/// A running Prometheus.
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) url: String,
    directory: TempDir,
    _process: Process,
}

const CONFIG: &str = "
scrape_configs:
- job_name: self
  scrape_interval: 200ms
  scrape_timeout: 200ms
  file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
";

impl Prometheus {
    /// Starts one and waits for data, or says a word about the test that is left out for want of it.
    pub(crate) fn or_skip() -> Option<Self> {
        if !installed("prometheus") || !installed("promtool") {
            skipped("there is no prometheus or promtool");
            return None;
        }

        let server = Server::start(CONFIG);
        let url = server.url.clone();
        let address = url.trim_start_matches("http://");
        let targets = json!([{"targets": [address]}]).to_string();
        fs::write(server.directory.path().join("targets.json"), targets).unwrap();
        let mut time = 0.0;
        eventually("Prometheus has watched itself", || {
            let query = format!("{url}/api/v1/query?query=count_over_time(up%5B1m%5D)%20%3E%2010");
            let reply = curl(&[&query]);
            let series = if reply.status == 200 { reply.json() } else { Value::Null };
            time = series["data"]["result"][0]["value"][0].as_f64().unwrap_or(0.0);
            time > 0.0
        });
        // Scrapes that are under way are written with the time at which they began.
        let time = time - 0.5;
        Some(Self { url, time, server })
    }

    /// What it answers to this path itself.
    pub(crate) fn answer(&self, path: &str) -> Value {
        self.server.answer(path)
    }
}

impl Server {
    /// Starts one.
    pub(crate) fn start(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("prometheus");
        command.arg("--config.file").arg(file);
        command.arg("--storage.tsdb.path").arg(directory.path().join("data"));
        command.args([
            "--web.listen-address",
            "127.0.0.1:0",
            "--web.enable-lifecycle",
            "--web.enable-admin-api",
        ]);
        let process = Process::start("prometheus", &mut command);
        let line = process.line("Listening on", |line| line.contains("\"Listening on\""));
        let address = line.rsplit("address=").next().unwrap();
        let server = Self { url: format!("http://{address}"), directory, _process: process };
        // It listens before its storage is open, and answers 503 until then.
        eventually("Prometheus is ready", || curl(&[&format!("{}/-/ready", server.url)]).status == 200);
        server
    }

    /// What it answers to this path.
    pub(crate) fn answer(&self, path: &str) -> Value {
        curl(&[&format!("{}{path}", self.url)]).json()
    }
}
