//! rathole, a reverse tunnel of bytes without HTTP.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::Context as _;
use tokio::process::Command;

use loadtest::stack::{child::ChildProcess, free_port, write_file};

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
