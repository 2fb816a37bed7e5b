//! Runs a child process with limits of time and output, and kills it together with its own children.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
    time::timeout,
};

/// The process groups of all running children. They receive no signals of a terminal, so that this process has to kill them
/// before it exits.
static RUNNING: Mutex<ProcessGroups> = Mutex::new(ProcessGroups { leaders: Vec::new(), exiting: false });

struct ProcessGroups {
    leaders: Vec<Pid>,
    /// True if this process is about to exit: a new group is killed at once.
    exiting: bool,
}

/// A child that leads a process group. Dropping it before its end kills the whole group.
struct GroupLeader {
    child: Child,
    pid: Option<Pid>,
}

/// The exit status and the outputs of a child.
#[derive(Debug)]
pub struct ChildOutput {
    /// The exit status.
    pub status: ExitStatus,
    /// All of standard output.
    pub stdout: Vec<u8>,
    /// All of standard error.
    pub stderr: Vec<u8>,
}

/// The reason why a child has no output. The messages continue a sentence that begins with the program.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program does not exist, or cannot be executed.
    #[error("cannot be started: {0}")]
    Start(io::Error),
    /// The outputs cannot be read.
    #[error("lost: {0}")]
    Lost(#[from] io::Error),
    /// It took too long.
    #[error("did not finish within {0:?}")]
    Timeout(Duration),
    /// One of its outputs is longer than allowed, in bytes.
    #[error("printed more than {} MiB", .0 >> 20)]
    TooLong(u64),
}

/// Runs a command until it ends and its outputs are closed. After `time`, or beyond `max_output` bytes in one of its outputs, the
/// command is killed with all of its children.
///
/// # Errors
///
/// The command cannot be started, takes too long, or prints too much. Its exit status is no error here.
///
/// # Cancellation safety
///
/// Dropping the future kills the command with all of its children.
pub async fn run(command: &mut Command, time: Duration, max_output: u64) -> Result<ChildOutput, RunError> {
    let mut leader = GroupLeader::spawn(command).map_err(RunError::Start)?;
    let (stdout, stderr) = (leader.child.stdout.take(), leader.child.stderr.take());
    let running = async {
        let (stdout, stderr) = tokio::try_join!(read(stdout, max_output), read(stderr, max_output))?;
        // Last, since the operating system may reuse the process id after this.
        let status = leader.child.wait().await?;
        Ok(ChildOutput { status, stdout, stderr })
    };

    timeout(time, running).await.unwrap_or(Err(RunError::Timeout(time)))
}

/// Kills the process groups of all children, also of those that are started later.
pub fn kill_all() {
    let mut groups = RUNNING.lock();
    groups.exiting = true;
    groups.leaders.iter().copied().for_each(kill);
}

impl GroupLeader {
    fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let mut groups = RUNNING.lock();
            groups.leaders.push(pid);
            if groups.exiting {
                kill(pid);
            }
        }

        Ok(Self { child, pid })
    }
}

impl Drop for GroupLeader {
    fn drop(&mut self) {
        let Some(pid) = self.pid else { return };
        let mut groups = RUNNING.lock();
        groups.leaders.retain(|other| *other != pid);
        // The child has an id until its exit status is read.
        if self.child.id().is_some() {
            kill(pid);
        }
    }
}

fn kill(leader: Pid) {
    if let Err(error) = kill_process_group(leader, Signal::KILL) {
        tracing::debug!(%error, "cannot kill a process group");
    }
}

async fn read(output: Option<impl AsyncRead + Unpin>, max: u64) -> Result<Vec<u8>, RunError> {
    let mut bytes = Vec::new();
    if let Some(output) = output {
        output.take(max.saturating_add(1)).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > max { Err(RunError::TooLong(max)) } else { Ok(bytes) }
}
