//! A real Prometheus server that scrapes itself.

use std::{fs, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;
use testing::skip::{installed, skipped};

use super::{Process, curl, eventually};

/// A running Prometheus that scrapes itself.
pub(crate) struct Prometheus {
    /// The base URL.
    pub(crate) url: String,
    /// A time, in Unix seconds, at which the data is complete.
    pub(crate) time: f64,
    server: PrometheusServer,
}

/// A running Prometheus.
pub(crate) struct PrometheusServer {
    /// The base URL.
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
    /// Starts Prometheus and waits for data, or skips the test if the program is missing.
    pub(crate) fn or_skip() -> Option<Self> {
        Self::at_or_skip("127.0.0.1")
    }

    /// The same, where Prometheus listens at this IP address of the machine.
    pub(crate) fn at_or_skip(ip: &str) -> Option<Self> {
        if !installed("prometheus") || !installed("promtool") {
            skipped("there is no prometheus or promtool");
            return None;
        }

        let server = PrometheusServer::start_at(ip, CONFIG);
        let url = server.url.clone();
        let address = url.trim_start_matches("http://");
        let targets = json!([{"targets": [address]}]).to_string();
        fs::write(server.directory.path().join("targets.json"), targets).unwrap();
        let mut time = 0.0;
        eventually("Prometheus has scraped itself", || {
            let query = format!("{url}/api/v1/query?query=count_over_time(up%5B1m%5D)%20%3E%2010");
            let response = curl(&[&query]);
            let series = if response.status == 200 { response.json() } else { Value::Null };
            time = series["data"]["result"][0]["value"][0].as_f64().unwrap_or(0.0);
            time > 0.0
        });
        // A scrape in progress is stored with the time of its start.
        let time = time - 0.5;
        Some(Self { url, time, server })
    }

    /// Returns the JSON response of Prometheus to a path.
    pub(crate) fn get_json(&self, path: &str) -> Value {
        self.server.get_json(path)
    }
}

impl PrometheusServer {
    /// Starts Prometheus with a configuration, and waits until it is ready.
    pub(crate) fn start(config: &str) -> Self {
        Self::start_at("127.0.0.1", config)
    }

    fn start_at(ip: &str, config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("prometheus");
        command.arg("--config.file").arg(file);
        command.arg("--storage.tsdb.path").arg(directory.path().join("data"));
        command.args(["--web.listen-address", &format!("{ip}:0")]);
        command.args(["--web.enable-lifecycle", "--web.enable-admin-api"]);
        let process = Process::start("prometheus", &mut command);
        let line = process.line("Listening on", |line| line.contains("\"Listening on\""));
        let address = line.rsplit("address=").next().unwrap();
        let server = Self { url: format!("http://{address}"), directory, _process: process };
        // Prometheus listens before its storage is open, and responds with 503 until then.
        eventually("Prometheus is ready", || curl(&[&format!("{}/-/ready", server.url)]).status == 200);
        server
    }

    /// Returns the JSON response to a path.
    pub(crate) fn get_json(&self, path: &str) -> Value {
        curl(&[&format!("{}{path}", self.url)]).json()
    }
}
