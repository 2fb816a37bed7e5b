//! Child processes whose logs are written to files, and the CPU time, memory and file descriptors of a process.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
pub use testing::process::{Signal, send_signal};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// The timeout for the stop of a program.
const STOP: Duration = Duration::from_secs(60);

/// A running program. Dropping it kills the process.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    child: Child,
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
        let mut child = command
            .spawn()
            .with_context(|| format!("{} cannot be started", command.as_std().get_program().display()))?;
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

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} had stopped by itself ({status}); its log says why", self.name);
        }
        // tokio can send SIGKILL only.
        send_signal(self.pid, signal).with_context(|| format!("{} gets no signal", self.name))
    }

    /// Sends SIGTERM and waits until the process has exited. An exit code other than 0 is an error.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
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

/// Returns the CPU time of the running threads of a process.
///
/// `/proc/PID/stat` also counts threads that have ended, but only in hundredths of a second.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid}"))?;
    let mut sum = 0;
    for thread in threads.flatten() {
        // The file is missing if the thread has ended meanwhile.
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        sum += text.split_whitespace().next().and_then(|used| used.parse::<u64>().ok()).unwrap_or_default();
    }
    Ok(Duration::from_nanos(sum))
}

/// Returns the CPU time of all threads of a process, in hundredths of a second, also of those that have ended.
pub fn cpu_of_all_threads(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
    // The name of the program may have spaces. After it, `utime` and `stime` are the 12th and 13th fields (proc(5)).
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11);
    let ticks: u64 = fields.take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// Returns the resident memory of a process in KiB.
pub fn resident(pid: u32) -> anyhow::Result<u64> {
    memory(pid, "VmRSS:")
}

fn memory(pid: u32, field: &str) -> anyhow::Result<u64> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next()).and_then(|text| text.parse().ok());
    number.with_context(|| format!("process {pid} has no memory any more"))
}

/// Returns the most resident memory that a process has had, in KiB.
pub fn peak(pid: u32) -> anyhow::Result<u64> {
    memory(pid, "VmHWM:")
}

/// Returns the number of open file descriptors of a process.
pub fn descriptors(pid: u32) -> anyhow::Result<u64> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| format!("process {pid}"))?;
    Ok(open.count() as u64)
}

/// Returns the load average of the last minute, or NaN if it is unknown.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_this_process_is_positive() {
        let pid = std::process::id();
        assert!(cpu(pid).unwrap() > Duration::ZERO);
        assert!(resident(pid).unwrap() > 100);
        assert!(peak(pid).unwrap() >= resident(pid).unwrap() / 2);
        assert!(descriptors(pid).unwrap() > 2);
        assert!(cpu(0).is_err());
    }

    async fn start(program: &str, argument: &str) -> anyhow::Result<ChildProcess> {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.arg(argument);
        Ok(ChildProcess::start(command, &directory.path().join("log"), None, STOP).await?.0)
    }

    #[tokio::test]
    async fn error_of_a_start_names_the_program() {
        let error = start("/nowhere/agentk", "").await.unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "/nowhere/agentk cannot be started: No such file or directory (os error 2)"
        );
    }

    #[tokio::test]
    async fn signal_reaches_the_process_until_it_has_ended() {
        use std::os::unix::process::ExitStatusExt as _;

        let mut process = start("sleep", "60").await.unwrap();
        process.signal(Signal::INT).unwrap();
        assert_eq!(process.child.wait().await.unwrap().signal(), Some(2));
        assert!(
            process.signal(Signal::INT).unwrap_err().to_string().starts_with("sleep had stopped by itself")
        );
    }
}
