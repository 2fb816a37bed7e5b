//! A child process whose log is written to a file.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{self, Command},
    time::timeout,
};

/// The timeout for the stop of a program.
const STOP: Duration = Duration::from_secs(60);

/// A running program. Dropping it kills the process.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    child: process::Child,
    pid: u32,
}

/// Returns the path of a program of this workspace: in `directory`, or else in the directory of this program.
pub fn find(name: &str, directory: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match directory {
        Some(directory) => directory.join(name),
        None => std::env::current_exe()?.with_file_name(name),
    };
    ensure!(
        path.exists(),
        "{} is missing: build all programs alike, as `make build` and `make demo` do",
        path.display()
    );
    Ok(path)
}

impl ChildProcess {
    /// Starts a program whose standard error is written to `log`.
    ///
    /// With `until`, waits for the log line with that message, for at most `within`, and returns its fields.
    pub async fn start(
        mut command: Command,
        log: &Path,
        until: Option<&str>,
        within: Duration,
    ) -> anyhow::Result<(Self, Value)> {
        let program = Path::new(command.as_std().get_program());
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // In its own process group, so that Ctrl-C reaches only this program, which then stops its children in order.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let pid = child.id().context("it was just started")?;
        let mut lines = BufReader::new(child.stderr.take().context("standard error is piped")?).lines();
        let mut fields = Value::Null;
        if let Some(message) = until {
            let waiting = async {
                let mut last = String::new();
                while let Some(line) = lines.next_line().await? {
                    match serde_json::from_str::<Value>(&line) {
                        Ok(event) if event["message"] == message => return Ok(event),
                        _ => last = line,
                    }
                }
                bail!("{last}")
            };
            let waited = timeout(within, waiting).await;
            fields = waited
                .with_context(|| format!("{name} did not start in time"))?
                .with_context(|| format!("{name} did not start"))?;
        }
        let mut file = tokio::io::BufWriter::new(tokio::fs::File::create(log).await?);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let written = async {
                    file.write_all(line.as_bytes()).await?;
                    file.write_all(b"\n").await?;
                    file.flush().await
                };
                if written.await.is_err() {
                    return;
                }
            }
        });
        Ok((Self { name, child, pid }, fields))
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal, by its name: TERM, STOP, CONT.
    pub async fn signal(&mut self, signal: &str) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} had stopped by itself ({status}); its log says why", self.name);
        }
        // tokio can send SIGKILL only.
        Command::new("kill").arg(format!("-{signal}")).arg(self.pid.to_string()).status().await?;
        Ok(())
    }

    /// Sends SIGTERM and waits until the process has exited. An exit code other than 0 is an error.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.signal("TERM").await?;
        let name = &self.name;
        let stopped = timeout(STOP, self.child.wait()).await;
        let status = stopped.with_context(|| format!("{name} did not stop within {STOP:?}"))??;
        ensure!(status.success(), "{name} stopped with {status}");
        Ok(())
    }

    /// Sends SIGKILL.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}
