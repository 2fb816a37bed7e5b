//! nginx as the upstream and as a reverse proxy, and rathole, a reverse tunnel of bytes without HTTP.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::Context as _;
use loadtest::{
    installation::stack::{free_port, process::ChildProcess, wait_until_ready, write_file},
    load::target::TargetOptions,
};
use tokio::process::Command;

/// The length of the long body, in bytes.
pub(super) const BULK: u64 = 100_000_000;

/// A running nginx.
#[derive(Debug)]
pub(super) struct Nginx {
    child: Option<ChildProcess>,
    pub(super) address: SocketAddr,
}

impl Nginx {
    /// Starts an upstream that serves `/one/N` in one segment, `/two/N` in two writes (head, then a file by sendfile), and
    /// `/bulk`.
    pub(super) async fn upstream(directory: &Path) -> anyhow::Result<Self> {
        let files = directory.join("two");
        std::fs::create_dir_all(&files).with_context(|| format!("cannot write {}", directory.display()))?;
        let mut locations = String::new();
        for size in [200, 4096] {
            write_file(&files, size.to_string(), &"x".repeat(size))?;
            // nginx allows at most 4096 bytes in a word of its configuration.
            let (piece, pieces) = ("x".repeat(size / 4), "$piece".repeat(4));
            locations += &format!(
                "    location = /one/{size} {{ set $piece \"{piece}\"; return 200 \"{pieces}\"; }}\n"
            );
        }
        std::fs::File::create(directory.join("bulk"))?.set_len(BULK)?;
        Self::start(directory, &format!("{locations}    location / {{ root .; }}\n"), "").await
    }

    /// Starts a reverse proxy with kept connections to another server.
    pub(super) async fn proxy(directory: &Path, to: SocketAddr) -> anyhow::Result<Self> {
        let upstream = format!("  upstream next {{ server {to}; keepalive 512; }}\n");
        let location = "    location / {\n      proxy_pass http://next;\n      proxy_http_version 1.1;\n      \
                        proxy_set_header Connection \"\";\n    }\n";
        Self::start(directory, location, &upstream).await
    }

    /// Returns a handle to a server that is stopped elsewhere.
    pub(super) fn at(address: SocketAddr) -> Self {
        Self { child: None, address }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(ChildProcess::pid)
    }

    async fn start(directory: &Path, locations: &str, upstream: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
        let port = free_port()?;
        let config = CONFIG
            .replace("PORT", &port.to_string())
            .replace("UPSTREAM", upstream)
            .replace("LOCATIONS", locations);
        write_file(directory, "nginx.conf", &config)?;
        let mut command = Command::new("nginx");
        // Debian installs nginx in /usr/sbin, which may not be in PATH.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin")).arg("-p").arg(directory);
        command.args(["-e", "stderr", "-c", "nginx.conf"]);
        let log = directory.join("nginx.log");
        let started = ChildProcess::start(command, &log, None, Duration::from_secs(5)).await;
        let (child, _) = started.context("the bench needs nginx (apt-get install nginx-light)")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let urls = vec![format!("http://{address}/one/200")];
        wait_until_ready(&TargetOptions { urls, ..TargetOptions::default() }.build()?).await?;
        Ok(Self { child: Some(child), address })
    }
}

const CONFIG: &str = "\
daemon off;
master_process off;
pid nginx.pid;
events { worker_connections 8192; }
http {
  access_log off;
  sendfile on;
  keepalive_requests 1000000000;
  client_body_temp_path tmp1; proxy_temp_path tmp2; fastcgi_temp_path tmp3; uwsgi_temp_path tmp4; scgi_temp_path tmp5;
UPSTREAM  server {
    listen 127.0.0.1:PORT backlog=4096;
LOCATIONS  }
}
";

/// Both ends of the tunnel.
#[derive(Debug)]
pub(super) struct Rathole {
    pub(super) server: ChildProcess,
    pub(super) client: ChildProcess,
    pub(super) address: SocketAddr,
}

impl Rathole {
    /// Starts both ends. Returns `None` if rathole is not installed.
    pub(super) async fn start(
        directory: &Path,
        control: u16,
        upstream: SocketAddr,
    ) -> anyhow::Result<Option<Self>> {
        if Command::new("rathole").arg("--version").output().await.is_err() {
            return Ok(None);
        }
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let server = format!(
            "[server]\nbind_addr = \"127.0.0.1:{control}\"\n\
             [server.services.bench]\ntoken = \"bench\"\nbind_addr = \"{address}\"\n"
        );
        let client = format!(
            "[client]\nremote_addr = \"127.0.0.1:{control}\"\n\
             [client.services.bench]\ntoken = \"bench\"\nlocal_addr = \"{upstream}\"\n"
        );
        let start = async |end: &'static str, config: &str| {
            let name = format!("{end}.toml");
            write_file(directory, &name, config)?;
            let mut command = Command::new("rathole");
            command.arg(format!("--{end}")).arg(directory.join(name));
            let log = directory.join(format!("{end}.log"));
            let (child, _) = ChildProcess::start(command, &log, None, Duration::from_secs(5)).await?;
            anyhow::Ok(child)
        };
        let (server, client) = (start("server", &server).await?, start("client", &client).await?);
        Ok(Some(Self { server, client, address }))
    }
}
